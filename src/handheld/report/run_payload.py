"""What the page of a run shows, as data. A pure function of the run file.

run_traces.py has the parts that lie on the axis of time, run_energy.py those about energy, run_advice.py the advice.
"""

from __future__ import annotations

import handheld
from handheld.analyse.busy import disturbed
from handheld.analyse.run import Run
from handheld.report import run_advice, run_conditions, run_energy, run_traces
from handheld.report.pack import columns, rounded
from handheld.units import count

NO_PARTS = "no window of recorded steps is complete. Try: more --steps"
NO_CEILINGS = "The ceilings of this device were not measured. Try: handheld doctor --ceilings{}, then profile again."


def run_payload(run: Run) -> dict[str, object]:
    """The payload of `document`: everything that the page of this run shows."""
    return {
        "kind": "run",
        "title": title(run),
        "facts": facts(run),
        "made": f"Made by Handheld {handheld.__version__} from {run.path.name}.",
        "warning": others.warning if (others := run.others()) else "",
        "answer": answer(run),
        "graphs": graphs(run),
        "ops": ops(run),
        "no_ops": no_ops(run),
        "step_times": run_traces.step_times(run),
        "steps": run_traces.all_steps(run),
        "recorded": run_traces.recorded(run),
        "sensors": run_traces.sensors(run),
        "cores": run_traces.cores(run),
        "memory": memory(run),
        "ceilings": ceilings(run),
        "energy": run_energy.energy(run),
        "conditions": run_conditions.conditions(run),
    }


def title(run: Run) -> str:
    settings = run.meta.get("settings") or {}
    return str(settings.get("what") or run.path.stem)


def facts(run: Run) -> list[tuple[str, str]]:
    """The first facts of the page: names and values."""
    summary = run.summary()
    size = (run.meta.get("settings") or {}).get("size")
    rows = [
        ("device", f"{summary.name} ({summary.device})" if summary.name else str(summary.device or "not known")),
        ("size", str(size or "")),
        ("batch", str(summary.batch) if summary.batch else ""),
        ("precision", summary.precision or ""),
        ("steps", f"{count(summary.steps, 'step')}, {summary.recorded} with op times"),
        ("ended", "" if summary.status == "complete" else summary.status),
    ]
    return [(name, value) for name, value in rows if value]


def answer(run: Run) -> dict[str, object]:
    """The figures of the step in a few words, and what was found."""
    step_ms, origin = run.step_ms()
    batch = next((s.batch for s in run.steps()), None)
    summary, use = run.memory_summary(), run.utilisation()
    rail = next((row for row in run.energy() if row.joules_step is not None and not row.part_of), None)
    times = run.variance().times
    return {
        "step_ms": rounded(step_ms),
        "step_from": origin,
        "p5": rounded(times.p5) if times else None,
        "p95": rounded(times.p95) if times else None,
        "samples_s": rounded(batch / step_ms * 1e3) if batch and step_ms else None,
        "joules_step": rounded(rail.joules_step) if rail else None,
        "rail": rail.rail if rail else "",
        "estimate": bool(rail and rail.estimate),
        "peak_bytes": summary.peak_bytes,
        "allocated_bytes": summary.allocated_bytes,
        "device_busy": rounded(use.device_busy),
        "gflops": rounded(use.gflops),
        "flops_share": rounded(use.flops_share),
        "gbytes_s": rounded(use.gbytes_s),
        "bandwidth_share": rounded(use.bandwidth_share),
        "ceilings_low": disturbed((run.meta.get("ceilings") or {}).get("others")),
        "bounds": bounds(run),
        "advice": run_advice.advice(run),
        "findings": [
            {"kind": one.kind, "text": one.text, "steps": len(one.steps), "ops": list(one.ops)}
            for one in run.findings()
        ],
    }


def bounds(run: Run) -> list[dict[str, object]]:
    """Per graph: what limits its step, in a sentence, and the share of the step per limit."""
    rows: list[dict[str, object]] = []
    for name in run.graphs:
        known = run.bound(name)
        shares = {limit: rounded(share) for limit, share in known.shares.items()}
        rows.append({"name": name, "limit": known.limit, "text": known.text, "shares": shares})
    return rows


def graphs(run: Run) -> list[dict[str, object]]:
    """Per graph that was run: the parts of its step."""
    rows: list[dict[str, object]] = []
    for name in run.graphs:
        parts = run.parts(name)
        rows.append(
            {
                "name": name,
                "ms": rounded(run.step_ms(name)[0]),
                "parts": parts and {part: rounded(ms) for part, ms in parts.by_name().items()},
                "parts_ms": parts and rounded(parts.ms),
                "parts_steps": parts and parts.steps,
                "timed_steps": sum(step.graph == name for step in run.timed),
                "no_parts": "" if parts else no_ops(run) or NO_PARTS,
            }
        )
    return rows


def no_ops(run: Run) -> str:
    """Why there are no op times, or "" if there are some."""
    if run.timed:
        return ""
    notes = [note.text for note in run.notes() if note.kind in ("no op times", "clock")]
    return notes[0] if notes else "no step of this run was recorded. Try: more --steps"


_NUMBERS = ("id", "position", "launches", "flops", "bytes", "cv")
_TEXTS = ("graph", "op", "source", "phase", "path", "variant")


def ops(run: Run) -> dict[str, object]:
    """The table of ops, as columns. `ms` is the mean over the recorded steps and `share` that of the whole step, as in
    the parts of the step and in the terminal."""
    rows = run.ops()
    steps = {name: parts.ms for name in run.graphs if (parts := run.parts(name))}
    values: dict[str, list[object]] = {name: [getattr(row, name) for row in rows] for name in (*_NUMBERS, *_TEXTS)}
    values["ms"] = [row.mean_ms for row in rows]
    values["share"] = [
        row.mean_ms / steps[row.graph] if row.mean_ms is not None and row.graph in steps else None for row in rows
    ]
    return columns(values, _TEXTS)


def memory(run: Run) -> dict[str, object]:
    """Bytes alive at each op by category, the peak and its owners, and how this compares with what was allocated."""
    rows, summary = run.memory(), run.memory_summary()
    categories: dict[str, int] = {}
    for row in rows:
        for name, nbytes in row.live.items():
            categories[name] = max(categories.get(name, 0), nbytes)
    names = sorted(categories, key=lambda name: -categories[name])
    return {
        "why": "" if rows else _no_memory(run),
        "op": [row.id for row in rows],
        "categories": names,
        "live": [[row.live.get(name, 0) for row in rows] for name in names],
        "peak_op": summary.peak_op,
        "peak_bytes": summary.peak_bytes,
        "owners": [[owner.name, owner.category, owner.bytes] for owner in summary.owners],
        "plan_bytes": summary.plan_bytes,
        "allocated_bytes": summary.allocated_bytes,
        "not_alive_bytes": summary.not_alive_bytes,
        "device_growth_bytes": summary.device_growth_bytes,
        "process_growth_bytes": summary.process_growth_bytes,
        "explained": [[part.what, rounded(part.bytes)] for part in summary.explained],
    }


def _no_memory(run: Run) -> str:
    if (run.meta.get("settings") or {}).get("watch"):
        return "PyTorch runs this model itself, and its memory per op is not known to Handheld."
    return "This run has no plan of its memory: PyTorch manages it, or an older version wrote the file."


def ceilings(run: Run) -> dict[str, object]:
    """The peak rates of the device, for the roofline."""
    known = run.meta.get("ceilings") or {}
    if not known.get("flops") or not known.get("bytes_s"):
        return {"why": NO_CEILINGS.format(run.on_option)}
    return {
        "flops": rounded(known["flops"]),
        "bytes_s": rounded(known["bytes_s"]),
        "low": disturbed(known.get("others")),
    }
