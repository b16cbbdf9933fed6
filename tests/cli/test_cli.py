"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest

import handheld
from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import output
from helpers.commands import FACTORY, fails

# ── help ──────────────────────────────────────────────────────────────────────────────────────


def test_version_and_help(run):
    assert run("--version").stdout == f"handheld {handheld.__version__}\n"
    for command in ("doctor", "train", "package", "verify"):
        result = run(command, "--help")
        assert result.exit_code == 0 and "Examples:" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80
    assert "[required]" in run("report", "--help").stdout
    assert "\\[" not in run("train", "--help").stdout


def test_without_a_command_the_help_is_printed(run):
    for words in ((), ("study",)):
        result = run(*words)
        assert result.exit_code == 0 and result.stdout == run(*words, "--help").stdout and not result.stderr


# ── errors ────────────────────────────────────────────────────────────────────────────────────


def test_errors_are_one_line(run, work):
    data = ("--data", "data.npz")
    fails(run("train", "lenet", *data), "lenet5")
    fails(run("train", "gone.py:make", *data), "no file gone.py")
    fails(run("train", "mine.py", *data), "mine.py:make")
    fails(run("train", "mine.py:nothing", *data), "no function 'nothing'")
    fails(run("train", "mine.py:broken", *data), "mine.py:14: ValueError", "no weights today")
    fails(run("train", "mine.py:wrong", *data), "returned a Sequential")
    fails(run("train", "gone.step", *data), "gone.step")
    fails(run("train", "mine.py:make", "--data", "gone.npz"), "gone.npz")
    fails(run("train", "mine.py:make", "--data", "wide.npz"), "labels of the data are 0, 1", "for 3 classes", "Try")
    fails(run("train", "mine.py:make", "--data", "thin.npz"), "float32[32, 5]", "RuntimeError")
    fails(run("train", "mine.py:make", *data, "--on", "opencl:none-such"), "none-such")
    fails(run("train", "mine.py:make", *data, "--on", "toaster"), "toaster")
    fails(run("train", "mine.py:make", *data, "--schedule", "steep"), "cosine")
    fails(run("train", "mine.py:make", *data, "--export", "no/where.step"), "no folder")
    fails(run("train", "mine.py:make", *data, "--resume"), "--checkpoint FILE")
    fails(run("train", "mine.py:make", *data, "--every", "5"), "--checkpoint FILE")
    fails(run("train", "mine.py:make", *data, "--resume", "--checkpoint", "a"), "there is no file a")
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
    fails(run("train", "weights.pt", *words), "weights.pt is not a model that Handheld knows")
    fails(run("train", "gone.ck", *words), "there is no file gone.ck")
    fails(run("train", "mine:make", *words), "there is no file mine. Try: mine.py:make")
    (work / "small.plan").write_bytes(b"")
    fails(run("train", "small.plan", *words), "small.plan is a plan file for a runner. A model is")
    fails(run("advise", "mine.py:make"), "there is no run file mine.py:make", "handheld profile MODEL --out FILE.run")


def test_only_near_names_are_suggested(run):
    fails(run("train", "lenet", "--data", "digits"), "Try: lenet5")
    result = run("train", "train", "--data", "digits")
    assert result.exit_code == 1 and "lenet5" not in result.stderr


@pytest.fixture
def no_device(monkeypatch):
    """Fails if a device is opened."""

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
        fails(
            run("train", source, "--data", "wide.npz"),
            "wide.npz",
            "labels of the data are 0, 1, 2, 3",
            "labels from 0 to 2",
        )
        fails(
            run("train", source, "--data", "held.npz"), "held.npz", "labels of the data are 0, 1, 2, 3, but", "(0 to 2)"
        )
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
    result = run("train", "lenet5", "--json")  # --data is missing.
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


def test_a_count_of_one_is_singular(run):
    assert [output.count(n, "launch") for n in (1, 28)] == ["1 launch", "28 launches"]
    assert output.count(2, "epoch") == "2 epochs"
    result = run("train", "mine.py:make", "--data", "data.npz", "--epochs", "1", "--batch", "320")
    assert any(line.rstrip().endswith("per step, 1 step") for line in result.stdout.splitlines())


def test_no_opencl_device(run, monkeypatch):
    monkeypatch.setattr(opencl_devices, "devices", lambda: [])
    fails(run("train", "mine.py:make", "--data", "data.npz"), "no OpenCL device", "reference:cpu")


def test_battery_that_is_not_there(run, monkeypatch):
    monkeypatch.setattr("psutil.sensors_battery", lambda: None, raising=False)
    result = run("train", "mine.py:make", "--data", "data.npz", "--battery-floor", "20")
    fails(result, "reports no battery")
