"""Damaged plans, garbage on the wire and failing drivers never crash the runner, under AddressSanitizer and UBSan.

scripts/fuzz_plans runs more of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.runner import compile_fuzzer, compilers
from helpers.tiny_plan import TinyPlan


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not compilers():
        pytest.skip("no C compiler is installed")
    return compile_fuzzer(tmp_path_factory.mktemp("fuzz") / "fuzz")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("plans")
    (folder / "shared.plan").write_bytes(TinyPlan("fake").fill().pack())
    (folder / "own.plan").write_bytes(TinyPlan("fake", unified=False, shared=True, texture=True).fill().pack())
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: checkpoints wait for the disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="handheld-fuzz-") as made:
        yield Path(made)


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_mutated_plans_are_refused_in_words_or_run(fuzzer: Path, plans: list[str], folder: Path) -> None:
    said = run(fuzzer, "plans", 3000, 1, folder, *plans)
    accepted, refused = (int(number) for number in re.findall(r"(\d+) (?:accepted|refused)", said))
    assert accepted > 200 and refused > 1500, "both ways are taken often"


def test_mutated_streams_never_crash_the_runner(fuzzer: Path, plans: list[str], folder: Path) -> None:
    assert "1500 streams served" in run(fuzzer, "streams", 1500, 1, folder, *plans)


def test_every_failure_of_a_driver_is_survived(fuzzer: Path, plans: list[str], folder: Path) -> None:
    failures = int(run(fuzzer, "drivers", folder, *plans).split()[0])
    assert failures > 100, "each call of the driver failed once"
