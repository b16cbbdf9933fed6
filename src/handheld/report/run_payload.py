"""What the page of a run shows, as data. A pure function of the run file."""

from __future__ import annotations

from collections.abc import Sequence

import handheld
from handheld.analyse.run import Run
from handheld.report.pack import columns, rounded
from handheld.units import count

NO_STEPS = "the run has no complete window of recorded steps. Try: more --steps"


def run_payload(run: Run) -> dict[str, object]:
    """The payload of `document`: everything that the page of this run shows."""
    return {
        "kind": "run",
        "title": title(run),
        "facts": facts(run),
        "made": f"Made by Handheld {handheld.__version__} from {run.path.name}.",
        "warning": others.warning if (others := run.others()) else "",
        "graphs": graphs(run),
        "ops": ops(run),
    }


def title(run: Run) -> str:
    what = (run.meta.get("settings") or {}).get("what") or run.path.stem
    return f"{what}: one training step"


def facts(run: Run) -> list[tuple[str, str]]:
    """The first facts of the page: names and values."""
    summary = run.summary()
    step = f"{summary.step_ms:.4g} ms" if summary.step_ms is not None else "not known"
    rows = [
        ("time per step", step),
        ("batch", str(summary.batch) if summary.batch else ""),
        ("device", f"{summary.device} ({summary.name})" if summary.name else str(summary.device or "not known")),
        ("precision", summary.precision or ""),
        ("steps", f"{count(summary.steps, 'step')}, {summary.recorded} with op times"),
        ("ended", "" if summary.status == "complete" else summary.status),
    ]
    return [(name, value) for name, value in rows if value]


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
                "no_parts": "" if parts else NO_STEPS,
            }
        )
    return rows


_NUMBERS = (
    "id",
    "position",
    "launches",
    "flops",
    "bytes",
    "ms",
    "share",
    "p5_ms",
    "p95_ms",
    "cv",
    "gflops",
    "gbytes_s",
)
_TEXTS = ("graph", "op", "source", "phase", "path", "variant")


def ops(run: Run) -> dict[str, object]:
    """The table of ops, as columns."""
    rows: Sequence[object] = run.ops()
    return columns({name: [getattr(row, name) for row in rows] for name in (*_NUMBERS, *_TEXTS)}, _TEXTS)
