"""Which frozen values come out otherwise on another batch: the user's code, run again.

A step holds what Python code decided once (reading.py). Whether it would decide otherwise is seen
by running the code on other batches and comparing what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from handheld.frontend.capture import Capture
from handheld.frontend.reading import Frozen


@dataclass(frozen=True)
class Decision:
    """A frozen value, as the graph's notes say it. `changed` says what it was in which other batch,
    empty if it was the same in all; `tried` how many could be run."""

    text: str
    changed: str
    tried: int


def try_batches(
    model: nn.Module, fn: Callable[[Any], Any], batch: Any, others: Iterable[tuple[str, Any]]
) -> list[Decision]:
    """Runs `fn` on the batch and on others, each called by a name, in training and eval mode."""
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
    """Batches of the same shapes and types with other values. Integers stay among those that are
    there, or are 0: an index or class that a model has."""
    random = torch.Generator().manual_seed(0)

    def made(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return pytree.tree_map(lambda t: change(t) if isinstance(t, torch.Tensor) and t.numel() else t, batch)

    def drawn(t: torch.Tensor) -> torch.Tensor:
        if t.is_floating_point():
            return torch.randn(t.shape, generator=random).to(t.dtype)
        return t.flatten()[torch.randint(t.numel(), t.shape, generator=random)]

    def signed(t: torch.Tensor) -> torch.Tensor:
        return -t if t.is_floating_point() else ~t if t.dtype == torch.bool else t

    for n in range(3):
        yield f"a random batch ({n + 1})", made(drawn)
    yield "the batch with its signs changed", made(signed)
    yield "the batch times 100", made(lambda t: t * 100 if t.is_floating_point() else t)
    yield "a batch of zeros", made(torch.zeros_like)


def _reads(
    model: nn.Module, fn: Callable[[Any], Any], batch: Any, evaluate: bool, number: int
) -> tuple[Frozen, ...] | None:
    """What Python code reads on this batch; None if it cannot be run."""
    capture = Capture(model)

    def seeded(given: Any) -> Any:
        if number:
            torch.manual_seed(number)  # a random decision may fall otherwise too
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
        return None  # values that the model does not take say nothing about its decisions
    return capture.frozen["trial"]


def _otherwise(first: Sequence[Frozen], n: int, other: Sequence[Frozen]) -> str:
    """What the line that read `first[n]` read in another run, where it is not the same."""
    frozen = first[n]
    place = sum(f.line == frozen.line and f.module == frozen.module for f in first[:n])
    same_line = [f for f in other if f.line == frozen.line and f.module == frozen.module]
    if place >= len(same_line):
        return "it is not reached"
    found = same_line[place]
    if _equal(frozen.value, found.value):
        return ""
    return f"{found.what} with other values" if found.what == frozen.what else f"it is {found.what}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
