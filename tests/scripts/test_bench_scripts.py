"""The benchmarks compare equal things: peers run the same model, and choices and bytes are right."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from handheld import suite
from handheld.plan.signature import signature
from handheld.plan.tuning import Entry, Tuning
from helpers.harness import caps_of_kind

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    """Imports a module of bench/ by its name."""
    sys.path.append(str(BENCH))
    yield importlib.import_module
    sys.path.remove(str(BENCH))


class Torch:
    """The layers of translate.LAYERS in PyTorch."""

    def __init__(self, walk: Any) -> None:
        self.p = {n: torch.from_numpy(a) for n, a in walk.parameters.items()}
        self.modules = walk.modules

    def bias(self, b: str | None) -> Any:
        return self.p[b] if b else None

    def conv(self, x, w, b, stride, padding, groups):
        return F.conv2d(x, self.p[w], self.bias(b), stride, padding, 1, groups)

    def linear(self, x, w, b):
        return F.linear(x, self.p[w], self.bias(b))

    def batch_norm(self, x, name, eps, momentum):
        w, b = self.p[f"{name}.weight"], self.p[f"{name}.bias"]
        return F.batch_norm(x, None, None, w, b, True, momentum, eps)

    def layer_norm(self, x, w, b, eps):
        return F.layer_norm(x, x.shape[-1:], self.p[w], self.bias(b), eps)

    def embedding(self, x, w):
        return F.embedding(x, self.p[w])

    def lstm(self, x, name, layers):
        return self.modules[name](x)[0]

    def max_pool(self, x, kernel, stride, padding, ceil):
        return F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil)

    def mean_pool(self, x):
        return x.mean((2, 3), keepdim=True)

    attention = staticmethod(F.scaled_dot_product_attention)
    relu, relu6, gelu = staticmethod(F.relu), staticmethod(F.relu6), staticmethod(F.gelu)
    flatten, permute = staticmethod(torch.flatten), staticmethod(torch.permute)
    reshape, transpose = staticmethod(torch.reshape), staticmethod(torch.transpose)
    unbind, cat = staticmethod(torch.unbind), staticmethod(torch.cat)

    def read(self, name):
        return self.p[name]


@pytest.mark.parametrize(
    "name", ["mlp", "lenet5", "mobilenet_v2", "resnet18", "resnet50", "squeezenet", "lstm_lm", "transformer"]
)
def test_a_walk_is_the_model(bench: Any, name: str) -> None:
    workload = suite.get(name)
    model, _, _ = workload.make()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    (x, _) = workload.batch(2)
    walk = bench("translate").Walk(model, dropout=False)
    with torch.no_grad():
        torch.testing.assert_close(walk(Torch(walk), x), model(x))


def test_a_layer_that_a_peer_lacks_is_named(bench: Any) -> None:
    translate = bench("translate")
    model, _, _ = suite.get("lstm_lm").make()
    (x, _) = suite.get("lstm_lm").batch(2)
    peer = type("Peer", (), {"embedding": lambda self, x, w: x})()
    with pytest.raises(translate.NotWritten, match="lstm"):
        translate.Walk(model)(peer, x)


def test_where_a_choice_comes_from(bench: Any) -> None:
    tuned, contractions = bench("tuned"), bench("contractions")
    row = contractions.Contraction("matmul", (256, 128), (128, 512))
    graph = contractions.graph_of(row, [torch.zeros(256, 128), torch.zeros(128, 512)], (256, 512))
    node, caps = graph.nodes[0], caps_of_kind("gpu")
    key = signature(node, graph)
    offered = tuned.candidates(node, graph, caps)
    assert tuned.standing(node, graph, caps, Tuning()) == ("absent", None)
    found = Tuning({key: Entry(choice=offered[1])})
    assert tuned.standing(node, graph, caps, found) == ("tuned", offered[1])
    found = Tuning({key: Entry(default_ms=1.0, best_ms=1.0)})
    assert tuned.standing(node, graph, caps, found) == ("best", None)
    found = Tuning({key: Entry(choice={"no": 1})})
    assert tuned.standing(node, graph, caps, found) == ("absent", None)


def test_peers_are_checked_by_name(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = bench("peers")
    monkeypatch.setitem(peers.PEERS, "mnn", peers.PEERS["mnn"].__class__("no_such_package"))
    assert "mnn" not in peers.against("all")
    for text, said in (("mnn", "pip install no_such_package"), ("caffe", "no peer 'caffe'")):
        with pytest.raises(Exception, match=said):
            peers.against(text)


def test_bytes_that_a_reduction_reads_again(bench: Any) -> None:
    """A layer norm reads its input for the mean, for the variance and to apply them."""
    streams = bench("streams")
    row = next(streams.layer_norm((64, 32)))
    step, name = streams.step_of(row, row.make())
    (node,) = step.graphs[name].nodes
    assert streams.extra_walks(node, step.graphs[name]) == 2 * 64 * 32 * 4
