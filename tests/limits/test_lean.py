"""What a plan with a limit does before anything is computed again: less in memory at one time, and the same bits."""

from __future__ import annotations

import pytest

from handheld.device import DeviceCaps
from handheld.graph.check import check
from handheld.graph.graph import Graph
from handheld.limits.ledger import make_ledger
from handheld.limits.prices import prices_of
from handheld.limits.simulate import simulate
from handheld.passes.again import without_remade
from handheld.passes.lean import apart, inline_again, products_early, sums_in_products
from handheld.passes.reorder import reorder
from handheld.plan.precision import prepare

from .nets import NETS

CAPS = DeviceCaps.shipped("adreno-740")


@pytest.fixture(scope="module", params=NETS)
def prepared(request):
    step, _ = NETS[request.param]()
    (graph,), _ = prepare(step, ["train"], CAPS)
    plain, remade = without_remade(graph)
    return step, plain, remade


def peak(graph: Graph, dropped: frozenset[int]) -> int:
    return simulate(make_ledger(reorder(graph), prices_of(CAPS, {})), dropped).peak


def test_each_rewrite_is_legal_and_needs_no_more_memory(prepared) -> None:
    step, graph, remade = prepared
    before = peak(graph, remade)
    for rewrite in (sums_in_products, products_early, inline_again, apart):
        graph = check(rewrite(graph), step.slots)
        after = peak(graph, remade)
        assert after <= before * 1.01, rewrite.__name__
        before = after


def test_large_parameters_are_updated_on_their_own() -> None:
    step, _ = NETS["attention"]()
    (graph,), _ = prepare(step, ["train"], CAPS)
    single = apart(graph)
    assert graph.packs and sum(map(len, single.packs.values())) < sum(map(len, graph.packs.values()))
    written = [t for node in single.nodes for out in node.outputs for t in single.packs.get(out, (out,))]
    assert len(written) == len(set(written)) and {write.tensor for write in graph.writes} <= set(written)
    updates = [node for node in single.nodes if node.origin.phase == "update"]
    assert any(node.origin.path.endswith("linear1") for node in updates), "a single update names its module"
