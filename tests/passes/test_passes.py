"""Passes change how a step runs, never what it computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.frontend import capture as capturing
from handheld.graph.check import check
from handheld.graph.graph import Graph, View, contiguous_strides
from handheld.passes import pipeline, remake
from handheld.passes.clean import remove_dead
from handheld.passes.spaces import reshape_view
from helpers.models import MODELS, loss, make


def step_of(name: str, monkeypatch: pytest.MonkeyPatch, raw: bool):
    model, optimizer, batch = make(name)
    with monkeypatch.context() as patch:
        if raw:
            patch.setattr(capturing, "optimize", lambda graph, state: remove_dead(graph))
        step = handheld.capture(model, loss, optimizer, batch, evaluate=False)
    return step, batch


@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for raw in (True, False):
        step, batch = step_of(name, monkeypatch, raw)
        with step.plan("reference:cpu").start(float64=True) as trainer:
            for _ in range(2):
                trainer.step(*batch)
            results.append({s: trainer.session._slots[s].numpy() for s in step.slots})
    for slot, want in results[0].items():
        scale = float(np.linalg.norm(want)) or 1.0
        assert np.linalg.norm(results[1][slot] - want) / scale < 1e-9, slot


@pytest.mark.parametrize("name", MODELS)
def test_every_pass_keeps_the_graph_legal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = step_of(name, monkeypatch, raw=True)
    graph = step.graphs["train"]
    sizes = [len(graph.nodes)]
    for each in pipeline.PASSES:
        graph = check(each(graph), step.slots)
        sizes.append(len(graph.nodes))
    assert sizes[-1] < 0.75 * sizes[0]


def train_graph(model: nn.Module, x, y) -> Graph:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return handheld.capture(model, loss, optimizer, (x, y), evaluate=False).graphs["train"]


def test_batch_norm_and_its_activation_are_one_kernel_each_way() -> None:
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
    graph = train_graph(model, torch.randn(2, 2, 6, 6), torch.tensor([0, 1]))
    reduces = [n for n in graph.nodes if n.op == "reduce" and n.origin.path == "1"]
    assert [n.origin.phase for n in reduces] == ["forward", "backward"]


def test_a_kernel_belongs_to_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates write slots; forward and backward write only running statistics."""
    for name in MODELS:
        step, _ = step_of(name, monkeypatch, raw=False)
        graph = step.graphs["train"]
        written = {write.tensor: write.slot for write in graph.writes}
        for node in graph.nodes:
            members = [m for o in node.outputs for m in graph.packs.get(o, (o,))]
            roles = {step.slots[written[m]].role for m in members if m in written}
            assert node.origin.phase == "update" or roles <= {"buffer"}


def test_dropout_masks_are_not_kept() -> None:
    model = nn.Sequential(nn.Linear(40, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    graph = train_graph(model, torch.randn(4, 40), torch.tensor([0, 1, 2, 0]))
    forward = [n for n in graph.nodes if n.origin.phase == "forward"]
    kept = [o for n in forward for o in n.outputs if graph.tensors[o].size == 200]
    assert len(kept) == 1  # the second layer's input, but no mask and no value before dropout


def test_updates_are_packed() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 3))
    graph = train_graph(model, torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))
    updates = [n for n in graph.nodes if n.origin.phase == "update"]
    assert len(updates) <= 2 and graph.packs


class Residual(nn.Module):
    """The biases of both layers of each sum have the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.two = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one, two in zip(self.one, self.two, strict=True):
            x = torch.tanh(one(x) + two(torch.sin(x)))
        return x


@pytest.mark.parametrize("groups", [1, 2])
def test_a_gradient_that_two_updates_read_keeps_one_of_them_out(groups: int) -> None:
    torch.manual_seed(0)
    model, (x, y) = Residual(), (torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))

    def sgd() -> torch.optim.SGD:
        parts = [{"params": model.parameters()}]
        if groups == 2:  # The groups have different rates, so that their updates differ.
            parts = [{"params": model.one.parameters()}, {"params": model.two.parameters(), "lr": 0.05}]
        return torch.optim.SGD(parts, lr=0.1, momentum=0.9)

    optimizer = sgd()
    step = handheld.capture(model, loss, optimizer, (x, y), evaluate=False)
    graph = step.graphs["train"]
    updates = [n for n in graph.nodes if n.origin.phase == "update"]
    sizes = sorted(graph.tensors[n.outputs[0]].size for n in updates)
    # four single biases, the counters, and the rest of each group in one launch
    assert len(updates) == 5 + groups and sizes[:4] == [8] * 4
    with step.plan("reference:cpu").start(float64=True) as trainer:
        for _ in range(2):
            trainer.step(x, y)
        got = {name: trainer.session._slots[name].numpy() for name in step.slots}
    model.double()
    optimizer = sgd()
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(x.double()), y).backward()
        optimizer.step()
    for name, want in model.named_parameters():
        (mine,) = [
            v for slot, v in got.items() if slot.endswith(name) and v.shape == want.shape and "momentum" not in slot
        ]
        np.testing.assert_allclose(mine, want.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_reshaping_a_view_keeps_its_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6], rng.integers(1, 5)))
    order = rng.permutation(len(shape))
    physical = contiguous_strides(tuple(shape[d] for d in order))
    strides = [0] * len(shape)
    for d, s in zip(order, physical, strict=True):
        strides[d] = int(s) if rng.integers(4) else 0
    view = View(0, shape, tuple(strides), 0)
    buffer = np.arange(int(np.prod(shape)) * 2)
    elements = np.lib.stride_tricks.as_strided(buffer, shape, [s * 8 for s in strides])
    flat = int(np.prod(shape))
    for n in (1, 2, 3, 4, 6):
        if flat % n == 0:
            new = reshape_view(view, (flat // n, n))
            if new is not None:
                got = np.lib.stride_tricks.as_strided(buffer, new.shape, [s * 8 for s in new.strides])
                assert (got == elements.reshape(new.shape)).all()
    assert reshape_view(view, shape) == view


def conv_net() -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (3, 8, 8, 8):
        layers += [nn.Conv2d(inputs, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    batch = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    return model, torch.optim.SGD(model.parameters(), 0.1, 0.9), batch


@pytest.mark.parametrize("device", ["reference:cpu", "opencl"])
def test_large_activations_are_made_again(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a convolution is computed again in the backward pass: less memory, the same step."""
    bytes_needed, states = [], []
    for large in (1 << 40, 1024):
        monkeypatch.setattr(remake, "LARGE", large)
        monkeypatch.setattr(remake, "FAR", 4)
        model, optimizer, batch = conv_net()
        step = handheld.capture(model, nn.functional.cross_entropy, optimizer, batch, evaluate=False)
        bytes_needed.append(step.plan("opencl").arena_bytes)
        with step.plan(device).start() as trainer:
            for _ in range(3):
                trainer.step(*batch)
            states.append(trainer.state())
    assert bytes_needed[1] < 0.9 * bytes_needed[0]
    for name, want in states[0].items():
        np.testing.assert_allclose(states[1][name], want, rtol=1e-4, atol=1e-6, err_msg=name)
