"""A PoCL whose compiler does not know the processor gets a name that it knows."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from handheld.backends.opencl.unknown_cpu import known_name, name_processor
from handheld.backends.vectors import cpuinfo
from handheld.runners.sources import NATIVE
from helpers.runner import compilers

ZEN = "flags : fpu fma movbe f16c abm sse4a bmi1 avx2 bmi2\n"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has these names")


class Struct:
    """Memory like that of PoCL's device: a number, a bad address, the name of the machine, that of the processor."""

    def __init__(self, processor: bytes, machine: bytes = b"x86_64-unknown-linux-gnu") -> None:
        self.machine = ctypes.create_string_buffer(machine)
        self.processor = ctypes.create_string_buffer(processor, 8)
        decoy = ctypes.create_string_buffer(b"generic", 8)
        self.decoy = decoy
        words = (7, 0xDEAD_BEEF_0000, *map(ctypes.addressof, (decoy, self.machine, self.processor)))
        self.words = (ctypes.c_uint64 * 256)(*words, 1 << 63, (1 << 64) - 1)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.words)


def by_python(device: Struct) -> None:
    of_pocl = SimpleNamespace(name="Portable Computing Language")
    name_processor(SimpleNamespace(int_ptr=device.address, platform=of_pocl))  # type: ignore[arg-type]


@pytest.fixture(params=["python", "runner"])
def give_name(request: pytest.FixtureRequest, tmp_path) -> Callable[[Struct], None]:
    if request.param == "python":
        return by_python
    if not compilers():
        pytest.skip("no C compiler is installed")
    library = tmp_path / "unknown_cpu.so"
    sources = [NATIVE / name for name in ("unknown_cpu.c", "base.c", "files.c")]
    subprocess.run([compilers()[0], "-shared", "-fPIC", "-o", library, *sources], check=True)
    function = ctypes.CDLL(str(library)).name_processor
    return lambda device: function(ctypes.c_void_p(device.address))


def test_an_unknown_processor_gets_a_name(give_name):
    device = Struct(b"generic")
    give_name(device)
    assert device.processor.value.decode() == known_name(cpuinfo()) != "generic"
    assert device.decoy.value == b"generic"


@pytest.mark.parametrize("device", [Struct(b"znver4"), Struct(b"generic", b"aarch64-linux"), Struct(b"generics")])
def test_other_names_stay(give_name, device):
    before = device.processor.raw
    give_name(device)
    assert device.processor.raw == before


def test_other_drivers_are_not_searched():
    name_processor(SimpleNamespace(platform=SimpleNamespace(name="NVIDIA CUDA")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name"),
    [(ZEN, "znver3"), (ZEN.replace("sse4a ", ""), "haswell"), (ZEN + "flags : fpu\n", "x86-64"), ("", "x86-64")],
)
def test_the_name_fits_every_core(text, name):
    assert known_name(text) == name
