"""Rewrites programs for matrix units (kernels/matrix.cl) for devices without them.

The instruction is replaced by a function that does the same: the items of a warp put what they hold into local memory,
and each computes its results from that. So tests can run these programs on any device.
"""

from __future__ import annotations

import re

#: Functions between the kernel and the instruction. They pass the local memory on.
_BETWEEN = "multiply|scores|apply|unit"
_UNIT = """
inline void unit(__local uint *lanes, float d[4], const uint a[4], const uint b[2]) {
  const int item = get_local_id(0), g = item / 4 % 8, t = item % 4;
  __local uint *warp = lanes + item / 32 * 32 * 6;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) lanes[6 * item + i] = a[i];
  for (int i = 0; i < 2; ++i) lanes[6 * item + 4 + i] = b[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) {
    const int row = g + i / 2 * 8, column = 2 * t + i % 2;
    for (int k = 0; k < 8; ++k)
      d[i] += as_float(warp[6 * (row % 8 * 4 + k % 4) + row / 8 + k / 4 * 2] & 0xffffe000u) *
              as_float(warp[6 * (column * 4 + k % 4) + 4 + k / 4] & 0xffffe000u);
  }
}
"""


def emulated(text: str) -> str:
    """Returns the text of a program without the instruction of matrix units; other texts stay as they are."""
    if "mma.sync" not in text:
        return text
    text, count = re.subn(r"inline[^\n]*void unit\(.*?\n}\n", lambda _: "UNIT_HERE\n", text, flags=re.DOTALL)
    assert count == 1, "matrix.cl has one function with the instruction"
    text = re.sub(rf"\bvoid\s+({_BETWEEN})\(", r"void \1(__local uint *lanes, ", text)
    text = re.sub(rf"(?<!void )\b({_BETWEEN})\(", r"\1(lanes, ", text)
    text = re.sub(r"(__kernel[^{;]*\{)", r"\1\n  __local uint lanes[6 * ITEMS];", text)
    return re.sub(r"#pragma unroll[^\n]*", "", text).replace("UNIT_HERE", _UNIT)
