"""What nodes cost on a device, by the cost model of its runs, its ceilings, or a device of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from handheld.cost.rates import Rates
from handheld.cost.time import TimeModel
from handheld.cost.work import Work
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Choice
from handheld.limits.ledger import Price
from handheld.plan.lowering import Lowerings, tuned_choice
from handheld.plan.signature import signature
from handheld.plan.work import flops, nbytes

#: FLOP/s and B/s where nothing was measured. Only their ratio matters for a choice; it is typical of the kind.
USUAL = {
    "cpu": Rates(100e9, ((1 << 20, 100e9), (64 << 20, 20e9)), source="typical of a CPU"),
    "gpu": Rates(1e12, ((1 << 20, 100e9), (8 << 20, 50e9)), launch_s=1e-5, source="typical of a GPU"),
}


@dataclass(frozen=True)
class DevicePrices:
    """The prices of nodes on a device. `source` says how they are known."""

    caps: DeviceCaps
    choices: Mapping[str, Choice]
    times: TimeModel
    source: str
    lowerings: Lowerings = field(default_factory=Lowerings)

    def __call__(self, nodes: Sequence[Node], graph: Graph) -> list[Price]:
        if not self.caps.takes_launches:
            return [Price(s, 0) for s in self._seconds([self._work(n, graph, "", 1) for n in nodes])]
        picked = [tuned_choice(n, graph, self.caps, self.choices) for n in nodes]
        lowered = [self.lowerings.lower(n, graph, self.caps, c) for n, c in zip(nodes, picked, strict=True)]
        works = [self._work(node, graph, low.why, len(low.launches)) for node, low in zip(nodes, lowered, strict=True)]
        scratch = [sum(low.workspace) for low in lowered]
        return [Price(s, w) for s, w in zip(self._seconds(works), scratch, strict=True)]

    def _seconds(self, works: Sequence[Work]) -> list[float]:
        return [cost.seconds for cost in self.times.ops(works)] if works else []

    @staticmethod
    def _work(node: Node, graph: Graph, why: str, launches: int) -> Work:
        return Work(node.op, signature(node, graph), why, launches, int(flops(node, graph)), int(nbytes(node, graph)))


def prices_of(caps: DeviceCaps, choices: Mapping[str, Choice], name: str = "") -> DevicePrices:
    """The prices on a device. `name` is that of a shipped description."""
    try:
        # Imported here: it takes half of the time that imports need, and a plan that fits needs no prices.
        from handheld.forecast.model import cost_model

        model = cost_model(caps, name)
    except DeviceError:
        rates = USUAL["cpu" if caps.kind == "cpu" else "gpu"]
        return DevicePrices(caps, choices, TimeModel(rates), f"rates {rates.source}")
    return DevicePrices(caps, choices, model.times, model.why)
