"""Runs every idiom of the table in docs/idioms.md."""

from __future__ import annotations

import pytest

from idioms import data, loops, models, networks, rates  # noqa: F401 (they fill the table)
from idioms.idiom import IDIOMS, Idiom

#: The topics of the table, in order, with their titles.
ORDER = {
    "loop": "The loop",
    "data": "Data",
    "evaluation": "Evaluation",
    "optimizers": "Optimizers",
    "rates": "Learning rates",
    "gradients": "Gradients",
    "stopping": "Stopping",
    "saving": "Saving and loading",
    "model": "Models",
    "loss": "Losses",
    "networks": "Several networks",
    "precision": "Precision",
}


@pytest.mark.parametrize("case", IDIOMS, ids=lambda case: case.run.__name__)
def test_idiom(case: Idiom) -> None:
    case.run()


def test_there_are_at_least_40() -> None:
    assert len(IDIOMS) >= 40 and {case.topic for case in IDIOMS} == set(ORDER)
    assert len({case.run.__name__ for case in IDIOMS}) == len(IDIOMS)
