"""Planned memory beside what was allocated, and what the process and the device report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from handheld.analyse.rails import Series
    from handheld.analyse.run import Run

Row = dict[str, Any]

#: sources whose memory is a device's own
DEVICE_MEMORY = ("nvidia", "amd-gpu")


def memory_summary(run: Run) -> Row:
    """Bytes; None for what is not known. `explained` is what the process grew by, in parts that add
    up: each says what it is."""
    planned = run.meta.get(f"memory.{run.graph}", {})
    allocated = run.meta.get("allocated_bytes")
    plan = run.meta.get("plan_bytes")
    peak = planned.get("peak_bytes")
    both = allocated is not None and peak is not None
    found: Row = {
        "peak_bytes": peak,
        "peak_op": planned.get("peak_op"),
        "owners": planned.get("owners", []),
        "plan_bytes": plan,
        "allocated_bytes": allocated,
        "not_alive_bytes": allocated - peak if both else None,
        "device_growth_bytes": None,
        "process_growth_bytes": None,
        "explained": [],
    }
    started = run.meta.get("started_ns")
    resident = [s for s in run.channels if (s.source, s.name) == ("process", "resident")]
    if resident and started and run._steps:
        _process(found, run, resident[0], started)
    used = [s for s in run.channels if s.quantity == "memory" and "used" in s.name and s.source in DEVICE_MEMORY]
    if used and started and used[0].t_ns[0] < started:
        found["device_growth_bytes"] = float(used[0].values.max() - used[0].values[0])
    return found


def _process(found: Row, run: Run, resident: Series, started: int) -> None:
    begin, end = run.span()
    during = resident.within(begin, end)
    if not len(during):
        return
    most = float(during.max())
    before = float(resident.values[0]) if resident.t_ns[0] < started else None
    then = float(np.interp(started, resident.t_ns, resident.values))
    found["process_bytes"] = most
    if before is None:
        return  # sampling began when the plan was running already
    found["process_growth_bytes"] = most - before
    caps = run.meta.get("caps") or {}
    buffers = found["allocated_bytes"] if caps.get("unified_memory") else None
    rest = then - before
    if buffers:
        rest -= buffers
        found["explained"].append({"what": "buffers of the plan, which are in the process here", "bytes": buffers})
    found["explained"] += [
        {
            "what": "starting: programs built, the driver, copies of values on the host; less what "
            "was free in the process already",
            "bytes": rest,
        },
        {"what": "while steps ran: first launches, batches, times and samples kept", "bytes": most - then},
    ]
