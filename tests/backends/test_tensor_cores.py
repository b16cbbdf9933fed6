"""Matrix units of GPUs are used only if a small program is right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from handheld.backends import matrix_units
from handheld.backends.matrix_units import ATTEMPT, expected
from handheld.kernels.base import Launch
from helpers.harness import caps_of_kind

GPU = caps_of_kind("gpu", vendor="NVIDIA Corporation")
IDENTITY = ("NVIDIA Test", "OpenCL 3.0 CUDA", "1")


class Told:
    """A device whose program gives `change` times the right result; 0: it does not build."""

    def __init__(self, change: float) -> None:
        self.change, self.asked = change, 0

    def run(self, launch: Launch, features: str, x: np.ndarray) -> np.ndarray | None:
        assert launch is ATTEMPT and features == ""
        self.asked += 1
        return expected(x) * np.float32(self.change) if self.change else None

    def processor(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr(matrix_units, "_known", {})
    return tmp_path / "devices"


@pytest.mark.parametrize(("change", "features"), [(1.0, "tf32"), (1.001, ""), (0.0, "")])
def test_they_are_used_if_the_program_is_right(folder, change, features):
    probe = Told(change)
    assert [matrix_units.matrix_units(GPU, IDENTITY, probe) for _ in range(2)] == [features] * 2
    (file,) = folder.iterdir()
    matrix_units._known.clear()  # As in another process.
    assert matrix_units.matrix_units(GPU, IDENTITY, probe) == features and probe.asked == 1
    for number, damaged in enumerate(("no JSON", "[]", '{"features": "avx"}', '{"features": 3}'), 2):
        file.write_text(damaged)
        matrix_units._known.clear()
        assert matrix_units.matrix_units(GPU, IDENTITY, probe) == features and probe.asked == number
    assert json.loads(file.read_text()) == {"features": features}
    assert matrix_units.matrix_units(GPU, (*IDENTITY[:2], "2"), probe) == features and probe.asked == 6


def test_other_devices_are_not_asked(folder, monkeypatch):
    probe = Told(1.0)
    for caps in (replace(GPU, kind="cpu"), replace(GPU, vendor="ARM")):
        assert matrix_units.matrix_units(caps, IDENTITY, probe) == ""
    monkeypatch.setenv("HANDHELD_TENSOR_CORES", "off")
    assert matrix_units.matrix_units(GPU, IDENTITY, probe) == ""
    assert not probe.asked and not folder.exists()


def test_the_expected_result_is_that_of_a_product():
    """As matrix.cl describes what each item holds."""
    x = np.arange(16, dtype=np.float32)
    a = np.array([[x[(row * 3 + k * 5) % 16] for k in range(8)] for row in range(16)])
    b = np.array([[x[(k * 7 + column) % 16] for column in range(8)] for k in range(8)])
    got = np.zeros(4)
    for item in range(32):
        g, t = item // 4, item % 4
        for i in range(4):
            got[i] += (item + 1) * (a @ b)[g + i // 2 * 8, 2 * t + i % 2]
    assert (expected(x) == got).all()
