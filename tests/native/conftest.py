"""The runner, built once for all tests of this folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from helpers.runner import compile_runner, compilers, opencl_library


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not compilers():
        pytest.skip("no C compiler is installed")
    return compile_runner(tmp_path_factory.mktemp("native") / "handheld-runner", compilers()[0])


@pytest.fixture(scope="session")
def described(runner: Path) -> dict[str, object]:
    """The first OpenCL device, as the runner describes it."""
    said = subprocess.run([runner, "info", *opencl_library()], capture_output=True, text=True, check=False).stdout
    devices = json.loads(said)["devices"]
    if not devices:
        pytest.skip("this machine has no OpenCL device")
    first: dict[str, object] = devices[0]
    return first
