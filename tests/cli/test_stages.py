"""What a command shows while it prepares: stages on a terminal, nothing in a pipe, and one line after Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from helpers.paths import clean_path

FACTORY = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)], nn.Linear(6, 3))
    batch = (torch.randn(8, 6), torch.zeros(8, dtype=torch.int64))
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2), batch
"""
START = [sys.executable, "-c", "from handheld.cli import entry; entry()"]


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "mine.py").write_text(FACTORY)
    return tmp_path


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    return {**kept, "PYTHONPATH": os.pathsep.join(clean_path()), "TERM": "xterm"}


def on_a_terminal(folder: Path, *words: str, columns: int = 80, stop_at: str = "") -> tuple[int, str]:
    """Run a command on a terminal; press Ctrl-C when `stop_at` appears. Returns its exit code and what it wrote."""
    number, terminal = pty.fork()
    if not number:
        os.chdir(folder)
        os.execvpe(sys.executable, [*START, *words], environment())
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    raw, stopped = b"", not stop_at
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        raw += part
        if not stopped and stop_at.encode() in raw:
            stopped = True
            os.write(terminal, b"\x03")
    _, status = os.waitpid(number, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode())


@pytest.mark.parametrize(
    ("words", "stages"),
    (
        (("package", "mine.py:make"), ("preparing", "capturing ")),
        (("verify", "mine.py:make", "--graph", "train"), ("preparing", "building ", "comparing train: op ")),
    ),
)
def test_a_terminal_shows_the_stages(folder, words, stages):
    code, text = on_a_terminal(folder, *words)
    assert code == 0, text
    for stage in stages:
        assert stage in text
    last = text.rstrip().splitlines()[-1]
    assert not any(stage in last for stage in stages), "the line of stages is gone at the end"


def test_a_pipe_gets_no_stages_and_json_stays_one_document(folder):
    profile = ("profile", "mine_make.step", "--steps", "3", "--no-ceilings", "--no-report")
    for words in (("package", "mine.py:make", "--json"), profile):
        done = subprocess.run(
            [*START, *words], cwd=folder, env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stderr == "" and not re.search("capturing|preparing|building", done.stdout)
        assert all(line == line.rstrip() for line in done.stdout.splitlines())
        if "--json" in words:
            assert json.loads(done.stdout)["path"] == "mine_make.step"


def test_ctrl_c_while_preparing_is_one_line(folder):
    code, text = on_a_terminal(folder, "package", "mine.py:make", stop_at="preparing")
    assert code == 130 and "stopped: interrupted" in text and "Traceback" not in text
    code, text = on_a_terminal(folder, "profile", "mine.py:make", "--steps", "100000", stop_at="capturing")
    assert code == 130 and "stopped: interrupted" in text and "Traceback" not in text
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["mine.py"], "nothing is left over"
