"""Secure aggregation: the mean of all updates without any single one, and who is refused or dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from handheld.errors import HandheldError
from handheld.federated.client_app import ARRAYS, METRICS, client
from handheld.federated.record import Record, read_record
from handheld.federated.secure import mods
from handheld.federated.server_app import server
from helpers.federated import LoopGrid, make_data, make_step

MASKED = "secaggplus_configs"


def train(out: Path, apps: list[Any], change: Any = lambda node, reply: reply, **options: Any) -> Record:
    """One round with these clients."""
    grid = LoopGrid(*apps)
    grid.change = change
    few = {"fraction_evaluate": 0.0, "min_available_nodes": 2, "min_train_nodes": 2}
    app = server(
        make_step,
        out=out,
        device="reference:cpu",
        rounds=1,
        wait_seconds=1.0,
        strategy=lambda: FedAvg(**few),
        **options,
    )
    app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}))
    return read_record(out / "1")


def own(secure: bool, data: Any = make_data) -> Any:
    return client(make_step, data, device="reference:cpu", secure=secure)


def outcomes(record: Record) -> list[str]:
    return [visit.outcome for visit in sorted(record.rounds[-1].visits, key=lambda visit: visit.node)]


def state_in(out: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(out / "1" / "state.checkpoint")


def trained(reply: Message) -> bool:
    return METRICS in reply.content.metric_records


def test_the_mean_and_nothing_else(tmp_path: Path) -> None:
    """Four devices, one of which is lost when it has trained: the mean of the others, and only masked replies."""
    bare: list[str] = []

    def watched(node: int, reply: Message) -> Message | None:
        bare.extend(name for record in reply.content.array_records.values() for name in record)
        return None if node == 13 and trained(reply) else reply

    def lost(node: int, reply: Message) -> Message | None:
        return None if node == 13 and trained(reply) else reply

    masked = train(tmp_path / "masked", [own(True) for _ in range(4)], watched, secure=True)
    plain = train(tmp_path / "plain", [own(False) for _ in range(4)], lost)
    assert outcomes(masked) == outcomes(plain) == ["trained", "trained", "no reply", "trained"]
    assert not bare and masked.settings["secure"] == 8.0
    state = state_in(tmp_path / "masked")
    for name, array in state_in(tmp_path / "plain").items():
        np.testing.assert_allclose(state[name], array, atol=2e-5)
    whole, part = (sum(visit.up_bytes for visit in one.rounds[-1].visits) for one in (masked, plain))
    assert whole > part > 0  # Masked values have 64 bits.


@pytest.mark.parametrize("stage", [1, 2])
def test_a_device_that_is_lost_early_is_left_out(stage: int, tmp_path: Path) -> None:
    """A device that is lost before it trained takes no part, and the others come to their mean."""
    replies: list[Message] = []

    def lost(node: int, reply: Message) -> Message | None:
        if node == 12 and MASKED in reply.content.config_records:
            replies.append(reply)
            return None if len(replies) == stage else reply
        return reply

    record = train(tmp_path, [own(True) for _ in range(4)], lost, secure=True)
    assert outcomes(record) == ["trained", "no reply", "trained", "trained"]


def test_too_few_answers_are_no_mean(tmp_path: Path) -> None:
    """Below the threshold nothing is unmasked, and the state stays."""
    record = train(
        tmp_path,
        [own(True) for _ in range(4)],
        lambda node, reply: None if node in (12, 13) and trained(reply) else reply,
        secure=True,
    )
    why = "too few devices answered to unmask the mean of this round"
    assert outcomes(record) == [why, "no reply", "no reply", why]


def test_who_does_not_mask_is_refused(tmp_path: Path) -> None:
    record = train(tmp_path, [own(True), own(True), own(True), own(False)], secure=True)
    assert list(record.refused.values()) == ["it does not mask its updates. Try: federated.client(..., secure=True)"]
    assert outcomes(record) == ["trained"] * 3


def test_a_device_that_masks_sends_nothing_to_a_server_that_does_not_ask(tmp_path: Path) -> None:
    def seen(node: int, reply: Message) -> Message:
        assert ARRAYS not in reply.content.array_records
        return reply

    record = train(tmp_path, [own(True), own(True)], seen)
    assert all("this device masks its updates" in why and "secure=True" in why for why in outcomes(record))


def test_changes_that_cannot_be_masked_are_refused_by_the_device(tmp_path: Path) -> None:
    """Masking would clip them: the device says so, and the others go on."""
    record = train(tmp_path, [own(True) for _ in range(3)], secure=1e-6)
    assert all("masked updates hold changes up to 1e-06" in why for why in outcomes(record))


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(HandheldError, match="cannot be compressed as int8"):
        train(tmp_path / "a", [own(True) for _ in range(3)], secure=True, compress="int8")
    with pytest.raises(HandheldError, match="secure is -1"):
        train(tmp_path / "b", [own(True) for _ in range(3)], secure=-1.0)
    with pytest.raises(HandheldError, match="needs 3 to 1000 devices in a round, and 2 take part"):
        train(tmp_path / "c", [own(True), own(True)], secure=True)
    assert len(mods()) == 3
