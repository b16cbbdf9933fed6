"""The cost of the measurement itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from handheld.store.record import Record
from handheld.store.rows import CostRow, SourceRow

if TYPE_CHECKING:
    from handheld.analyse.run import Run


LEAST = 5  # Fewer steps that were not recorded are no comparison: the host runs ahead of the device in some of them.


@dataclass(frozen=True, slots=True)
class SourceCost(Record):
    """The cost of reading one source."""

    period_s: float
    readings: int
    missed: int
    mean_s: float  # mean duration of a reading
    cpu_share: float  # share of one core


@dataclass(frozen=True, slots=True)
class SamplerCost(Record):
    """The cost of the sampler as a share of one core, in total and per source."""

    optional: ClassVar[frozenset[str]] = frozenset({"stretch"})  # It is known only at the end of a run.

    elapsed_s: float
    lost: int | None
    cpu_share: float
    sources: dict[str, SourceCost]
    stretch: float | None = None


@dataclass(frozen=True, slots=True)
class Overhead(Record):
    """`recording_share` is the share of the run's time that was spent on timing ops. `recorded_over_others` is the time
    of a recorded step divided by that of the others. None if not known."""

    recording_share: float | None
    recorded_over_others: float | None
    sampler: SamplerCost | None


def overhead(run: Run) -> Overhead:
    """For a run that was killed, the values until its end."""
    parts, usual = run.parts(), run.variance().times
    noted = run.meta.get("sampler")
    return Overhead(
        recording_share=_recording(run),
        recorded_over_others=parts.ms / usual.median if parts and usual and usual.n >= LEAST and usual.median else None,
        sampler=_noted(noted) if noted else _sampler(run),
    )


def _recording(run: Run) -> float | None:
    whole = run.meta.get("recording_share")
    spent, begun = run.meta.get("recording_ns"), run.meta.get("begun_monotonic_ns")
    if whole is None and spent is not None and begun is not None:
        whole = spent / max(run.span()[1] - begun, 1)
    return None if whole is None else float(whole)


def _noted(given: dict[str, Any]) -> SamplerCost:
    """The summary that the sampler gave when it ended (profile/sampling.py)."""
    sources = {
        name: SourceCost(row["period_s"], row["readings"], row["missed"], row["mean_s"], row["cpu_share"])
        for name, row in given["sources"].items()
    }
    return SamplerCost(given["elapsed_s"], given["lost"], given["cpu_share"], sources, given.get("stretch"))


def _sampler(run: Run) -> SamplerCost | None:
    """The cost that the sampler's threads have written, without the rest of its process."""
    costs = {row.source: row for row in run.file.table(CostRow)}
    lengths = run.file.reading_lengths()
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
        elapsed_s=max(seconds), lost=None, cpu_share=sum(cost.cpu_share for cost in sources.values()), sources=sources
    )
