"""The description of a device: compiler features and vector widths."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from handheld.backends.base import describe
from handheld.backends.opencl import devices as opencl_devices

CPU = SimpleNamespace(
    name="some CPU", native_vector_width_float=16, driver_version="1", platform=SimpleNamespace(version="OpenCL 3.0")
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr(opencl_devices, "_vectors", {})
    monkeypatch.setattr(opencl_devices, "_works", lambda device, features: False)
    monkeypatch.setattr(opencl_devices, "_processor_has", lambda features: True)
    return tmp_path / "devices"


@pytest.mark.parametrize(("compiled", "width"), [(8, 8), (16, 16), (0, 16), (32, 16)])
def test_a_driver_that_compiles_for_less_than_it_says(folder, monkeypatch, compiled, width):
    asked = []
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda d: asked.append(d) or compiled)
    assert [opencl_devices._vectors_of(CPU, "cpu") for _ in range(3)] == [(width, "")] * 3
    assert len(asked) == 1, "it is known from then on"
    (file,) = folder.iterdir()
    opencl_devices._vectors.clear()  # As in another process.
    assert opencl_devices._vectors_of(CPU, "cpu") == (width, "") and len(asked) == 1
    damaged = [
        "not JSON",
        '{"vector_width": 8}',
        '{"vector_width": Infinity, "features": ""}',
        '{"vector_width": 16, "features": null}',
        '{"vector_width": -3, "features": ""}',
        '{"vector_width": 16, "features": "avx9000"}',
        "[]",
    ]
    for text in damaged:
        file.write_text(text)
        opencl_devices._vectors.clear()
        assert opencl_devices._vectors_of(CPU, "cpu") == (width, "")
    assert len(asked) == 1 + len(damaged)
    assert json.loads(file.read_text()) == {"vector_width": width, "features": ""}
    newer = SimpleNamespace(**{**vars(CPU), "driver_version": "2"})
    assert opencl_devices._vectors_of(newer, "cpu") == (width, "")
    assert len(asked) == 2 + len(damaged)


@pytest.mark.parametrize("compiled", [8, 16])
def test_it_is_asked_for_the_vectors_that_it_says_if_that_works(folder, monkeypatch, compiled):
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda device: compiled)
    monkeypatch.setattr(opencl_devices, "_works", lambda device, features: "avx512f" in features)
    width, features = opencl_devices._vectors_of(CPU, "cpu")
    assert width == 16
    assert bool(features) == (compiled == 8), "nothing to ask for"
    opencl_devices._vectors.clear()
    assert opencl_devices._vectors_of(CPU, "cpu") == (16, features), "kept"
    # Written by another machine that uses the same folder.
    opencl_devices._vectors.clear()
    monkeypatch.setattr(opencl_devices, "_processor_has", lambda features: False)
    assert opencl_devices._vectors_of(CPU, "cpu") == (compiled, "")


def test_without_a_cache_it_is_asked_once_a_process(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "file"))  # This is not a folder.
    asked = []
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda d: asked.append(d) or 8)
    assert [opencl_devices._vectors_of(CPU, "cpu") for _ in range(3)] == [(8, "")] * 3
    assert len(asked) == 1


def test_gpus_and_narrow_cpus_are_not_tested_for_vectors(folder, monkeypatch):
    monkeypatch.setattr(opencl_devices, "_compiled_width", lambda device: pytest.fail("asked"))
    small = SimpleNamespace(**{**vars(CPU), "native_vector_width_float": 8})
    assert opencl_devices._vectors_of(small, "cpu") == (8, "")
    assert opencl_devices._vectors_of(CPU, "gpu") == (16, "")
    assert not folder.exists()


def test_the_device_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr(opencl_devices, "_vectors", {})
    device = opencl_devices.find("opencl").device
    compiled = opencl_devices._compiled_width(device)
    assert compiled in (0, 4, 8, 16)
    caps = describe("opencl")
    if caps.kind == "cpu" and compiled:
        assert caps.vector_width <= max(compiled, 8) or caps.features
    assert not opencl_devices._processor_has("avx9000")
    assert not caps.features or opencl_devices._processor_has(caps.features)


def test_users_do_not_see_what_compilers_print_after_success() -> None:
    """In a process of its own: the filter is set once, when pyopencl is first used."""
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from handheld.backends.opencl.devices import opencl\n"
        "opencl().compiler_output('a note of a compiler')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Non-empty" not in done.stderr, done.stderr
