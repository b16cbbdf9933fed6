"""The description of a device: compiler features and vector widths."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from handheld.backends import vectors
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.kernels.base import Launch
from handheld.runners.find import find as find_runner
from handheld.runners.platforms import this_machine

CPU = DeviceCaps("some CPU", "somebody", "cpu", "", 2, 64, 0, 1 << 30, 1 << 30, 64, True, vector_width=16)
IDENTITY = ("some CPU", "OpenCL 3.0", "1")


class Told:
    """A device that compiles for `width` and whose processor has all features, or none of them."""

    def __init__(self, width: int, works: bool = False, has: bool = True) -> None:
        self.width, self.works, self.has = width, works, has
        self.asked = 0

    def run(self, launch: Launch, features: str, x: np.ndarray) -> np.ndarray | None:
        if launch is vectors.WIDTH:
            self.asked += 1
            return np.full(4, self.width, np.float32)
        assert features == vectors.FEATURES
        return 2 * x.sum() * np.arange(1, 5, dtype=np.float32) if self.works else None

    def processor(self) -> str:
        return f"flags : fpu {vectors.FEATURES.replace(',', ' ')}" if self.has else "flags : fpu"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr(vectors, "_known", {})
    return tmp_path / "devices"


@pytest.mark.parametrize(("compiled", "width"), [(8, 8), (16, 16), (0, 16), (32, 16)])
def test_a_driver_that_compiles_for_less_than_it_says(folder, compiled, width):
    probe = Told(compiled)
    assert [vectors.vectors_of(CPU, IDENTITY, probe) for _ in range(3)] == [(width, "")] * 3
    assert probe.asked == 1, "it is known from then on"
    (file,) = folder.iterdir()
    vectors._known.clear()  # As in another process.
    assert vectors.vectors_of(CPU, IDENTITY, probe) == (width, "") and probe.asked == 1
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
        vectors._known.clear()
        assert vectors.vectors_of(CPU, IDENTITY, probe) == (width, "")
    assert probe.asked == 1 + len(damaged)
    assert json.loads(file.read_text()) == {"vector_width": width, "features": ""}
    assert vectors.vectors_of(CPU, (*IDENTITY[:2], "2"), probe) == (width, "")
    assert probe.asked == 2 + len(damaged)


@pytest.mark.parametrize("compiled", [8, 16])
def test_it_is_asked_for_the_vectors_that_it_says_if_that_works(folder, compiled):
    probe = Told(compiled, works=True)
    width, features = vectors.vectors_of(CPU, IDENTITY, probe)
    assert width == 16
    assert bool(features) == (compiled == 8), "nothing to ask for"
    vectors._known.clear()
    assert vectors.vectors_of(CPU, IDENTITY, probe) == (16, features), "kept"
    # Written by another machine that uses the same folder.
    vectors._known.clear()
    assert vectors.vectors_of(CPU, IDENTITY, Told(compiled, works=True, has=False)) == (compiled, "")


def test_two_machines_with_one_name_have_their_own_vectors(folder):
    assert vectors.vectors_of(CPU, IDENTITY, Told(8, works=True)) == (16, vectors.FEATURES)
    assert vectors.vectors_of(CPU, IDENTITY, Told(8, works=True, has=False)) == (8, "")


def test_without_a_cache_it_is_asked_once_a_process(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "file"))  # This is not a folder.
    probe = Told(8)
    assert [vectors.vectors_of(CPU, IDENTITY, probe) for _ in range(3)] == [(8, "")] * 3
    assert probe.asked == 1


def test_gpus_and_narrow_cpus_are_not_tested_for_vectors(folder):
    probe = Told(4)
    assert vectors.vectors_of(replace(CPU, vector_width=8), IDENTITY, probe) == (8, "")
    assert vectors.vectors_of(replace(CPU, kind="gpu"), IDENTITY, probe) == (16, "")
    assert not folder.exists() and not probe.asked


@pytest.mark.parametrize("name", ["opencl", "runner"])
def test_the_device_here(name, tmp_path, monkeypatch):
    """Asked without a cache, so that both backends really run the small programs."""
    before = describe("opencl")
    monkeypatch.setenv("HANDHELD_RUNNER", str(find_runner(this_machine())))
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path))
    monkeypatch.setattr(vectors, "_known", {})
    caps = describe(name)
    # PoCL derives the sizes of its memory from what is free when a process starts.
    sizes = {"global_mem_bytes": 0, "max_alloc_bytes": 0}
    assert replace(caps, **sizes) == replace(before, **sizes)
    if caps.kind == "cpu" and before.vector_width >= 16:
        assert json.loads(next((tmp_path / "devices").iterdir()).read_text())["features"] == before.features
    assert not vectors.has_features(vectors.cpuinfo(), "avx9000")
    assert not caps.features or vectors.has_features(vectors.cpuinfo(), caps.features)


def test_users_do_not_see_what_compilers_print_after_success() -> None:
    """In a process of its own: the filter is set once, when pyopencl is first used."""
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from handheld.backends.opencl.devices import opencl\n"
        "opencl().compiler_output('a note of a compiler')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Non-empty" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("vendor", "family", "width", "rate"),
    [
        ("AuthenticAMD", "26", 16, 2),
        ("AuthenticAMD", "25", 16, 1),
        ("AuthenticAMD", "26", 8, 1),
        ("GenuineIntel", "26", 16, 1),
    ],
)
def test_vectors_per_cycle(vendor: str, family: str, width: int, rate: int) -> None:
    core = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 2\n\n"
    assert vectors.rate_of(core * 2, width) == rate
    assert vectors.rate_of("", width) == vectors.rate_of("cpu family : old", width) == 1
