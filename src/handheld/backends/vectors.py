"""Finds the vectors of a CPU that a driver really uses.

A driver may report the vectors of the CPU but compile for smaller ones. An older PoCL does so on processors that its
compiler does not know. The reported width is therefore compared with the compiled one, once per driver.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Protocol

import numpy as np

from handheld import cache
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.kernels.base import Buffer, Launch

#: Writes the vector width that the compiler uses, or 0 if none of its macros tells it.
WIDTH = Launch(
    "width",
    """
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#elif defined(__SSE2__) || defined(__ARM_NEON)
#define WIDTH 4
#else
#define WIDTH 0
#endif
__kernel void width(const __global float *x, __global float *y) { y[get_global_id(0)] = WIDTH; }
""",
    (Buffer(0), Buffer(1)),
    (4,),
    (1,),
)

#: The features of processors with vectors of 16 floats, except the very first of them.
FEATURES = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
#: Item i computes (i + 1) times the sum of the 16 floats of x, once as floats and once converted to integers.
ATTEMPT = Launch(
    "attempt",
    """
typedef float16 __attribute__((aligned(4))) loose16;
__kernel void attempt(const __global float *x, __global float *y) {
  const float16 some = *(const __global loose16 *)x;
  ushort bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = x[i];
  const uint16 whole = convert_uint16(*(const ushort16 *)bits) + 0x4b000000u;
  const float16 all = (some + (as_float16(whole) - 0x1p23f)) * (get_global_id(0) + 1.0f);
  const float8 half_ = all.lo + all.hi;
  const float4 quarter = half_.lo + half_.hi;
  y[get_global_id(0)] = quarter.x + quarter.y + quarter.z + quarter.w;
}
""",
    (Buffer(0), Buffer(1)),
    (4,),
    (1,),
)


ZEN_5 = 26  # a family of processors


class Probe(Protocol):
    """Runs a small program on a device."""

    def run(self, launch: Launch, features: str, x: np.ndarray) -> np.ndarray | None:
        """Returns the 4 floats that the launch makes of the floats x. None if it does not build or run.

        Its text is widened for the features (plan/widen.py), if there are any.
        """

    def processor(self) -> str:
        """Returns the text of /proc/cpuinfo on the device's machine, or ""."""


#: The results of this process.
_known: dict[tuple[Path, str], tuple[int, str]] = {}


def vectors_of(caps: DeviceCaps, identity: tuple[str, str, str], probe: Probe) -> tuple[int, str]:
    """Returns the floats in a vector, and the features that program texts must ask for to use such vectors.

    `caps` has the reported width. `identity` is the device's name and the versions of its platform and driver.
    """
    reported = caps.vector_width
    if caps.kind != "cpu" or reported < 16:
        return reported, ""
    key = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:12]
    path = cache.folder() / "devices" / f"{cache.slug(identity[0])}-{key}.json"
    flags = probe.processor()
    # Machines may share a cache folder, and targets have their own processors.
    place = (path, hashlib.sha256(str(has_features(flags, FEATURES)).encode()).hexdigest())
    if place not in _known:
        _known[place] = _kept(path, flags) or _ask(probe, reported, flags, path)
    return _known[place]


def _kept(path: Path, flags: str) -> tuple[int, str] | None:
    """Returns the cached result, or None if there is none.

    A result with features that this processor does not have is ignored, because machines may share a cache folder.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        width, features = kept["vector_width"], kept["features"]
        if width in (1, 4, 8, 16) and (features == "" or (features == FEATURES and has_features(flags, features))):
            return width, features
    return None


def _ask(probe: Probe, reported: int, flags: str, path: Path) -> tuple[int, str]:
    compiled = probe.run(WIDTH, "", np.zeros(16, np.float32))
    width, features = min(int(compiled[0]) if compiled is not None and compiled[0] else reported, reported), ""
    if width < reported and has_features(flags, FEATURES) and _works(probe, FEATURES):
        width, features = reported, FEATURES
    with contextlib.suppress(HandheldError):  # Without the file the next process asks again.
        cache.write_json(path, {"vector_width": width, "features": features})
    return width, features


def has_features(cpuinfo: str, features: str) -> bool:
    """Whether every core has all of these features."""
    cores = [set(line.split(":")[1].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    return bool(cores) and set(features.split(",")) <= set.intersection(*cores)


def rate_of(cpuinfo: str, width: int) -> int:
    """`DeviceCaps.vector_rate`: 2 on processors that are known to multiply two vectors of 16 floats per cycle."""
    facts = dict(line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    known = {name.strip(): value.strip() for name, value in facts.items()}
    family = known.get("cpu family", "")
    zen5 = known.get("vendor_id") == "AuthenticAMD" and family.isdigit() and int(family) >= ZEN_5
    return 2 if zen5 and width == 16 else 1


def _works(probe: Probe, features: str) -> bool:
    """Whether a program that asks for these features builds and computes the right result."""
    x = np.arange(16, dtype=np.float32)
    y = probe.run(ATTEMPT, features, x)
    return y is not None and bool((y == 2 * x.sum() * np.arange(1, 5)).all())


def cpuinfo() -> str:
    """Returns the text of /proc/cpuinfo of this machine, or "" if there is none."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
