"""Ctrl-C is answered with a message while the work in progress cannot be stopped yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUSY = """
import os, signal, sys, time
from handheld.cli import stopping
stopping.PATIENCE_S = {patience}
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGUSR1, lambda *_: None)
stopping.answer()
os.kill(os.getpid(), signal.{signal})
time.sleep({seconds})
"""


@pytest.mark.parametrize(
    ("signal", "seconds", "patience", "said"), [("SIGINT", 5, 0.1, 1), ("SIGINT", 0, 60, 0), ("SIGUSR1", 1, 0.1, 0)]
)
def test_a_wait_is_explained(signal, seconds, patience, said):
    text = BUSY.format(signal=signal, seconds=seconds, patience=patience)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stderr.count("stopping after the work in progress"), done.stdout) == (said, "")
