"""An implicit GEMM as data, and how a device's variant cuts it into work-groups.

contract.py makes a `Problem` of a node; contract_register.py (CPUs) and contract_local.py (GPUs)
make choices, flat dictionaries of small integers, and turn a choice into a `Shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Choice = Mapping[str, int]


class MatmulMaps(NamedTuple):
    """MAP_PARAMS of contract_maps.cl for a matrix product: sizes and strides, in the kernel's order."""

    sets: int
    m: int
    n: int
    k: int
    a_0: int
    a_m: int
    a_k: int
    a_size: int
    b_0: int
    b_n: int
    b_k: int
    b_size: int
    g_y: int
    g_x: int
    a_gz: int
    a_gy: int
    a_gx: int
    b_gz: int
    b_gy: int
    b_gx: int


class ConvMaps(NamedTuple):
    """MAP_PARAMS of contract_maps.cl for a convolution or one of its gradients, in the kernel's order."""

    sets: int
    m: int
    n: int
    k: int
    a_0: int
    a_m: int
    a_g: int
    a_c: int
    a_r: int
    a_s: int
    a_size: int
    b_0: int
    b_g: int
    b_n: int
    b_c: int
    b_h: int
    b_w: int
    b_size: int
    #: pixels of B's images
    h: int
    w: int
    #: rows and columns of n
    n_y: int
    n_x: int
    #: digits of k: images or channels, rows, columns
    k_c: int
    k_r: int
    k_s: int
    #: pixels from one output, and from one tap, to the next
    u_h: int
    u_w: int
    e_h: int
    e_w: int
    off_h: int
    off_w: int
    out_h: int
    out_w: int
    phase_h: int
    phase_w: int
    #: taps from one of a phase to its next
    skip_h: int
    skip_w: int


@dataclass(frozen=True, slots=True)
class Problem:
    """`sets` products of M x K by K x N of the tensors `a` and `b`."""

    mode: str
    a: int
    b: int
    maps: MatmulMaps | ConvMaps
    #: strides of A along (m, k): along the smaller, loads are contiguous
    a_steps: tuple[int, ...]
    #: whether A and B are stored in halves
    halves: tuple[bool, bool] = (False, False)
    batch: int = 0
    phased: bool = False

    @property
    def sets(self) -> int:
        return self.maps.sets

    @property
    def m(self) -> int:
        return self.maps.m

    @property
    def n(self) -> int:
        return self.maps.n

    @property
    def k(self) -> int:
        return self.maps.k

    @property
    def depth(self) -> int:
        """Terms of a sum: of the phase with most taps, if there are phases."""
        if not self.phased:
            return self.k
        maps = self.conv
        return maps.k_c * -(-maps.k_r // maps.skip_h) * -(-maps.k_s // maps.skip_w)

    @property
    def conv(self) -> ConvMaps:
        """The maps of a convolution."""
        assert isinstance(self.maps, ConvMaps), f"{self.mode} is no convolution"
        return self.maps


@dataclass(frozen=True, slots=True)
class Shape:
    """How a problem is cut: work-groups across n and m, their size, parts of k, each a multiple of
    `part` terms; `extra` are the two arguments of the variant, `defines` its tile. `panel`: columns
    and terms of the panels that B is packed into by a launch of its own, if it is. `textures`:
    floats of a texel of A and of B, if they are read through textures."""

    grid: tuple[int, int]
    local: tuple[int, int, int]
    splits: int
    part: int
    extra: tuple[int, int]
    defines: Mapping[str, int]
    why: str
    panel: tuple[int, int] | None = None
    textures: tuple[int, int] | None = None
