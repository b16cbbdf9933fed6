"""Nothing is silently wrong: what PyTorch and Handheld notice during capture reaches the user, at the user's line."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.errors import CaptureError, ValueRead

X, Y = torch.randn(32, 8), torch.randn(32)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def said(call: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


# ── PyTorch's warnings ───────────────────────────────────────────────────────────────────────────


def test_a_loss_that_broadcasts_warns_once_at_the_call() -> None:
    model = linear()
    line = here() + 1
    (one,) = said(lambda: handheld.capture(model, F.mse_loss, sgd(model), (X, Y), accumulate=2))
    assert "Using a target size (torch.Size([32]))" in str(one.message)
    assert (one.filename, one.lineno) == (__file__, line)


def test_the_line_is_that_of_the_users_own_loss() -> None:
    model = linear()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, target)  # this line

    (one,) = said(lambda: handheld.capture(model, loss, sgd(model), (X, Y)))
    assert one.filename == __file__ and one.lineno == loss.__code__.co_firstlineno + 1


def test_a_second_recording_with_real_values_does_not_repeat_it() -> None:
    model = linear()

    def fn(batch: Any) -> torch.Tensor:
        loss = F.mse_loss(model(batch[0]), batch[1])
        return loss if batch[0].sum() > 1e9 else loss * 2

    texts = [str(w.message) for w in said(lambda: handheld.capture(fn, None, sgd(model), (X, Y), modules=model))]
    assert sum("target size" in text for text in texts) == 1
    assert sum("frozen" in text for text in texts) == 1


def test_the_users_filters_decide() -> None:
    model = linear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="target size"):
            handheld.capture(model, F.mse_loss, sgd(model), (X, Y))
        warnings.filterwarnings("ignore", message="Using a target size")
        handheld.capture(model, F.mse_loss, sgd(model), (X, Y))


def test_a_warning_before_an_error_is_shown() -> None:
    model = linear()

    def fn(batch: Any) -> torch.Tensor:
        warnings.warn("about to fail", stacklevel=1)
        raise ValueRead("the closure fails")

    with pytest.warns(UserWarning, match="about to fail"), pytest.raises(ValueRead):
        handheld.capture(fn, None, sgd(model), (X, Y), modules=model)


def test_a_clean_capture_says_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.LSTM(4, 3))
    fn = lambda batch: model(batch[0])[0].square().mean()  # noqa: E731
    assert said(lambda: handheld.capture(fn, None, sgd(model), (X,), modules=model)) == []


# ── Handheld's own warnings ──────────────────────────────────────────────────────────────────────


def test_own_warnings_point_at_the_call_of_capture_and_of_step() -> None:
    model = linear().double()
    direct = said(lambda: handheld.capture(model, lambda y: y.mean(), None, (X.double(),)))
    assert direct
    builder = handheld.Capture(model).evaluate(lambda b: model(b[0]).mean(), (X.double(),))
    for one in (*direct, *said(builder.step)):
        assert "the float64 of 4 parameters" in str(one.message) and one.filename == __file__


def test_a_float64_target_is_reported() -> None:
    model = linear()
    (one,) = said(lambda: handheld.capture(model, F.mse_loss, sgd(model), (X, Y.double()[:, None])))
    assert "input 1 of the batch is float64 in PyTorch and float32 here" in str(one.message)


def test_frozen_parameters_of_the_optimizer_are_reported() -> None:
    model = linear()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    (one,) = said(lambda: handheld.capture(model, F.mse_loss, sgd(model), (X, Y[:, None])))
    assert "requires_grad=False keep their values (1): 0.weight" in str(one.message)


# ── mixed precision ──────────────────────────────────────────────────────────────────────────────


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.linear(x).dtype == torch.float32
        return self.linear(x)


def test_autocast_is_reported_and_has_no_effect() -> None:
    model = Cast()
    (one,) = said(lambda: handheld.capture(model, F.mse_loss, sgd(model), (X, Y[:, None])))
    assert "torch.autocast has no effect here: values are computed in float32" in str(one.message)
    assert "precision='half'" in str(one.message)
    with pytest.raises(AssertionError):
        model(X)  # Outside of capture, autocast works as before.


def test_autocast_around_capture_is_reported() -> None:
    model = linear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (one,) = said(lambda: handheld.capture(model, F.mse_loss, sgd(model), (X, Y[:, None])))
        assert torch.is_autocast_enabled("cpu")
    assert "autocast around capture has no effect" in str(one.message)


def test_autocast_that_is_disabled_says_nothing() -> None:
    model = linear()

    def fn(batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.mse_loss(model(batch[0])[:, 0], batch[1])

    assert said(lambda: handheld.capture(fn, None, sgd(model), (X, Y), modules=model)) == []


def test_a_scaled_loss_is_the_loss() -> None:
    model, scaler = linear(), torch.amp.GradScaler("cpu")
    fn = lambda batch: scaler.scale(F.mse_loss(model(batch[0])[:, 0], batch[1]))  # noqa: E731
    steps = []
    (one,) = said(lambda: steps.append(handheld.capture(fn, None, sgd(model), (X, Y), modules=model)))
    assert "GradScaler.scale has no effect here" in str(one.message)
    with steps[0].plan("reference:cpu").start() as trainer:
        assert float(trainer.step(X, Y)) == pytest.approx(F.mse_loss(model(X)[:, 0], Y).item(), rel=1e-5)


def test_a_cast_to_half_is_reported() -> None:
    model = linear()
    fn = lambda batch: (model(batch[0]).half().float()[:, 0] - batch[1]).square().mean()  # noqa: E731
    (one,) = said(lambda: handheld.capture(fn, None, sgd(model), (X, Y), modules=model))
    assert "this cast to float16 has no effect here" in str(one.message) and one.filename == __file__


# ── errors with a way out ────────────────────────────────────────────────────────────────────────


def in_no_grad(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        return F.mse_loss(model(batch[0])[:, 0], batch[1])


def with_backward(model: nn.Module, batch: Any) -> torch.Tensor:
    loss = F.mse_loss(model(batch[0])[:, 0], batch[1])
    loss.backward()
    return loss


def with_step(model: nn.Module, batch: Any) -> torch.Tensor:
    sgd(model).step()
    return model(batch[0]).mean()


WRONG: dict[str, tuple[Callable[[nn.Module, Any], Any], str]] = {
    "no_grad": (in_no_grad, r"has no gradient\. Try: remove torch\.no_grad"),
    "detach": (lambda m, b: m(b[0]).detach().mean(), r"has no gradient\. Try: remove torch\.no_grad"),
    "item": (lambda m, b: m(b[0]).sum().item(), r"it returned float\. Try: .* without \.item\(\)"),
    "no reduction": (lambda m, b: m(b[0]), r"a tensor of shape \(32, 1\)\. Try: \.mean\(\)"),
    "backward": (with_backward, r"calls loss\.backward\(\), .*test_warnings\.py:\d+ .*Try: return the loss"),
    "step": (with_step, r"calls optimizer\.step\(\), .*test_warnings\.py:\d+ .*Try: return the loss"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_without_a_gradient_is_an_error(name: str) -> None:
    model, (fn, match) = linear(), WRONG[name]
    with pytest.raises(CaptureError, match=match):
        handheld.capture(lambda batch: fn(model, batch), None, sgd(model), (X, Y), modules=model)
    assert all(p.grad is None for p in model.parameters())


def test_capture_under_no_grad_is_an_error() -> None:
    model = linear()
    with torch.no_grad(), pytest.raises(CaptureError, match=r"called under torch\.no_grad.*Try: call capture outside"):
        handheld.capture(model, F.mse_loss, sgd(model), (X, Y[:, None]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_parameters_are_an_error(dtype: torch.dtype) -> None:
    model = linear().to(dtype)
    with pytest.raises(CaptureError, match=r"0\.weight is b?float16; .*Try: model\.float\(\)"):
        handheld.capture(model, F.mse_loss, sgd(model), (X.to(dtype), Y.to(dtype)[:, None]))


def test_parameters_without_values_are_an_error() -> None:
    model = linear().to("meta")
    with pytest.raises(CaptureError, match=r"0\.weight has no values.*Try: model\.to_empty"):
        handheld.capture(model, F.mse_loss, sgd(model), (X, Y[:, None]))


def test_a_gradient_of_earlier_code_is_not_part_of_the_step() -> None:
    model = linear()
    model(X).sum().backward()
    before = [p.grad for p in model.parameters()]
    step = handheld.capture(model, F.mse_loss, sgd(model), (X, Y[:, None]), evaluate=False)
    assert all(p.grad is old for p, old in zip(model.parameters(), before, strict=True))
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(X, Y[:, None])
        got = trainer.state()["0.weight"]
    model.zero_grad()
    F.mse_loss(model(X), Y[:, None]).backward()
    np.testing.assert_allclose(got, (model[0].weight - 0.1 * model[0].weight.grad).detach(), rtol=1e-5, atol=1e-6)  # type: ignore[index]


# ── the command line ─────────────────────────────────────────────────────────────────────────────

FACTORY = """
import torch
import torch.nn.functional as F

def make():
    model = torch.nn.Linear(8, 1)
    return model, {loss}, torch.optim.SGD(model.parameters(), 0.1), (torch.ones(4, 8), torch.ones(4))

def own(output, target):
    return F.mse_loss(output, target)
"""


@pytest.mark.parametrize(("loss", "line"), [("F.mse_loss", 5), ("own", 10)])
def test_the_command_line_names_file_and_line(tmp_path: Path, loss: str, line: int) -> None:
    (tmp_path / "mine.py").write_text(FACTORY.format(loss=loss))
    command = [sys.executable, "-m", "handheld", "package", "mine.py:make", "--out", "mine.step"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warning = [text for text in done.stderr.splitlines() if text.startswith("warning: ")]
    assert len(warning) == 1 and f"mine.py:{line}: Using a target size" in warning[0]
