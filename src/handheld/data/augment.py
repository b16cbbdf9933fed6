"""Changes samples on their way into a batch: random flips and crops of images, and normalisation.

Augmentation is for training data only. Normalisation belongs to the model: test data and predictions need the same
numbers, so a step file keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.errors import DataError

Array = npt.NDArray[Any]

_KNOWN = "Try: flip (left and right at random), crop (pad by an eighth and cut at random), crop=4, or flip,crop"


@dataclass(frozen=True)
class Augment:
    """Random changes of images [n, channels, height, width], different for each image and each epoch.

    `flip` mirrors left and right with probability one half. `crop` pads by that many pixels on each side and cuts a
    part of the old size at random; -1 pads by an eighth of the longer side.
    """

    flip: bool = False
    crop: int = 0

    @staticmethod
    def parse(text: str) -> Augment:
        """The augmentation of `flip,crop` or `crop=4`. An empty text means none."""
        flip, crop = False, 0
        for word in filter(None, (part.strip().lower() for part in text.split(","))):
            name, equals, pixels = word.partition("=")
            if name in ("flip", "hflip") and not equals:
                flip = True
            elif name == "crop" and (not equals or (pixels.isascii() and pixels.isdigit() and int(pixels))):
                crop = int(pixels) if equals else -1
            else:
                raise DataError(f"there is no augmentation {word!r}. {_KNOWN}")
        return Augment(flip, crop)

    def __bool__(self) -> bool:
        return self.flip or self.crop != 0

    def __str__(self) -> str:
        crop = "" if not self.crop else "crop" if self.crop < 0 else f"crop={self.crop}"
        return ",".join(filter(None, ("flip" if self.flip else "", crop)))

    def check(self, shape: tuple[int, ...], name: str) -> None:
        """Raise DataError if samples of this shape are not images."""
        if self and len(shape) != 4:
            raise DataError(
                f"{name} of shape {shape} cannot be augmented with {self}. "
                "Try: images [n, channels, height, width], or no augmentation"
            )
        if self.crop > 0 and self.crop >= min(shape[2:]):
            raise DataError(f"crop={self.crop} is too much for images of {shape[2]}x{shape[3]}. Try: crop")

    def __call__(self, x: Array, edge: Any, random: np.random.Generator) -> Array:
        """The changed images. `edge` is the value of pixels that come in from outside."""
        if self.crop:
            x = shifted(x, self.crop if self.crop > 0 else max(max(x.shape[2:]) // 8, 1), edge, random)
        if self.flip:
            mirrored = random.random(len(x)) < 0.5
            x = np.where(mirrored[:, None, None, None], x[..., ::-1], x)
        return np.ascontiguousarray(x)


def shifted(x: Array, by: int, edge: Any, random: np.random.Generator) -> Array:
    """x[n, c, h, w] with each image moved by up to `by` pixels in both directions."""
    n, _, height, width = x.shape
    wide = np.pad(x, ((0, 0), (0, 0), (by, by), (by, by)), constant_values=edge)
    down = random.integers(0, 2 * by + 1, (n, 1)) + np.arange(height)  # [n, h]
    right = random.integers(0, 2 * by + 1, (n, 1)) + np.arange(width)  # [n, w]
    moved = wide.transpose(0, 2, 3, 1)[np.arange(n)[:, None, None], down[:, :, None], right[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class Normalise:
    """(x - mean) / std, with one mean and standard deviation per channel or column, or one for everything."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise DataError(
                f"normalisation takes as many means as standard deviations, one per channel or column; "
                f"there are {len(self.mean)} and {len(self.std)}. Try: --mean 0.5,0.5,0.5 --std 0.25,0.25,0.25"
            )
        if not all(np.isfinite(self.mean)) or not all(np.isfinite(s) and s > 0 for s in self.std):
            raise DataError(
                f"normalisation with mean {self.mean} and standard deviation {self.std} is not possible. "
                "Try: finite means, and standard deviations above 0"
            )

    def __str__(self) -> str:
        mean, std = (", ".join(f"{v:.4g}" for v in values[:4]) for values in (self.mean, self.std))
        more = ", …" if len(self.mean) > 4 else ""
        return f"mean {mean}{more} and standard deviation {std}{more}"

    def check(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
        """Raise DataError if arrays of this shape (with the samples first) cannot be normalised."""
        if dtype.kind != "f":
            raise DataError(f"{name} holds {dtype}, which cannot be normalised. Try: floats, or no normalisation")
        want = channels(shape)
        if len(self.mean) not in (1, want):
            raise DataError(
                f"{name} has {want} channels or columns, but the normalisation has {len(self.mean)} means. "
                f"Try: {want} numbers, or 1"
            )

    def __call__(self, x: Array) -> Array:
        shape = (-1, *[1] * (x.ndim - 2))
        mean, std = (np.asarray(v, np.float32).reshape(shape if x.ndim > 1 else -1) for v in (self.mean, self.std))
        return np.ascontiguousarray((x - mean) / std, np.float32)

    @staticmethod
    def given(what: Normalising) -> bool | Normalise:
        """What a user asked for, with a pair (mean, std) as a `Normalise`."""
        if isinstance(what, (bool, Normalise)):
            return what
        mean, std = what
        return Normalise(tuple(map(float, mean)), tuple(map(float, std)))

    @staticmethod
    def of(parts: Iterable[Array], name: str) -> tuple[Normalise, str]:
        """Mean and standard deviation of arrays that come in parts, and a note about what was constant ("" if none)."""
        count, total, squares, first = 0, np.zeros(1), np.zeros(1), np.zeros(0)
        for part in parts:
            if part.dtype.kind != "f":
                raise DataError(
                    f"{name} holds {part.dtype}, which cannot be normalised. Try: floats, or no normalisation"
                )
            flat = _by_channel(part).astype(np.float64)
            if not count:  # Sums around a typical value stay exact where numbers are large and close to each other.
                first = flat.mean(0)
            flat -= first
            count, total, squares = count + len(flat), total + flat.sum(0), squares + (flat**2).sum(0)
        if not count:
            raise DataError(f"{name} has no samples to compute a mean from")
        around = total / count
        mean, std = first + around, np.sqrt(np.maximum(squares / count - around**2, 0))
        constant = std <= 1e-12 * np.maximum(abs(mean), 1e-30)
        places = ", ".join(map(str, np.flatnonzero(constant)[:8]))
        note = f"{name}: channels or columns {places} are constant, so they become 0" if constant.any() else ""
        return Normalise(tuple(mean.tolist()), tuple(np.where(constant, 1.0, std).tolist())), note


def channels(shape: tuple[int, ...]) -> int:
    """How many means a normalisation of this shape has: one per channel of images, one per column of tables. An array
    [n, a, b] has one, because nothing says which of its dimensions are the channels."""
    return shape[1] if len(shape) in (2, 4, 5) else 1


def _by_channel(x: Array) -> Array:
    """x as [values, channels]."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]) if channels(x.shape) > 1 else x.reshape(-1, 1)


#: Whether to normalise with the numbers of the training set, or the numbers: a `Normalise` or a pair (mean, std).
Normalising = bool | Normalise | tuple[Sequence[float], Sequence[float]]
