"""What a plan needs: bytes per category, launches and operations. Nothing runs, and the device may be absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from handheld.plan.plan import Plan
from handheld.plan.work import flops, nbytes
from handheld.profile.memory import CATEGORIES, live

#: What the plan allocates beyond the tensors that are alive at the peak.
REST = "not alive at the peak"


@dataclass(frozen=True)
class Need:
    """The needs of a step at a batch size. The values of `by_category` add up to `bytes`."""

    batch: int
    bytes: int
    by_category: Mapping[str, int]
    #: Launches, operations and bytes moved by the graphs of one training step.
    launches: int
    flops: int
    moved_bytes: int
    #: Launches whose variant a tuning record chose.
    tuned: int


def need(plan: Plan, batch: int, trained: Sequence[str]) -> Need:
    """The needs of a plan. `trained` are the graphs that one training step runs."""
    peaks = [live(plan, name) for name in plan.graphs]
    peak = max(peaks, key=lambda found: found.peak_bytes)
    at_peak = peak.by_node[peak.peak]
    sizes = {name: at_peak.get(name, 0) for name in dict.fromkeys(CATEGORIES.values())}
    graphs = [plan.graphs[name] for name in trained]
    nodes = [(node, entry.graph) for entry in graphs for node in entry.graph.nodes]
    return Need(
        batch,
        plan.bytes,
        {**sizes, REST: plan.bytes - peak.peak_bytes},
        sum(entry.launches for entry in graphs),
        sum(flops(node, graph) for node, graph in nodes),
        sum(nbytes(node, graph) for node, graph in nodes),
        sum(len(entry.tuned) for entry in graphs),
    )
