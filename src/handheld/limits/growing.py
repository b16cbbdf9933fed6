"""The largest image, or the longest sequence, that trains at one batch size.

The model is captured anew for each size that is tried: `Make` returns its smallest plan. Memory grows with the size, so
few have to be tried (run/fitting.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from handheld.errors import HandheldError
from handheld.limits.means import smallest_plan
from handheld.limits.planning import Fitting
from handheld.run.fitting import Probe, largest

Kind: TypeAlias = Literal["image", "length"]
#: Sizes are multiples of it: many models halve images five times.
UNIT: Mapping[Kind, int] = {"image": 32, "length": 16}
#: Makes what is to be planned for a size.
Make: TypeAlias = Callable[[int], Fitting]


@dataclass(frozen=True)
class Grown:
    """The largest size that trains, or 0 if none does, and the sizes that were tried, the smallest first. `why` is the
    reason that the next one does not train, if that is not memory."""

    size: int
    exact: bool
    tried: tuple[Probe, ...]
    why: str = ""


def grow(make: Make, kind: Kind, own: int, available: int, seconds: float, say: Callable[[str], None]) -> Grown:
    """Looks for the largest size for about `seconds`, from the model's own size on. A size with which the model does
    not run counts as too large."""
    unit, failures = UNIT[kind], dict[int, HandheldError]()

    def probe(multiple: int) -> Probe:
        size = multiple * unit
        say(f"looking for the largest {name_of(kind)}: {size}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # They are about the model, and the same for every size.
                needed = smallest_plan(make(size), available).bytes
        except HandheldError as error:
            failures[multiple] = error
            return Probe(multiple, None, False, str(error))
        return Probe(multiple, needed, needed <= available)

    first = probe(max(own // unit, 1))
    if first.batch in failures:
        raise failures[first.batch]
    found = largest(probe, [Probe(0, None, True), first], available, seconds)
    above = next((entry for entry in found.tried if not entry.fits and entry.batch > found.batch), None)
    error = failures.get(above.batch) if above else None
    tried = tuple(Probe(p.batch * unit, p.nbytes, p.fits, p.why) for p in found.tried if p.batch)
    return Grown(found.batch * unit, found.exact, tried, str(error) if error else "")


def name_of(kind: Kind) -> str:
    return {"image": "image", "length": "sequence"}[kind]


def regrown(example: Any, kind: Kind, size: int) -> Any:
    """The example with its images or sequences repeated or cut to a size, and what has the same axes, such as a mask or
    the next words. Raises an error if it has none.

    Images are arrays of four axes with numbers that are not integers; sequences are arrays of two axes with integers.
    """
    return _changed(example, kind, own_axes(example, kind), size)


def own_axes(example: Any, kind: Kind) -> tuple[int, ...]:
    """The height and width of the images in an example, or the length of its sequences."""
    own = next(filter(None, (_own(array, kind) for array in _arrays(example))), None)
    if own is None:
        what = "images: arrays of (batch, channels, height, width)" if kind == "image" else "words: (batch, length)"
        raise HandheldError(f"the example batch has no {what}. Try: --largest batch")
    return own


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)
    elif getattr(value, "ndim", 0):
        yield value


def _own(array: Any, kind: Kind) -> tuple[int, ...]:
    """The axes of the images or sequences in an array, or () if it has none."""
    integers = str(array.dtype).removeprefix("torch.").startswith(("int", "uint"))
    if integers != (kind == "length") or array.ndim != (2 if integers else 4):
        return ()
    return tuple(array.shape[2:] if kind == "image" else array.shape[1:])


def _changed(value: Any, kind: Kind, own: tuple[int, ...], size: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _changed(item, kind, own, size) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_changed(item, kind, own, size) for item in value)
    shape = tuple(getattr(value, "shape", ()))
    first = len(shape) - 2 if kind == "image" else 1
    if first < 1 or shape[first : first + len(own)] != own:
        return value
    for axis in range(first, first + len(own)):
        before: tuple[Any, ...] = (slice(None),) * axis
        value = value[(*before, np.arange(size) % shape[axis])]
    return value
