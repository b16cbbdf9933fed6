"""Schedulers of torch.optim in a custom loop: the trainer follows the optimizer of this process."""

from __future__ import annotations

import gc
import timeit
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedulers

import handheld
from handheld.errors import HandheldError

BATCH, STEPS = 8, 12


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def batches(count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [(torch.randn(BATCH, 6, generator=rng), torch.randint(0, 3, (BATCH,), generator=rng)) for _ in range(count)]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    layers = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.02}]
    return torch.optim.SGD(layers, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01), betas=(0.8, 0.99))


def start(optimizer_of=sgd):
    net = model()
    optimizer = optimizer_of(net)
    step = handheld.capture(net, F.cross_entropy, optimizer, batches(1)[0])
    return net, optimizer, step


def sequential(o):
    return schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.CosineAnnealingLR(o, 9)], milestones=[3]
    )


def chained(o):
    return schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.5, 4), schedulers.ExponentialLR(o, 0.9)])


SCHEDULERS = {
    "StepLR": lambda o: schedulers.StepLR(o, 4, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 5], 0.3),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda n: 0.9**n),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4, 2),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=STEPS, cycle_momentum=False),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.001, 0.1, 3, cycle_momentum=False),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, STEPS),
}


def pytorch_loop(net, optimizer, scheduler) -> list[list[float]]:
    rates = []
    for x, y in batches():
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("before", [True, False], ids=["before capture", "after capture"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_custom_loop_equals_pytorch(name, before):
    net = model()
    optimizer = sgd(net)
    expected_rates = pytorch_loop(net, optimizer, SCHEDULERS[name](optimizer))
    own = model()
    optimizer = sgd(own)
    scheduler = SCHEDULERS[name](optimizer) if before else None
    step = handheld.capture(own, F.cross_entropy, optimizer, batches(1)[0])
    rates = []
    with step.plan("opencl").start() as trainer, warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch must not say that the optimizer was never stepped.
        if scheduler is None:
            scheduler = SCHEDULERS[name](optimizer)
        for x, y in batches():
            trainer.step(x, y)
            rates.append(trainer.rates())
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The epoch parameter")  # SequentialLR uses it itself.
                scheduler.step()
    np.testing.assert_allclose(rates, expected_rates, rtol=1e-6)
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(step.state()[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


def test_a_rate_that_is_a_tensor_is_followed():
    net = model()
    optimizer = adam(net)
    pytorch_loop(net, optimizer, schedulers.ExponentialLR(optimizer, 0.8))
    _, optimizer, step = start(adam)
    scheduler = schedulers.ExponentialLR(optimizer, 0.8)
    with step.plan("opencl").start() as trainer:
        for x, y in batches():
            trainer.step(x, y)
            scheduler.step()
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(step.state()[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


MOMENTUM = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "SGD nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
}


@pytest.mark.parametrize("cycle", [schedulers.OneCycleLR, schedulers.CyclicLR])
@pytest.mark.parametrize("name", MOMENTUM)
def test_a_scheduler_made_before_the_capture_may_change_momentum(name, cycle):
    def make(o):
        return cycle(o, 0.05, total_steps=STEPS) if cycle is schedulers.OneCycleLR else cycle(o, 0.001, 0.05, 4)

    net = model().double()
    optimizer = MOMENTUM[name](net.parameters())
    scheduler = make(optimizer)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(net(x.double()), y).backward()
        optimizer.step()
        scheduler.step()
    own = model()
    optimizer = MOMENTUM[name](own.parameters())
    scheduler = make(optimizer)
    step = handheld.capture(own, F.cross_entropy, optimizer, batches(1)[0])
    assert any(slot in step.slots for slot in ("optimizer.momentum.0", "optimizer.beta1.0"))
    with step.plan("opencl").start() as trainer:
        for x, y in batches():
            trainer.step(x, y)
            scheduler.step()
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(step.state()[key], value, rtol=5e-5, atol=5e-6, err_msg=key)


class Counting(torch.optim.Optimizer):
    """An optimizer without a rule of its own, with a counter in its groups."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "decay": 0.9, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                state["average"].lerp_(p.grad, 1 - group["decay"])
                p.add_(state["average"].sign(), alpha=-group["lr"] / group["count"])


def test_a_custom_optimizer_is_followed_too():
    net = model()
    optimizer = Counting(net.parameters(), 0.1)
    pytorch_loop(net, optimizer, schedulers.ExponentialLR(optimizer, 0.8))
    own = model()
    optimizer = Counting(own.parameters(), 0.1)
    scheduler = schedulers.ExponentialLR(optimizer, 0.8)
    step = handheld.capture(own, F.cross_entropy, optimizer, batches(1)[0])
    with step.plan("opencl").start() as trainer:
        for x, y in batches():
            trainer.step(x, y)
            scheduler.step()
        optimizer.param_groups[0]["decay"] = 0.5
        with pytest.raises(HandheldError, match=r"decay of the optimizer is 0\.5"):
            trainer.step(x, y)
    for key, value in net.state_dict().items():
        np.testing.assert_allclose(step.state()[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


def test_momentum_that_no_scheduler_changes_is_a_constant():
    _, _, step = start()
    assert not any(name.startswith("optimizer.momentum.") for name in step.slots)


def test_set_rate_stays_until_the_optimizer_changes():
    _, optimizer, step = start()
    with step.plan("opencl").start() as trainer:
        trainer.set_rate(0.5, group=1)
        trainer.step(*batches(1)[0])
        assert trainer.rates() == pytest.approx([0.1, 0.5])
        optimizer.param_groups[0]["lr"] = 0.3
        trainer.step(*batches(1)[0])
        assert trainer.rates() == pytest.approx([0.3, 0.5])
    with step.plan("opencl").start() as trainer:  # A new trainer of the step goes on from there.
        trainer.step(*batches(1)[0])
        assert trainer.rates() == pytest.approx([0.3, 0.5])
        optimizer.param_groups[1]["lr"] = 0.2
        assert trainer.rates() == pytest.approx([0.3, 0.2]), "rates are those of the next step"


def test_a_copy_follows_too_and_a_file_does_not(tmp_path):
    _, optimizer, step = start()
    other = step.copy()
    loaded = handheld.load(step.save(tmp_path / "a.step"))
    optimizer.param_groups[0]["lr"] = 0.7
    for each, rate in ((step, 0.7), (other, 0.7), (loaded, 0.1)):
        with each.plan("opencl").start() as trainer:
            trainer.step(*batches(1)[0])
            assert trainer.rates()[0] == pytest.approx(rate)


def test_two_optimizers_are_followed_each_in_its_graph():
    a, b = model(), model()
    first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.2)
    builder = handheld.Capture({"a": a, "b": b})
    builder.train(lambda batch: F.cross_entropy(a(batch[0]), batch[1]), first, batches(1)[0], "a")
    builder.train(lambda batch: F.cross_entropy(b(batch[0]), batch[1]), second, batches(1)[0], "b")
    with builder.step().plan("opencl").start() as trainer:
        first.param_groups[0]["lr"], second.param_groups[0]["lr"] = 0.5, 0.6
        trainer.run("b", *batches(1)[0])
        before = float(trainer.session.read_slot("optimizer.lr.0"))
        trainer.run("a", *batches(1)[0])
        assert [before, *trainer.rates("a"), *trainer.rates("b")] == pytest.approx([0.1, 0.5, 0.6])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda net, o: o.param_groups[0].update(weight_decay=0.5),
            "weight_decay of the optimizer is 0.5; it was 0.01",
        ),
        (lambda net, o: o.param_groups[1].update(momentum=0.5), "momentum of the optimizer is 0.5"),
        (lambda net, o: schedulers.OneCycleLR(o, 0.2, total_steps=9), "Try: cycle_momentum=False"),
        (lambda net, o: o.add_param_group({"params": [nn.Parameter(torch.zeros(2))]}), "has 3 parameter groups"),
        (lambda net, o: o.param_groups[0]["params"].append(nn.Parameter(torch.zeros(2))), "got 1 more parameter"),
        (lambda net, o: net[0].weight.requires_grad_(False), "requires_grad of 1 parameter changed"),
        (lambda net, o: o.param_groups[0].update(lr=float("nan")), "lr of the optimizer is nan"),
    ],
)
def test_other_changes_after_the_capture_are_errors(change, text):
    net, optimizer, step = start()
    with step.plan("opencl").start() as trainer:
        change(net, optimizer)
        for _ in range(2):  # It is said again, and not only once.
            with pytest.raises(HandheldError, match=text):
                trainer.step(*batches(1)[0])


def test_a_parameter_that_is_unfrozen_during_training_is_noticed():
    net = model()
    net[0].requires_grad_(False)
    step = handheld.capture(net, F.cross_entropy, (optimizer := sgd(net)), batches(1)[0])
    with step.plan("opencl").start() as trainer:
        trainer.step(*batches(1)[0])
        net[0].requires_grad_(True)
        with pytest.raises(HandheldError, match=r"copy_to\(model, optimizer\), then handheld.capture again"):
            for _ in range(16):
                trainer.step(*batches(1)[0])
    assert optimizer.param_groups


def test_values_loaded_into_the_optimizer_after_the_capture_are_an_error():
    net, optimizer, step = start()
    for x, y in batches(2):
        F.cross_entropy(net(x), y).backward()
    other = sgd(net)
    other.step()
    with step.plan("opencl").start() as trainer:
        optimizer.load_state_dict(sgd(net).state_dict())  # Nothing but rates.
        trainer.step(*batches(1)[0])
        optimizer.load_state_dict(other.state_dict())
        with pytest.raises(HandheldError, match="load before handheld"):
            trainer.step(*batches(1)[0])


def test_requires_grad_that_the_closures_change_is_no_change():
    a, b = model(), model()
    first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.2)

    def one(batch):
        a.requires_grad_(True)
        return F.cross_entropy(a(batch[0]), batch[1])

    def two(batch):
        a.requires_grad_(False)
        return F.cross_entropy(b(batch[0]), batch[1])

    builder = handheld.Capture({"a": a, "b": b})
    builder.train(one, first, batches(1)[0], "a").train(two, second, batches(1)[0], "b")
    with builder.step().plan("opencl").start() as trainer:
        trainer.run("a", *batches(1)[0])
        trainer.run("b", *batches(1)[0])


def test_the_optimizer_is_not_kept_alive():
    net, optimizer, step = start()
    step.code = None  # It keeps the model for other batch sizes.
    seen = weakref.ref(net[0].weight)
    del net, optimizer
    gc.collect()
    assert seen() is None
    with step.plan("opencl").start() as trainer:
        trainer.step(*batches(1)[0])
        trainer.set_rate(0.5, group=0)
        assert trainer.rates()[0] == 0.5


def test_following_costs_about_a_microsecond():
    """A step takes tens of microseconds at least. The limit leaves room for a busy machine."""
    _, optimizer, step = start()
    live = step.optimizers["optimizer"]
    assert min(timeit.repeat(live.changes, number=2000, repeat=5)) / 2000 < 5e-6
    assert optimizer.param_groups
