"""What is known of a device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from handheld.backends import opencl_devices
from handheld.backends.base import describe

CPU = SimpleNamespace(name="some CPU", native_vector_width_float=16, driver_version="1",
                      platform=SimpleNamespace(version="OpenCL 3.0"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr(opencl_devices, "_widths", {})
    return tmp_path / "devices"


@pytest.mark.parametrize(("compiled", "width"), [(8, 8), (16, 16), (0, 16), (32, 16)])
def test_a_driver_that_compiles_for_less_than_it_says(folder, monkeypatch, compiled, width):
    asked = []
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda d: asked.append(d) or compiled)
    assert [opencl_devices._vector_width(CPU, "cpu") for _ in range(3)] == [width] * 3
    assert len(asked) == 1, "it is known from then on"
    (file,) = folder.iterdir()
    opencl_devices._widths.clear()  # as in the next process
    assert opencl_devices._vector_width(CPU, "cpu") == width and len(asked) == 1
    file.write_text("not JSON")
    opencl_devices._widths.clear()
    assert opencl_devices._vector_width(CPU, "cpu") == width and len(asked) == 2
    assert json.loads(file.read_text()) == {"vector_width": width}
    newer = SimpleNamespace(**{**vars(CPU), "driver_version": "2"})
    assert opencl_devices._vector_width(newer, "cpu") == width and len(asked) == 3


def test_without_a_cache_it_is_asked_once_a_process(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "file"))  # no folder
    monkeypatch.setattr(opencl_devices, "_widths", {})
    asked = []
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda d: asked.append(d) or 8)
    assert [opencl_devices._vector_width(CPU, "cpu") for _ in range(3)] == [8] * 3
    assert len(asked) == 1


def test_who_is_not_asked(folder, monkeypatch):
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda device: pytest.fail("asked"))
    small = SimpleNamespace(**{**vars(CPU), "native_vector_width_float": 8})
    assert opencl_devices._vector_width(small, "cpu") == 8
    assert opencl_devices._vector_width(CPU, "gpu") == 16
    assert not folder.exists()


def test_the_device_here(folder):
    device = opencl_devices.find("opencl").device
    compiled = opencl_devices._compiled_width(device)
    assert compiled in (0, 4, 8, 16)
    if describe("opencl").kind == "cpu" and compiled:
        assert describe("opencl").vector_width <= max(compiled, 8)
