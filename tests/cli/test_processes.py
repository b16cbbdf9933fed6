"""The command in its own process: signals, and a Python without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import handheld
from handheld.cli.main import app
from handheld.package import load_state
from helpers.run_files import PLAIN, MadeRun

# ── real processes ────────────────────────────────────────────────────────────────────────────


def process(work: Path, *words: str, torch: bool = True) -> subprocess.Popen[str]:
    own = str(Path(handheld.__file__).parents[1])
    path = (
        own if torch else f"{work / 'block'}{os.pathsep}{own}"
    )  # The first folder contains the code that blocks torch.
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": path}
    command = [sys.executable, "-m", "handheld.cli.main", *words]
    return subprocess.Popen(
        command, cwd=work, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def packed(work) -> str:
    """A step file. A process that trains it need not import PyTorch and capture the model."""
    out = work / "small.step"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        result = CliRunner().invoke(app, ["package", "mine.py:with_batch", "--out", out.name], prog_name="handheld")
    assert result.exit_code == 0, result.output
    return out.name


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_in_the_middle_of_training(work, packed, number, word):
    kept = work / f"{word}.checkpoint"
    what = "mine.py:make" if number == signal.SIGINT else packed
    child = process(
        work, "train", what, "--data", "data.npz", "--epochs", "100000", "--checkpoint", kept.name, "--json"
    )
    until = time.monotonic() + 60
    while not kept.exists() and time.monotonic() < until:
        time.sleep(0.05)
    written = kept.stat().st_mtime_ns
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number and "Traceback" not in err
    assert f"stopped: {word} in epoch" in err or f"stopped: {word} after epoch" in err
    assert f"To continue from {kept.name}, add --resume to the same command" in err
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert kept.stat().st_mtime_ns > written
    state, meta = load_state(kept)
    assert meta["history"]["steps"] == int(state["handheld.step"]) > 0


IMPORTING = (
    "import sys, handheld\n"
    "class Stop:\n"
    "    def find_spec(self, name, *rest):\n"
    "        if name == 'typer': raise KeyboardInterrupt\n"
    "sys.meta_path.insert(0, Stop())\n"
    "sys.modules.pop('handheld.cli.main', None)\n"
)
PARSING = "import typer.main\ndef stop(*_): raise KeyboardInterrupt\ntyper.main.get_command = stop\n"


@pytest.mark.parametrize("moment", [IMPORTING, PARSING], ids=["importing", "parsing"])
def test_ctrl_c_before_a_command_begins(work, moment):
    code = f"{moment}import runpy; runpy.run_module('handheld', run_name='__main__')\n"
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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_in_another_encoding_than_utf_8(tmp_path, encoding):
    made = MadeRun(tmp_path / "one.run")
    made.steps(60, commands=[(kind, op, ms / 100) for kind, op, ms in PLAIN])
    made.open().close()
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": encoding}
    environment["PYTHONPATH"] = str(Path(handheld.__file__).parents[1])

    def told(*words: str) -> str:
        command = [sys.executable, "-m", "handheld.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode(encoding, "replace")

    shown = told("show", "one.run")
    assert ("us per step" if encoding == "ascii" else "µs per step") in " ".join(shown.split())
    assert "--image-size N" in told("train", "--help")
    assert json.loads(told("show", "one.run", "--json"))["steps"] == 60


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_files_that_the_system_refuses_are_one_line(work, tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(30)
    made.open().close()
    environment = {**os.environ, "PYTHONPATH": str(Path(handheld.__file__).parents[1])}
    command = [sys.executable, "-m", "handheld.cli.main", "show", "one.run"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    said = done.stderr.decode()
    assert done.returncode != 0 and "Traceback" not in said
    assert said.startswith("error: the output cannot be read or written: No space left on device")


def test_ctrl_c_again_and_again(work, packed):
    child = process(work, "train", packed, "--data", "data.npz", "--epochs", "100000", "--out", "stopped.run")
    assert child.stdout is not None
    while not child.stdout.readline().lstrip().startswith("2 "):
        assert child.poll() is None
    for _ in range(40):
        child.send_signal(signal.SIGINT)
        time.sleep(0.005)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in err
    assert err.startswith("stopped: interrupted") and err.count("\n") == 1
    assert "The losses are in stopped.run, but the model was not saved. Try: --checkpoint FILE next time" in err
    assert (work / "stopped.run").exists()


def test_without_torch_a_step_file_trains(work, packed):
    child = process(work, "train", packed, "--data", "data.npz", "--epochs", "2", "--json", torch=False)
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
        assert "pip install torch" in err and "Traceback" not in err
