"""The OpenCL layer with Qualcomm's extensions (tests/native/qcom_layer.c), built and loaded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from helpers.runner import compilers

LAYER = Path(__file__).parents[1] / "native" / "qcom_layer.c"


def build_layer(folder: Path) -> Path:
    """Builds the layer, or skips the test."""
    if not compilers():
        pytest.skip("no C compiler is installed")
    made = folder / "libqcom_layer.so"
    options = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compilers()[0], *options, "-o", made, LAYER], check=True)
    return made


def environment(layer: Path, log: Path, refuse: str = "", **more: str) -> dict[str, str]:
    """The environment of a process that uses the layer."""
    own = {"OPENCL_LAYERS": str(layer), "QCOM_LAYER_LOG": str(log), "QCOM_LAYER_REFUSE": refuse}
    return {**os.environ, **own, **more}


def seen(log: Path) -> dict[str, int]:
    """What the layer saw in the last process that used it."""
    last: dict[str, int] = json.loads(log.read_text().splitlines()[-1])
    return last
