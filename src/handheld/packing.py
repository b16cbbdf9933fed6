"""Weights in 8 or 4 bits: how they lie in memory, how they are made from floats, and how they become floats again.

Every 64 values that follow each other in memory are a group with one scale, a float32:

    value = (code - zero) * scale        zero = 8 (4 bits) or 128 (8 bits)

The value of the group with the largest magnitude gets code 0, so its scale is that value divided by -zero. All codes
are in use, no table is needed, and a group of zeros stays zeros.

Codes lie in 32-bit words. A block is 64 words and holds 8 groups of 4 bits, or 4 groups of 8 bits. Word i of a block
holds value i of each of its groups, the first group in the lowest bits:

    word i of a block:   | group 7, value i | ... | group 1, value i | group 0, value i |      (4 bits each)

So a group is read as 64 words in a row, with one shift and one scale. The last block is filled up with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from handheld.errors import HandheldError

#: Values with one scale, and words of a block.
GROUP = 64
BITS = (8, 4)
#: The key of a step's meta that lists its packed weights.
META = "packed"
#: Values that are packed at a time, so that the host needs little memory beside the weights.
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Packing:
    """How one weight is packed. The slots `words_of(slot)` and `scales_of(slot)` hold it in place of `slot`."""

    bits: int
    shape: tuple[int, ...]
    #: The names of the weight in PyTorch, and its type there.
    names: tuple[str, ...]
    torch_dtype: str = "float32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """The values of a row."""
        return math.prod(self.shape[1:])

    @property
    def groups_per_block(self) -> int:
        return 32 // self.bits

    @property
    def zero(self) -> int:
        """The code of the value 0."""
        return 1 << (self.bits - 1)

    @property
    def block(self) -> int:
        """The values of a block."""
        return GROUP * self.groups_per_block

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block)

    @property
    def words(self) -> int:
        return self.blocks * GROUP

    @property
    def scales(self) -> int:
        return self.blocks * self.groups_per_block


def words_of(slot: str) -> str:
    """The slot that holds the codes of a packed slot."""
    return f"{slot}.words"


def scales_of(slot: str) -> str:
    """The slot that holds the scales of a packed slot."""
    return f"{slot}.scales"


def pack(values: np.ndarray, packing: Packing) -> tuple[np.ndarray, np.ndarray]:
    """Returns the words (i32) and scales (f32) of a weight. Raises HandheldError if a value is not finite."""
    flat = values.reshape(-1)
    words = np.empty(packing.words, np.int32)
    scales = np.empty(packing.scales, np.float32)
    step = max(_CHUNK // packing.block, 1)
    for first in range(0, packing.blocks, step):
        last = min(first + step, packing.blocks)
        part = flat[first * packing.block : last * packing.block].astype(np.float32)
        if not np.isfinite(part).all():
            raise HandheldError(f"{packing.names[0]} holds NaN or infinity, which {packing.bits} bits cannot hold")
        part = np.pad(part, (0, (last - first) * packing.block - part.size)).reshape(-1, GROUP)
        codes, found = _codes(part, packing)
        words[first * GROUP : last * GROUP] = _joined(codes, packing)
        scales[first * packing.groups_per_block : last * packing.groups_per_block] = found
    return words, scales


def _codes(groups: np.ndarray, packing: Packing) -> tuple[np.ndarray, np.ndarray]:
    """The codes and the scales of groups [n, 64]."""
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], axis=1)
    scales = (extreme / np.float32(-packing.zero)).astype(np.float32)
    steps = np.divide(groups, scales, out=np.zeros_like(groups), where=scales != 0)
    return np.clip(np.rint(steps) + packing.zero, 0, 2 * packing.zero - 1).astype(np.uint32), scales[:, 0]


def _joined(codes: np.ndarray, packing: Packing) -> np.ndarray:
    """The words of codes [groups, 64]."""
    planes = codes.reshape(-1, packing.groups_per_block, GROUP)
    words = np.zeros((len(planes), GROUP), np.uint32)
    for number in range(packing.groups_per_block):
        words |= planes[:, number] << np.uint32(number * packing.bits)
    return words.reshape(-1).view(np.int32)


def unpack(words: np.ndarray, scales: np.ndarray, packing: Packing) -> np.ndarray:
    """Returns the weight as float32, with exactly the values that a device computes with."""
    values = np.empty((packing.blocks, packing.groups_per_block, GROUP), np.float32)
    codes = np.ascontiguousarray(words).view(np.uint32).reshape(-1, GROUP)
    factors = scales.reshape(-1, packing.groups_per_block, 1)
    for number in range(packing.groups_per_block):
        plane = (codes >> np.uint32(number * packing.bits)) & np.uint32(2 * packing.zero - 1)
        values[:, number] = (plane.astype(np.float32) - np.float32(packing.zero)) * factors[:, number]
    return values.reshape(-1)[: packing.size].reshape(packing.shape)


def to_meta(packings: Mapping[str, Packing]) -> dict[str, Any]:
    """The packed weights as plain data, for the meta of a step or a checkpoint."""
    return {slot: (p.bits, p.shape, p.names, p.torch_dtype) for slot, p in packings.items()}


def from_meta(meta: Mapping[str, Any]) -> dict[str, Packing]:
    """Reads what `to_meta` wrote, from a file that may hold anything. Raises HandheldError."""
    listed = meta.get(META, {})
    try:
        return {str(slot): _packing(*entry) for slot, entry in dict(listed).items()}
    except (TypeError, ValueError):
        raise HandheldError("the list of packed weights is malformed. Try: write the file again") from None


def _packing(bits: Any, shape: Any, names: Any, torch_dtype: Any) -> Packing:
    sizes = tuple(shape)
    if bits not in BITS or not names or any(type(n) is not int or not 0 <= n < 2**31 for n in sizes):
        raise ValueError
    return Packing(bits, sizes, tuple(map(str, names)), str(torch_dtype))


def unpacked_state(state: Mapping[str, np.ndarray], packings: Mapping[str, Packing]) -> dict[str, np.ndarray]:
    """The state with packed weights as floats under their PyTorch names, instead of their words and scales."""
    result = dict(state)
    for slot, packing in packings.items():
        words, scales = result.pop(words_of(slot), None), result.pop(scales_of(slot), None)
        if words is None or scales is None or (words.size, scales.size) != (packing.words, packing.scales):
            raise HandheldError(f"{slot} is packed in {packing.bits} bits, and its codes are missing or do not fit")
        value = unpack(words, scales, packing).astype(packing.torch_dtype)
        result.update(dict.fromkeys(packing.names, value))
    return result
