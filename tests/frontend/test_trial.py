"""Frozen values: each is named by its line and tried on other batches."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import CaptureError, ValueRead
from handheld.frontend.trial import other_batches, try_batches


class Branches(nn.Module):
    """Takes one of two branches, depending on what `decide` returns for its input."""

    def __init__(self, decide) -> None:
        super().__init__()
        self.line, self.decide = nn.Linear(3, 2), decide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x) if self.decide(x) else -self.line(x)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4, 3), torch.tensor([0, 1, 0, 1])


def decisions(decide):
    model = Branches(decide)
    return try_batches(model, lambda b: F.cross_entropy(model(b[0]), b[1]), batch(), other_batches(batch()))


def test_a_branch_that_differs_is_found_and_named() -> None:
    (found,) = decisions(lambda x: x.sum() > 0)
    assert found.text.startswith("test_trial.py:") or "/test_trial.py:" in found.text
    assert "if self.decide(x)" in found.text and "read True, from input 0" in found.text
    assert "it is False in " in found.changed


@pytest.mark.parametrize(
    "decide", [lambda x: x.shape[0] > 2, lambda x: torch.isfinite(x).all()], ids=["a shape", "never otherwise"]
)
def test_a_branch_that_is_always_the_same(decide) -> None:
    assert not any(d.changed for d in decisions(decide))


def test_what_is_selected_counts_as_read() -> None:
    model = nn.Linear(3, 2)
    given = (torch.randn(4, 3), torch.tensor([True, False, True, True]))
    found = try_batches(
        model, lambda b: model(b[0])[b[1]].square().mean(), given, [("the mask turned", (given[0], given[1].roll(1)))]
    )
    assert any("with other values in the mask turned" in d.changed for d in found)


def test_a_random_decision_is_found() -> None:
    (found,) = [d for d in decisions(lambda x: torch.rand(()) < 0.5) if d.changed]
    assert "from handheld.seed" in found.text or "from handheld.step" in found.text


def test_a_trial_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try_batches(model, lambda b: model(b[0]).sum() * float(b[0].sum()), batch(), other_batches(batch()))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_frozen_values_warn_fail_or_are_accepted() -> None:
    model = Branches(lambda x: x.sum() > 0)
    parts = (model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), batch())
    with pytest.warns(UserWarning, match="now frozen"):
        handheld.capture(*parts)
    with pytest.raises(ValueRead, match=r"test_trial\.py:.*frozen='accept'"):
        handheld.capture(*parts, frozen="error")
    with pytest.raises(CaptureError, match="one of warn, error, accept"):
        handheld.capture(*parts, frozen=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = handheld.capture(*parts, frozen="accept")
    assert list(step.frozen().values()) == [["train", "evaluate", "predict"]]
