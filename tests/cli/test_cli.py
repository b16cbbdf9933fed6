"""The command line as a user meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import handheld
from handheld import container
from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import output, probe
from handheld.cli.main import app
from handheld.errors import CheckpointError, DeviceError, StepFileError
from handheld.package import load_state

FACTORY = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

def with_batch():
    return (*make(), (torch.randn(8, 6), torch.zeros(8, dtype=torch.int64)))

def broken():
    raise ValueError("no weights today")

def wrong():
    return make()[0]

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        if x.mean() > 0:
            return self.line(x)
        return -self.line(x)

def branch():
    model = Branch()
    return (model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2),
            (torch.ones(8, 6), torch.zeros(8, dtype=torch.int64)))

constant = 3
"""

BLOCK_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with a user's file and data, and what the commands make of them."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "mine.py").write_text(FACTORY)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    x = rng.standard_normal((3, 6))[labels] * 2 + 0.3 * rng.standard_normal((400, 6))
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=labels)
    np.savez(folder / "thin.npz", x=np.zeros((64, 5), np.float32), y=np.arange(64) % 3)
    np.savez(folder / "wide.npz", x=np.zeros((64, 6), np.float32), y=np.arange(64) % 7)
    (folder / "sitecustomize.py").write_text(BLOCK_TORCH)
    return folder


@pytest.fixture
def run(work, monkeypatch):
    """Runs a command in the folder; 80 columns, no colours."""
    monkeypatch.chdir(work)
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "_width", 80)

    def call(*words: str):
        return CliRunner().invoke(app, list(words), prog_name="handheld")

    return call


def fails(result, *words: str) -> None:
    """One line on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == 1, result.output
    assert not result.stdout
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


# ── help ──────────────────────────────────────────────────────────────────────────────────────


def test_version_and_help(run):
    assert run("--version").stdout == f"handheld {handheld.__version__}\n"
    for command in ("doctor", "train", "package", "verify"):
        result = run(command, "--help")
        assert result.exit_code == 0 and "Examples:" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80


# ── doctor ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def one_device(monkeypatch):
    found = opencl_devices.devices()[:1]
    monkeypatch.setattr(opencl_devices, "devices", lambda: found)
    return found[0]


def test_doctor_computes_something(run, one_device):
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    (device,) = report["devices"]
    assert device["passed"] and device["name"] == f"opencl:{one_device.name}"
    assert handheld.DeviceCaps.from_json(device["caps"]).name == one_device.caps.name
    assert report["memory_available_bytes"] > 0 and report["packages"]["numpy"]


def test_doctor_on_a_terminal(run, one_device, monkeypatch):
    monkeypatch.setattr(probe, "run_in_child", lambda device: "")
    lines = run("doctor").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("PASS" in line for line in lines)


def test_doctor_says_what_fails(run, one_device, monkeypatch):
    monkeypatch.setattr(probe, "run_in_child", lambda device: "the driver crashed (signal 11)")
    result = run("doctor")
    assert result.exit_code == 1 and "FAIL the driver crashed" in result.stdout


def test_doctor_without_any_device(run, monkeypatch):
    monkeypatch.setattr(opencl_devices, "devices", lambda: [])
    result = run("doctor")
    assert result.exit_code == 1 and "no OpenCL device" in result.stdout

    def broken() -> list[object]:
        raise DeviceError("no OpenCL platform: none. Try: pip install pocl-binary-distribution")

    monkeypatch.setattr(opencl_devices, "devices", broken)
    assert "no OpenCL platform" in run("doctor").stdout


def test_the_probe_notices_a_wrong_result():
    assert probe.run("reference:cpu") == ""
    assert "wrong result" in probe.run("null")
    assert "unknown device" in probe.run("toaster")


# ── train, package, verify ────────────────────────────────────────────────────────────────────


def test_train_in_halves(run, work):
    words = ("train", "mine.py:make", "--data", "data.npz", "--epochs", "1", "--on", "reference:cpu")
    report = json.loads(run(*words, "--precision", "half", "--json").stdout)
    assert report["precision"] == "half" and 0 < report["loss_scale"]["scale"] <= 2.0**16
    assert "steps skipped; the loss is scaled by" in run(*words, "--precision", "half").stdout
    fails(run(*words, "--precision", "bf16"), "no precision is called 'bf16'")


def test_train_a_factory_and_go_on_from_the_export(run, work):
    words = ("--data", "data.npz", "--epochs", "4", "--batch", "16")
    result = run("train", "mine.py:make", *words, "--export", "out.step")
    assert result.exit_code == 0, result.output
    assert "test accuracy" in result.stdout and "launches" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    again = run("train", "out.step", *words, "--json")
    report = json.loads(again.stdout)
    assert report["test"]["accuracy"] > 0.95 and len(report["epochs"]) == 4
    assert report["epochs"][0]["loss"] < 0.2  # it did not start from nothing
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
        with pytest.raises(handheld.HandheldError, match="packaged are batches of 4, 16"):
            trainer.step(np.zeros((5, 6), np.float32), np.zeros(5, np.int64))
    trained = run("train", "sizes.step", "--data", "data.npz", "--epochs", "1", "--json")
    assert json.loads(trained.stdout)["batch"] == 16
    fails(run("train", "sizes.step", "--data", "data.npz", "--batch", "5"), "4, 16")


def test_verify(run, work):
    result = run("verify", "mine.py:with_batch")
    assert result.exit_code == 0 and result.stdout.count("PASS") == 3
    report = json.loads(run("verify", "mine.py:with_batch", "--graph", "train", "--json").stdout)
    phases = {op["phase"] for op in report[0]["ops"]}
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
    assert "decides otherwise: it is False in " in " ".join(result.stdout.split())
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
    file = ("branch.step", *train[2:], "--batch", "8")  # was accepted when it was packaged
    result = run("train", *file)
    assert result.exit_code == 0 and "`if x.mean() > 0:`" in result.stderr
    result = run("verify", "branch.step", "--graph", "train", "--on", "reference:cpu")
    assert result.exit_code == 1 and "there is no code to run" in result.stdout


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
    fails(run(*words, "--data", "other.npz", "--epochs", "3", "--resume"), "changed.ck is of other data", "--export")
    fails(run(*words, *data, "--seed", "1", "--epochs", "3", "--resume"), "seed 0 of the data")


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
        fails(run(*words), "gives no example batch", "--data DATA")
    fails(run("tune", "mine.py:make"), "--data DATA")
    result = run("verify", "mine.py:make", "--data", "data.npz", "--on", "reference:cpu")
    assert result.exit_code == 0 and result.stdout.count("PASS") == 3
    made = run("package", "mine.py:make", "--data", "data.npz", "--batch", "2,4", "--out", "data.step", "--json")
    assert set(json.loads(made.stdout)["graphs"]) >= {"train@2", "train@4"}
    assert run("train", "data.step", "--data", "data.npz", "--epochs", "1", "--on", "reference:cpu").exit_code == 0
    result = run("verify", "mine.py:branch", "--data", "data.npz", "--on", "reference:cpu")
    assert "decides otherwise: it is" in result.stdout and "of the data" in result.stdout


def test_a_factory_that_is_not_there_or_cannot_be_imported(run, work):
    fails(run("train", "mine.py:mkae", "--data", "data.npz"), "no function 'mkae'", "it has: make,")
    (work / "needs.py").write_text("import torch\nimport nowhere_to_be_found.inside\n")
    fails(
        run("verify", "needs.py:make"),
        "needs.py:make raised ModuleNotFoundError in line 2",
        "Try: pip install nowhere_to_be_found",
    )


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
    assert "note: done.ck is of 1 epoch, and --epochs 1 asks for no more" in result.stderr


# ── errors ────────────────────────────────────────────────────────────────────────────────────


def test_errors_are_one_line(run, work):
    data = ("--data", "data.npz")
    fails(run("train", "lenet", *data), "lenet5")
    fails(run("train", "gone.py:make", *data), "no file gone.py")
    fails(run("train", "mine.py", *data), "mine.py:make")
    fails(run("train", "mine.py:nothing", *data), "no function 'nothing'")
    fails(run("train", "mine.py:broken", *data), "ValueError in line", "no weights today")
    fails(run("train", "mine.py:wrong", *data), "returned a Sequential")
    fails(run("train", "gone.step", *data), "gone.step")
    fails(run("train", "mine.py:make", "--data", "gone.npz"), "gone.npz")
    fails(run("train", "mine.py:make", "--data", "wide.npz"), "holds 3", "from 0 to 2")
    fails(run("train", "mine.py:make", "--data", "thin.npz"), "float32[32, 5]", "RuntimeError")
    fails(run("train", "mine.py:make", *data, "--on", "opencl:none-such"), "none-such")
    fails(run("train", "mine.py:make", *data, "--on", "toaster"), "toaster")
    fails(run("train", "mine.py:make", *data, "--schedule", "steep"), "cosine")
    fails(run("train", "mine.py:make", *data, "--export", "no/where.step"), "no folder")
    fails(run("train", "mine.py:make", *data, "--resume"), "--checkpoint FILE")
    fails(run("train", "mine.py:make", *data, "--every", "5"), "--checkpoint FILE")
    fails(run("train", "mine.py:make", *data, "--resume", "--checkpoint", "a"), "there is no a")
    fails(run("package", "mine.py:make"), "example batch")
    fails(run("package", "mine.py:with_batch", "--batch", "4,x"), "1,4,16")
    (work / "noise.step").write_bytes(b"\x10\0\0\0\0\0\0\0 not a step file")
    fails(run("verify", "noise.step"), "noise.step")
    assert run("train").exit_code == 2


def test_what_is_no_model_says_what_it_is(run, work):
    words = ("--data", "data.npz", "--epochs", "1", "--batch", "16")
    assert run("train", "mine.py:make", *words, "--checkpoint", "kept.ck").exit_code == 0
    fails(run("train", "kept.ck", *words), "kept.ck is a checkpoint", "--checkpoint kept.ck --resu")
    fails(run("verify", "data.npz"), "data.npz is data, not a model", "--data data.npz")
    (work / "weights.pt").write_bytes(b"PK not ours")
    fails(run("train", "weights.pt", *words), "weights.pt is no model that Handheld knows")
    fails(run("train", "gone.ck", *words), "there is no file gone.ck")


def test_only_near_names_are_suggested(run):
    fails(run("train", "lenet", "--data", "digits"), "Did you mean lenet5?")
    result = run("train", "train", "--data", "digits")
    assert result.exit_code == 1 and "Did you mean" not in result.stderr


@pytest.fixture
def no_device(monkeypatch):
    """What is known without a device must not open one."""

    def opened() -> None:
        raise AssertionError("the device was opened")

    monkeypatch.setattr(opencl_devices, "devices", opened)


def test_what_is_known_is_said_before_a_device_starts(run, work, no_device):
    assert run("package", "mine.py:with_batch", "--out", "early.step").exit_code == 0
    x, y = np.zeros((64, 6), np.float32), np.arange(64) % 3
    np.savez(work / "floats.npz", x=x, y=y.astype(np.float32))
    np.savez(work / "held.npz", x_train=x, y_train=y, x_test=x, y_test=y + 1)
    for source in ("mine.py:make", "early.step"):
        for rate in ("-0.1", "nan", "inf"):
            fails(run("train", source, "--data", "data.npz", "--lr", rate), "finite number, 0 or")
        fails(run("train", source, "--data", "wide.npz"), "wide.npz", "holds", "from 0 to 2")
        fails(run("train", source, "--data", "held.npz"), "held.npz", "holds 3", "to 2")
        run("train", source, "--data", "data.npz", "--checkpoint", "cut.ck", "--on", "reference:cpu")
        (work / "cut.ck").write_bytes((work / "cut.ck").read_bytes()[:300])
        fails(run("train", source, "--data", "data.npz", "--checkpoint", "cut.ck", "--resume"), "cut.ck: is truncated")
        (work / "cut.ck").unlink()
    fails(run("train", "early.step", "--data", "thin.npz"), "thin.npz does not fit", "(8, 5)")
    fails(run("train", "early.step", "--data", "floats.npz"), "floats.npz does not fit", "int64")


def test_an_error_is_json_where_json_is_asked_for(run):
    result = run("train", "nothing", "--data", "data.npz", "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == 1 and error["type"] == "HandheldError"
    assert f"error: {error['message']}\n" == result.stderr
    result = run("train", "lenet5", "--json")  # --data is missing
    assert result.exit_code == 2 and "--data" in json.loads(result.stdout)["error"]["message"]


def test_factories_of_one_file_have_files_of_their_own(run, work):
    (work / "two.py").write_text(FACTORY + "\nother = with_batch\n")
    for name in ("with_batch", "other"):
        assert run("package", f"two.py:{name}").exit_code == 0
        assert (work / f"two_{name}.step").exists()


def test_places_that_cannot_be_written(run, work, monkeypatch):
    (work / "folder.step").mkdir()
    fails(run("package", "mine.py:with_batch", "--out", "folder.step"), "it is a folder")

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    for option in ("--export", "--checkpoint"):
        fails(
            run("train", "mine.py:make", "--data", "data.npz", option, "a.step"),
            "a.step cannot be written",
            "Read-only file system",
        )


def test_one_is_not_many(run):
    assert [output.count(n, "launch") for n in (1, 28)] == ["1 launch", "28 launches"]
    result = run("train", "mine.py:make", "--data", "data.npz", "--epochs", "1", "--batch", "320")
    assert any(line.rstrip().endswith("a step, 1 step") for line in result.stdout.splitlines())


def test_no_opencl_device(run, monkeypatch):
    monkeypatch.setattr(opencl_devices, "devices", lambda: [])
    fails(run("train", "mine.py:make", "--data", "data.npz"), "no OpenCL device", "reference:cpu")


def test_battery_that_is_not_there(run, monkeypatch):
    monkeypatch.setattr("handheld.run.guards.battery", lambda: None)
    result = run("train", "mine.py:make", "--data", "data.npz", "--battery-floor", "20")
    fails(result, "reports no battery")


# ── real processes ────────────────────────────────────────────────────────────────────────────


def process(work: Path, *words: str, torch: bool = True) -> subprocess.Popen[str]:
    own = str(Path(handheld.__file__).parents[1])
    path = own if torch else f"{work}{os.pathsep}{own}"  # the first holds what blocks torch
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": path}
    command = [sys.executable, "-m", "handheld.cli.main", *words]
    return subprocess.Popen(
        command, cwd=work, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_in_the_middle_of_training(work, number, word):
    kept = work / f"{word}.checkpoint"
    child = process(
        work, "train", "mine.py:make", "--data", "data.npz", "--epochs", "100000", "--checkpoint", kept.name, "--json"
    )
    until = time.monotonic() + 60
    while not kept.exists() and time.monotonic() < until:
        time.sleep(0.05)
    written = kept.stat().st_mtime_ns
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number and "Traceback" not in err
    assert f"stopped: {word} in epoch" in err
    assert f"To go on from {kept.name}: the same command with --resume" in err
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert kept.stat().st_mtime_ns > written
    state, meta = load_state(kept)
    assert meta["history"]["steps"] == int(state["handheld.step"]) > 0


def test_ctrl_c_while_python_still_imports(work):
    code = (
        "import sys, handheld\n"
        "class Stop:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.modules.pop('handheld.cli.main', None)\n"
        "import runpy; runpy.run_module('handheld', run_name='__main__')\n"
    )
    own = str(Path(handheld.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=work,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": own},
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "stopped: interrupted\n")


def test_ctrl_c_again_and_again(work):
    child = process(work, "train", "mine.py:make", "--data", "data.npz", "--epochs", "100000")
    assert child.stdout is not None
    while not child.stdout.readline().lstrip().startswith("2 "):
        assert child.poll() is None
    for _ in range(40):
        child.send_signal(signal.SIGINT)
        time.sleep(0.005)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in err
    assert err.startswith("stopped: interrupted") and err.count("\n") == 1
    assert "Nothing was kept; --checkpoint FILE keeps it the next time" in err


def test_without_torch_a_step_file_trains(work):
    made = process(work, "package", "mine.py:with_batch", "--out", "small.step")
    assert made.wait(60) == 0, made.communicate()
    child = process(work, "train", "small.step", "--data", "data.npz", "--epochs", "2", "--json", torch=False)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert json.loads(out)["test"]["accuracy"] > 0.8


def test_without_torch_the_rest_says_what_to_install(work):
    children = [
        process(work, *words, torch=False)
        for words in (
            ("train", "lenet5", "--data", "digits"),
            ("train", "mine.py:make", "--data", "data.npz"),
            ("verify", "lenet5"),
            ("package", "lenet5"),
        )
    ]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 1 and not out
        assert "pip install 'handheld[capture]'" in err and "Traceback" not in err
