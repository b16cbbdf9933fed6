"""An implicit GEMM as data, and how a device's variant cuts it into work-groups.

contract.py makes a `Problem` of a node; contract_register.py (CPUs) and contract_local.py (GPUs)
make choices, flat dictionaries of small integers, and turn a choice into a `Shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Choice = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """`sets` products of M x K by K x N of the tensors `a` and `b`."""

    mode: str
    a: int
    b: int
    #: MAP_PARAMS of contract_maps.cl, in order
    maps: tuple[int, ...]
    #: strides of A along (m, k): along the smaller, loads are contiguous
    a_steps: tuple[int, ...]
    #: whether A and B are stored in halves
    halves: tuple[bool, bool] = (False, False)
    batch: int = 0
    phased: bool = False

    @property
    def sets(self) -> int:
        return self.maps[0]

    @property
    def m(self) -> int:
        return self.maps[1]

    @property
    def n(self) -> int:
        return self.maps[2]

    @property
    def k(self) -> int:
        return self.maps[3]

    @property
    def depth(self) -> int:
        """Terms of a sum: of the phase with most taps, if there are phases."""
        if not self.phased:
            return self.k
        k_c, k_r, k_s = self.maps[22:25]
        skip_h, skip_w = self.maps[35:37]
        return k_c * -(-k_r // skip_h) * -(-k_s // skip_w)


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
