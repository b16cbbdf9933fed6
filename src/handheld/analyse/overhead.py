"""What measuring has cost the run that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from handheld.store.record import Record
from handheld.store.rows import CostRow, SourceRow

if TYPE_CHECKING:
    from handheld.analyse.run import Run


@dataclass(frozen=True, slots=True)
class SourceCost(Record):
    """What reading one source has cost."""

    period_s: float
    readings: int
    missed: int
    mean_s: float  # that one reading takes
    cpu_share: float  # of a core


@dataclass(frozen=True, slots=True)
class SamplerCost(Record):
    """What the sampler has cost, as a share of a core, in all and by source."""

    optional: ClassVar[frozenset[str]] = frozenset({"stretch"})  # known at the end of a run

    elapsed_s: float
    lost: int | None
    cpu_share: float
    sources: dict[str, SourceCost]
    stretch: float | None = None


@dataclass(frozen=True, slots=True)
class Overhead(Record):
    """`recording_share` of the run's time went into timing ops; recorded steps took
    `recorded_over_others` times what the others took. None: not known."""

    recording_share: float | None
    recorded_over_others: float | None
    sampler: SamplerCost | None


def overhead(run: Run) -> Overhead:
    """A run that was killed says what it had noted until then."""
    parts, usual = run.parts(), run.variance().times
    noted = run.meta.get("sampler")
    return Overhead(
        recording_share=_recording(run),
        recorded_over_others=parts.ms / usual.mean if parts and usual and usual.mean else None,
        sampler=_noted(noted) if noted else _sampler(run),
    )


def _recording(run: Run) -> float | None:
    whole = run.meta.get("recording_share")
    spent, begun = run.meta.get("recording_ns"), run.meta.get("begun_monotonic_ns")
    if whole is None and spent is not None and begun is not None:
        whole = spent / max(run.span()[1] - begun, 1)
    return None if whole is None else float(whole)


def _noted(given: dict[str, Any]) -> SamplerCost:
    """What the sampler said when it ended (profile/sampling.py)."""
    sources = {
        name: SourceCost(one["period_s"], one["readings"], one["missed"], one["mean_s"], one["cpu_share"])
        for name, one in given["sources"].items()
    }
    return SamplerCost(given["elapsed_s"], given["lost"], given["cpu_share"], sources, given.get("stretch"))


def _sampler(run: Run) -> SamplerCost | None:
    """From what its threads had noted: without what the process itself takes besides."""
    costs = {row.source: row for row in run.file.table(CostRow)}
    lengths = dict(run.file.rows("SELECT source, max(t_ns) - min(t_ns) FROM reading GROUP BY source"))
    seconds: list[float] = []
    sources: dict[str, SourceCost] = {}
    for source in run.file.table(SourceRow, "ORDER BY id"):
        cost, length = costs.get(source.id), lengths.get(source.id)
        if cost is None or not length:
            continue
        seconds.append(length * 1e-9)
        sources[source.name] = SourceCost(
            period_s=source.period_s,
            readings=cost.readings,
            missed=cost.missed,
            mean_s=cost.wall_s / max(cost.readings, 1),
            cpu_share=cost.cpu_s / (length * 1e-9),
        )
    if not sources:
        return None
    return SamplerCost(
        elapsed_s=max(seconds), lost=None, cpu_share=sum(one.cpu_share for one in sources.values()), sources=sources
    )
