"""The table of element types agrees with NumPy, PyTorch and OpenCL C."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import handheld
from handheld.frontend.state import ir_dtype
from handheld.graph.dtypes import BOOL, DTYPES, F16, F32, I32, TORCH_DTYPES, VALUE_DTYPES

SOURCES = Path(handheld.__file__).parent


@pytest.mark.parametrize("name", DTYPES)
def test_a_row_says_the_same_everywhere(name: str) -> None:
    row = DTYPES[name]
    assert row.name == name
    assert np.dtype(row.numpy).itemsize == row.nbytes == getattr(torch, row.torch).itemsize
    assert torch.from_numpy(np.zeros(1, row.numpy)).dtype is getattr(torch, row.torch)
    assert DTYPES[row.value].value == row.value  # A loaded value keeps its type.
    assert row.is_float == np.issubdtype(row.numpy, np.floating)
    assert row.c_register == DTYPES[row.value].c_register


def test_every_pytorch_type_has_one_type_in_a_graph() -> None:
    every = [name for row in DTYPES.values() for name in (*row.torch_kept, *row.torch_passing)]
    assert len(every) == len(set(every)) and set(every) >= TORCH_DTYPES
    assert VALUE_DTYPES == (F32, I32, BOOL)
    assert [ir_dtype(d) for d in (torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)] == [
        F32,
        F32,
        I32,
        I32,
        BOOL,
    ]
    assert F16 not in VALUE_DTYPES


def test_no_module_spells_an_element_type_on_its_own() -> None:
    literal = re.compile(r"""["'](f32|f16|i32)["']""")
    found = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.name != "dtypes.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if literal.search(line)
    ]
    assert not found, f"use the constants of graph/dtypes.py: {found}"
