"""The runner compiles without a warning, with two compilers, and says what it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from helpers.runner import NATIVE, STRICT, compile_runner, compilers


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_runner_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    if compiler not in compilers():
        pytest.skip(f"{compiler} is not installed")
    runner = compile_runner(tmp_path / "handheld-runner", compiler, *STRICT, '-DHANDHELD_SOURCE="0123456789abcdef"')
    assert runner.stat().st_size < 200_000, "the limit for a phone"
    said = subprocess.run([runner, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("handheld-runner 1.") and "source 0123456789abcdef" in said
    described = json.loads(subprocess.run([runner, "info"], capture_output=True, text=True, check=False).stdout)
    assert described["protocol"] == 1 and described["source"] == "0123456789abcdef"


def test_a_missing_library_is_told_with_its_reason(tmp_path: Path) -> None:
    if not compilers():
        pytest.skip("no C compiler is installed")
    runner = compile_runner(tmp_path / "handheld-runner", compilers()[0])
    asked = subprocess.run(
        [runner, "info", "--opencl", "/nowhere/libOpenCL.so"], capture_output=True, text=True, check=False
    )
    described = json.loads(asked.stdout)
    assert asked.returncode == 1 and described["devices"] == []
    assert "not there: /nowhere/libOpenCL.so" in described["problem"]
    assert "Try: install the driver of the device" in described["problem"]


def test_a_library_that_is_no_library_is_told_with_its_reason(tmp_path: Path) -> None:
    if not compilers():
        pytest.skip("no C compiler is installed")
    runner = compile_runner(tmp_path / "handheld-runner", compilers()[0])
    (tmp_path / "libOpenCL.so").write_text("no library")
    asked = subprocess.run(
        [runner, "info", "--opencl", str(tmp_path / "libOpenCL.so")], capture_output=True, text=True, check=False
    )
    assert "libOpenCL.so: file too short" in json.loads(asked.stdout)["problem"]


def test_files_and_functions_stay_short() -> None:
    files = {path.name: path.read_text().splitlines() for path in NATIVE.glob("*.[ch]")}
    assert len(files) > 10
    assert {name: len(lines) for name, lines in files.items() if len(lines) > 600} == {}
    long = {name: len(line) for name, lines in files.items() for line in lines if len(line) > 130}
    assert long == {}
