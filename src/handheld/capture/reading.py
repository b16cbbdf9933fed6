"""Models that look at values while they run: what they read is fixed, and the user is told.

Most reads are of constants (a scale computed from a shape) and change nothing. What depends on a
batch, a parameter or a random number is listed in the graph's notes and warned about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from handheld.errors import BatchError, ValueRead

if TYPE_CHECKING:
    from handheld.capture.record import Recorder

#: ops that give a number to Python
READS = frozenset(
    {
        "aten._local_scalar_dense.default",
        "aten.equal.default",
        "aten.is_nonzero.default",
        "aten.item.default",
        "aten.allclose.default",
    }
)

#: ops whose result has a size that depends on values
BAKED = frozenset(
    {
        "aten.nonzero.default",
        "aten.masked_select.default",
        "aten.unique_consecutive.default",
        "aten._unique2.default",
        "aten._unique.default",
        "aten.unique_dim.default",
        "aten.unique_dim_consecutive.default",
        "aten.bincount.default",
        "aten.repeat_interleave.Tensor",
    }
)

_CHANGING = frozenset({"input", "parameter", "buffer", "optimizer", "control"})


def dependence(rec: Recorder, tensors: Sequence[int]) -> list[tuple[str, str]]:
    """Role and name of everything the tensors follow from that changes from step to step."""
    maker = {out: node for node in rec.nodes for out in node.outputs}
    seen, stack = set(tensors), list(tensors)
    found = []
    while stack:
        number = stack.pop()
        if rec.tensors[number].role in _CHANGING:
            found.append((rec.tensors[number].role, rec.tensors[number].name))
        if number in maker:
            fresh = {view.tensor for view in maker[number].inputs} - seen
            seen |= fresh
            stack += sorted(fresh)
    return found


def check_ranges(
    ranges: Mapping[str, tuple[str, int, int, int | None]], batch: Mapping[str, Any]
) -> None:
    """The example batch too may hold no label or index that the model has no place for."""
    for name, low, high, ignore in ranges.values():
        held = torch.as_tensor(batch[name])
        if held.is_meta:
            continue
        bad = (held < low) | (held >= high)
        if ignore is not None:
            bad &= held != ignore
        if bad.any():
            raise BatchError(
                f"input {name!r} of the example batch holds {int(held[bad][0])}; "
                f"classes or indices there are from {low} to {high - 1}"
            )


@contextmanager
def watched(rec: Recorder) -> Iterator[None]:
    """While active, numpy() and tolist() are reads too: PyTorch tells no dispatch mode of them."""
    originals = {name: getattr(torch.Tensor, name) for name in ("numpy", "tolist")}

    def watch(name: str) -> Any:
        def read(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                raise ValueRead(
                    f"{rec.path[-1] if rec.path else 'the closure'} calls {name}() on a tensor"
                )
            if not isinstance(tensor, FakeTensor) and rec.knows(tensor):
                rec.note_baked([tensor], f"{name}() of shape {list(tensor.shape)}")
            return originals[name](tensor, *args, **options)

        return read

    for name in originals:
        setattr(torch.Tensor, name, watch(name))
    try:
        yield
    finally:
        for name in originals:
            delattr(torch.Tensor, name)
