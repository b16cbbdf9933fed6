"""`handheld export --format tensorboard`: the scalars of a training, read back from the event file."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

import handheld
from handheld.analyse.run import open_run
from handheld.cli.main import app
from handheld.data import ArrayData
from handheld.errors import RunFileError
from handheld.export import export
from handheld.profile.training import recorded
from helpers.run_files import MadeRun

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run file and the checkpoint of a training, and its history."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    x, y = torch.randn(70, 6), torch.randint(0, 3, (70,))
    loss = nn.functional.cross_entropy
    step = handheld.capture(model, loss, torch.optim.SGD(model.parameters(), 0.1), (x[:16], y[:16]))
    data = ArrayData(x, y, batch_size=16)
    heard = []

    class Own:
        def on_loss(self, now):
            heard.append((now.step, now.epoch, now.loss, now.rate))

    with step.plan("reference:cpu").start() as trainer, recorded(folder / "t.run", {"what": "t"}, False) as record:
        record.attach(trainer)
        history = trainer.fit(
            data, epochs=3, test=data, rate=lambda e: 0.1 / (e + 1), callbacks=[record, Own()],
            checkpoint=folder / "t.checkpoint",
        )  # fmt: skip
        record.finish(history)
    return folder, history, heard


def events(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """tag -> (step, value, time of day). The file is a sequence of length, checksum, event, checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (file,) = folder.glob("*tfevents*")
    data, found, at = file.read_bytes(), {}, 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time))
    return found


def test_the_record_has_every_loss_and_epoch(trained):
    folder, history, heard = trained
    with open_run(folder / "t.run") as run:
        steps = run.training_steps()
        assert [(s.step, s.epoch, s.loss, s.rate) for s in steps] == heard and len(heard) == history.steps == 12
        for epoch, row in zip(history.epochs, run.epochs(), strict=True):
            assert (row.number, row.loss, row.rate, dict(row.test)) == (
                epoch.number,
                epoch.loss,
                epoch.rate,
                epoch.test,
            )
            of_epoch = [s.loss for s in steps if s.epoch == row.number]
            assert sum(of_epoch) / len(of_epoch) == pytest.approx(row.loss) and row.step == 4 * row.number
        assert [s.graph for s in run.steps()].count("train") == 12 and run.complete
        assert run.meta["training"]["steps"] == 12 and not run.meta["training"]["stopped"]


def test_scalars_read_back_equal_the_run(trained, tmp_path):
    folder, history, _ = trained
    with open_run(folder / "t.run") as run:
        export(run, "tensorboard", tmp_path / "events")
        found = events(tmp_path / "events")
        losses = [(s.step, s.loss) for s in run.training_steps()]
        assert [(step, pytest.approx(value)) for step, value, _ in found["train/loss_step"]] == losses
        assert [value for _, value, _ in found["train/rate"]] == pytest.approx([s.rate for s in run.training_steps()])
        walls = [wall for _, _, wall in found["train/loss_step"]]
        begun = run.meta["begun_unix_ns"] * 1e-9
        assert walls == sorted(walls) and begun <= walls[0] and walls[-1] < begun + 600
    assert found["train/loss"][-1][:2] == (3, pytest.approx(history.epochs[-1].loss))
    assert [step for step, _, _ in found["test/accuracy"]] == [1, 2, 3]
    assert set(found) == {"train/loss_step", "train/rate", "train/loss", "train/samples_per_second", "test/accuracy",
                          "test/loss"}  # fmt: skip


def test_a_checkpoint_has_the_epochs(trained, tmp_path):
    folder, history, _ = trained
    result = CliRunner().invoke(
        app,
        ["export", str(folder / "t.checkpoint"), "--format", "tensorboard", "--out", str(tmp_path / "e"), "--json"],
        prog_name="handheld",
    )
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["files"]) == 1
    found = events(tmp_path / "e")
    assert [(s, pytest.approx(v)) for s, v, _ in found["test/loss"]] == [
        (e.number, e.test["loss"]) for e in history.epochs
    ]
    assert [v for _, v, _ in found["train/rate"]] == pytest.approx([e.rate for e in history.epochs])
    assert "train/loss_step" not in found


def test_a_profile_has_no_scalars_and_a_folder_is_not_mixed(trained, tmp_path):
    made = MadeRun(tmp_path / "profile.run")
    made.steps(5)
    with made.open() as run, pytest.raises(RunFileError, match=r"has no losses.*Try:"):
        export(run, "tensorboard", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with open_run(trained[0] / "t.run") as run:
        export(run, "tensorboard", tmp_path / "twice")
        with pytest.raises(RunFileError, match=r"already has events.*Try:"):
            export(run, "tensorboard", tmp_path / "twice")


def test_a_loss_that_is_nan_is_kept_as_nan(tmp_path):
    made = MadeRun(tmp_path / "nan.run")
    made.steps(2)
    made.writer.put("training_step", 1, 1, made.now, float("nan"), 0.1)
    made.writer.put("training_step", 2, 1, made.now, float("inf"), 0.1)
    with made.open() as run:
        assert [s.loss for s in run.training_steps()] == [None, math.inf]
        export(run, "tensorboard", tmp_path / "events")
    (_, first, _), (_, second, _) = events(tmp_path / "events")["train/loss_step"]
    assert math.isnan(first) and second == math.inf


def test_a_run_file_of_an_older_version_has_no_training(tmp_path):
    made = MadeRun(tmp_path / "old.run")
    made.steps(3)
    with made.open() as run:
        for table in ("training_step", "training_epoch"):
            run.file.db.execute(f"DROP TABLE {table}")
        assert run.training_steps() == [] and run.epochs() == []
