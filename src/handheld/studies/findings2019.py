"""The ten findings of the 2019 study, tested on the runs of this device.

    answers(rows) -> ten Answers, from the rows that observations.py makes of run files

A finding has one or several checks; each has the paper's figure and the one measured here. A finding holds if all
its measured checks hold, does not hold if one of them fails, and cannot be measured here if none was measured. A
claim about many workloads holds if it holds for MOST of them; the others are named. All thresholds are in
checks2019.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from handheld.studies.checks2019 import Check, Row
from handheld.studies.costs2019 import energy_grows, memory_dominated, power_by_rail, power_repeats, throughput
from handheld.studies.utilisation2019 import (
    cores_differ,
    recurrent,
    utilisation,
    utilisation_grows,
    utilisation_repeats,
)

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be measured here"


@dataclass(frozen=True)
class Answer:
    """A finding of the paper, and whether it holds here."""

    number: int
    claim: str
    answer: str
    checks: tuple[Check, ...]

    @property
    def figure(self) -> str:
        """What was measured, as one line."""
        return "; ".join(c.here for c in self.checks if c.here)

    @property
    def paper(self) -> str:
        return "; ".join(c.paper for c in self.checks if c.paper)

    @property
    def extent(self) -> str:
        """How many of the checks the answer rests on, if not all."""
        known = sum(check.holds is not None for check in self.checks)
        return f"{known} of {len(self.checks)} checks" if 0 < known < len(self.checks) else ""

    @property
    def why(self) -> str:
        """Why some of the checks could not be measured."""
        return "; ".join(dict.fromkeys(c.why for c in self.checks if c.why))

    def to_json(self) -> Row:
        return {
            "number": self.number,
            "claim": self.claim,
            "answer": self.answer,
            "extent": self.extent,
            "paper": self.paper,
            "here": self.figure,
            "why": self.why,
            "checks": [asdict(check) for check in self.checks],
        }


def answers(rows: Sequence[Row]) -> list[Answer]:
    """All ten answers, from the measured rows of one device. Other rows are ignored."""
    measured = [row for row in rows if row["status"] == "measured"]
    return [_answer(n, claim, check(measured)) for n, (claim, check) in enumerate(FINDINGS, 1)]


def _answer(number: int, claim: str, checks: list[Check]) -> Answer:
    known = [check.holds for check in checks if check.holds is not None]
    word = UNKNOWN if not known else HOLDS if all(known) else FAILS
    return Answer(number, claim, word, tuple(checks))


FINDINGS: tuple[tuple[str, Callable[[Sequence[Row]], list[Check]]], ...] = (
    ("The GPU is near 100% busy, each CPU core 0–60%, and they move against each other", utilisation),
    ("Utilisation repeats with the period of a step, so it is predictable", utilisation_repeats),
    ("GPU utilisation grows with the batch, CPU utilisation hardly changes", utilisation_grows),
    ("Cores differ: some kinds of core idle far more than others", cores_differ),
    ("An LSTM leaves most of the GPU idle, vision models do not", recurrent),
    ("Vision models draw most power on the GPU, an LSTM on memory", power_by_rail),
    ("Power repeats step by step", power_repeats),
    ("Energy per step grows slower than the batch", energy_grows),
    ("Intermediate results dominate memory and grow with the batch; parameters do not", memory_dominated),
    ("Throughput rises with the batch", throughput),
)
