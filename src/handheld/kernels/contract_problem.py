"""An implicit GEMM as data (`Problem`), and how a variant cuts it into work-groups (`Shape`).

contract.py turns a node into a `Problem`. contract_register.py (CPUs) and contract_local.py (GPUs) make choices,
which are flat dictionaries of small integers, and turn a choice into a `Shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


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
    #: The height and width of B's images in pixels: H and W in the kernel.
    h: int
    w: int
    #: The sizes of the row and column digits of n.
    n_y: int
    n_x: int
    #: The sizes of the digits of k: images or channels, rows, columns.
    k_c: int
    k_r: int
    k_s: int
    #: The step in pixels of the digits of n (u) and of the digits of k (e).
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
    #: The distance in taps between neighbouring taps of one phase.
    skip_h: int
    skip_w: int


@dataclass(frozen=True, slots=True)
class Problem:
    """`sets` matrix products, each of an M x K by a K x N matrix. `a` and `b` are the tensors that hold them."""

    mode: str
    a: int
    b: int
    maps: MatmulMaps | ConvMaps
    #: The strides of A along (m, k). Loads are contiguous along the smaller one.
    a_steps: tuple[int, ...]
    #: Whether A and B are stored in halves.
    halves: tuple[bool, bool] = (False, False)
    #: The number of leading dimensions of a matmul.
    batch: int = 0
    #: Whether there is more than one phase. Only the input gradient of a convolution with a stride has phases.
    phased: bool = False
    #: Whether products are computed in halves (ARITH_HALF in contract_maps.cl).
    half_products: bool = False

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
        """The number of terms of a sum. Phases have different numbers of taps; this is the largest."""
        if not self.phased:
            return self.k
        maps = self.conv
        return maps.k_c * -(-maps.k_r // maps.skip_h) * -(-maps.k_s // maps.skip_w)

    @property
    def conv(self) -> ConvMaps:
        """The maps of a convolution or one of its gradients."""
        assert isinstance(self.maps, ConvMaps), f"{self.mode} is no convolution"
        return self.maps


@dataclass(frozen=True, slots=True)
class Shape:
    """How a problem is cut into work-groups."""

    #: Work-groups across n and across m.
    grid: tuple[int, int]
    #: The size of a work-group.
    local: tuple[int, int, int]
    #: The number of parts that k is cut into.
    splits: int
    #: The terms of a part of k are a multiple of this.
    part: int
    #: Two integer arguments that only this variant has.
    extra: tuple[int, int]
    #: The defines that set the tile.
    defines: Mapping[str, int]
    why: str
    #: Columns and terms per panel, if a separate launch packs B into panels.
    panel: tuple[int, int] | None = None
    #: Elements per texel of A and of B, if they are read through textures.
    textures: tuple[int, int] | None = None
