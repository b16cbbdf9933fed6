"""An artificial run with clear advice: its step is nothing but launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handheld.analyse.run import Run
from handheld.store.commands import LAUNCH
from helpers.run_files import MadeRun

LAUNCHES = 12
CEILINGS: dict[str, Any] = {
    "flops": 1e11,
    "bytes_s": 1e10,
    "memory": [[1 << 14, 1e10], [1 << 26, 1e10]],
    "launch_device_s": 1e-5,
    **{f"to_{where}_bytes_s": 1e10 for where in ("device", "host")},
    **{f"to_{where}_latency_s": 1e-5 for where in ("device", "host")},
}


def launch_bound(path: Path, *, named: bool = True, slower: float = 1.0) -> Run:
    """`named`: the run says which model it measured. `slower` is a factor on recorded steps."""
    named_by = {"model": "lenet5", "repeat": {"model": "lenet5"}} if named else {}
    made = MadeRun(
        path,
        ops=[{"op": "map", "flops": 100, "bytes": 1000, "path": f"net.{i}"} for i in range(LAUNCHES)],
        caps={"name": "made up", "kind": "cpu", "global_mem_bytes": 1 << 30},
        ceilings=CEILINGS,
        settings={"batch": 8, **named_by},
        plan_options={"precision": "float32"},
    )
    commands = [(LAUNCH, i, 0.012) for i in range(LAUNCHES)]
    made.steps(60, commands=commands, slower=lambda i: slower if i % 10 < 4 else 1.0)
    return made.open()
