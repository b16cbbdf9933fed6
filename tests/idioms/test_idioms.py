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
#: Idioms that do not work yet.
PENDING = frozenset(
    [
        "broadcast_loss",
        "scheduler_per_epoch",
        "warm_up",
        "one_cycle",
        "plateau",
        "scheduler_in_fit",
        "rate_by_hand",
        "hyperparameter_by_hand",
        "other_optimizers",
        "own_optimizer",
        "autocast",
        "early_stopping",
        "keep_best",
        "unfreeze",
        "lengths_per_batch",
    ]
)


@pytest.mark.parametrize("case", IDIOMS, ids=lambda case: case.run.__name__)
def test_idiom(case: Idiom, request: pytest.FixtureRequest) -> None:
    if case.run.__name__ in PENDING:
        request.applymarker(pytest.mark.xfail)
    case.run()


def test_there_are_at_least_40() -> None:
    assert len(IDIOMS) >= 40 and {case.topic for case in IDIOMS} == set(ORDER)
    assert len({case.run.__name__ for case in IDIOMS}) == len(IDIOMS)
