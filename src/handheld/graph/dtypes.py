"""The element types of a graph, in one table: what each is called in NumPy, OpenCL C and PyTorch.

A tensor's `dtype` is a name of this table. A new element type is a new row here.

f16 is how a tensor is stored, never how something is computed: loads widen it, stores round.
PyTorch's int64 is i32 here; values are checked when data arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

F32, F16, I32, BOOL = "f32", "f16", "i32", "bool"


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str
    nbytes: int
    numpy: type[np.generic]
    #: its type in the memory of a device; HALF is a macro of half.cl
    c_memory: str
    #: the type of a value of it in a register
    c_register: str
    #: the element type of a value once it is loaded
    value: str
    #: the PyTorch type with the same elements
    torch: str
    #: the PyTorch types that a batch, an output or a slot of this type may have
    torch_kept: tuple[str, ...] = ()
    #: the PyTorch types that a model may cast to on the way, and that are computed as this one
    torch_passing: tuple[str, ...] = ()
    #: the kinds (`numpy.dtype.kind`) of arrays that are accepted as data of this type
    numpy_kinds: str = ""

    @property
    def is_float(self) -> bool:
        """Whether a value of it is computed in floating point."""
        return self.value == F32


_ROWS = (
    DType(
        F32,
        nbytes=4,
        numpy=np.float32,
        c_memory="float",
        c_register="float",
        value=F32,
        torch="float32",
        torch_kept=("float32", "float64"),
        torch_passing=("bfloat16", "float16"),
        numpy_kinds="f",
    ),
    DType(
        I32,
        nbytes=4,
        numpy=np.int32,
        c_memory="int",
        c_register="int",
        value=I32,
        torch="int32",
        torch_kept=("int64", "int32", "int16", "int8", "uint8"),
        numpy_kinds="iu",
    ),
    DType(
        BOOL,
        nbytes=1,
        numpy=np.bool_,
        c_memory="uchar",
        c_register="int",
        value=BOOL,
        torch="bool",
        torch_kept=("bool",),
        numpy_kinds="b",
    ),
    DType(F16, nbytes=2, numpy=np.float16, c_memory="HALF", c_register="float", value=F32, torch="float16"),
)

#: every element type by its name
DTYPES: Mapping[str, DType] = MappingProxyType({row.name: row for row in _ROWS})

#: the types that programs compute in and slots are kept in: f16 is only how a plan stores what is between
VALUE_DTYPES = tuple(dict.fromkeys(row.value for row in _ROWS))

#: what a batch tensor, an output or a slot may be in PyTorch
TORCH_DTYPES = frozenset(name for row in _ROWS for name in row.torch_kept)
