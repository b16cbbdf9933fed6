"""The main figures of a run file. A figure that was not measured is None, never zero."""

from __future__ import annotations

import math

from handheld.analyse.energy import RailEnergy
from handheld.analyse.run import ENOUGH, FEW, Run
from handheld.bench.eager import arithmetic, is_eager
from handheld.bench.shapes import Measured, RailRow
from handheld.device import canonical, is_gpu

TICKS = 5  # With fewer readings of a sensor, its joules are noise.


def measured(run: Run, batch: int, device: str) -> Measured:
    """Speed, memory and energy of a run, and whether the loss became NaN."""
    # Recording makes PyTorch's own steps longer, so a single step without recording is better than many with it.
    waits = is_eager(device) or canonical(device).startswith("reference")  # Its host does not run ahead.
    times = [_step_ms(run, graph, 1 if waits else ENOUGH) for graph in run.graphs]
    known = [ms for ms, _ in times if ms is not None]
    step_ms = sum(known) if times and len(known) == len(times) else None
    memory, use, loss = run.memory_summary(), run.utilisation(), run.meta.get("loss")
    times_of_steps, others = run.variance().times, run.others()
    spread = times_of_steps if times_of_steps and times_of_steps.n >= FEW else None
    return {
        "arithmetic": str(run.meta.get("arithmetic") or arithmetic(device)),
        "steps": sum(step.graph == run.graph for step in run.steps()),
        "step_ms": step_ms,
        "timed_by": times[0][1] if times else None,
        "step_p5_ms": spread.p5 if spread else None,
        "step_p95_ms": spread.p95 if spread else None,
        "samples_s": batch / step_ms * 1e3 if step_ms else None,
        "loss": loss if loss is not None and math.isfinite(loss) else None,
        "finite": loss is not None and math.isfinite(loss),
        "peak_bytes": memory.peak_bytes,
        "allocated_bytes": memory.allocated_bytes,
        "device_busy": use.device_busy,
        "gflops": use.gflops,
        "others_cores": others.cores if others else None,
        "others_top": others.top if others else None,
        **_energy(run, batch, device),
        "findings": sorted({finding.kind for finding in run.findings()}),
    }


def _step_ms(run: Run, graph: str, few: int) -> tuple[float | None, str]:
    """The time of a step; None if there are too few steps and none was recorded."""
    ms, by = run.step_ms(graph, few)
    seen = run.variance(graph).times
    return (None, "") if by == "steps" and (seen is None or seen.n < few) else (ms, by)


def rail_row(row: RailEnergy) -> RailRow:
    return {
        "rail": row.rail,
        "covers": list(row.covers),
        "part_of": row.part_of,
        "watts": row.watts,
        "idle_watts": row.idle_watts,
        "joules_step": row.joules_step,
        "ticks": row.ticks,
    }


def _rails(run: Run) -> list[RailEnergy]:
    return [row for row in run.energy() if row.ticks >= TICKS and not row.estimate]


def main_rail(run: Run, device: str) -> RailEnergy | None:
    """The one rail whose joules stand for a run: of the whole system, else of the processor that ran. Rails overlap, so
    they are never added."""
    kind = (run.meta.get("caps") or {}).get("kind")
    for part in ("system", "gpu" if is_gpu(device, kind) else "cpu", "soc"):
        for row in _rails(run):
            if part in row.covers and not row.part_of and row.joules_step:
                return row
    return None


def _energy(run: Run, batch: int, device: str) -> Measured:
    """Every rail, and joules per sample from the main one."""
    energy: Measured = {"joules_sample": None, "rail": None, "watts": None, "energy": list(map(rail_row, _rails(run)))}
    row = main_rail(run, device)
    if row is None or row.joules_step is None:
        return energy
    return {**energy, "joules_sample": row.joules_step / batch, "rail": row.rail, "watts": row.watts}
