"""The parts of federated training that need no Flower: what is exchanged, compression, selection, the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import handheld
from handheld.data.batches import ArrayData
from handheld.errors import HandheldError, ResultsError
from handheld.federated.app import write_app
from handheld.federated.compress import Form, decode, encode
from handheld.federated.local import Site, Trained, Work
from handheld.federated.model import arrays_of, difference, exchanged, mark, problem_of
from handheld.federated.page import federated_page
from handheld.federated.protocols import as_data
from handheld.federated.rails import divide, parts, rail_of
from handheld.federated.record import (
    COMPLETE,
    Record,
    Round,
    Visit,
    by_device,
    cost_to_target,
    quality_under_budget,
    read_record,
)
from handheld.federated.select import Select
from handheld.package import load
from helpers.federated import BATCH, make_data, make_step, network


class Rail(NamedTuple):
    """What a site takes from a rail of a run."""

    watts: float
    rail: str


def other_step(model: torch.nn.Module, batch: int = BATCH) -> handheld.Step:
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    return handheld.capture(
        model, torch.nn.CrossEntropyLoss(), optimizer, (torch.zeros(batch, 6), torch.zeros(batch, dtype=torch.long))
    )


def test_only_what_trains_is_exchanged() -> None:
    assert list(exchanged(make_step())) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    model = network()
    handheld.freeze(model, "0.*")
    assert list(exchanged(other_step(model))) == ["2.weight", "2.bias"]
    model = network()
    handheld.lora(model, rank=2)
    assert all("lora_" in name for name in exchanged(other_step(model)))
    norm = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    names = list(exchanged(other_step(norm)))
    assert "1.running_mean" in names and "1.num_batches_tracked" not in names


def test_the_mark_tells_models_apart_but_not_batch_sizes() -> None:
    assert difference(mark(other_step(network())), mark(other_step(network(), batch=7))) == ""
    with_relu = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    wider = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    assert len({mark(other_step(model)) for model in (network(), with_relu, wider)}) == 3


def test_the_mark_says_what_differs(tmp_path: Path) -> None:
    """Also what no name, shape or op shows: numbers in the layers, the loss and the optimizer, and frozen weights."""

    def marked(
        slope: float = 0.1, smoothing: float = 0.0, momentum: float = 0.9, rate: float = 0.1, frozen: float = 1.0,
        batch: int = BATCH,
    ) -> str:  # fmt: skip
        torch.manual_seed(3)
        layers = [torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.LeakyReLU(slope), torch.nn.Linear(8, 3)]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(3, 3))
        torch.nn.init.constant_(model[-1].weight, frozen)
        handheld.freeze(model, "4.*")
        trained = [value for value in model.parameters() if value.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=rate, momentum=momentum)
        example = (torch.zeros(batch, 6), torch.zeros(batch, dtype=torch.long))
        step = handheld.capture(model, torch.nn.CrossEntropyLoss(label_smoothing=smoothing), optimizer, example)
        return mark(load(step.save(tmp_path / "saved.step")))

    first = marked()
    assert difference(first, marked()) == "" and difference(first, marked(rate=0.2)) == ""
    assert difference(first, marked(batch=7)) == ""
    assert difference(first, marked(slope=0.2)) == "layers"
    assert difference(first, marked(momentum=0.8)) == "optimizer"
    assert difference(first, marked(frozen=2.0)) == "frozen values"
    assert difference(marked(smoothing=0.1), marked(smoothing=0.2)) == "constants"
    assert difference(first, marked(smoothing=0.1)) == "loss"
    assert difference(first, "other") == "mark"


def test_bad_updates_are_named() -> None:
    good = {"a": np.zeros((2, 3), np.float32)}
    assert problem_of(good, good) == ""
    assert problem_of({"a": np.zeros((3, 2), np.float32)}, good) == "a has shape (3, 2) instead of (2, 3)"
    assert "float64 instead of float32" in problem_of({"a": np.zeros((2, 3))}, good)
    assert "not finite" in problem_of({"a": np.full((2, 3), np.nan, np.float32)}, good)
    assert problem_of({}, good) == "it lacks arrays: a"
    assert problem_of({**good, "b": good["a"]}, good) == "it has unknown arrays: b"


@pytest.mark.parametrize("text", ["int8", "topk:0.1"])
def test_error_feedback_loses_nothing(text: str) -> None:
    form, random = Form.parse(text), np.random.default_rng(0)
    left: dict[str, np.ndarray] = {}
    wanted, sent = np.zeros((20, 10)), np.zeros((20, 10))
    for _ in range(30):
        update = {"w": random.standard_normal((20, 10)).astype(np.float32)}
        parts, left = encode(form, update, left)
        wanted += update["w"]
        sent += decode(form, parts, update)["w"]
    np.testing.assert_allclose(sent + left["w"], wanted, atol=1e-4)
    assert sum(part.nbytes for part in parts.values()) < update["w"].nbytes / 3


def test_forms_of_updates() -> None:
    zero = {"w": np.zeros((3, 2), np.float32)}
    parts, _ = encode(Form.parse("int8"), zero, {})
    assert not decode(Form("int8"), parts, zero)["w"].any()
    assert str(Form.parse("topk:0.5")) == "topk:0.5" and str(Form.parse("")) == "none"
    for bad in ("topk:0", "topk:2", "zip", "topk:x"):
        with pytest.raises(HandheldError, match="Try: int8"):
            Form.parse(bad)
    parts, _ = encode(Form("topk", 0.5), {"w": np.ones((3, 2), np.float32)}, {})
    outside = {**parts, "w|places": parts["w|places"] + 100}
    with pytest.raises(HandheldError, match="positions outside"):
        decode(Form("topk", 0.5), outside, zero)
    with pytest.raises(HandheldError, match="not complete"):
        decode(Form("int8"), {}, zero)


def test_selection() -> None:
    select = Select(battery_floor=30, thermal_limit=45, memory_bytes=1000, round_seconds=10)
    assert select.reason_against({}) == ""
    assert select.reason_against({"battery-percent": 20.0}) == "its battery is at 20%, below 30%"
    assert select.reason_against({"battery-percent": 20.0, "charging": 1}) == ""
    assert select.reason_against({"celsius": 50.0}) == "it has 50.0 °C, above 45 °C"
    assert select.reason_against({"peak-bytes": 2000}) == "its plan needs 2,000 bytes, more than 1,000"
    assert select.steps({"batches": 100}, 1) is None, "its speed is not known yet"
    assert select.steps({"batches": 100, "step-seconds": 0.5}, 1) == 20
    assert select.steps({"batches": 10, "step-seconds": 0.5}, 1) is None, "it is fast enough"
    assert select.steps({"batches": 100, "step-seconds": 60.0}, 1) == 1
    with pytest.raises(HandheldError, match="percentage"):
        Select(battery_floor=130)


def test_a_site_with_little_memory_divides_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same update from the same model, and a step is still one of the training: the server plans with its time."""

    def step_of_wide() -> handheld.Step:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 7))
        batch = (torch.zeros(512, 32), torch.zeros(512, dtype=torch.long))
        return handheld.capture(model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), batch)

    random = np.random.default_rng(0)
    data = ArrayData(random.normal(size=(1024, 32)).astype(np.float32), random.integers(0, 7, 1024), batch_size=512)
    monkeypatch.setattr("handheld.federated.local.main_rail", lambda run, device: Rail(2.0, "made up"))
    found, marks = list[Trained](), list[str]()
    for share in (1.0, 0.6):
        step = step_of_wide()
        site = Site(step, "opencl", int(step.copy().plan("opencl").bytes * share))
        assert bool(site.trainer.plan.options.get("parts")) == (share < 1)
        found.append(site.train(arrays_of(step), data, Work(1, epochs=2)))
        marks.append(str(site.facts()["model"]))
        site.close()
    whole, divided = found
    assert marks[0] == marks[1] and (whole.samples, whole.steps) == (divided.samples, divided.steps) == (2048, 4)
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(divided.arrays[name], value, rtol=1e-5, atol=1e-6)
    for each in found:
        took = float(each.costs["step-seconds"]) * each.steps
        assert 0 < took <= float(each.costs["seconds"]) and each.costs["joules"] == pytest.approx(2.0 * took)


def test_a_round_of_a_site_equals_pytorch() -> None:
    """The same batches through PyTorch, from the same state, twice: the optimizer begins anew in every round."""
    site, (train, test) = Site(make_step, "opencl"), make_data(1, 2)
    state = arrays_of(site.step)
    try:
        for number in (1, 2):
            trained = site.train(state, train, Work(number, epochs=2))
            model = network()
            model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state.items()})
            optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
            for epoch in (2 * number - 2, 2 * number - 1):
                for x, y in train.epoch(epoch):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            for name, value in model.state_dict().items():
                np.testing.assert_allclose(trained.arrays[name], value.numpy(), rtol=1e-5, atol=1e-6)
            assert trained.loss == pytest.approx(np.mean(losses), rel=1e-5)
            assert (trained.samples, trained.steps) == (24, 6)
            assert trained.costs["step-seconds"] > 0 and trained.costs["peak-bytes"] > 0
            state = trained.arrays
        assert site.train(state, train, Work(3, epochs=5, most_steps=2)).steps == 2
        assert set(site.evaluate(state, test)) == {"num-examples", "loss", "accuracy"}
        with pytest.raises(HandheldError, match=r"lacks arrays \(0.weight\).*another model"):
            site.train({name: array for name, array in state.items() if name != "0.weight"}, train, Work(1))
    finally:
        site.close()


def a_record() -> Record:
    record = Record("m", "0.1.0", {"rounds": 3}, status=COMPLETE)
    record.rounds = [Round(0, 1.0, {"accuracy": 0.1})]
    for number, accuracy in ((1, 0.5), (2, 0.9), (3, 0.8)):
        visits = [Visit("a", "trained", "phone", 10, 2, 0.5, 4.0, 2.0, 100, up_bytes=50)]
        visits.append(
            Visit("b", "trained" if number != 2 else "its loss is nan", "board", 5, 1, 0.5, 3.0, 1.0, up_bytes=50)
        )
        record.rounds.append(Round(number, 10.0 * number, {"accuracy": accuracy}, visits, down_bytes=200))
    return record


def test_the_page_has_a_line_per_kind_of_device() -> None:
    """Accuracy against what each kind had spent: 4 s, 2 J and 150 bytes per round of the phone, less on the board."""
    page = json.dumps(federated_page(a_record()))
    assert "By kind of device" in page and "accuracy over training time" in page
    phone = [[4.0, 0.5], [8.0, 0.9], [12.0, 0.8]]
    assert all(f"{x}" in page and f"{y}" in page for x, y in phone) and '"phone"' in page and '"board"' in page
    alone = a_record()
    for one in alone.rounds:
        one.visits = one.visits[:1]
    assert "By kind of device" not in json.dumps(federated_page(alone))


def test_costs_of_a_record(tmp_path: Path) -> None:
    record = a_record()
    cost = cost_to_target(record, "accuracy", 0.9)
    assert cost is not None and (cost.rounds, cost.seconds, cost.joules, cost.bytes) == (2, 20.0, 6.0, 600)
    assert cost_to_target(record, "accuracy", 0.99) is None
    assert quality_under_budget(record, "accuracy", "joules", 4.0) == 0.5
    assert quality_under_budget(record, "accuracy", "seconds", 100.0) == 0.9
    with pytest.raises(ResultsError, match="Try: rounds, seconds"):
        quality_under_budget(record, "accuracy", "money", 1)
    assert by_device(record)["board"]["updates"] == 2 and by_device(record)["board"]["joules"] == 3.0
    record.rounds[2].visits[1].joules = None
    cost = cost_to_target(record, "accuracy", 0.9)
    assert cost is not None and cost.joules is None, "a sum without one device is no sum"
    record.write(tmp_path)
    assert read_record(tmp_path) == record


def test_both_protocols_as_data(tmp_path: Path) -> None:
    """Every target that was reached with the part of each device, and what quarters of the spending reached."""
    found = as_data(a_record())
    costs = {one["target"]: one for one in found["cost_to_target"]}
    assert max(costs) == 0.9 and costs[0.9]["joules"] == 6.0
    until = costs[0.9]["devices"]["board"]
    assert until["updates"] == 1 and until["bytes"] == 2 * 50 + 2 * 100, "the bytes of both rounds, up and down"
    assert found["quality_under_budget"]["rounds"][-1] == {"amount": 3, "accuracy": 0.9}
    nothing = as_data(Record("m", "1", {}, rounds=[Round(0, 1.0)]))
    assert nothing["cost_to_target"] == [] and list(nothing["quality_under_budget"]) == ["seconds"]


def test_reports_of_a_training(tmp_path: Path, run: Any) -> None:
    a_record().write(tmp_path)
    done = run("federate", "report", str(tmp_path), "--target", "0.9", "--budget", "joules=4")
    assert done.exit_code == 0 and "accuracy 0.5" in done.stdout
    assert "2 rounds, 20.0 s" in done.stdout and "600 B sent" in done.stdout
    found = json.loads(run("federate", "report", str(tmp_path), "--json").stdout)
    assert found["metric"] == "accuracy" and found["cost_to_target"] and found["quality_under_budget"]
    assert "Try: --budget seconds=60" in run("federate", "report", str(tmp_path), "--budget", "much").stderr
    little = run("federate", "report", str(tmp_path), "--budget", "seconds=0.001")
    assert "no round fits into it" in " ".join(little.stdout.split())
    write_app(tmp_path / "app")
    early = " ".join(run("federate", "report", str(tmp_path / "app")).stderr.split())
    assert "yet. Try: handheld federate run" in early and "No such file" not in early


def test_settings_are_checked_before_anything_starts(tmp_path: Path, run: Any) -> None:
    write_app(tmp_path / "app")
    project = tmp_path / "app" / "pyproject.toml"
    text = project.read_text()
    for bad, said in (
        ("rounds = 0", "rounds is 0 in the settings of the app. Try: rounds = 10"),
        ('rounds = "ten"', "rounds is 'ten'"),
        ('rounds = 2\nrate = "fast"', "rate is 'fast'"),
    ):
        project.write_text(text.replace("rounds = 10", bad))
        done = run("federate", "run", str(tmp_path / "app"))
        assert done.exit_code == 1 and said in done.stderr
    project.write_text(text)
    assert "unknown device 'nonsense'" in run("federate", "run", str(tmp_path / "app"), "--on", "nonsense").stderr
    for link in ("localhost", "localhost:http", ":8000", "localhost:99999"):
        said = run("federate", "node", "--on", "opencl", "--link", link).stderr
        assert f"'{link}' is no address of a SuperLink. Try: --link HOST:PORT" in said


def test_damaged_records(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="No such file"):
        read_record(tmp_path)
    text = a_record().text()
    for bad in ("", "{", "[]", text.replace('"format": 1', '"format": 9'), text.replace('"node"', '"knot"')):
        (tmp_path / "federated.json").write_text(bad)
        with pytest.raises(ResultsError, match=r"damaged|not a record"):
            read_record(tmp_path)
    assert json.loads(text)["format"] == 1


def test_a_shared_rail_is_counted_once() -> None:
    """Three devices of one machine, 10 W: two train for 10 s at the same time, the third for 10 s afterwards."""
    assert parts([(0, 10), (0, 10), (10, 20)]) == [0.5, 0.5, 1.0]
    assert parts([(0, 10), (5, 15)]) == [0.75, 0.75] and parts([(3, 3)]) == [1.0]
    spans = {"a": (0, 10), "b": (0, 10), "c": (10, 20), "d": (0, 10), "e": (0, 10)}
    rails = {"a": "pc/cpu", "b": "pc/cpu", "c": "pc/cpu", "d": "ssh:pi@board/cpu"}
    heard = []
    for node, (begin, end) in spans.items():
        facts = {"rail": rails[node], "begin-seconds": begin, "end-seconds": end} if node in rails else {}
        heard.append((Visit(node, "trained", joules=100.0 if node in rails else None, steps=1), facts))
    assert divide(heard) == 2
    assert [visit.joules for visit, _ in heard] == [50, 50, 100, 100, None]
    assert rail_of("ssh:pi@board", "cpu") == "ssh:pi@board/cpu"
    assert rail_of("opencl:0", "cpu") == rail_of("reference:cpu", "cpu") != rail_of("adb:A", "cpu")
