"""Turns a run file into one row of plain data with everything that the 2019 study's figures and findings need.

A value that is missing is None, never zero; if there is a reason, it is in a field next to it (`..._why`). Shares
are between 0 and 1, power is in W, energy in J, memory in bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from handheld.analyse.rails import Series, rails
from handheld.analyse.run import Run
from handheld.bench.row import rail_row
from handheld.device import is_gpu
from handheld.graph.graph import PHASES
from handheld.studies import predictability
from handheld.units import count

INTERVAL_S = 0.05  # A core is idle in such an interval if its busy time does not rise.
LEAST_INTERVALS = 10
MOMENTS = 90  # Points of the three steps that are drawn.
CORE_TICK_S = 0.01  # Resolution of /proc/stat.
CORES_S = 0.25  # Shortest window for the load of cores: 25 ticks of a busy core.
POWER_TICKS = 5  # Fewest sensor readings for a mean power or an energy.
VARIES = 0.01  # A load that stays within this share counts as constant.
NO_POWER = "there is no power sensor here"
#: Sources that measure power or energy on some machines. The reason why one is missing is reported.
POWER_SOURCES = ("jetson-power", "nvidia-power", "rapl", "pixel-rails", "raspberry-pi", "amd-gpu", "battery", "hwmon")

Row = dict[str, Any]


def observe(run: Run, workload: str | None = None, domain: str = "") -> Row:
    """Everything about a run. If a step runs several graphs (a GAN's two updates), it counts as one round of them."""
    settings = run.meta.get("settings") or {}
    caps = run.meta.get("caps") or {}
    summary_batch = next((s.batch for s in run.steps()), None)
    batch = settings.get("batch") or summary_batch
    step_ms, use, times = _step_ms(run), run.utilisation(), run.variance().times
    others = run.others()
    power, why = _power(run)
    return {
        "workload": workload or settings.get("what"),
        "domain": domain,
        "batch": batch,
        "status": "measured" if step_ms else "failed",
        "why": "" if step_ms else "too few steps were timed",
        "device": run.meta.get("device"),
        "device_name": caps.get("name"),
        "gpu": _is_gpu(run),
        "steps": len(run.steps()),
        "recorded": len(run.timed),
        "step_ms": step_ms,
        "spread": times.cv if times else None,
        "samples_s": batch / step_ms * 1e3 if step_ms and batch else None,
        "device_busy": use.device_busy,
        "device_load": _load(run),
        "cores": _cores(run),
        "others_cores": others.cores if others else None,
        "others_top": others.top if others else None,
        "power": power,
        "power_why": why,
        "memory": _memory(run),
        "against": _against(run),
        "three_steps": _three_steps(run),
        "prediction": _prediction(run),
    }


def _is_gpu(run: Run) -> bool:
    caps = run.meta.get("caps") or {}
    return is_gpu(str(run.meta.get("device", "")), caps.get("kind"))


def _step_ms(run: Run) -> float | None:
    """Milliseconds for one round of the graphs; from recorded steps if there are too few others."""
    times = [ms for ms, _ in map(run.step_ms, run.graphs) if ms is not None]
    return sum(times) if times and len(times) == len(run.graphs) else None


def _load(run: Run) -> Row | None:
    """The device's load from its own sensor, or None."""
    begin, end = run.warm()
    for channel in run.channels:
        values = channel.within(begin, end)
        if channel.quantity == "utilisation" and channel.covers == ("gpu",) and len(values):
            return {"sensor": channel.rail, "share": float(values.mean()) / 100, "n": len(values)}
    return None


# ── cores ─────────────────────────────────────────────────────────────────────────────────────


def _core_channels(run: Run) -> list[Series]:
    return [s for s in run.channels if s.source == "cpu" and s.quantity == "time" and s.counter]


def _cores(run: Run) -> list[Row]:
    """One row per core: its kind (if the machine reports it), its busy share, and the share of intervals in which it
    did nothing."""
    kinds = (run.meta.get("machine") or {}).get("core_kinds") or {}
    begin, end = run.warm()
    rows = []
    for channel in _core_channels(run):
        name = channel.name.partition(" ")[0]
        edges = np.arange(begin, end, round(INTERVAL_S * 1e9))
        if len(edges) <= LEAST_INTERVALS or channel.t_ns[0] > begin or channel.t_ns[-1] < edges[-1]:
            rows.append({"core": name, "kind": kinds.get(name), "busy": None, "idle": None})
            continue
        rises = np.diff(np.interp(edges, channel.t_ns, channel.values))
        rows.append(
            {
                "core": name,
                "kind": kinds.get(name),
                "busy": float(min(rises.sum() * 1e9 / (edges[-1] - edges[0]), 1.0)),
                "idle": float((rises < CORE_TICK_S / 100).mean()),
            }
        )
    return rows


def _against(run: Run) -> Row:
    """Whether the loads of device and cores move against each other over time: their correlation."""
    cores = _core_channels(run)
    if not cores:
        return {"r": None, "why": "the cores' load is not measured"}
    edges, device = _device_over_time(run)
    if len(device) < LEAST_INTERVALS:
        return {
            "r": None,
            "why": "too few readings of the device's load"
            if len(device)
            else "there is no sensor of the device's load, and steps are too short for the cores' clock of 10 ms",
        }
    load = np.mean([np.diff(np.interp(edges, s.t_ns, s.values)) for s in cores], axis=0)
    load = load / np.diff(edges) * 1e9
    if min(float(device.std()), float(load.std())) < VARIES:
        which = "device's" if device.std() < load.std() else "cores'"
        return {"r": None, "why": f"the {which} load stayed constant"}
    return {"r": float(np.corrcoef(device, load)[0, 1]), "n": len(device), "why": ""}


def _device_over_time(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Edges in ns, and the device's load between them: from its sensor, else from recorded steps that are long enough
    for the cores' clock."""
    begin, end = run.warm()
    for channel in run.channels:
        if channel.quantity == "utilisation" and channel.covers == ("gpu",):
            at = channel.t_ns[(channel.t_ns >= begin) & (channel.t_ns <= end)]
            return at.astype(np.float64), channel.within(begin, end)[1:] / 100
    least = 5 * CORE_TICK_S * 1e9
    for period in run.periods[::-1]:
        count = int(period.length / least)
        if count >= LEAST_INTERVALS:
            steps = [s for s in run.timed if s.step in (period.step, period.step + 1)]
            edges = np.linspace(period.begin, period.end, count + 1)
            return edges, predictability.busy(steps, edges)
    return np.zeros(0), np.zeros(0)


# ── power, memory ─────────────────────────────────────────────────────────────────────────────


def _power(run: Run) -> tuple[list[Row], str]:
    """One row per rail, or why there is none."""
    rows: list[Row] = [{**rail_row(row)} for row in run.energy() if not row.estimate]
    if any(row["ticks"] >= POWER_TICKS for row in rows):
        return [row for row in rows if row["ticks"] >= POWER_TICKS], ""
    if rows:
        most = count(max(row["ticks"] for row in rows), "time")
        return [], f"the run was too short for the sensor: its values changed {most}"
    return [], NO_POWER


def absent_power(run: Run) -> dict[str, str]:
    """For each power sensor that is missing, the reason."""
    absent = run.meta.get("sensors_absent") or {}
    return {name: absent[name] for name in POWER_SOURCES if name in absent}


def main_rail(rows: list[Row], gpu: bool) -> Row | None:
    """The rail that stands for all energy: the system's, else the device's own, else the first that is not part of
    another."""

    def first(*covers: str) -> Row | None:
        return next((r for r in rows if set(covers) <= set(r["covers"]) and not r["part_of"]), None)

    whole = next((r for r in rows if not r["part_of"]), None)
    return first("system") or (first("gpu") if gpu else first("cpu")) or whole


def _memory(run: Run) -> Row | None:
    """Bytes by category: at the peak, where they add up, and the maximum of each over all ops."""
    best: Row | None = None
    for graph in run.graphs:
        rows = run.memory(graph)
        if not rows:
            continue
        names = sorted({name for row in rows for name in row.live})
        peak = max(rows, key=lambda row: row.bytes)
        memory = {
            "peak_bytes": peak.bytes,
            "at_peak": {name: peak.live[name] for name in names if peak.live.get(name)},
            "most": {name: max(row.live.get(name, 0) for row in rows) for name in names},
        }
        if best is None or memory["peak_bytes"] > best["peak_bytes"]:
            best = memory
    if best is not None:
        best["allocated_bytes"] = run.meta.get("allocated_bytes")
    return best


# ── three steps, and how well they can be predicted ───────────────────────────────────────────


def _three_steps(run: Run) -> Row | None:
    """Three consecutive recorded steps: the device's load per phase, the load of each core, and the power of each rail
    over time in ms. Sensors that are too slow for this are left out, with the reason."""
    window = next(
        (w for w in sorted({s.window for s in run.timed}, reverse=True) if sum(s.window == w for s in run.timed) > 3),
        None,
    )
    if window is None:
        return None
    steps = [s for s in run.timed if s.window == window][1:4]
    begin = int(steps[0].commands["started"][0])
    end = max(int(s.commands["ended"].max()) for s in steps)
    edges = np.linspace(begin, end, MOMENTS + 1)
    phase_of = {row.id: row.phase for row in run.op_rows}
    names = [f"step {n}" for n in (1, 2, 3)] if len(run.graphs) == 1 else [timed.graph for timed in steps]
    row: Row = {
        "ms": (end - begin) * 1e-6,
        "names": names,
        "phases": {},
        "cores": {},
        "power": {},
        "why": [],
        "begins_ms": [(int(s.commands["started"][0]) - begin) * 1e-6 for s in steps],
    }
    for phase in PHASES:
        started, ended = _of_phase(steps, phase_of, phase)
        row["phases"][phase] = _rounded(predictability.share(started, ended, edges))
    _slow_sensors(run, row, begin, end)
    return row


def _of_phase(steps: list[Any], phase_of: dict[int, str], phase: str) -> tuple[np.ndarray, np.ndarray]:
    started, ended = [], []
    for timed in steps:
        pick = np.array([phase_of.get(op) == phase for op in timed.commands["op"].tolist()], bool)
        started.append(timed.commands["started"][pick])
        ended.append(timed.commands["ended"][pick])
    return np.concatenate(started), np.concatenate(ended)


def _slow_sensors(run: Run, row: Row, begin: int, end: int) -> None:
    span_s = (end - begin) * 1e-9
    count = min(int(span_s / (2 * CORE_TICK_S)), MOMENTS)
    cores = _core_channels(run)
    if cores and count >= LEAST_INTERVALS:
        edges = np.linspace(begin, end, count + 1)
        for channel in cores:
            rate = np.diff(np.interp(edges, channel.t_ns, channel.values)) / np.diff(edges) * 1e9
            row["cores"][channel.name.partition(" ")[0]] = _rounded(np.clip(rate, 0, 1))
    elif cores:
        row["why"].append(
            f"cores: three steps take {span_s * 1e3:.3g} ms, but the busy time "
            f"is counted in units of {CORE_TICK_S * 1e3:.0f} ms"
        )
    for rail in rails(run.channels):
        tick = predictability.tick_s(rail)
        count = min(int(span_s / tick), MOMENTS)
        at = np.linspace(begin, end, count + 1).astype(np.int64).tolist() if count >= 4 else []
        watts = [predictability.means(rail, a, b) for a, b in itertools.pairwise(at)]
        if watts and None not in watts:
            row["power"][rail.rail] = _rounded(np.array(watts, np.float64))
        else:
            row["why"].append(
                f"{rail.rail}: three steps take {span_s * 1e3:.3g} ms, but its value changes every {tick * 1e3:.3g} ms"
            )


def _prediction(run: Run) -> Row:
    """Prediction errors on held-out steps (predictability.py)."""
    first = run.variance().warm_up
    warm = [timed for timed in run.timed if timed.step >= first]
    row: Row = {
        "ops": predictability.ops(warm, run.graph) or predictability.ops(run.timed, run.graph),
        "within": predictability.within(run, run.graph),
        "cores": _cores_foretold(run),
        "power": None,
        "power_within": None,
    }
    powered = {channel.rail: channel for channel in rails(run.channels)}
    main = main_rail(_power(run)[0], _is_gpu(run))
    if main is not None:
        rail = powered[main["rail"]]
        row.update(
            power=predictability.blocks(run, rail), power_within=predictability.over_step(run, rail), rail=rail.rail
        )
    return row


def _cores_foretold(run: Run) -> Row | None:
    """The load of all cores together, predicted in the same way as power."""
    cores = _core_channels(run)
    if not cores or any(len(core.t_ns) != len(cores[0].t_ns) for core in cores):
        return None
    total = dataclasses.replace(cores[0], name="all cores", values=np.sum([core.values for core in cores], axis=0))
    return predictability.blocks(run, total, CORES_S)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(v), 4) for v in values]
