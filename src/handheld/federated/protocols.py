"""The two protocols that compare federated trainings: cost to a target, and quality under a budget.

`cost_to_target` and `quality_under_budget` of `record` answer one question each. Here are the tables of a whole
training, for its page and its JSON: every target that was reached, and quarters of what was spent.
"""

from __future__ import annotations

import math
from typing import Any

from handheld.federated.record import BUDGETS, Record, Spent, by_device, cost_to_target, quality_under_budget, spent

#: The targets of an accuracy whose cost is listed, as far as they were reached.
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
#: The parts of what the whole training spent.
PARTS = (0.25, 0.5, 0.75, 1.0)


def metric_of(record: Record) -> str:
    """What the training is judged by."""
    return "accuracy" if any("accuracy" in one.metrics for one in record.rounds) else "loss"


def costs(record: Record, metric: str) -> dict[float, Spent]:
    """Each target that was reached, and what it took."""
    reached = [one.metrics[metric] for one in record.rounds if metric in one.metrics]
    levels = TARGETS if metric == "accuracy" else sorted({round(value, 2) for value in reached}, reverse=True)[:8]
    found = {level: cost_to_target(record, metric, level) for level in levels}
    return {level: cost for level, cost in found.items() if cost is not None}


def qualities(record: Record, metric: str) -> dict[str, dict[float, float | None]]:
    """Budget -> amount -> the best that was reached for it. Budgets that were not measured are left out."""
    found: dict[str, dict[float, float | None]] = {}
    whole = spent(record)[-1] if record.rounds else None
    for budget in BUDGETS:
        most = None if whole is None else whole.of(budget)
        if most:
            whole_ones = budget in ("rounds", "bytes")
            amounts = [math.floor(most * part) if whole_ones else most * part for part in PARTS]
            found[budget] = {amount: quality_under_budget(record, metric, budget, amount) for amount in amounts}
    return found


def as_data(record: Record) -> dict[str, Any]:
    """Both protocols as data, with the part of each kind of device."""
    metric = metric_of(record)
    return {
        "metric": metric,
        "cost_to_target": [
            {
                "target": level,
                **{budget: cost.of(budget) for budget in BUDGETS},
                "devices": by_device(record, cost.rounds),
            }
            for level, cost in costs(record, metric).items()
        ],
        "quality_under_budget": {
            budget: [{"amount": amount, metric: value} for amount, value in amounts.items()]
            for budget, amounts in qualities(record, metric).items()
        },
    }
