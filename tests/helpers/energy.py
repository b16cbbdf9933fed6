"""An energy model with round numbers, for tests of joules."""

from __future__ import annotations

from handheld.cost.energy import EnergyModel, EnergySample, Rail
from handheld.plan.launched import main_launch
from handheld.plan.plan import Plan


def flat_model(plan: Plan, watts: float) -> EnergyModel:
    """The device of the plan takes about this power whatever it does."""
    planned = plan.graphs["train"]
    efforts = [
        effort
        for node, low in zip(planned.graph.nodes, planned.lowered, strict=True)
        if (effort := main_launch(node, planned.graph, low)) is not None
    ]
    samples = tuple(EnergySample(effort, 1e-3, {"board": watts * 1e-3}) for effort in efforts)
    rails = (Rail("board", ("system",), "", watts, watts),)
    return EnergyModel(plan.caps.name, plan.caps.driver, "2026-01-01", 1.0, 2, 1 << 20, rails, samples)
