"""Models that look at values while they run: what they read is frozen, and the user is told.

Most reads are of constants (a scale computed from a shape) and change nothing. What depends on a
batch, a parameter or a random number is a `Frozen`: the graph's notes keep it with the line of code
that read it, and whoever captures hears of it.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from handheld.errors import BatchError, ValueRead

if TYPE_CHECKING:
    from handheld.frontend.record import Recorder

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

#: whose code is never the line that a user looks for
_NOT_THEIRS = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_paths()["stdlib"] + "/contextlib",
    "<frozen",
)


@dataclass(frozen=True)
class Frozen:
    """A value that Python read while the step was recorded. The step never reads it again."""

    line: str  # mine.py:12 `if x.sum() > 0:`
    module: str
    what: str
    #: what it follows from: inputs, parameters, the random seed
    names: tuple[str, ...]
    value: Any = field(compare=False)

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"{self.line}{where} read {self.what}, from {', '.join(self.names)}"


def user_line() -> str:
    """File, line and text of the innermost code that is neither PyTorch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_THEIRS):
            text = linecache.getline(path, frame.f_lineno).strip()
            shown = f" `{text if len(text) <= 60 else text[:59] + '…'}`" if text else ""
            return f"{_short(Path(path))}:{frame.f_lineno}{shown}"
        frame = frame.f_back
    return "the closure"


def _short(path: Path) -> Path:
    """Below the working folder or the installed packages: a step file says nothing of the rest."""
    for base in (Path.cwd(), Path(sysconfig.get_paths()["purelib"])):
        if path.is_relative_to(base):
            return path.relative_to(base)
    return Path(path.name)


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


def check_ranges(ranges: Mapping[str, tuple[str, int, int, int | None]], batch: Mapping[str, Any]) -> None:
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
                raise ValueRead(f"{rec.path[-1] if rec.path else 'the closure'} calls {name}() on a tensor")
            if not isinstance(tensor, FakeTensor) and rec.knows(tensor):
                rec.note_frozen([tensor], f"{name}() of shape {list(tensor.shape)}", tensor.detach().clone())
            return originals[name](tensor, *args, **options)

        return read

    for name in originals:
        setattr(torch.Tensor, name, watch(name))
    try:
        yield
    finally:
        for name in originals:
            delattr(torch.Tensor, name)
