"""Differential privacy with Flower's wrappers and mods, fixed and adaptive, clipped on the device and on the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from handheld.federated.client_app import FACTS, client
from handheld.federated.model import arrays_of
from handheld.federated.record import Record
from helpers.federated import LoopGrid, make_data, make_step
from helpers.rounds import outcomes, started, state_in

NORM = 0.05


def clients(count: int, mods: Sequence[Any] = ()) -> list[Any]:
    return [client(make_step, make_data, device="reference:cpu", mods=mods) for _ in range(count)]


def private(kind: type[Any], noise: float = 0.0) -> Strategy:
    """Without noise, the norm of the mean is at most that of the clipped updates."""
    inner = FedAvg(fraction_evaluate=0.0)
    if "Adaptive" in kind.__name__:
        return kind(inner, noise, 2, initial_clipping_norm=NORM, clipped_count_stddev=0.0)
    return kind(inner, noise, NORM, 2)


def moved(folder: Path) -> float:
    """The norm of the change of the model since it was captured."""
    first, after = arrays_of(make_step()), state_in(folder)
    return float(np.sqrt(sum(np.square(after[name] - array).sum() for name, array in first.items())))


CASES = [
    (DifferentialPrivacyServerSideFixedClipping, ()),
    (DifferentialPrivacyClientSideFixedClipping, (fixedclipping_mod,)),
    (DifferentialPrivacyServerSideAdaptiveClipping, ()),
    (DifferentialPrivacyClientSideAdaptiveClipping, (adaptiveclipping_mod,)),
]


@pytest.mark.parametrize(("kind", "mods"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_updates_are_clipped(kind: type[Any], mods: tuple[Any, ...], tmp_path: Path) -> None:
    """Without privacy the model moves further than the clipping norm allows."""
    started(LoopGrid(*clients(2)), tmp_path / "plain", rounds=1)
    assert moved(tmp_path / "plain" / "1") > 2 * NORM
    strategy = private(kind)
    record = started(LoopGrid(*clients(2, mods)), tmp_path / "private", rounds=1, strategy=strategy)
    assert outcomes(record) == [["trained", "trained"]]
    assert 0.5 * NORM < moved(tmp_path / "private" / "1") < 1.001 * NORM
    assert record.rounds[-1].visits[0].seconds, "the costs of a device pass through its mods"
    if "Adaptive" in kind.__name__:  # Both updates were longer, so the norm grows: exp(0.2 * 0.5).
        assert strategy.clipping_norm == pytest.approx(NORM * np.exp(0.1))  # type: ignore[attr-defined]


def test_noise_is_added(tmp_path: Path) -> None:
    strategy = private(DifferentialPrivacyServerSideFixedClipping, noise=100.0)
    started(LoopGrid(*clients(2)), tmp_path, rounds=1, strategy=strategy)
    assert moved(tmp_path / "1") > 4 * NORM


@pytest.mark.parametrize(("kind", "mod"), [(CASES[1][0], "fixed"), (CASES[3][0], "adaptive")])
def test_a_device_that_does_not_clip_is_left_out(kind: type[Any], mod: str, tmp_path: Path) -> None:
    mods = {"fixed": fixedclipping_mod, "adaptive": adaptiveclipping_mod}
    grid = LoopGrid(*clients(2, [mods[mod]]), *clients(1))
    (outcome,) = outcomes(started(grid, tmp_path, rounds=1, strategy=private(kind)))
    assert outcome[:2] == ["trained", "trained"]
    assert f"Try: federated.client(..., mods=[{mod}clipping_mod])" in outcome[2]
    assert moved(tmp_path / "1") < 1.001 * NORM


def test_an_error_passes_through_the_mods(tmp_path: Path) -> None:
    lost = client(make_step, lambda *_: (make_data(0, 1)[0], None), device="reference:cpu", mods=[fixedclipping_mod])
    grid = LoopGrid(*clients(2, [fixedclipping_mod]), lost)
    asked = grid.apps[13]

    def fails(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "train":
            message.content["config"]["model"] = "another"
        return asked(message, context)

    grid.apps[13] = fails  # type: ignore[assignment]
    (outcome,) = outcomes(
        started(grid, tmp_path, rounds=1, strategy=private(DifferentialPrivacyClientSideFixedClipping))
    )
    assert outcome[:2] == ["trained", "trained"]
    assert "the server trains another model" in outcome[2]


def test_a_killed_server_remembers_the_clipping_norm(tmp_path: Path) -> None:
    kind, mods = CASES[3]

    def run(out: Path, grid: LoopGrid) -> tuple[Record, float]:
        strategy = private(kind)
        return started(grid, out, rounds=3, strategy=strategy), strategy.clipping_norm  # type: ignore[attr-defined]

    def die(node: int, reply: Message) -> Message:
        if not reply.has_error() and reply.content.get(FACTS, {}).get("round") == 2:
            raise KeyboardInterrupt
        return reply

    _, whole = run(tmp_path / "whole", LoopGrid(*clients(2, mods)))
    grid = LoopGrid(*clients(2, mods))
    grid.change = die
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", grid)
    record, continued = run(tmp_path / "killed", LoopGrid(*clients(2, mods)))
    assert record.notes == ["continued after round 1"] and continued == pytest.approx(whole)


def test_mods_and_compression_exclude_each_other(tmp_path: Path) -> None:
    grid = LoopGrid(*clients(2, [fixedclipping_mod]))
    strategy = private(DifferentialPrivacyClientSideFixedClipping)
    (outcome,) = outcomes(started(grid, tmp_path, rounds=1, strategy=strategy, compress="int8"))
    assert all("with mods cannot be compressed" in why for why in outcome)
