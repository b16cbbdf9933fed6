"""Finds the frozen values that would differ on another batch, by running the user's code again.

A step keeps what Python code decided during the capture (see reading.py). This module runs the same code on
other batches and compares the values that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from handheld.frontend.capture import Capture
from handheld.frontend.closures import Closure
from handheld.frontend.reading import Frozen


@dataclass(frozen=True)
class Decision:
    """A frozen value and whether other batches change it."""

    #: The value as it stands in the notes of the graph.
    text: str
    #: The different value and the batch that gave it; empty if all batches gave the same value.
    changed: str
    #: How many other batches could be run.
    tried: int


def try_batches(model: nn.Module, fn: Closure, batch: Any, others: Iterable[tuple[str, Any]]) -> list[Decision]:
    """Runs `fn` on the batch and on other, named batches, in training mode and in eval mode."""
    trials = [("", batch), *others]
    decisions: dict[str, Decision] = {}
    for evaluate in (False, True):
        runs = [(name, _reads(model, fn, given, evaluate, number)) for number, (name, given) in enumerate(trials)]
        first = runs[0][1] or ()
        rest = [(name, read) for name, read in runs[1:] if read is not None]
        for n, frozen in enumerate(first):
            changed = next((f"{words} in {name}" for name, read in rest if (words := _otherwise(first, n, read))), "")
            known = decisions.get(str(frozen))
            if known is None or not known.changed:
                decisions[str(frozen)] = Decision(str(frozen), changed, len(rest))
    return list(decisions.values())


def other_batches(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yields batches of the same shapes and types with other values.

    Integers are 0 or values that occur in the batch, so that they are valid as indices and classes.
    """
    random = torch.Generator().manual_seed(0)

    def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return pytree.tree_map(lambda t: change(t) if isinstance(t, torch.Tensor) and t.numel() else t, batch)

    def resampled(t: torch.Tensor) -> torch.Tensor:
        if t.is_floating_point():
            return torch.randn(t.shape, generator=random).to(t.dtype)
        return t.flatten()[torch.randint(t.numel(), t.shape, generator=random)]

    def negated(t: torch.Tensor) -> torch.Tensor:
        return -t if t.is_floating_point() else ~t if t.dtype == torch.bool else t

    for n in range(3):
        yield f"a random batch ({n + 1})", changed(resampled)
    yield "the batch with its signs changed", changed(negated)
    yield "the batch times 100", changed(lambda t: t * 100 if t.is_floating_point() else t)
    yield "a batch of zeros", changed(torch.zeros_like)


def _reads(model: nn.Module, fn: Closure, batch: Any, evaluate: bool, number: int) -> tuple[Frozen, ...] | None:
    """Returns the values that Python code reads on this batch, or None if the code fails on it."""
    capture = Capture(model)

    def seeded(given: Any) -> Any:
        if number:
            torch.manual_seed(number)  # Random decisions may differ too.
        return fn(given)

    try:
        if evaluate:
            with capture._eval_mode(), torch.no_grad():
                capture._record_once("trial", seeded, batch, None, fake=False)
        else:
            capture._record_once("trial", seeded, batch, None, fake=False)
    except Exception:
        if not number:
            raise
        return None  # A batch that the model rejects says nothing about its decisions.
    return capture.frozen["trial"]


def _otherwise(first: Sequence[Frozen], n: int, other: Sequence[Frozen]) -> str:
    """Describes what the line that read `first[n]` read in another run; empty if it read the same."""
    frozen = first[n]
    place = sum(f.line == frozen.line and f.module == frozen.module for f in first[:n])
    same_line = [f for f in other if f.line == frozen.line and f.module == frozen.module]
    if place >= len(same_line):
        return "the line is not reached"
    read = same_line[place]
    if _equal(frozen.value, read.value):
        return ""
    return f"{read.what} with other values" if read.what == frozen.what else f"it is {read.what}"


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
