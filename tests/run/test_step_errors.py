"""Whole steps: errors, warnings and replaced kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.backends.base import describe
from handheld.errors import BatchError, CaptureError, HandheldError, NonFiniteLoss
from helpers.nets import batch, net, sgd


def test_a_model_that_reads_values_says_what_was_fixed() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.f(x) * (2 if x.sum() > 0 else 3)

    model = Reads()
    with pytest.warns(UserWarning, match="now frozen") as told:
        step = handheld.capture(model, lambda y: y.sum(), sgd(model), (torch.ones(2, 3),))
    assert step.graphs["train"].notes["frozen"]
    assert len(told) == 1 and "in train, evaluate, predict: " in str(told[0].message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:2], y), "shape"),
        (lambda x, y: (x, y.float()), "int64"),
        (lambda x, y: (x,), "takes 2 tensors"),
        (lambda x, y: (x.long(), y), "float32"),
        (lambda x, y: (x, y + 4), "from 0 to 3"),
        (lambda x, y: (x, y + 2**33), "32 bits"),
    ],
)
def test_a_batch_that_does_not_fit(change, message) -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    with step.plan("reference:cpu").start() as trainer:
        with pytest.raises(BatchError, match=message):
            trainer.step(*change(*batch()))
        assert trainer.counters.uploads == 0
        trainer.step(*batch())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (lambda m: (m, F.cross_entropy, sgd(m)), "example batch"),
        (lambda m: (m, F.cross_entropy, sgd(m), ()), "example batch"),
        (lambda m: (m, F.cross_entropy, sgd(m), [t[:0] for t in batch()]), "without a sample"),
        (lambda m: (m, "ce", sgd(m), batch()), r"the loss is a str; .* loss\(output, \*targets\)"),
        (lambda m: (m, F.cross_entropy, sgd(m), batch()[:1]), "0 targets.*argument: 'target'"),
        (lambda m: (m, nn.CrossEntropyLoss(), sgd(m), batch()[0]), "0 targets.*'target'"),
        (lambda m: (m, lambda o, y: o, sgd(m), batch()), "scalar loss"),
        (lambda m: (m, F.cross_entropy, torch.optim.LBFGS(m.parameters()), batch()), "LBFGS cannot be captured"),
        (lambda m: (lambda b: m(b[0]).sum(), None, sgd(m), batch()), "modules="),
    ],
)
def test_capture_errors(args, message) -> None:
    with pytest.raises(CaptureError, match=message):
        handheld.capture(*args(net()))


def test_labels_of_the_example_batch_are_checked() -> None:
    model, (x, y) = net(), batch()
    with pytest.raises(BatchError, match=r"'1' of the example batch holds 4; .* from 0 to 3"):
        handheld.capture(model, F.cross_entropy, sgd(model), (x, y * 0 + 4))
    handheld.capture(model, F.cross_entropy, sgd(model), (x, y * 0 - 100))  # the label that the loss ignores


def test_a_model_of_doubles_is_told_that_it_runs_in_float32() -> None:
    model, (x, y) = net().double(), batch()
    with pytest.warns(UserWarning, match=r"float32 replaces the float64 of \d+ parameter"):
        handheld.capture(model, F.cross_entropy, sgd(model), (x.double(), y))


def test_a_closed_trainer_says_so() -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    trainer = step.plan("reference:cpu").start()
    trainer.close()
    with pytest.raises(HandheldError, match="closed"):
        trainer.step(*batch())


def test_a_kernel_that_does_not_build_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning has the driver's log, the kernel, and the variant that is tried next."""
    from handheld.kernels import contract_text

    real = contract_text.read_cl
    broken = "\n#if !LOCAL\n#error this driver does not like it\n#endif\n"
    monkeypatch.setattr(contract_text, "read_cl", lambda name: real(name) + broken)
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch(), evaluate=False)
    plan = step.plan("opencl")
    if plan.caps.kind != "cpu":
        pytest.skip("the register variant is for CPUs")
    with pytest.warns(UserWarning, match=r"(?s)could not build kernel contract.*gpu variants"):
        trainer = plan.start()
    with trainer:
        assert np.isfinite(float(trainer.step(*batch())))


def test_features_that_a_compiler_refuses_are_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are built again without the features before the kernels of another kind are tried."""
    from handheld.plan import widen

    caps = describe("opencl")
    if caps.kind != "cpu":
        pytest.skip("only compilers for CPUs are asked")
    monkeypatch.setattr(widen, "widened", lambda launches, features: "#error not these")
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch(), evaluate=False)
    plan = step.plan("opencl", caps=replace(caps, features="sse2"), tuning=False)
    with pytest.warns(UserWarning, match=r"(?s)could not build.*Trying vectors of 8 floats"):
        trainer = plan.start()
    with trainer:
        assert trainer.plan.caps.kind == "cpu" and not trainer.plan.caps.features
        assert np.isfinite(float(trainer.step(*batch())))


def test_a_loss_that_is_nan_at_once() -> None:
    """In the first step, no learning rate has done anything yet."""
    model = torch.nn.Linear(4, 2)
    batch = (torch.full((8, 4), float("nan")), torch.zeros(8, dtype=torch.int64))
    step = handheld.capture(model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), batch)
    with step.plan("reference:cpu").start() as trainer, pytest.raises(NonFiniteLoss, match="Try: data without NaN"):
        trainer.fit([batch], epochs=1)
