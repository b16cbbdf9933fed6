"""A random sample of the op cases, with a fixed seed, under Oclgrind; `scripts/oclgrind` runs all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "oclgrind"


@pytest.mark.skipif(shutil.which("oclgrind") is None, reason="Oclgrind is not installed")
def test_a_sample_is_clean() -> None:
    done = subprocess.run(
        [str(SCRIPT), "--sample", "5", "--seed", "1", "--variants", "1"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 wrong" in done.stdout and "Oclgrind found nothing" in done.stdout
