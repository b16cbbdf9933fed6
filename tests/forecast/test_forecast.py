"""Runs teach the samples of their device, and plans are predicted from them, from ceilings or from descriptions."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.analyse.run import open_run
from handheld.analyse.samples import next_steps
from handheld.cost.energy import EnergyModel, EnergySample, Rail
from handheld.device import DeviceCaps
from handheld.errors import CheckpointError, DeviceError, SamplesError
from handheld.forecast import store
from handheld.forecast.model import cost_model, described, read_rates, usual_errors
from handheld.forecast.rest import rest_of_checkpoint, rest_of_run
from handheld.forecast.step import predict
from handheld.plan.launched import main_launch
from handheld.plan.plan import Plan
from helpers.run_files import MadeRun


def captured(batch: int, width: int = 64) -> tuple[Plan, tuple[np.ndarray, ...]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = (torch.randn(batch, 64), torch.randint(0, 10, (batch,)))
    step = handheld.capture(model, nn.functional.cross_entropy, optimizer, given)
    return step.plan("opencl"), tuple(each.numpy() for each in given)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs of two batches of one model, and of another model."""
    folder, paths = tmp_path_factory.mktemp("runs"), []
    for number, (batch, width) in enumerate(((8, 64), (32, 64), (16, 256))):
        plan, given = captured(batch, width)
        paths.append(folder / f"{number}.run")
        plan.profile(given, paths[-1], steps=40, sensors=False, settings={"what": f"mlp{width}"}).close()
    return paths


@pytest.fixture
def ceilings_file(tmp_path: Path) -> Path:
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps({"flops": 1e11, "memory": [[1 << 20, 5e10], [1 << 30, 1e10]], "source": "test"}))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "none")


def learn(paths: list[Path]) -> Path:
    opened = [open_run(path) for path in paths]
    path = store.learn(opened)[1]
    for run in opened:
        run.close()
    return path


def test_a_profile_adds_to_the_samples_of_its_device(tmp_path: Path):
    plan, given = captured(8)
    plan.profile(given, tmp_path / "a.run", steps=30, sensors=False).close()
    found = store.known(plan.caps).samples
    assert len(found.steps) == 1 and found.steps[0].batch == 8
    assert {sample.work.op for sample in found.ops.values()} >= {"matmul", "reduce", "map"}
    assert found.steps[0].weights == 4 * (64 * 64 + 64 + 64 * 10 + 10)


def test_a_measured_step_is_predicted_as_it_was_measured(runs: list[Path], ceilings_file: Path):
    learn(runs)
    plan, _ = captured(8)
    model = cost_model(plan.caps, measured=read_rates(ceilings_file))
    cost = predict(model, plan, list(plan.graphs)[:1], 8)
    with open_run(runs[0]) as run:
        ops_s = sum(sample.seconds for sample in store.op_samples(run))
        assert cost.bytes == run.meta["allocated_bytes"]
    assert cost.derived == "measured" and cost.measured > 0.98 and cost.error.kind == "next_steps"
    assert cost.ops_s == pytest.approx(ops_s, rel=0.35)  # The same op may have been measured in another run, too.
    assert cost.low_s < cost.seconds < cost.high_s and cost.launches == plan.graphs["train"].launches


def test_other_batches_and_other_models_say_how_they_were_derived(runs: list[Path], ceilings_file: Path):
    learn(runs)
    rates = read_rates(ceilings_file)
    plan, _ = captured(16)
    other = predict(cost_model(plan.caps, measured=rates), plan, ["train"], 16)
    assert (other.derived, other.error.kind) == ("batches", "other_batches")
    plan, _ = captured(16, width=128)
    another = predict(cost_model(plan.caps, measured=rates), plan, ["train"], 16)
    assert (another.derived, another.error.kind) == ("model", "another_model")
    assert 0 < other.measured < 0.98 and {line.cost.source for line in another.ops} >= {"model"}


def test_runs_may_be_given_without_being_learned(runs: list[Path], ceilings_file: Path):
    plan, _ = captured(8)
    with open_run(runs[0]) as run:
        model = cost_model(plan.caps, more=store.of_runs([run], plan.caps), measured=read_rates(ceilings_file))
    assert model.derived == "runs" and not store.path_of(plan.caps).exists()


def test_a_device_without_runs_is_predicted_from_its_ceilings(ceilings_file: Path):
    plan, _ = captured(8)
    cost = predict(cost_model(plan.caps, measured=read_rates(ceilings_file)), plan, ["train"], 8)
    assert (cost.derived, cost.error.kind, cost.measured) == ("ceilings", "another_device", 0.0)


@pytest.mark.parametrize("name", ["adreno-620", "adreno-740", "jetson-orin-nano", "mali-g78", "raspberry-pi-5"])
def test_a_described_device_is_marked(name: str):
    caps = DeviceCaps.shipped(name)
    rates = described(name)
    assert rates is not None and "public figures" in rates.source
    model = cost_model(caps, name)
    plan = captured(8)[0].again(caps=caps)
    cost = predict(model, plan, ["train"], 8)
    assert cost.derived == "description" and cost.seconds > 0 and cost.bytes == plan.bytes


def test_a_device_of_which_nothing_is_known_says_what_to_run():
    with pytest.raises(DeviceError, match=r"neither runs nor ceilings.*Try: handheld doctor --ceilings"):
        cost_model(DeviceCaps.shipped("minimal-embedded"), "minimal-embedded")


def test_samples_without_ceilings_say_what_to_run(runs: list[Path]):
    learn(runs)
    plan, _ = captured(8)
    with pytest.raises(DeviceError, match=r"not its ceilings. Try: handheld doctor --ceilings"):
        cost_model(plan.caps)


def test_samples_of_another_driver_are_reported_and_not_used(runs: list[Path], ceilings_file: Path):
    learn(runs)
    caps = replace(captured(8)[0].caps, driver="another driver")
    model = cost_model(caps, measured=read_rates(ceilings_file))
    assert model.derived == "ceilings" and "not used: it was measured with the driver" in model.notes[0]


def test_samples_of_changed_kernels_are_reported_and_not_used(runs: list[Path], ceilings_file: Path):
    path = learn(runs)
    data = json.loads(path.read_text())
    data["families"]["contract"] = 0
    path.write_text(json.dumps(data))
    found = store.known(captured(8)[0].caps)
    assert "samples of contract are not used, because the kernels have changed" in found.ignored[0]
    assert not any(sample.work.op == "matmul" for sample in found.samples.ops.values())


def test_of_changed_kernels_only_their_own_ops_are_forgotten(runs: list[Path], ceilings_file: Path):
    """Ops of other families stay, and so does what steps took besides their ops. Predictions say what is left."""
    path = learn(runs)
    data = json.loads(path.read_text())
    data["families"]["contract"] = 0
    path.write_text(json.dumps(data))
    plan, _ = captured(8)
    found = store.known(plan.caps)
    assert {sample.work.op for sample in found.samples.ops.values()} == {"map", "reduce"}
    assert len(found.samples.steps) == 3 and not any(step.whole for step in found.samples.steps)
    assert "0 of 3 steps are left. Try: handheld profile MODEL" in found.ignored[0] and not found.samples.models
    model = cost_model(plan.caps, measured=read_rates(ceilings_file))
    cost = predict(model, plan, ["train"], 8)
    assert model.overheads.source == "measured" and {op.cost.source for op in cost.ops} == {"measured", "ceilings"}
    assert (cost.derived, cost.error.kind, cost.runs) == ("few", "another_device", ())
    learn(runs[:1])  # A new measurement, and the table keeps what it knew of the other families.
    steps = store.known(plan.caps).samples.steps
    assert [step.whole for step in steps] == [False, False, False, True] and not store.known(plan.caps).ignored
    assert predict(cost_model(plan.caps, measured=read_rates(ceilings_file)), plan, ["train"], 8).derived == "measured"


def test_shipped_samples_of_changed_kernels_are_not_used_for_other_devices(
    runs: list[Path], ceilings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = json.loads(learn(runs).read_text()) | {"rates": read_rates(ceilings_file).to_json()}
    monkeypatch.setattr(store, "SHIPPED", tmp_path)
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "empty"))
    (tmp_path / "old.json.gz").write_bytes(gzip.compress(json.dumps(data | {"families": {"contract": 0}}).encode()))
    (table,) = store.shipped("cpu")
    assert {sample.work.op for sample in table.samples.ops.values()} == {"map", "reduce"}
    plan, _ = captured(8)
    model = cost_model(replace(plan.caps, name="Another CPU"), measured=read_rates(ceilings_file))
    assert model.derived == "ceilings" and "samples of contract are not used" in model.notes[-1]
    costs = {op.op: op.cost.source for op in predict(model, plan, ["train"], 8).ops}
    assert costs["matmul"] == "ceilings" and costs["map"] == "model"


@pytest.mark.parametrize("content", [b"", b"{", b'{"handheld": "costs"}', b"\xff\x00", b"[1]"])
def test_a_damaged_table_is_an_error_that_names_it(content: bytes, runs: list[Path]):
    path = learn(runs[:1])
    path.write_bytes(content)
    with pytest.raises(SamplesError, match=r"damaged. Try: delete it, then handheld cost --learn"):
        store.known(captured(8)[0].caps)


def test_nothing_is_learned_from_a_run_that_does_not_describe_its_device(tmp_path: Path):
    """As the run file of an imported trace."""
    made = MadeRun(tmp_path / "trace.run")
    made.steps(30)
    with made.open() as run, pytest.raises(SamplesError, match=r"trace\.run does not describe its device"):
        store.learn([run])


def test_a_damaged_table_does_not_end_a_profile(tmp_path: Path):
    plan, given = captured(8)
    path = store.path_of(plan.caps)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.warns(UserWarning, match="not added to the samples"):
        run = plan.profile(given, tmp_path / "a.run", steps=30, sensors=False)
    assert run.complete
    run.close()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"flops": 0, "memory": [[1, 1]]}', '{"flops": 1, "memory": []}'])
def test_a_file_without_ceilings_is_refused(content: str, tmp_path: Path):
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(DeviceError, match="has no ceilings of a device"):
        read_rates(path)


def test_the_rest_of_a_run(runs: list[Path]):
    with open_run(runs[0]) as run:
        rest = rest_of_run(run, 1000, battery_wh=1.0, watts=3.6)
        ms = run.step_ms()[0]
        assert ms is not None and rest.seconds == pytest.approx(ms) and rest.low_s < rest.seconds < rest.high_s
        assert rest.rails[0].source == "given" and rest.battery == pytest.approx(rest.seconds * 3.6 / 3600)
        assert rest_of_run(run, 10).why_no_joules and all(error >= 0 for error in next_steps(run))


def test_the_rest_of_a_checkpoint(tmp_path: Path):
    from handheld import package

    epochs = [
        {"number": n, "loss": 1.0, "rate": 0.1, "samples": 100, "seconds": 10.0, "test": {}} for n in (1, 2, 3, 4)
    ]
    epochs[0]["seconds"] = 60.0  # It built the programs.
    meta = {
        "epoch": 4,
        "epochs": 10,
        "partial": [0.0, 0.0, 0, 5.0],
        "history": {"epochs": epochs, "steps": 40, "paused_seconds": 0.0},
    }
    path = tmp_path / "a.checkpoint"
    package.save_state(path, {"x": np.zeros(3, np.float32)}, meta)
    rest = rest_of_checkpoint(path)
    assert (rest.count, rest.seconds, rest.unit) == (5.5, 55.0, "epoch")
    assert rest_of_checkpoint(path, epochs=5).seconds == 5.0
    with pytest.raises(CheckpointError, match=r"is complete after 4 epochs\. Try: --epochs N"):
        rest_of_checkpoint(path, epochs=4)
    two = {**meta, "epoch": 2, "history": {"epochs": epochs[:2], "steps": 20, "paused_seconds": 0.0}}
    package.save_state(path, {"x": np.zeros(3, np.float32)}, two)
    assert rest_of_checkpoint(path, epochs=10).each_s == 10.0
    package.save_state(path, {}, {**meta, "history": {"epochs": [], "steps": 0, "paused_seconds": 0.0}})
    with pytest.raises(CheckpointError, match="before the first epoch ended"):
        rest_of_checkpoint(path)
    package.save_state(path, {}, {"epoch": 1})
    with pytest.raises(CheckpointError, match="is not a checkpoint of a training loop"):
        rest_of_checkpoint(path)


def test_joules_come_from_the_energy_model(ceilings_file: Path):
    plan, _ = captured(8)
    model = cost_model(plan.caps, measured=read_rates(ceilings_file))
    without = predict(model, plan, ["train"], 8)
    planned = plan.graphs["train"]
    efforts = [
        effort
        for node, low in zip(planned.graph.nodes, planned.lowered, strict=True)
        if (effort := main_launch(node, planned.graph, low)) is not None
    ]
    samples = tuple(EnergySample(effort, 1e-3, {"board": 5e-3, "core": 2e-3}) for effort in efforts)
    rails = (Rail("board", ("system",), "", 1.0, 2.0), Rail("core", ("cpu",), "board", 0.5, 1.0))
    energy = EnergyModel(plan.caps.name, plan.caps.driver, "2026-01-01", 1.0, 2, 1 << 20, rails, samples)
    cost = predict(model, plan, ["train"], 8, energy)
    board, core = cost.joules
    ops = sum(op.joules["board"] for op in cost.ops)
    assert ops == pytest.approx(5 * cost.ops_s, rel=0.3), "every sample took 5 W"
    assert board.joules == pytest.approx(ops + (cost.seconds - cost.ops_s) * 2.0) and core.part_of == "board"
    assert board.low_joules < board.joules < board.high_joules and core.joules < board.joules
    assert not without.joules and not without.ops[0].joules and without.seconds == cost.seconds


def disturb(path: Path, table: Path, later: tuple[float, ...] = ()) -> float:
    """Writes into a table that other processes disturbed the first step of it. Returns the run's median."""
    data = json.loads(table.read_text())
    step = next(step for step in data["steps"] if step["timed"][0][0] == path.name)
    step["disturbed"], step["seconds"] = True, step["seconds"] / 3
    step["timed"][0][2:] = [1, list(later)]
    table.write_text(json.dumps(data))
    return float(step["timed"][0][1])


def test_a_disturbed_step_is_predicted_as_measured_with_the_error_of_its_kind(runs: list[Path], ceilings_file: Path):
    median = disturb(runs[0], learn(runs))
    plan, _ = captured(8)
    model = cost_model(plan.caps, measured=read_rates(ceilings_file))
    cost = predict(model, plan, ["train"], 8)
    with open_run(runs[0]) as run:
        assert run.step_ms()[0] == pytest.approx(median * 1e3)
    assert cost.seconds == pytest.approx(median), "not the fastest tenth"
    assert [run.run for run in cost.runs] == ["0.run"] and cost.runs[0].disturbed
    assert plan.caps.kind == "cpu" and cost.error.device != "NVIDIA H200" and cost.error.p90 > 0.3
    assert "of 3 known steps of this device were disturbed" in " ".join(model.notes)


def test_a_step_of_several_runs_is_inside_its_interval_and_named_runs_count_alone(
    runs: list[Path], ceilings_file: Path
):
    table = learn(runs)
    data = json.loads(table.read_text())
    step = next(step for step in data["steps"] if step["timed"][0][0] == "0.run")
    first = step["timed"][0][1]
    step["timed"][0][2] = 0
    step["timed"].append(["slow.run", first * 9, 0, []])
    table.write_text(json.dumps(data))
    plan, _ = captured(8)
    rates = read_rates(ceilings_file)
    both = predict(cost_model(plan.caps, measured=rates), plan, ["train"], 8)
    assert both.seconds == pytest.approx(5 * first)
    assert both.low_s <= first and both.high_s >= 9 * first
    with open_run(runs[0]) as run:
        model = cost_model(plan.caps, more=store.of_runs([run], plan.caps), measured=rates)
    alone = predict(model, plan, ["train"], 8)
    assert alone.seconds == pytest.approx(first) and [run.run for run in alone.runs] == ["0.run"]


def test_a_run_that_is_learned_twice_counts_once_and_tables_without_runs_open(runs: list[Path]):
    learn(runs)
    path = learn(runs[:1])
    data = json.loads(path.read_text())
    assert sorted(len(step["timed"]) for step in data["steps"]) == [1, 1, 1]
    for step in data["steps"]:
        del step["timed"]
    path.write_text(json.dumps(data))
    assert [step.timed for step in store.known(captured(8)[0].caps).samples.steps] == [(), (), ()]


def test_a_device_with_enough_runs_has_its_own_error_of_later_steps(runs: list[Path], ceilings_file: Path):
    table = learn(runs)
    data = json.loads(table.read_text())
    data["steps"][0]["timed"] = [[f"{n}.run", 0.1, 0, [0.5, 0.7]] for n in range(5)]
    table.write_text(json.dumps(data))
    error = cost_model(captured(8)[0].caps, measured=read_rates(ceilings_file)).errors["next_steps"]
    assert error.cases >= 10 and not error.device and error.p90 == pytest.approx(0.7, abs=0.1)


def test_errors_are_those_of_the_kind_of_device():
    gpu, cpu, either = usual_errors("gpu"), usual_errors("cpu"), usual_errors("")
    assert gpu["next_steps"].device == "NVIDIA H200" and cpu["next_steps"].device != "NVIDIA H200"
    assert either["next_steps"] == cpu["next_steps"] and cpu["next_steps"].p90 > gpu["next_steps"].p90
    assert usual_errors("gpu", "NVIDIA H200")["next_steps"].device == "", "they are the device's own"
