"""Finds out whether a GPU has matrix units that OpenCL kernels can use.

NVIDIA's OpenCL has no function for them (tensor cores), but accepts the instruction itself. The units of GPUs from
Ampere on multiply numbers of 11 bits (TF32). Whether that works is tried, once per driver: a small program must build
and be right.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from handheld import cache
from handheld.backends.vectors import Probe
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.kernels.base import Buffer, Launch
from handheld.kernels.contract_local import MATRIX

#: Set to `off`, products are computed by the usual units.
VARIABLE = "HANDHELD_TENSOR_CORES"
#: 32 items multiply 16x8 by 8x8 whole numbers. Result j is the sum of (item + 1) * (number j of the item).
ATTEMPT = Launch(
    "units",
    """
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void units(const __global float *x, __global float *y) {
  __local float all[4][32];
  const int item = get_local_id(0), g = item / 4, t = item % 4;
  uint a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = as_uint(x[((g + i % 2 * 8) * 3 + (t + i / 2 * 4) * 5) % 16]);
  for (int i = 0; i < 2; ++i) b[i] = as_uint(x[((t + i * 4) * 7 + g) % 16]);
  float c[4];
  __asm__("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%10, %10, %10, %10};"
          : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  for (int i = 0; i < 4; ++i) all[i][item] = (item + 1) * c[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 4) {
    float sum = 0;
    for (int i = 0; i < 32; ++i) sum += all[item][i];
    y[item] = sum;
  }
}
""",
    (Buffer(0), Buffer(1)),
    (32,),
    (32,),
)

#: The results of this process.
_known: dict[Path, str] = {}


def matrix_units(caps: DeviceCaps, identity: tuple[str, str, str], probe: Probe) -> str:
    """Returns what to write into `features` of a GPU's description: "tf32", or "" if there is nothing to use.

    `identity` is the device's name and the versions of its platform and driver.
    """
    if caps.kind != "gpu" or "nvidia" not in caps.vendor.lower() or turned_off():
        return ""
    key = hashlib.sha256("\n".join(("matrix", *identity)).encode()).hexdigest()[:12]
    path = cache.folder() / "devices" / f"{cache.slug(identity[0])}-{key}.json"
    if path not in _known:
        kept = _kept(path)
        _known[path] = _ask(probe, path) if kept is None else kept
    return _known[path]


def turned_off() -> bool:
    return os.environ.get(VARIABLE, "").lower() in ("off", "0", "no")


def _kept(path: Path) -> str | None:
    """Returns the cached result, or None if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        features = json.loads(path.read_text(encoding="utf-8"))["features"]
        if features in ("", MATRIX):
            return str(features)
    return None


def _ask(probe: Probe, path: Path) -> str:
    x = np.arange(16, dtype=np.float32)
    y = probe.run(ATTEMPT, "", x)
    features = MATRIX if y is not None and bool((y == expected(x)).all()) else ""
    with contextlib.suppress(HandheldError):  # Without the file the next process asks again.
        cache.write_json(path, {"features": features})
    return features


def expected(x: np.ndarray) -> np.ndarray:
    """What the program must compute."""
    row, term, column = np.arange(16)[:, None], np.arange(8), np.arange(8)[None, :]
    product = x[(row * 3 + term[None, :] * 5) % 16] @ x[(term[:, None] * 7 + column) % 16]
    item = np.arange(32)
    own = [product[item // 4 + i // 2 * 8, item % 4 * 2 + i % 2] for i in range(4)]
    return np.array([((item + 1) * values).sum() for values in own], np.float32)
