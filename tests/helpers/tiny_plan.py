"""A small plan file made by hand, byte by byte as docs/plan-file.md says, with every kind of record in it.

It doubles a vector and adds a number; `scale` holds the factor. Tests change single fields of it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

TEXT = """
__kernel void double_it(const __global float *x, __global float *y, const float add, const int n,
                        const __global float *scale) {
    const int i = get_global_id(0);
    if (i < n) y[i] = scale[0] * x[i] + add;
}
__kernel void sum_it(const __global float *y, __global float *total) {
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += y[i];
    total[0] = sum;
}
"""
#: A kernel that reads a texture; only the fuzzer's own OpenCL needs to take it.
TEXTURE = "__kernel void look(__read_only image1d_buffer_t x, __global float *y) { y[0] = read_imagef(x, 0).x; }"

SIZES = {2: 48, 3: 8, 4: 16, 5: 64, 6: 88, 7: 24, 8: 32, 9: 40, 10: 32, 11: 48}
NO_VALUE = 2**64 - 1
TYPES = ("float32", "int32", "bool", "float16")


@dataclass
class TinyPlan:
    """The records of a plan file. Change them, then call `pack`."""

    device: str
    align: int = 128
    unified: bool = True
    shared: bool = False
    driver: str = ""
    texture: bool = False
    strings: bytearray = field(default_factory=bytearray)
    sections: dict[int, bytes] = field(default_factory=dict)

    def text(self, text: str) -> bytes:
        """Adds a text and returns its place."""
        at = len(self.strings)
        self.strings += text.encode()
        return struct.pack("<II", at, len(text.encode()))

    def fill(self) -> TinyPlan:
        """Makes the records. Segment 0 has x, y and the total, segment 1 the slots."""
        empty, at = self.text(""), max(self.align, 256)
        self.sections[2] = (
            self.text(self.device)
            + empty
            + self.text(self.driver)
            + struct.pack("<IIQQ", 1, int(self.unified) + 2 * int(self.shared), self.align, 0)
        )
        self.sections[3] = struct.pack("<QQ", 3 * at, 2 * at)
        programs = [TEXT] + [TEXTURE] * self.texture
        self.sections[4] = b"".join(self.text(text) + self.text("-w") for text in programs)
        first = [(0, 0, 0, 256), (0, 0, at, 256), (3, 0x3F800000, 0, 0), (2, 64, 0, 0), (0, 1, 0, 4)]
        second = [(0, 0, at, 256), (0, 0, 2 * at, 4)]
        third = [(1, 0, 4, 0), (0, 0, at, 256)]
        self.sections[7] = b"".join(struct.pack("<IIQQ", *arg) for arg in first + second + third * self.texture)
        launches = [self._launch(0, 0, "double_it", 0, 5, 64, 16), self._launch(0, 2, "sum_it", 5, 2, 1, 1)]
        launches += [self._launch(1, 3, "look", 7, 2, 1, 1)] * self.texture
        self.sections[6] = b"".join(launches)
        ranges = (0, len(launches), 0, 1, 0, 1, 0, 1, 4)
        self.sections[5] = self.text("train") + struct.pack("<14I", *ranges, *([0] * 5))
        self.sections[5] += self.text("evaluate") + struct.pack("<14I", 0, 2, 0, 0, 0, 1, 0, 1, 4, *([0] * 5))
        self.sections[8] = struct.pack("<IIQQQ", 0, 1, 2 * at, at, 4)
        self.sections[9] = self.text("x") + struct.pack("<IIQQ", 0, 0, 0, 256) + self.text("8x8")
        self.sections[10] = self.text("loss") + struct.pack("<IIQQ", 0, 0, 2 * at, 4)
        self.sections[11] = self.text("scale") + struct.pack("<IIQQQII", 1, 0, 0, 4, 0, 1, 0)
        self.sections[11] += self.text("last") + struct.pack("<IIQQQII", 1, 0, at, 4, NO_VALUE, 1, 0)
        self.sections[12] = struct.pack("<f", 2.0)
        self.sections[13] = self._state()
        self.sections[14] = b"{}"
        return self

    def _launch(self, program: int, node: int, name: str, first: int, args: int, size: int, local: int) -> bytes:
        sizes = (size, 1, 1, local, 1, 1, 0)
        return (
            struct.pack("<II", program, node)
            + self.text(name)
            + struct.pack("<IIII", 1, first, args, 0)
            + struct.pack("<7Q", *sizes)
        )

    @staticmethod
    def _state() -> bytes:
        header = b'{"steps": "' + b"0" * 20 + b'", "crc32": "' + b"0" * 8 + b'"}'
        header += b" " * (-len(header) % 8)
        return struct.pack("<IIII", header.index(b"00000000000"), header.rindex(b"00000000"), 0, 0) + header

    def pack(self) -> bytes:
        """The plan file."""
        sections = {1: bytes(self.strings), **self.sections}
        table, body, at = b"", b"", 32 + 14 * 24
        for kind in range(1, 15):
            gap = -at % (64 if kind == 12 else 8)
            data = sections[kind]
            records = len(data) // SIZES[kind] if kind in SIZES else 0
            table += struct.pack("<IIQQ", kind, records, at + gap, len(data))
            body += bytes(gap) + data
            at += gap + len(data)
        rest = table + body
        return struct.pack("<8sIIQII", b"HANDPLAN", 2, 14, 32 + len(rest), zlib.crc32(rest), 0) + rest


def batches(arrays: list[list[np.ndarray]]) -> bytes:
    """A file of batches: a list of inputs per batch."""
    head = struct.pack("<8sIIQ", b"HANDBATC", 2, len(arrays[0]), len(arrays))
    for array in arrays[0]:
        head += struct.pack(f"<II{array.ndim}Q", TYPES.index(array.dtype.name), array.ndim, *array.shape)
    return head + b"".join(array.tobytes() for batch in arrays for array in batch)
