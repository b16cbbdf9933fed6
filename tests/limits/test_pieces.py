"""Values in pieces: whatever is chosen, the graph is legal and computes the same step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory, PlanError
from handheld.graph.check import check
from handheld.graph.graph import Graph
from handheld.limits.pieces import COUNTS
from handheld.limits.planning import Fitting
from handheld.passes.again import compute_again, droppable
from handheld.passes.pieces import can_be_thin, in_pieces
from handheld.plan import file
from handheld.plan.fit import Fit, fit_text, fits_of, spread_out
from handheld.plan.lifetimes import lifetimes
from handheld.plan.plan import Plan
from handheld.plan.precision import prepare
from handheld.plan.verify import verify
from handheld.run.planning import requested

from .nets import NETS

CAPS = DeviceCaps.shipped("adreno-740")
Made = tuple[handheld.Step, tuple[torch.Tensor, ...]]


def captured(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Made:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False), batch


def norms() -> Made:
    """Batch norms, depthwise and strided convolutions, pooling."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6()]
    layers += [nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU6()]
    layers += [nn.Conv2d(16, 16, 3, groups=16, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU6()]
    layers += [nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)]
    return captured(nn.Sequential(*layers), (torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))))


class Language(nn.Module):
    """An embedding whose weight is also that of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.inner = nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(F.gelu(self.inner(self.embed(x))))).flatten(0, 1)


def language() -> Made:
    torch.manual_seed(0)
    labels = torch.randint(0, 64, (256,))
    labels[3] = -100  # It is ignored.
    return captured(Language(), (torch.randint(0, 64, (8, 32)), labels))


ALL: dict[str, Callable[[], Made]] = {**NETS, "norms": norms, "language": language}


def train_graph(step: handheld.Step) -> Graph:
    (graph,), _ = prepare(step, ["train"], CAPS)
    return graph


def random_thin(graph: Graph, count: int, chance: random.Random, share: float) -> tuple[int, ...]:
    """Values that can be thin together."""
    able = [t.id for t in graph.tensors.values() if t.role in ("activation", "gradient") and t.size >= 512]
    chance.shuffle(able)
    thin: list[int] = []
    for tensor in able:
        if chance.random() < share and can_be_thin(graph, {*thin, tensor}, count):
            thin.append(tensor)
    return tuple(sorted(thin))


def trained(plan: Plan, batch: tuple[torch.Tensor, ...], **how: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    with plan.start(**how) as trainer:
        return [float(trainer.step(*batch)) for _ in range(2)], trainer.state()


@pytest.mark.parametrize("name", ALL)
def test_any_values_in_pieces_compute_the_same(name: str) -> None:
    """Random values, also some that are computed again, on the reference device in double precision."""
    step, batch = ALL[name]()
    wide, _ = spread_out(train_graph(step))
    values, chance, found = sorted(droppable(wide)), random.Random(5), 0
    want = trained(step.copy().plan("reference:cpu", graphs=["train"]), batch, float64=True)
    for share in (0.3, 0.6, 1.0):
        dropped = tuple(t for t in values if chance.random() < share / 2)
        brief, count = tuple(t for t in dropped if chance.random() < 0.5), chance.choice([2, 4])
        small = compute_again(wide, dropped, brief)
        thin = random_thin(small, count, chance, share)
        found += len(thin)
        check(in_pieces(small, thin, count), step.slots)
        fit = {"train": Fit(dropped, brief=brief, thin=thin, pieces=count).to_json()}
        plan = step.copy().plan("reference:cpu", graphs=["train"]).again(fit=fit)
        verify(plan)
        losses, state = trained(plan, batch, float64=True)
        assert losses == pytest.approx(want[0], rel=1e-12)
        for key, value in want[1].items():
            np.testing.assert_allclose(state[key], value, rtol=1e-6, atol=1e-7, err_msg=key)
    assert found > 10


@pytest.mark.parametrize("name", ["norms", "language"])
def test_a_device_computes_the_same(name: str) -> None:
    """OpenCL, against PyTorch in double precision, op by op and after two steps."""
    step, batch = ALL[name]()
    small, _ = spread_out(train_graph(step))
    thin = random_thin(small, 4, random.Random(1), 0.7)
    fit = {"train": Fit((), thin=thin, pieces=4).to_json()}
    plan = step.copy().plan("opencl", graphs=["train"], tuning=False).again(fit=fit)
    exact = trained(step.copy().plan("reference:cpu", graphs=["train"]), batch, float64=True)
    whole = trained(step.copy().plan("opencl", graphs=["train"], tuning=False), batch)
    losses, state = trained(plan, batch)
    assert losses == pytest.approx(exact[0], rel=1e-4)
    for key, value in exact[1].items():
        most = 2 * np.abs(whole[1][key] - value).max() + 1e-4 * max(1.0, np.abs(value).max())
        assert np.abs(state[key] - value).max() <= most, key


def test_a_value_in_pieces_needs_less_memory() -> None:
    step, _ = norms()
    small, _ = spread_out(train_graph(step))
    plan = step.plan("opencl", caps=CAPS, graphs=["train"], tuning=False)
    thin = random_thin(small, 4, random.Random(1), 1.0)
    made = plan.again(fit={"train": Fit((), thin=thin, pieces=4).to_json()})
    assert made.arena_bytes < plan.arena_bytes / 2
    assert f"{len(thin)} values computed in 4 pieces" in made.explain(width=1000)
    sizes = {tensor.shape for tensor in made.graphs["train"].graph.tensors.values()}
    assert (1, 16, 16, 16) in sizes and (4, 16, 16, 16) not in sizes, "the largest value is there in pieces only"


def test_pieces_take_over_the_memory_of_others() -> None:
    """Some gradients replace others of the same size, piece by piece."""
    step, _ = NETS["residual"]()
    small, _ = spread_out(train_graph(step))
    shared = 0
    for seed in range(3):
        thin = random_thin(small, 4, random.Random(seed), 0.5)
        plan = step.copy().plan("opencl", caps=CAPS, graphs=["train"], tuning=False)
        made = plan.again(fit={"train": Fit((), thin=thin, pieces=4).to_json()})
        graph, alive = made.graphs["train"].graph, lifetimes(made.graphs["train"].graph)
        members = [own for own in graph.packs.values() if alive.born.keys() >= set(own)]
        spans = [(min(alive.born[m] for m in own), max(alive.last[m] for m in own)) for own in members]
        for one, (_, end) in zip(members, spans, strict=True):
            for other, (start, _) in zip(members, spans, strict=True):
                same = made.graphs["train"].places[one[0]] == made.graphs["train"].places[other[0]]
                shared += one != other and same and alive.born[one[0]] < start <= end
        verify(made)
    assert shared


def test_what_cannot_be_cut_is_refused() -> None:
    step, _ = norms()
    graph = train_graph(step)
    assert not can_be_thin(graph, {graph.slots[name] for name in list(graph.slots)[:1]}, 4)
    assert not can_be_thin(graph, set(graph.kept), 2)
    fit = {"train": Fit((), thin=(10**6,), pieces=4).to_json()}
    with pytest.raises(PlanError, match=r"the fit is for another graph than 'train'.*4 pieces.*Try: "):
        step.plan("opencl", caps=CAPS, graphs=["train"]).again(fit=fit)


def wide() -> Made:
    """One expansion that is much larger than all else, with batch norms."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 64, 1), nn.BatchNorm2d(64), nn.ReLU6()]
    layers += [nn.Conv2d(64, 64, 3, groups=64, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU6()]
    layers += [nn.Conv2d(64, 4, 1), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, 5)]
    return captured(nn.Sequential(*layers), (torch.randn(16, 3, 32, 32), torch.randint(0, 5, (16,))))


@pytest.fixture(scope="module")
def fitting() -> Fitting:
    step, _ = wide()
    request = requested(step, "opencl", caps=CAPS, graphs=["train"], memory_limit_bytes=None, tuning=False)
    return Fitting(step, request.device, CAPS, request.names, request.options)


def test_pieces_meet_limits_that_nothing_else_meets(fitting: Fitting) -> None:
    least = fitting.least_without_pieces.bytes
    for share in (0.9, 0.7, 0.6):
        plan = fitting.within(int(least * share))
        assert plan is not None and plan.bytes <= least * share
        fit = plan.options["fit"]["train"]
        assert fit["thin"] and fit["pieces"] in COUNTS and fit["more"] > 0
        verify(plan)
    assert not fits_of(fitting.least_without_pieces.options)["train"].thin, "pieces are the last means"
    assert fitting.certain.bytes < least


def test_an_impossible_limit_names_one_that_pieces_meet() -> None:
    step, _ = wide()
    with pytest.raises(OutOfMemory, match="The smallest limit that was found is") as caught:
        step.plan("opencl", caps=CAPS, graphs=["train"], tuning=False, memory_limit_bytes=100 << 10)
    limit = caught.value.smallest_bytes
    assert limit is not None
    plan = step.plan("opencl", caps=CAPS, graphs=["train"], tuning=False, memory_limit_bytes=limit)
    assert plan.bytes <= limit and plan.options["fit"]["train"]["thin"]
    assert "values computed in 8 pieces" in fit_text(plan.options, plan.bytes)
    assert "one piece at a time" in plan.explain(width=1000)


def test_a_plan_with_a_limit_trains_the_same() -> None:
    step, batch = wide()
    whole = step.copy().plan("reference:cpu", graphs=["train"])
    request = requested(step.copy(), "reference:cpu", graphs=["train"], memory_limit_bytes=None)
    least = Fitting(step.copy(), "reference:cpu", request.caps, request.names, request.options).least_without_pieces
    plan = step.copy().plan("reference:cpu", graphs=["train"], memory_limit_bytes=int(least.bytes * 0.75))
    assert plan.options["fit"]["train"]["thin"]
    want, got = trained(whole, batch, float64=True), trained(plan, batch, float64=True)
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    for key, value in want[1].items():
        np.testing.assert_allclose(got[1][key], value, rtol=1e-6, atol=1e-7, err_msg=key)


def test_a_plan_file_with_pieces_is_written_and_read(tmp_path: Path) -> None:
    step, _ = wide()
    small, _ = spread_out(train_graph(step))
    thin = random_thin(small, 4, random.Random(1), 0.7)
    plan = step.plan("opencl", caps=CAPS, graphs=["train"], tuning=False)
    made = plan.again(fit={"train": Fit((), thin=thin, pieces=4).to_json()})
    written = file.write(made, tmp_path / "a.plan", values=False)
    again = file.read(tmp_path / "a.plan")
    assert again.tables.keys() == written.tables.keys()
    assert all(np.array_equal(again.tables[key], written.tables[key]) for key in written.tables)


@pytest.mark.parametrize("seed", range(4))
def test_random_limits_are_met_with_proved_plans(seed: int) -> None:
    """Random networks with batch norm, on a device that is described."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    width = 3
    for _ in range(4):
        new = chance.choice([4, 8, 32])
        layers += [nn.Conv2d(width, new, chance.choice([1, 3]), padding="same"), nn.BatchNorm2d(new), nn.ReLU()]
        width = new
    model = nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(width * 4, 5))
    step, batch = captured(model, (torch.randn(8, 3, 16, 16), torch.randint(0, 5, (8,))))
    request = requested(step.copy(), "reference:cpu", graphs=["train"], memory_limit_bytes=None)
    fitting = Fitting(step.copy(), "reference:cpu", request.caps, request.names, request.options)
    limit = int(fitting.least_without_pieces.bytes * chance.uniform(0.6, 0.95))
    plan = fitting.within(limit)
    if plan is None:
        assert fitting.certain.bytes > limit
        return
    assert plan.bytes <= limit
    verify(plan)
    want = trained(step.copy().plan("reference:cpu", graphs=["train"]), batch, float64=True)
    got = trained(plan, batch, float64=True)
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    for key, value in want[1].items():
        np.testing.assert_allclose(got[1][key], value, rtol=1e-6, atol=1e-7, err_msg=key)
