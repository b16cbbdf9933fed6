"""What the server averages, refuses, drops and continues: real clients and strategies, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedProx

import handheld
from handheld.data import ArrayData
from handheld.errors import HandheldError
from handheld.federated import local
from handheld.federated.client_app import ARRAYS, FACTS, LEFT, METRICS, client
from handheld.federated.model import arrays_of
from handheld.federated.proximal_term import proximal
from handheld.federated.record import COMPLETE, read_record
from handheld.federated.select import Select
from helpers.federated import BATCH, LoopGrid, arrays, make_data, make_step, network
from helpers.rounds import outcomes, started, state_in, visits


def clients(count: int, step: Any = make_step) -> list[Any]:
    return [client(step, make_data, device="reference:cpu") for _ in range(count)]


def test_a_round_of_fedavg_equals_plain_pytorch(tmp_path: Path) -> None:
    """Two devices with 8 and 12 samples, on two kinds of device, beside PyTorch and the weighted mean."""
    grid = LoopGrid(*clients(2), devices=("opencl", "reference:cpu"))
    record = started(grid, tmp_path, rounds=1)
    assert outcomes(record) == [["trained", "trained"]] and record.status == COMPLETE
    total: dict[str, Any] = {}
    for partition, samples in ((0, 8), (1, 12)):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in make_data(partition, 2)[0].epoch(0):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            total[name] = total.get(name, 0) + value.double().numpy() * samples / 20
    found = state_in(tmp_path / "1")
    for name, value in total.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_bad_updates_are_dropped_and_counted(tmp_path: Path) -> None:
    """NaN, a wrong shape, a NaN loss, no samples and an old round: none is averaged, and each is named."""
    grid = LoopGrid(*clients(6))

    def change(node: int, reply: Message) -> Message:
        content = reply.content
        if METRICS not in content:
            return reply
        arrays = {name: array.numpy().copy() for name, array in content[ARRAYS].items()}
        if node == 12:
            arrays["0.bias"][0] = np.nan
        if node == 13:
            arrays["0.bias"] = arrays["0.bias"][:3]
        if node == 14:
            content[METRICS]["train-loss"] = float("nan")
        if node == 15:
            content[METRICS]["num-examples"] = 0
        if node == 16:
            content[FACTS]["round"] = 7
        content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return reply

    grid.change = change
    record = started(grid, tmp_path / "bad", rounds=1)
    good, nan, shape, loss, none, old = outcomes(record)[0]
    assert good == "trained"
    assert nan == "0.bias has values that are not finite"
    assert shape == "0.bias has shape (3,) instead of (8,)"
    assert loss == "its loss is nan" and none == "its number of samples is 0"
    assert old == "it belongs to round 7, not 1"
    alone = LoopGrid(*clients(6))
    alone.apps = {11: alone.apps[11]}
    started(alone, tmp_path / "alone", rounds=1)
    for name, array in state_in(tmp_path / "alone" / "1").items():
        np.testing.assert_array_equal(state_in(tmp_path / "bad" / "1")[name], array)


def test_a_second_reply_is_not_counted(tmp_path: Path) -> None:
    grid = LoopGrid(*clients(1))
    answer = grid.send_and_receive
    grid.send_and_receive = lambda messages, timeout=None: [r for r in answer(messages) for _ in (1, 2)]  # type: ignore[method-assign,assignment]
    assert outcomes(started(grid, tmp_path, rounds=1)) == [["trained", "a second reply of this round"]]


def test_other_models_and_versions_and_no_data_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> handheld.Step:
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        batch = (torch.zeros(BATCH, 6), torch.zeros(BATCH, dtype=torch.long))
        return handheld.capture(model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batch)

    empty = client(make_step, (None, None), device="reference:cpu")
    grid = LoopGrid(*clients(2), client(other(), make_data, device="reference:cpu"), empty)

    def older(node: int, reply: Message) -> Message:
        if node == 12:
            reply.content[FACTS]["version"] = "0.0.9"
        return reply

    grid.change = older
    record = started(grid, tmp_path, rounds=1)
    assert outcomes(record) == [["trained"]]
    assert set(record.refused) == {"12", "13", "14"}
    assert "Handheld 0.0.9" in record.refused["12"] and "same release" in record.refused["12"]
    assert "another model than the server: its layers differs" in record.refused["13"]
    assert record.refused["14"] == "it has no training data"
    assert [node for kind, node in grid.asked if kind == "train"] == [11]


def test_no_device_is_an_error_with_reasons(tmp_path: Path) -> None:
    grid = LoopGrid(client(make_step, (None, None), device="reference:cpu"))
    with pytest.raises(HandheldError, match=r"only 0 devices can take part.*node 11: it has no training data.*Try:"):
        started(grid, tmp_path, rounds=1)


def test_a_killed_server_continues_and_counts_nothing_twice(tmp_path: Path) -> None:
    """Also what the strategy remembers: FedAdam has moments."""
    fedadam = lambda: FedAdam(fraction_evaluate=0.0)  # noqa: E731
    whole = started(LoopGrid(*clients(2)), tmp_path / "whole", rounds=3, strategy=fedadam)
    grid = LoopGrid(*clients(2))

    def die(node: int, reply: Message) -> Message:
        if reply.content.get(FACTS, {}).get("round") == 2:
            raise KeyboardInterrupt
        return reply

    grid.change = die
    with pytest.raises(KeyboardInterrupt):
        started(grid, tmp_path / "killed", rounds=3, strategy=fedadam)
    assert read_record(tmp_path / "killed" / "1").status == "running"
    record = started(LoopGrid(*clients(2)), tmp_path / "killed", rounds=3, strategy=fedadam)
    assert record.status == COMPLETE and record.notes == ["continued after round 1"]
    assert [one.number for one in record.rounds] == [one.number for one in whole.rounds]
    assert any(name.startswith("strategy|m_t|") for name in state_in(tmp_path / "whole" / "1"))
    for name, array in state_in(tmp_path / "whole" / "1").items():
        np.testing.assert_array_equal(state_in(tmp_path / "killed" / "1")[name], array)
    again = started(LoopGrid(*clients(2)), tmp_path / "killed", rounds=1)
    assert len(again.rounds) == 1 and (tmp_path / "killed" / "2").is_dir(), "a complete training is not touched"


def test_lost_and_hot_devices(tmp_path: Path) -> None:
    grid = LoopGrid(*clients(3))

    def change(node: int, reply: Message) -> Message | None:
        if node == 12 and METRICS in reply.content:
            return None
        if node == 13:
            reply.content[FACTS]["celsius"] = 70.0
        return reply

    grid.change = change
    record = started(grid, tmp_path, rounds=1, select=Select(thermal_limit=60))
    assert outcomes(record) == [["trained", "no reply"]]
    assert record.rounds[-1].passed_over == {"13": "it has 70.0 °C, above 60 °C"}


def test_slow_devices_get_fewer_steps(tmp_path: Path) -> None:
    grid = LoopGrid(*clients(2))

    def slow(node: int, reply: Message) -> Message:
        if node == 12 and FACTS in reply.content:
            reply.content[FACTS]["step-seconds"] = 2.0
        return reply

    grid.change = slow
    record = started(grid, tmp_path, rounds=2, select=Select(round_seconds=4), local_epochs=2)
    assert [visit.steps for visit in visits(record.rounds[-1])] == [4, 2]
    assert [visit.samples for visit in visits(record.rounds[-1])] == [16, 8]


def test_a_device_stops_when_its_time_is_up(tmp_path: Path) -> None:
    """Also in its first round, when its speed is not known: a reply after the timeout would be lost."""
    asked: list[dict[str, Any]] = []
    grid = LoopGrid(*clients(1))
    answer = grid.apps[11]

    def seen(message: Message, context: Any) -> Message:
        asked.append(dict(message.content.get("config", {})))
        return answer(message, context)

    grid.apps[11] = seen  # type: ignore[assignment]
    started(grid, tmp_path / "default", rounds=1, timeout=7.0)
    assert asked[-1]["local-seconds"] == 3.5 and "local-steps" not in asked[-1]
    record = started(LoopGrid(*clients(2)), tmp_path / "short", rounds=1, select=Select(round_seconds=1e-9))
    assert [visit.steps for visit in visits(record.rounds[-1])] == [1, 1]


def test_two_devices_with_one_part_of_the_data(tmp_path: Path) -> None:
    """The second one waits for the first one to go; both are named."""
    grid = LoopGrid(*clients(3))
    grid.contexts[13].node_config["partition-id"] = 1
    record = started(grid, tmp_path, rounds=1)
    assert outcomes(record) == [["trained", "trained"]]
    (note,) = record.notes
    assert note.startswith("node 13: it has part 1 of the data, as node 12 has") and "Try: another --part" in note
    assert record.rounds[-1].passed_over.keys() == {"13"}
    unnumbered = LoopGrid(*clients(2))
    for context in unnumbered.contexts.values():
        del context.node_config["partition-id"]
    assert outcomes(started(unnumbered, tmp_path / "own", rounds=1)) == [["trained", "trained"]]


@pytest.mark.parametrize("form", ["int8", "topk:0.2"])
def test_compressed_updates(form: str, tmp_path: Path) -> None:
    plain = started(LoopGrid(*clients(2)), tmp_path / "plain", rounds=2)
    record = started(LoopGrid(*clients(2)), tmp_path / "small", rounds=2, compress=form)
    assert outcomes(record) == [["trained", "trained"]] * 2
    sent = [sum(visit.up_bytes for visit in one.visits) for one in (plain.rounds[-1], record.rounds[-1])]
    assert sent[1] < sent[0] / 2
    first, whole, small = arrays_of(make_step()), state_in(tmp_path / "plain" / "1"), state_in(tmp_path / "small" / "1")
    moved = sum(float(np.abs(whole[name] - first[name]).sum()) for name in first)
    apart = sum(float(np.abs(whole[name] - small[name]).sum()) for name in first)
    assert apart < (0.05 if form == "int8" else 0.9) * moved


@pytest.mark.parametrize("form", ["int8", "topk:0.2"])
def test_a_broken_update_does_not_hide_in_a_compressed_one(form: str, tmp_path: Path) -> None:
    """NaN has no place among steps of a scale and is never the largest value: the device itself must look."""
    grid = LoopGrid(*clients(1), client(make_step, nan_in_the_second_round, device="reference:cpu"))
    record = started(grid, tmp_path, rounds=3, compress=form)
    assert outcomes(record)[0] == outcomes(record)[2] == ["trained", "trained"]
    assert outcomes(record)[1] == ["trained", "0.weight has values that are not finite"]
    broken = visits(record.rounds[-2])[1]
    assert broken.steps == 3 and broken.samples == 12 and broken.seconds
    kept = {name: array.numpy() for name, array in grid.contexts[12].state[LEFT].items()}
    assert kept and all(np.isfinite(array).all() for array in kept.values())
    assert all(np.isfinite(array).all() for array in state_in(tmp_path / "1").values())


def nan_in_the_second_round(partition: int, partitions: int) -> tuple[Any, None]:
    class Broken(ArrayData):
        def epoch(self, number: int) -> Any:
            for x, y in super().epoch(number):
                yield (np.full_like(x, np.nan) if number == 1 else x), y

    return Broken(*arrays(partition, 12), batch_size=BATCH), None


def test_strategies_of_flower_work_behind_the_guard(tmp_path: Path) -> None:
    record = started(
        LoopGrid(*clients(2)),
        tmp_path,
        rounds=2,
        strategy=FedAdam(fraction_evaluate=1.0),
        test=lambda: make_data(0, 2)[1],
    )
    assert record.settings["strategy"] == "FedAdam" and outcomes(record) == [["trained", "trained"]] * 2
    assert {"accuracy", "loss", "train-loss", "devices-accuracy"} <= set(record.rounds[-1].metrics)


def test_fedprox_keeps_near_the_server(tmp_path: Path) -> None:
    """With the term, the step equals PyTorch's with the same term; without it, FedProx is refused."""

    def near() -> handheld.Step:
        model, loss = proximal(network(), torch.nn.CrossEntropyLoss())
        batch = (torch.zeros(BATCH, 6), torch.zeros(BATCH, dtype=torch.long))
        return handheld.capture(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), batch)

    weight = 3.0
    fedprox = lambda: FedProx(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1, proximal_mu=weight)  # noqa: E731
    grid = LoopGrid(*clients(1, near))
    assert outcomes(started(grid, tmp_path / "near", near, rounds=1, strategy=fedprox)) == [["trained"]]
    model, start = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in make_data(0, 1)[0].epoch(0):
        optimizer.zero_grad()
        away = sum((a - b.detach()).square().sum() for a, b in zip(model.parameters(), start.parameters(), strict=True))
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)) + weight / 2 * away
        loss.backward()
        optimizer.step()
    found = state_in(tmp_path / "near" / "1")
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(found[f"model.{name}"], value.numpy(), rtol=1e-5, atol=1e-6)
    refused = started(LoopGrid(*clients(1)), tmp_path / "plain", rounds=1, strategy=fedprox)
    assert "Try: model, loss = handheld.federated.proximal" in outcomes(refused)[0][0]


def test_a_page_is_written_and_a_lock_is_held(tmp_path: Path) -> None:
    record = started(LoopGrid(*clients(2)), tmp_path, rounds=1, test=lambda: make_data(0, 2)[1])
    page = (tmp_path / "1" / "index.html").read_text()
    assert "Federated training" in page and record.model in page
    grid = LoopGrid(*clients(1))
    seen: list[str] = []

    def second(node: int, reply: Message) -> Message:
        if not seen:
            seen.append("")
            with pytest.raises(HandheldError) as caught:
                started(LoopGrid(*clients(1)), tmp_path, rounds=1)
            seen[0] = str(caught.value)
        return reply

    grid.change = second
    started(grid, tmp_path, rounds=1)
    assert "is being written by process" in seen[0]


def test_a_client_says_what_is_wrong() -> None:
    app = client(make_step, make_data, device="opencl:nothing-of-this-name")
    grid = LoopGrid(app, devices=("opencl:nothing-of-this-name",))
    message = Message(content=RecordDict({"config": ConfigRecord()}), dst_node_id=11, message_type="query")
    (reply,) = grid.send_and_receive([message])
    assert "nothing-of-this-name" in reply.content[FACTS]["error"]


def test_a_device_that_cannot_answer_is_named_and_asked_again_later(tmp_path: Path) -> None:
    """A lost target is no refusal: it may come back. It is not asked again at once."""
    grid = LoopGrid(*clients(2))

    def lost(node: int, reply: Message) -> Message:
        if node == 12:
            reply.content = RecordDict({FACTS: ConfigRecord({"error": "the cable is gone", "kind": "TargetLost"})})
        return reply

    grid.change = lost
    record = started(grid, tmp_path, rounds=2)
    assert outcomes(record) == [["trained"], ["trained"]] and record.refused == {}
    assert record.rounds[-1].passed_over == {"12": "the cable is gone"}
    assert [node for kind, node in grid.asked if kind == "query"].count(12) == 1


def test_devices_of_one_machine_share_its_joules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rails of a run file are told to the server, which counts what they delivered once."""
    read = local.measured
    monkeypatch.setattr(local, "measured", lambda *what: {**read(*what), "joules": 6.0, "rail": "this/cpu"})

    def at_once(node: int, reply: Message) -> Message:
        if METRICS in reply.content:
            assert reply.content[FACTS]["begin-seconds"] < reply.content[FACTS]["end-seconds"]
            reply.content[FACTS].update({"begin-seconds": 1.0, "end-seconds": 2.0})
        return reply

    grid = LoopGrid(*clients(2))
    grid.change = at_once
    record = started(grid, tmp_path, rounds=1)
    assert [visit.joules for visit in record.rounds[-1].visits] == [3.0, 3.0] and record.rounds[-1].joules == 6.0
    assert "devices share a power rail" in record.notes[0]


def test_samples_that_fill_no_batch_are_noted(tmp_path: Path) -> None:
    data = ArrayData(*arrays(0, 10), batch_size=BATCH), None
    record = started(LoopGrid(client(make_step, data, device="reference:cpu")), tmp_path, rounds=1)
    assert record.notes == ["node 11 leaves out 2 samples per epoch: they fill no batch"]
