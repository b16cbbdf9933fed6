"""The output, files and errors of `handheld train`, `package` and `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld import container
from handheld.errors import CheckpointError, StepFileError
from helpers.commands import fails

# ── train, package, verify ────────────────────────────────────────────────────────────────────


def test_train_in_halves(run, work):
    words = ("train", "mine.py:make", "--data", "data.npz", "--epochs", "1", "--on", "reference:cpu")
    report = json.loads(run(*words, "--precision", "half", "--json").stdout)
    assert report["precision"] == "half" and 0 < report["loss_scale"]["scale"] <= 2.0**16
    said = run(*words, "--precision", "half").stdout
    assert "steps skipped; loss scale" in said and "in float32: it saves" in said and "usually takes longer" in said
    fails(run(*words, "--precision", "bf16"), "unknown precision 'bf16'")


def test_train_a_factory_and_go_on_from_the_export(run, work):
    words = ("--data", "data.npz", "--epochs", "4", "--batch", "16")
    result = run("train", "mine.py:make", *words, "--export", "out.step")
    assert result.exit_code == 0, result.output
    assert "test accuracy" in result.stdout and "launches" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    again = run("train", "out.step", *words, "--json")
    report = json.loads(again.stdout)
    assert report["test"]["accuracy"] > 0.95 and len(report["epochs"]) == 4
    assert report["epochs"][0]["loss"] < 0.2  # It started from the trained state.
    assert report["device"].startswith("opencl:") and report["launches_per_step"] < 20


def test_package_several_sizes(run, work):
    words = ("package", "mine.py:with_batch", "--batch", "16,4", "--out", "sizes.step", "--json")
    result = run(*words)
    report = json.loads(result.stdout)
    assert report["batch"] == [4, 16] and {"train@4", "predict@16"} <= set(report["graphs"])
    step = handheld.load(work / "sizes.step")
    with step.plan("opencl").start() as trainer:
        for size in (4, 16):
            x, y = np.zeros((size, 6), np.float32), np.zeros(size, np.int64)
            assert float(trainer.step(x, y)) > 0
            assert trainer.predict(x).shape == (size, 3)
        assert int(trainer.state()["handheld.step"]) == 2
        with pytest.raises(
            handheld.HandheldError, match=r"training graphs for 4, 16\. Try: handheld package --batch 4,16,5"
        ):
            trainer.step(np.zeros((5, 6), np.float32), np.zeros(5, np.int64))
    trained = run("train", "sizes.step", "--data", "data.npz", "--epochs", "1", "--json")
    assert json.loads(trained.stdout)["batch"] == 16
    fails(run("train", "sizes.step", "--data", "data.npz", "--batch", "5"), "4, 16")


def test_verify(run, work):
    result = run("verify", "mine.py:with_batch")
    assert result.exit_code == 0 and result.stdout.count("PASS") == 3
    report = json.loads(run("verify", "mine.py:with_batch", "--graph", "train", "--json").stdout)
    phases = {op["phase"] for op in report[0]["ops"]}
    assert all(op["source"] for op in report[0]["ops"])  # the torch op
    assert report[0]["passed"] and phases == {"forward", "backward", "update"}
    listed = run("verify", "mine.py:with_batch", "--graph", "predict", "--all").stdout
    assert "matmul" in listed and max(map(len, listed.splitlines())) <= 80


def test_verify_names_the_first_op_that_differs(run, work):
    result = run("verify", "mine.py:with_batch", "--on", "null", "--graph", "predict")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "FAIL predict on null: op 0 of" in text and "differs first: matmul (forward of 0" in text


def test_verify_names_a_frozen_decision_and_the_batch_that_decides_otherwise(run, work):
    result = run("verify", "mine.py:branch", "--graph", "train", "--on", "reference:cpu")
    assert result.exit_code == 1 and result.stdout.startswith("FROZEN  train on reference:cpu: ")
    assert "`if x.mean() > 0:` read True, from input 0" in " ".join(result.stdout.split())
    assert "decides differently: it is False in " in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80
    words = ("verify", "mine.py:branch", "--graph", "train", "--on", "reference:cpu", "--json")
    (train,) = json.loads(run(*words).stdout)
    assert not train["passed"] and train["first"] is None and train["frozen"][0]["changed"]
    result = run(*words, "--accept-frozen")
    assert result.exit_code == 0 and json.loads(result.stdout)[0]["passed"]


def test_a_frozen_decision_is_accepted_or_an_error(run, work):
    train = ("train", "mine.py:branch", "--data", "data.npz", "--epochs", "1", "--on", "reference:cpu")
    package = ("package", "mine.py:branch", "--out", "branch.step")
    for words in (train, package):
        fails(run(*words), "mine.py:", "`if x.mean() > 0:`", "--accept-frozen")
    assert not (work / "branch.step").exists()
    for words in (train, package):
        result = run(*words, "--accept-frozen")
        assert result.exit_code == 0 and "`if x.mean() > 0:`" in result.stderr
    file = ("branch.step", *train[2:], "--batch", "8")  # The decision was accepted when the file was packaged.
    result = run("train", *file)
    assert result.exit_code == 0 and "`if x.mean() > 0:`" in result.stderr
    result = run("verify", "branch.step", "--graph", "train", "--on", "reference:cpu")
    assert result.exit_code == 1 and "a step file holds no code" in result.stdout


def test_checkpoint_and_resume(run, work):
    words = ("train", "mine.py:make", "--data", "data.npz", "--batch", "16", "--json")
    straight = json.loads(run(*words, "--epochs", "2", "--schedule", "constant").stdout)
    keep = ("--checkpoint", "run.checkpoint", "--schedule", "constant")
    assert run(*words, "--epochs", "1", *keep).exit_code == 0
    again = run(*words, "--epochs", "2", *keep)
    assert again.exit_code == 1 and "run.checkpoint exists" in again.stderr
    assert "--resume" in json.loads(again.stdout)["error"]["message"]
    resumed = json.loads(run(*words, "--epochs", "2", *keep, "--resume").stdout)
    losses = [[e["loss"] for e in r["epochs"]] for r in (straight, resumed)]
    assert losses[0] == losses[1] and resumed["test"] == straight["test"]


def test_resume_says_what_changed(run, work):
    words = ("train", "mine.py:make", "--checkpoint", "changed.ck", "--on", "reference:cpu")
    data = ("--data", "data.npz")
    assert run(*words, *data, "--epochs", "1").exit_code == 0
    result = run(*words, *data, "--epochs", "2", "--lr", "0.3", "--resume")
    assert result.exit_code == 0
    assert "epochs were 1 and are 2" in result.stderr
    assert "the rate of its last step was" in result.stderr
    np.savez(work / "other.npz", **{k: v[::-1] for k, v in np.load(work / "data.npz").items()})
    other = run(*words, "--data", "other.npz", "--epochs", "3", "--resume")
    fails(other, "changed.ck belongs to other data", "--export")
    fails(run(*words, *data, "--seed", "1", "--epochs", "3", "--resume"), "seed 0 of the data", "Try: --seed 0")
    fails(run(*words, *data, "--batch", "8", "--epochs", "3", "--resume"), "now it is 8", "Try: --batch ")


def test_a_step_file_is_replaced_only_if_asked_for(run, work):
    words = ("package", "mine.py:with_batch", "--out", "twice.step")
    assert run(*words).exit_code == 0
    before = (work / "twice.step").read_bytes()
    fails(run(*words, "--seed", "1"), "twice.step exists. Add --force")
    fails(run("train", "mine.py:make", "--data", "data.npz", "--export", "twice.step"), "--force")
    assert (work / "twice.step").read_bytes() == before
    assert run(*words, "--seed", "1", "--force").exit_code == 0
    assert (work / "twice.step").read_bytes() != before


def test_example_batches_come_from_data_too(run, work):
    for words in (("verify", "mine.py:make", "--on", "reference:cpu"), ("package", "mine.py:make")):
        fails(run(*words), "returns no example batch", "--data DATA")
    fails(run("tune", "mine.py:make"), "--data DATA")
    result = run("verify", "mine.py:make", "--data", "data.npz", "--on", "reference:cpu")
    assert result.exit_code == 0 and result.stdout.count("PASS") == 3
    made = run("package", "mine.py:make", "--data", "data.npz", "--batch", "2,4", "--out", "data.step", "--json")
    assert set(json.loads(made.stdout)["graphs"]) >= {"train@2", "train@4"}
    assert run("train", "data.step", "--data", "data.npz", "--epochs", "1", "--on", "reference:cpu").exit_code == 0
    result = run("verify", "mine.py:branch", "--data", "data.npz", "--on", "reference:cpu")
    assert "decides differently: it is" in result.stdout and "of the data" in result.stdout


def test_a_factory_that_is_not_there_or_cannot_be_imported(run, work):
    fails(run("train", "mine.py:mkae", "--data", "data.npz"), "no function 'mkae'", "Try: make")
    (work / "needs.py").write_text("import torch\nimport nowhere_to_be_found.inside\n")
    fails(run("verify", "needs.py:make"), "needs.py:2: ModuleNotFoundError", "Try: pip install nowhere_to_be_found")


def test_several_updates_are_for_python(run):
    fails(run("train", "dcgan", "--data", "digits"), "the graphs d, g", "docs/api.md")


def test_a_full_disk_does_not_lose_the_trained_model(run, work, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise CheckpointError("full.checkpoint could not be written: No space left on device")

    monkeypatch.setattr("handheld.package.save_state", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("train", "mine.py:make", "--data", "data.npz", "--checkpoint", "full.checkpoint")
    (kept,) = tmp_path.glob("*.step")
    assert result.exit_code == 1 and "No space left" in result.stderr and str(kept) in result.stderr
    assert int(handheld.load(kept).state()["handheld.step"]) == 10


def test_a_full_disk_does_not_lose_what_should_be_exported(run, work, tmp_path, monkeypatch):
    real = container.write

    def full(path: Path, *rest: object) -> Path:
        if path.name == "full.step":
            raise StepFileError("full.step could not be written: No space left on device")
        return real(path, *rest)

    monkeypatch.setattr(container, "write", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run(
        "train", "mine.py:make", "--data", "data.npz", "--epochs", "1", "--export", "full.step", "--on", "reference:cpu"
    )
    (kept,) = tmp_path.glob("*.step")
    assert result.exit_code == 1 and "No space left" in result.stderr and str(kept) in result.stderr
    assert int(handheld.load(kept).state()["handheld.step"]) == 10


def test_a_finished_run_has_nothing_to_go_on_with(run, work):
    words = (
        "train",
        "mine.py:make",
        "--data",
        "data.npz",
        "--on",
        "reference:cpu",
        "--epochs",
        "1",
        "--checkpoint",
        "done.ck",
    )
    assert run(*words).exit_code == 0
    result = run(*words, "--resume")
    assert result.exit_code == 0 and "test accuracy" in result.stdout
    assert "note: done.ck already has 1 epoch; --epochs 1 adds none" in result.stderr


# ── batches of any length ─────────────────────────────────────────────────────────────────────────

PLAIN = """
import torch
from torch import nn
from torch.nn import functional as F


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("held", [50, 5])
def test_every_test_sample_is_evaluated(run, work, held):
    (work / "plain.py").write_text(PLAIN)
    with np.load(work / "data.npz") as file:
        x, y = file["x"], file["y"]
    arrays = {"x_train": x[:100], "y_train": y[:100], "x_test": x[100 : 100 + held], "y_test": y[100 : 100 + held]}
    np.savez(work / f"held{held}.npz", **arrays)
    data = ("--data", f"held{held}.npz", "--epochs", "1", "--on", "reference:cpu")
    result = run("train", "plain.py:make", *data, "--batch", "32", "--export", f"held{held}.step", "--force", "--json")
    report = json.loads(result.stdout)
    step = handheld.load(work / f"held{held}.step")
    assert list(step.graphs) == ["train", "evaluate", "predict"]  # The graph of the rest is not part of the file.
    state = step.state()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model.load_state_dict({name: torch.from_numpy(np.array(state[name])) for name in model.state_dict()})
    with torch.no_grad():
        scores = model(torch.from_numpy(arrays["x_test"]))
    labels = torch.from_numpy(arrays["y_test"])
    assert report["test"]["loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, labels)), rel=1e-5)
    assert report["test"]["accuracy"] == pytest.approx(float((scores.argmax(1) == labels).float().mean()))
    assert report["dropped_per_epoch"] == report["epochs"][0]["dropped"] == 4
    shown = run("train", "plain.py:make", *data, "--batch", "32").stdout
    assert f"100 to train, {held} to test" in shown and "4 samples per epoch" in shown
    # The step file fills up the rest: at a rate of 0 the result is that of the trained model.
    again = json.loads(run("train", f"held{held}.step", *data, "--lr", "0", "--json").stdout)
    assert again["test"]["loss"] == pytest.approx(report["test"]["loss"], rel=1e-4)
    assert again["test"]["accuracy"] == pytest.approx(report["test"]["accuracy"])
