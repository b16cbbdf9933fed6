"""An untested PyTorch version causes one warning per process when capture starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import handheld
from handheld.frontend import tested


@pytest.fixture(autouse=True)
def not_warned() -> Iterator[None]:
    tested.warn_untested.cache_clear()
    yield
    tested.warn_untested.cache_clear()


def said_by_capture() -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handheld.Capture(nn.Linear(2, 2))
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0a0+git1234", "3.0.1+cu140", "2.8.1", "main"])
def test_an_untested_version_warns_once(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    (said,) = said_by_capture()
    assert f"PyTorch {version} was not tested" in said
    assert "2.9 to 2.15" in said and "Try: handheld verify" in said
    assert said_by_capture() == []


@pytest.mark.parametrize("version", ["2.9.0", "2.13.0+cpu", "2.15.3+cu132", torch.__version__])
def test_a_tested_version_does_not_warn(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert said_by_capture() == []


def test_the_warning_points_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.warns(UserWarning, match="was not tested") as caught:
        handheld.Capture(nn.Linear(2, 2))
    assert caught[0].filename == __file__
