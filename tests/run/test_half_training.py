"""Training in halves: loss scaling, skipped steps, state, memory savings."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld import package, suite
from handheld.backends.base import describe
from handheld.data import load_data
from handheld.errors import NonFiniteGradient, NonFiniteLoss, PlanError
from handheld.frontend.capture import Capture
from handheld.plan.codec import from_json
from handheld.run.loop import fit
from handheld.run.losses import LOOK, PATIENCE
from handheld.run.verify import verify_plan
from handheld.step import Step

#: about ten roundings to 11 bits in a row, which partly cancel
CLOSE = 2.0**-9


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(128)] if norm else []
    return nn.Sequential(nn.Linear(48, 128), *middle, nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(32, 48, generator=g), torch.randint(0, 10, (32,), generator=g)


def captured(model: nn.Module, optimizer: torch.optim.Optimizer, **options) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return handheld.capture(model, nn.CrossEntropyLoss(), optimizer, batch(), **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam with an eps so large that the first step is not just the sign of the gradient."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-2)


def parameters(state: dict[str, np.ndarray], model: nn.Module) -> np.ndarray:
    return np.concatenate([state[n].ravel() for n, _ in model.named_parameters()])


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], but: tuple[str, ...]) -> bool:
    return all(np.array_equal(a[n], b[n]) for n in a if n not in but)


COUNTERS = ("handheld.scale", "handheld.good_steps", "handheld.skipped_steps")


@pytest.mark.parametrize(
    ("device", "make", "options"),
    [
        ("opencl", sgd, {"clip_norm": 0.1}),
        ("reference:cpu", sgd, {}),
        ("reference:cpu", sgd, {"accumulate": 2}),
        ("reference:cpu", adam, {"accumulate": 2}),
        ("reference:cpu", adam, {"clip_norm": 0.1}),
        ("reference:cpu", adam, {"clip_value": 0.01}),
    ],
)
def test_trains_like_pytorch(device, make, options):
    """One update from the same state: the change of all parameters is compared with PyTorch in float32."""
    model = network()
    step = captured(model, make(model), **options)
    start = parameters(step.state(), model)
    optimizer = make(model)
    count = options.get("accumulate", 1)
    optimizer.zero_grad()
    for n in range(count):
        (nn.functional.cross_entropy(model(batch(n)[0]), batch(n)[1]) / count).backward()
    if "clip_norm" in options:
        nn.utils.clip_grad_norm_(model.parameters(), options["clip_norm"])
    if "clip_value" in options:
        nn.utils.clip_grad_value_(model.parameters(), options["clip_value"])
    optimizer.step()
    want = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]) - start
    with step.plan(device, precision="half").start() as trainer:
        for n in range(count):
            trainer.step(*batch(n))
        got = parameters(trainer.state(), model) - start
        scale = trainer.loss_scale()
    assert scale is not None and (scale.good_steps, scale.skipped_steps) == (1, 0)
    assert np.linalg.norm(got - want) < CLOSE * np.linalg.norm(want)


@pytest.mark.parametrize(("device", "make"), [("opencl", adam), ("reference:cpu", sgd)])
def test_an_overflow_is_skipped(device, make):
    """With a scale that is too large, no parameter changes, running statistics are updated by the forward pass,
    the scale halves, and the next step is the same as without the overflow."""
    model = network(norm=True)
    step = captured(model, make(model))
    running = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    with step.plan(device, precision="half").start() as trainer:
        trainer.step(*batch())
        trainer.load({"handheld.scale": np.float32(2.0**24)}, strict=False)
        before = trainer.state()
        loss = float(trainer.step(*batch(1)))
        after, scale = trainer.state(), trainer.loss_scale()
        assert np.isfinite(loss)  # The forward pass is not scaled.
        assert same(before, after, COUNTERS + running)
        assert not np.array_equal(before["1.running_mean"], after["1.running_mean"])
        assert scale == type(scale)(2.0**23, 0, 1)
        trainer.load({"handheld.scale": np.float32(1024)}, strict=False)
        trainer.step(*batch(1))
        assert trainer.loss_scale() == type(scale)(1024, 1, 1)
        assert not same(after, trainer.state(), COUNTERS + running)


def test_a_nan_in_the_batch_is_skipped():
    model = network()
    step = captured(model, adam(model), clip_norm=1.0)
    x, y = batch()
    x[3, 5] = float("nan")
    with step.plan("reference:cpu", precision="half").start() as trainer:
        before = trainer.state()
        assert np.isnan(float(trainer.step(x, y)))
        assert same(before, trainer.state(), COUNTERS)
        assert trainer.loss_scale().scale == 2.0**15


def test_an_overflow_among_accumulated_batches():
    """A bad batch spoils only the update that it is part of."""
    model = network()
    step = captured(model, sgd(model), accumulate=2)
    x, y = batch()
    bad = x.clone()
    bad[0, 0] = float("inf")
    with step.plan("reference:cpu", precision="half").start() as trainer:
        before = trainer.state()
        trainer.step(bad, y)
        trainer.step(x, y)
        after = trainer.state()
        assert same(before, after, (*COUNTERS, "handheld.step"))  # The accumulated sums are zero too.
        assert trainer.loss_scale().skipped_steps == 1
        trainer.step(x, y)
        trainer.step(x, y)
        assert not same(after, trainer.state(), (*COUNTERS, "handheld.step"))
        assert trainer.loss_scale().skipped_steps == 1


def test_the_scale_grows_and_has_ends():
    model = network()
    step = captured(model, sgd(model))
    with step.plan("reference:cpu", precision="half", growth_steps=3).start() as trainer:
        scales = []
        for n in range(7):
            trainer.step(*batch(n))
            scales.append(trainer.loss_scale().scale / 2**16)
        assert scales == [1, 1, 2, 2, 2, 4, 4]
        x, y = batch()
        trainer.load({"handheld.scale": np.float32(2.0**-23)}, strict=False)
        for _ in range(3):
            trainer.step(x * float("nan"), y)
        assert trainer.loss_scale().scale == 2.0**-24


def test_a_scale_as_gradient():
    """The gradient of a sum is the scale itself, wherever a kernel reads it."""
    model = nn.Linear(3, 3, bias=True)
    capture = Capture(model)
    capture.train(
        lambda b: model(b[0]).sum() * 0 + model.bias.sum() + model.weight.sum(),
        torch.optim.SGD(model.parameters(), lr=0.5),
        (torch.randn(4, 3),),
    )
    step = capture.step()
    start = step.state()
    for precision in ("float32", "half"):
        step.values.update({n: start[n] for n in ("weight", "bias")})
        with step.plan("reference:cpu", precision=precision).start() as trainer:
            trainer.load({"handheld.scale": np.float32(2.0**14)}, strict=False)
            trainer.step(torch.randn(4, 3))
            assert np.allclose(trainer.state()["bias"], start["bias"] - 0.5, atol=1e-6)
            assert np.allclose(trainer.state()["weight"], start["weight"] - 0.5, atol=1e-6)


def test_a_checkpoint_keeps_the_scale(tmp_path: Path):
    """Training that continues from a checkpoint or a step file gives the same bits."""
    model = network()
    step = captured(model, adam(model))
    with step.plan("reference:cpu", precision="half", growth_steps=4).start() as trainer:
        for n in range(6):
            trainer.step(*batch(n))
        trainer.step(batch()[0] * float("nan"), batch()[1])
        assert trainer.loss_scale() == type(trainer.loss_scale())(2.0**16, 0, 1)
        package.save_state(tmp_path / "a.checkpoint", trainer.state(), {})
        step.save(tmp_path / "a.step")
        trainer.step(*batch(7))
        want = trainer.state()
    loaded = package.load(tmp_path / "a.step")
    with loaded.plan("reference:cpu", precision="half", growth_steps=4).start() as trainer:
        trainer.step(*(t.numpy() for t in batch(7)))
        assert same(want, trainer.state(), ())
        trainer.load(package.load_state(tmp_path / "a.checkpoint")[0])
        assert trainer.loss_scale().skipped_steps == 1
        trainer.step(*batch(7))
        assert same(want, trainer.state(), ())
    # Training in float32 ignores the scale in the file.
    first = batch(7)
    with loaded.plan("reference:cpu").start() as trainer:
        trainer.load(package.load_state(tmp_path / "a.checkpoint")[0])
        trainer.step(*first)
        assert trainer.loss_scale() is None
        got, start = trainer.state(), package.load_state(tmp_path / "a.checkpoint")[0]
    moved = parameters(got, model) - parameters(start, model)
    assert np.linalg.norm(parameters(want, model) - parameters(got, model)) < (0.05 * np.linalg.norm(moved))


def test_a_gan_shares_the_scale():
    torch.manual_seed(0)
    one, two = nn.Linear(40, 40), nn.Linear(40, 40)
    capture = Capture({"one": one, "two": two})
    x = torch.randn(32, 40)
    capture.train(lambda b: two(one(b[0])).square().mean(), sgd(one), (x,), "a")
    capture.train(lambda b: two(one(b[0])).abs().mean(), sgd(two), (x,), "b")
    with capture.step().plan("reference:cpu", precision="half").start() as trainer:
        trainer.run("a", x)
        trainer.run("b", x * float("inf"))
        assert trainer.loss_scale() == type(trainer.loss_scale())(2.0**15, 0, 1)


def test_losses_that_are_no_number():
    """The loop skips such steps, because nothing is learned from them, but not without end."""
    model = network()
    step = captured(model, sgd(model))
    x, y = (t.numpy() for t in batch())
    bad = (x * np.nan, y)
    with step.plan("reference:cpu", precision="half").start() as trainer:
        history = fit(trainer, [(x, y), bad, bad, (x, y)], epochs=1)
        assert np.isfinite(history.epochs[0].loss)
        assert trainer.loss_scale().skipped_steps == 2
        with pytest.raises(NonFiniteLoss, match="too large for half precision"):
            fit(trainer, [bad] * (PATIENCE + 1), epochs=1)
    with step.plan("reference:cpu").start() as trainer, pytest.raises(NonFiniteLoss):
        fit(trainer, [bad], epochs=1)


class Root(nn.Module):
    """A finite forward pass and an infinite gradient: the slope of a root at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(48, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((self.first(x) * 0).sqrt())


def test_a_model_that_makes_nan_is_an_error():
    """The loss is finite but every gradient is NaN: no scale helps, and the error says so."""
    model = Root()
    step = captured(model, sgd(model))
    data = [tuple(t.numpy() for t in batch())] * 80
    with step.plan("reference:cpu", precision="half").start() as trainer:
        before = trainer.state()
        with pytest.raises(NonFiniteGradient, match="even with a loss scale of 6e-08, at step"):
            fit(trainer, data, epochs=1)
        assert same(before, trainer.state(), COUNTERS)
        assert trainer.loss_scale().skipped_steps == LOOK


def test_losses_follow_float32():
    """Losses stay within 1% of those of PyTorch from the same start on the same batches."""
    workload = suite.get("transformer", layers=1, width=64, heads=2, vocabulary=200, length=32)
    step = workload.step(4)
    losses = {}
    for precision in ("float32", "half"):
        with step.copy().plan("reference:cpu", precision=precision, graphs=["train"]).start() as it:
            losses[precision] = [float(it.step(*workload.batch(4))) for _ in range(3)]
    assert losses["half"] != losses["float32"]
    assert np.allclose(losses["half"], losses["float32"], rtol=0.01)


def test_lenet_learns_digits():
    workload = suite.get("lenet5")
    data = load_data("digits", 32, seed=0, size=28, gray=True)
    step = workload.step(32)
    with step.plan("opencl", precision="half").start() as trainer:
        rates = trainer.rates()
        history = fit(
            trainer,
            data.train,
            epochs=12,
            test=data.test,
            rate=lambda epoch: rates[0] * 0.5 * (1 + np.cos(np.pi * epoch / 12)),
        )
        assert trainer.loss_scale().skipped_steps < 20
    assert history.test["accuracy"] >= 0.97


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 96), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.reshape(4, 33, 2, 16).transpose(1, 2) for t in self.first(x).chunk(3, -1))
        made = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.last(made.transpose(1, 2).reshape(4, 33, 32))


# With one alignment packed gradients are halves, with the other they are float32.
@pytest.mark.parametrize("align_bytes", [128, 512])
def test_every_op_equals_the_reference(align_bytes):
    torch.manual_seed(0)
    model, example = Attention(), (torch.randn(4, 33, 32), torch.randn(4, 33, 8))
    step = handheld.capture(model, nn.MSELoss(), sgd(model), example, evaluate=False)
    caps = replace(describe("opencl"), base_align_bytes=align_bytes)
    plan = step.plan("opencl", precision="half", isolate=True, caps=caps)
    stored = {t.id for t in plan.graphs["train"].graph.tensors.values() if t.dtype == "f16"}
    attention = [n for n in plan.graphs["train"].graph.nodes if n.op.startswith("attention")]
    assert [n.op for n in attention] == ["attention", "attention_grad"]
    assert stored >= {attention[0].outputs[0], *attention[1].outputs}
    result = verify_plan(plan, example, "train")
    assert result.passed, str(result)


def test_memory():
    """Activations and gradients are half as large; parameters and their state are not."""
    step = suite.get("squeezenet", size=224).step(8)
    caps = handheld.device.DeviceCaps.shipped("adreno-740")
    whole, halves = (step.plan("opencl", caps=caps, precision=p, graphs=["train"]) for p in ("float32", "half"))
    assert halves.bytes < 0.7 * whole.bytes
    assert from_json(halves.to_json(), step).to_json() == halves.to_json()


def test_what_it_does_not_take():
    model = network()
    step = captured(model, sgd(model))
    with pytest.raises(PlanError, match=r"unknown precision 'bf16'\. Try: float32, half or half-compute"):
        step.plan("null", precision="bf16")
    with pytest.raises(PlanError, match="growth_steps=0 must be"):
        step.plan("null", precision="half", growth_steps=0)
