"""Plans within a memory limit: they fit, compute the same, are proved, and impossible limits are explained."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory, PlanError
from handheld.graph.check import check
from handheld.limits.ledger import make_ledger
from handheld.limits.parts import DEAR, time_of
from handheld.limits.planning import Fitting
from handheld.limits.prices import prices_of
from handheld.limits.simulate import simulate
from handheld.passes.again import compute_again, droppable, without_remade
from handheld.plan.fit import Fit, spread_out
from handheld.plan.precision import prepare
from handheld.run.planning import requested

from .nets import NETS, residual

CAPS = DeviceCaps.shipped("adreno-740")


@pytest.fixture(scope="module", params=NETS)
def net(request):
    return NETS[request.param]()


def train_graph(step: handheld.Step):
    (graph,), _ = prepare(step, ["train"], CAPS)
    return graph


def run(plan, batch, steps: int = 3) -> tuple[list[float], dict[str, np.ndarray]]:
    with plan.start() as trainer:
        assert trainer.session.allocated_bytes == plan.bytes, "the measured peak is the plan's"
        losses = [float(trainer.step(*batch)) for _ in range(steps)]
        return losses, trainer.state()


def test_a_limited_plan_trains_to_the_same_bits():
    step, batch = residual()
    whole = step.copy().plan("opencl")
    limit = whole.bytes * 3 // 4
    plan = step.copy().plan("opencl", memory_limit_bytes=limit)
    assert plan.bytes <= limit < whole.bytes and plan.options["fit"]["train"]["dropped"]
    losses, state = run(whole, batch)
    again, other = run(plan, batch)
    assert again == losses
    assert all(np.array_equal(other[name], value) for name, value in state.items())


def test_any_choice_of_values_is_legal_and_computes_the_same(net):
    """Random choices, on the reference device in double precision."""
    step, batch = net
    graph = train_graph(step)
    wide, _ = spread_out(graph)
    values, chance = sorted(droppable(wide)), random.Random(1)
    want, state = None, {}
    for share in (0.0, 0.3, 0.7, 1.0):
        dropped = tuple(t for t in values if chance.random() < share)
        brief = tuple(t for t in dropped if chance.random() < 0.5)
        check(compute_again(wide, dropped, brief), step.slots)
        fit = {"train": Fit(dropped, brief=brief).to_json()}
        plan = step.copy().plan("reference:cpu", graphs=["train"]).again(fit=fit)
        with plan.start(float64=True) as trainer:
            loss = [float(trainer.step(*batch)) for _ in range(2)]
            got = trainer.state()
        if want is None:
            want, state = loss, got
        assert loss == pytest.approx(want, rel=1e-12)
        for name, value in state.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_the_graph_as_it_was_is_one_of_the_choices(net):
    """What an earlier pass remade is found, and dropping the same values gives as many nodes as before."""
    graph = train_graph(net[0])
    plain, remade = without_remade(graph)
    assert len(compute_again(plain, remade).nodes) == len(graph.nodes)
    assert spread_out(graph)[1] == remade


def test_the_simulation_is_close_to_the_real_placement(net):
    step, _ = net
    wide, remade = spread_out(train_graph(step))
    ledger, chance = make_ledger(wide, prices_of(CAPS, {})), random.Random(2)
    for _ in range(6):
        dropped = {t for t in ledger.choices if chance.random() < 0.5} | remade
        brief = {t for t in dropped if chance.random() < 0.3}
        outcome = simulate(ledger, dropped, brief)
        fit = {"train": Fit(tuple(dropped | ledger.unread), brief=tuple(brief)).to_json()}
        plan = step.plan("opencl", caps=CAPS, graphs=["train"], tuning=False).again(fit=fit)
        assert 0.9 * plan.arena_bytes <= outcome.peak <= 1.05 * plan.arena_bytes


def test_limits_are_met_or_refused_with_the_smallest_one(net):
    """Random limits. `make_plan` proves every plan with the independent verifier."""
    step, _ = net
    whole = step.plan("opencl", caps=CAPS, graphs=["train"])
    chance, times = random.Random(3), []
    for share in sorted((chance.uniform(0.3, 1.1) for _ in range(3)), reverse=True):
        limit = int(whole.bytes * share)
        try:
            plan = step.plan("opencl", caps=CAPS, graphs=["train"], memory_limit_bytes=limit, micro_batches=1)
        except OutOfMemory as error:
            assert error.smallest_bytes is not None and error.smallest_bytes > limit
            assert "The smallest limit that was found is" in str(error) and "more time" in str(error)
            smallest = step.plan(
                "opencl", caps=CAPS, graphs=["train"], memory_limit_bytes=error.smallest_bytes, micro_batches=1
            )
            assert smallest.bytes <= error.smallest_bytes
            return
        assert plan.bytes <= limit
        times.append(plan.options["fit"].get("train", {"more": 0.0})["more"])
    assert times == sorted(times), "less memory takes more time"


def test_the_smallest_plan_is_not_larger_than_a_limit_that_was_met(net):
    step, _ = net
    request = requested(step, "opencl", caps=CAPS, graphs=["train"], memory_limit_bytes=None)
    fitting = Fitting(step, request.device, request.caps, request.names, request.options)
    met = [fitting.within(int(fitting.whole.bytes * share)) for share in (0.9, 0.8, 0.7)]
    assert fitting.smallest.bytes <= min(plan.bytes for plan in met if plan is not None)


def test_a_limit_that_is_no_limit_changes_nothing():
    step, _ = residual()
    whole = step.plan("opencl", caps=CAPS)
    same = step.plan("opencl", caps=CAPS, memory_limit_bytes=whole.bytes)
    assert same.graphs == whole.graphs and not same.options["fit"]


def test_without_recomputing_a_plan_that_is_too_large_is_refused():
    step, _ = residual()
    limit = step.plan("opencl", caps=CAPS).bytes * 3 // 4
    with pytest.raises(OutOfMemory, match=r"the plan needs .* Largest tensors"):
        step.plan("opencl", caps=CAPS, memory_limit_bytes=limit, recompute=False)


def test_a_device_with_too_little_memory_is_a_limit_with_a_warning():
    step, _ = residual()
    caps = replace(CAPS, global_mem_bytes=step.plan("opencl", caps=CAPS).bytes * 3 // 4)
    with pytest.warns(UserWarning, match=r"made smaller to fit into the memory of .*values computed again"):
        assert step.plan("opencl", caps=caps).bytes <= caps.global_mem_bytes


def test_halves_can_be_limited_too():
    step, _ = residual()
    whole = step.plan("opencl", caps=CAPS, precision="half")
    plan = step.plan("opencl", caps=CAPS, precision="half", memory_limit_bytes=whole.bytes * 4 // 5)
    assert plan.bytes <= whole.bytes * 4 // 5 and plan.options["fit"]["train"]["dropped"]
    assert not plan.again(precision="float32", memory_limit_bytes=None).options["fit"], "it was for another graph"


def test_a_plan_is_made_again_with_its_fit():
    step, _ = residual()
    limit = step.plan("opencl", caps=CAPS).bytes * 3 // 4
    plan = step.plan("opencl", caps=CAPS, memory_limit_bytes=limit)
    assert plan.again().graphs == plan.graphs and plan.again(isolate=True, memory_limit_bytes=None).options["fit"]


def test_a_fit_of_another_graph_is_refused():
    step, _ = residual()
    fit = {"train": Fit((10**6,)).to_json()}
    with pytest.raises(PlanError, match=r"the fit is for another graph than 'train'.*Try: "):
        step.plan("opencl", caps=CAPS).again(fit=fit)


def test_less_memory_never_takes_less_time():
    """Outputs are as large as all other values: keeping them for a large limit cost more time than a smaller limit."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    model, batch = nn.Sequential(*layers, nn.Linear(64, 2048)), (torch.randn(256, 64), torch.randint(0, 2048, (256,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = handheld.capture(model, nn.CrossEntropyLoss(), optimizer, batch, evaluate=False)
    request = requested(step, "opencl", caps=CAPS, memory_limit_bytes=None)
    shared = Fitting(step, "opencl", CAPS, request.names, request.options)
    limits = [int(shared.whole.bytes * share) for share in (0.5, 0.6, 0.7, 0.8, 0.9)]
    times = [time_of(plan) for limit in limits if (plan := shared.within(limit)) is not None]
    assert len(times) > 2 and times == sorted(times, reverse=True), (
        "a plan for a smaller limit is used for a larger one"
    )
    for limit, best in zip(limits[-len(times) :], times, strict=True):
        fresh = Fitting(step, "opencl", CAPS, request.names, request.options)
        plan = fresh.within(limit)
        assert plan is not None and time_of(plan) <= best + DEAR


def test_outputs_are_given_up_last():
    """A model whose outputs are the largest tensors."""
    model = nn.Linear(8, 4096)
    batch = torch.randn(32, 8), torch.randint(0, 4096, (32,))
    step = handheld.capture(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), batch)
    whole = step.plan("opencl", caps=CAPS, graphs=["train"])
    plan = step.plan("opencl", caps=CAPS, graphs=["train"], memory_limit_bytes=whole.bytes - (256 << 10))
    assert plan.options["fit"]["train"]["outputs"] is False
    assert [shown.name for shown in plan.graphs["train"].graph.outputs] == ["loss"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step.plan("opencl", caps=CAPS, graphs=["train"]).options["fit"] == {}
