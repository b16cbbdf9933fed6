"""Kernels that only move bytes: the time that a kernel's memory traffic alone would take.

A kernel's share of the bandwidth is measured against a kernel of this file that reads and writes as
many bytes in its own buffers. The two take turns, because what a cache holds of a working set, and
what other programs leave free in it, changes within minutes. These are plain kernels, not the fastest
possible ones, and they copy and read in separate launches, so a share may exceed 100%.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyopencl as cl

from handheld.backends.opencl.programs import build
from handheld.device import DeviceCaps
from handheld.kernels.base import Buffer, Int, Launch, round_up
from handheld.plan.widen import texts_of

GROUP, VECTORS = 256, 4  # on a GPU: work-items per group, and vectors per work-item
BLOCKS = 8  # on a CPU: work-items per compute unit
TEXT = """
#ifdef GPU
typedef float4 vector;
#define AT const int first = get_group_id(0) * 4 * each + get_local_id(0), step = each; \\
  const int end = min(first + 4 * each, count);
#else
typedef float16 __attribute__((aligned(4))) vector;
#define AT const int first = get_global_id(0) * each, step = 1; \\
  const int end = first + each < count ? first + each : count;
#endif
__kernel void copy(const __global vector *x, __global vector *y, int each, int count) {
  AT
#ifdef GPU
  if (first + 3 * step < end) {
    const vector a = x[first], b = x[first + step];
    const vector c = x[first + 2 * step], d = x[first + 3 * step];
    y[first] = a, y[first + step] = b, y[first + 2 * step] = c, y[first + 3 * step] = d;
    return;
  }
#endif
  for (int i = first; i < end; i += step) y[i] = x[i];
}
__kernel void look(const __global vector *x, __global vector *y, int each, int count) {
  AT
  vector a = 0, b = 0, c = 0, d = 0;
  int i = first;
  for (; i + 3 * step < end; i += 4 * step)
    a += x[i], b += x[i + step], c += x[i + 2 * step], d += x[i + 3 * step];
  for (; i < end; i += step) a += x[i];
  a += b + c + d;
  if (a.s0 + a.s1 + a.s2 + a.s3 == 0.123f) y[0] = a;  // so that the compiler keeps the reads
}
__kernel void fill(const __global vector *x, __global vector *y, int each, int count) {
  AT
  for (int i = first; i < end; i += step) y[i] = 1.0f;
}
"""


@cache
def _program(context: Any, caps: DeviceCaps) -> Any:
    """The program is built once and shared by all rows."""
    text = f"{'#define GPU' if caps.kind == 'gpu' else ''}\n{TEXT}"
    args = (Buffer(0), Buffer(1), Int(0), Int(0))
    launches = [Launch(name, text, args, (1,), (1,)) for name in ("copy", "look", "fill")]
    return build(context, texts_of(launches, caps)[text])


class Bare:
    """Launches that read `read` bytes and write `written` bytes; with `in_place`, the copy writes over its input."""

    def __init__(self, queue: Any, caps: DeviceCaps, read: int, written: int, in_place: bool = False) -> None:
        self.queue, self.caps = queue, caps
        self.wide = 16 if caps.kind == "gpu" else 64  # bytes per vector
        self.program = _program(queue.context, caps)
        self.buffers: list[Any] = []
        self.launches: list[Any] = []
        pairs = min(read, written)
        x = self._buffer(pairs)
        self._add("copy", x, x if in_place else self._buffer(pairs), pairs)
        self._add("look", self._buffer(read - pairs), x, read - pairs)
        self._add("fill", x, self._buffer(written - pairs), written - pairs)

    def _buffer(self, nbytes: int) -> Any:
        made = cl.Buffer(self.queue.context, cl.mem_flags.READ_WRITE, max(round_up(nbytes, 64), 64))
        self.buffers.append(made)
        cl.enqueue_fill_buffer(self.queue, made, np.uint8(0), 0, made.size)
        return made

    def _add(self, name: str, x: Any, y: Any, nbytes: int) -> None:
        count = nbytes // self.wide
        if not count:
            return
        if self.caps.kind == "gpu":
            group = each = min(GROUP, self.caps.max_work_group)
            items = round_up(-(-count // VECTORS), group)
        else:
            group, items = 1, min(BLOCKS * self.caps.compute_units, count)
            each = -(-count // items)
        kernel = cl.Kernel(self.program, name)
        kernel.set_args(x, y, np.int32(each), np.int32(count))
        self.launches.append((kernel, (items,), (group,)))

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.release()
