"""How much of the cores other processes held during a measurement, and what to say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.store.record import Record
from handheld.units import count

if TYPE_CHECKING:
    from handheld.analyse.run import Run

BUSY = 0.1  # Other processes are reported if they held more than this share of the cores.
DISTURBED = 0.1  # Largest share of the processors that others may use while ceilings are measured.
ADVICE = "Try: end them, or measure again when they are done"


def disturbed(others: float | None) -> str:
    """A warning about ceilings if other processes used too much of the processors, or ""."""
    if others is None or others < DISTURBED:
        return ""
    return (
        f"probably too low: other processes used {others:.0%} of the processors. Try: handheld doctor --ceilings "
        "when they are done"
    )


@dataclass(frozen=True, slots=True)
class Others(Record):
    """The load of other processes: `cores` of the machine's `count` cores, on average over `seconds`."""

    cores: float
    count: int
    seconds: float
    top: str = ""  # the process that held most, if the system names it
    top_cores: float = 0.0

    @property
    def share(self) -> float:
        return self.cores / max(self.count, 1)

    @property
    def busy(self) -> bool:
        return self.share > BUSY

    def joined(self, other: Others | None) -> Others:
        """The load of this and of another time on the same machine."""
        if other is None:
            return self
        seconds = self.seconds + other.seconds
        most = max(self, other, key=lambda each: each.top_cores * each.seconds)
        return Others(
            cores=(self.cores * self.seconds + other.cores * other.seconds) / seconds,
            count=self.count,
            seconds=seconds,
            top=most.top,
            top_cores=most.top_cores * most.seconds / seconds,
        )

    @property
    def warning(self) -> str:
        """A warning if the others held too much, else ""."""
        if not self.busy:
            return ""
        top = f" (most: {self.top}, {self.top_cores:.1f} cores)" if self.top else ""
        return (
            f"other processes held {self.share:.0%} of the {count(self.count, 'core')}{top}: "
            f"times are too long and vary. {ADVICE}"
        )


def others_in(data: object) -> Others | None:
    """Read the JSON form. Returns None for anything else, such as the files of older versions."""
    if not isinstance(data, Mapping):
        return None
    try:
        return Others(
            cores=float(data["cores"]),
            count=int(data["count"]),
            seconds=float(data["seconds"]),
            top=str(data.get("top") or ""),
            top_cores=float(data.get("top_cores") or 0.0),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def others(run: Run) -> Others | None:
    """The load during the steps; if they were too short to tell, the load before them. None if it is not known.

    Older run files have only the readings of the sensors.
    """
    noted: Mapping[str, Any] = run.meta.get("others") or {}
    known = others_in(noted.get("during")) or others_in(noted.get("before"))
    use = run.utilisation()
    if known is None and use.others_cores is not None:
        begin, end = run.warm()
        known = Others(use.others_cores, len(use.cores), (end - begin) * 1e-9)
    return known


def warning_of_runs(rows: Iterable[Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
    """A warning about several runs, or "". A row may have `others_cores` and `others_top`; `machine` has `cores`."""
    known = [row for row in rows if row.get("others_cores") is not None]
    cores = int(machine.get("cores") or 1)
    many = [float(row["others_cores"]) for row in known if row["others_cores"] > BUSY * cores]
    if not many:
        return ""
    top = max(known, key=lambda row: float(row["others_cores"])).get("others_top")
    runs = f"{len(many)} of {len(known)} runs" if len(known) > 1 else "the run"
    return (
        f"other processes held {np.median(many) / cores:.0%} of the {count(cores, 'core')} during {runs}"
        f"{f' (most: {top})' if top else ''}: times, loads and predictions are disturbed. {ADVICE}"
    )
