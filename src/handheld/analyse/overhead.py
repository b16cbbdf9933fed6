"""What measuring has cost the run that was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handheld.analyse.run import Run

Row = dict[str, Any]


def overhead(run: Run) -> Row:
    """`recording_share` of the run's time went into timing ops; recorded steps took
    `recorded_over_others` times what the others took; `sampler` has shares of a core, by source.
    None: not known. A run that was killed says what it had noted until then."""
    parts, usual = run.parts(), run.variance().get("mean")
    return {
        "recording_share": _recording(run),
        "recorded_over_others": parts["ms"] / usual if parts and usual else None,
        "sampler": run.meta.get("sampler") or _sampler(run),
    }


def _recording(run: Run) -> float | None:
    whole = run.meta.get("recording_share")
    spent, begun = run.meta.get("recording_ns"), run.meta.get("begun_monotonic_ns")
    if whole is None and spent is not None and begun is not None:
        whole = spent / max(run.span()[1] - begun, 1)
    return None if whole is None else float(whole)


def _sampler(run: Run) -> Row | None:
    """From what its threads had noted: without what the process itself takes besides."""
    rows = run.file.table(
        "SELECT source.name, source.period_s, cost.readings, missed, wall_s, cpu_s, "
        "(SELECT max(t_ns) - min(t_ns) FROM reading WHERE reading.source = source.id) AS ns "
        "FROM cost JOIN source ON source.id = cost.source ORDER BY source.id"
    )
    rows = [row for row in rows if row["ns"]]
    if not rows:
        return None
    sources = {
        row["name"]: {
            "period_s": row["period_s"],
            "readings": row["readings"],
            "missed": row["missed"],
            "mean_s": row["wall_s"] / max(row["readings"], 1),
            "cpu_share": row["cpu_s"] / (row["ns"] * 1e-9),
        }
        for row in rows
    }
    return {
        "elapsed_s": max(row["ns"] for row in rows) * 1e-9,
        "lost": None,
        "cpu_share": sum(one["cpu_share"] for one in sources.values()),
        "sources": sources,
    }
