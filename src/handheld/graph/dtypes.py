"""The table of element types of a graph, with their names in NumPy, OpenCL C and PyTorch.

A tensor's `dtype` is a name in this table. To add an element type, add a row.

f16 is only a storage type: loads widen it to f32 and stores round to it. Nothing is computed in f16. i16 and u8 are
storage types for optimizer state (passes/state_bits.py): only maps and reductions read and write them, as i32.
PyTorch's int64 is i32 here; values are checked when data arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

F32, F16, I32, BOOL, I16, U8 = "f32", "f16", "i32", "bool", "i16", "u8"
#: The types that only programs of maps and reductions can read and write.
NARROW = frozenset({I16, U8})


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str
    nbytes: int
    numpy: type[np.generic]
    #: The C type in device memory. HALF is a macro in half.cl.
    c_memory: str
    #: The C type of a loaded value.
    c_register: str
    #: The element type of a loaded value.
    value: str
    #: The PyTorch type with the same elements.
    torch: str
    #: The PyTorch types that a batch, an output or a slot of this type may have.
    torch_kept: tuple[str, ...] = ()
    #: Further PyTorch types that a model may cast to. They are computed as this type.
    torch_passing: tuple[str, ...] = ()
    #: The kinds of NumPy arrays (`numpy.dtype.kind`) that are accepted as data of this type.
    numpy_kinds: str = ""

    @property
    def is_float(self) -> bool:
        """Whether values of this type are computed in floating point."""
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
    DType(I16, nbytes=2, numpy=np.int16, c_memory="short", c_register="int", value=I32, torch="int16"),
    DType(U8, nbytes=1, numpy=np.uint8, c_memory="uchar", c_register="int", value=I32, torch="uint8"),
)

#: Every element type by its name.
DTYPES: Mapping[str, DType] = MappingProxyType({row.name: row for row in _ROWS})

#: The types that programs compute in and that slots have. f16 is missing: a plan stores only intermediates in it.
VALUE_DTYPES = tuple(dict.fromkeys(row.value for row in _ROWS))

#: The PyTorch types that a batch tensor, an output or a slot may have.
TORCH_DTYPES = frozenset(name for row in _ROWS for name in row.torch_kept)
