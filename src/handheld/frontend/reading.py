"""Finds the values that a model reads in Python while it is captured, and reports those that are frozen.

Most values are constants (a scale computed from a shape), and reading them is harmless. A value that depends on
a batch, a parameter or a random number becomes a `Frozen`. The notes of the graph keep it with the line of code
that read it, and `capture` reports it to the caller.
"""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from handheld.callers import NOWHERE, is_user_file, user_place
from handheld.errors import BatchError, ValueRead
from handheld.graph.graph import IndexRange

if TYPE_CHECKING:
    from handheld.frontend.record import Recorder

#: Ops that return a number to Python.
READS = frozenset(
    {
        "aten._local_scalar_dense.default",
        "aten.equal.default",
        "aten.is_nonzero.default",
        "aten.item.default",
        "aten.allclose.default",
    }
)

#: Ops whose result has a size that depends on values.
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


@dataclass(frozen=True)
class Frozen:
    """A value that Python read while the step was recorded. Every step then uses this value."""

    #: For example: train.py:12 `if x.sum() > 0:`
    line: str
    module: str
    what: str
    #: The inputs, parameters and other state that the value depends on.
    names: tuple[str, ...]
    value: Any = field(compare=False)

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"{self.line}{where} read {self.what}, from {', '.join(self.names)}"


def user_line() -> str:
    """Returns file, line number and text of the innermost code outside PyTorch and Handheld."""
    place = user_place()
    return "the closure" if place.file == NOWHERE else _line(place.file, place.line)


def raised_at(error: BaseException) -> str:
    """Returns the same for the innermost such code that an error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return _line(frames[-1].filename, frames[-1].lineno or 0) if frames else user_line()


def _line(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    shown = f" `{text if len(text) <= 60 else text[:59] + '…'}`" if text else ""
    return f"{_short(Path(file))}:{line}{shown}"


def _short(path: Path) -> Path:
    """Shortens a path, so that a step file does not contain the user's folders."""
    for base in (Path.cwd(), Path(sysconfig.get_paths()["purelib"])):
        if path.is_relative_to(base):
            return path.relative_to(base)
    return Path(path.name)


def dependence(rec: Recorder, tensors: Sequence[int]) -> list[tuple[str, str]]:
    """Returns role and name of everything that changes between steps and that the tensors depend on."""
    producer = {out: node for node in rec.nodes for out in node.outputs}
    seen, stack = set(tensors), list(tensors)
    sources = []
    while stack:
        number = stack.pop()
        if rec.tensors[number].role in _CHANGING:
            sources.append((rec.tensors[number].role, rec.tensors[number].name))
        if number in producer:
            unseen = {view.tensor for view in producer[number].inputs} - seen
            seen |= unseen
            stack += sorted(unseen)
    return sources


def origin(rec: Recorder, number: int) -> tuple[int, tuple[str, ...]]:
    """Follows a tensor back through whole copies and sorts. Returns the tensor with the same values, and the sorts."""
    producer = {out: node for node in rec.nodes for out in node.outputs}
    sorts: list[str] = []
    while number in producer:
        node = producer[number]
        if node.op == "sort" and number == node.outputs[0]:
            sorts.append(f"descending={node.attrs['descending']}")
        elif not (node.op == "map" and [i.op for i in node.program] == ["load"] and not node.program[0].params[1]):
            break
        if node.inputs[0].size != rec.tensors[node.inputs[0].tensor].size:
            break
        number = node.inputs[0].tensor
    return number, tuple(sorts)


def note_numbers(rec: Recorder, tensor: torch.Tensor, what: str) -> None:
    """Notes numbers that Python code gave as a list or as a tensor it made itself: they are the same in every step."""
    view = rec.read(tensor)
    source = rec.tensors[origin(rec, view.tensor)[0]]
    if source.role != "constant":
        return
    values = rec.state.values[source.name].tolist()
    shown = str(values) if len(values) <= 8 else f"{str(values[:8])[:-1]}, …]"
    where = rec._module()
    module = "" if where in ("loss", "model") else where
    names = ("a list of numbers (a tensor of the batch may change)",)
    rec.frozen.append(Frozen(user_line(), module, f"{what} {shown}", names, values))


def check_ranges(ranges: Iterable[IndexRange], batch: Mapping[str, Any]) -> None:
    """Raises BatchError if the example batch holds a label or an index outside the valid range."""
    for name, low, high, ignore in ranges:
        values = torch.as_tensor(batch[name])
        if values.is_meta:
            continue
        bad = (values < low) | (values >= high)
        if ignore is not None:
            bad &= values != ignore
        if bad.any():
            raise BatchError(
                f"input {name!r} of the example batch holds {int(values[bad][0])}; "
                f"its classes or indices must be from {low} to {high - 1}",
                (name, low, high, ignore),
            )


@contextmanager
def tensor_methods(methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """While active, tensors have these methods instead of their own."""
    own = {name: vars(torch.Tensor).get(name) for name in methods}
    for name, method in methods.items():
        setattr(torch.Tensor, name, method)
    try:
        yield
    finally:
        for name, original in own.items():
            if original is None:  # It is inherited.
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)


@contextmanager
def watched(rec: Recorder) -> Iterator[None]:
    """While active, numpy() and tolist() count as reads too. PyTorch does not report them to dispatch modes."""
    originals = {name: getattr(torch.Tensor, name) for name in ("numpy", "tolist")}

    def watch(name: str) -> Any:
        def read(tensor: torch.Tensor, *args: object, **options: object) -> Any:
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                raise ValueRead(f"{rec.path[-1] if rec.path else 'the closure'} calls {name}() on a tensor")
            if not isinstance(tensor, FakeTensor) and rec.knows(tensor):
                rec.note_frozen([tensor], f"{name}() of shape {list(tensor.shape)}", tensor.detach().clone())
            return originals[name](tensor, *args, **options)

        return read

    with tensor_methods({name: watch(name) for name in originals}):
        yield
