"""Epochs of batches, from arrays or from any iterable.

The number of an epoch decides its batches: `data.epoch(3)` always gives the same batches in the same
order, and `data.epoch(3, start=10)` gives them without the first ten. So a checkpoint only has to
remember the number of the epoch and the position in it.
"""

from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from handheld.data.augment import Augment, Normalise, shifted
from handheld.errors import DataError, TooFewSamples

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
#: What a training step takes: arrays in order, or one dictionary of arrays.
Batch = tuple[Any, ...]


@runtime_checkable
class Data(Protocol):
    """Batches that can be read repeatedly. Only the last one of an epoch is usually smaller than `batch_size`.

    `dropped` counts the samples that every epoch leaves out because its last batch would be incomplete.
    """

    batch_size: int
    dropped: int

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting at batch `start`."""
        ...


class Indexed(ABC):
    """Samples that can be taken in any order. Each epoch shuffles them with its own seed."""

    def __init__(self, count: int, batch_size: int, *, shuffle: bool, seed: int, keep_short: bool, name: str) -> None:
        if batch_size < 1:
            raise DataError(f"the batch size is {batch_size}. Try: 1 or more")
        if not count:
            raise DataError(f"{name} has no samples")
        if count < batch_size and not keep_short:
            raise TooFewSamples(
                f"{name} has {count} samples, fewer than one batch of {batch_size}. Try: a batch of {count} or less",
                count,
            )
        self.samples, self.batch_size, self.name = count, batch_size, name
        self.shuffle, self.seed = shuffle, seed
        self.dropped = 0 if keep_short else count % batch_size

    def __len__(self) -> int:
        """The number of batches per epoch."""
        return (self.samples - self.dropped + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting at batch `start`."""
        order = np.arange(self.samples)
        if self.shuffle:
            order = self._generator(number).permutation(self.samples)
        for batch in range(start, len(self)):
            indices = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self.take(indices, self._generator(number, batch + 1))

    def _generator(self, *place: int) -> np.random.Generator:
        """Random numbers for one place (epoch, batch), independent of all earlier draws."""
        return np.random.default_rng((self.seed % 2**32, *place))

    @property
    @abstractmethod
    def content(self) -> int:
        """A checksum of the samples: other samples give another number."""

    @abstractmethod
    def take(self, indices: Indices, random: np.random.Generator) -> Batch:
        """These samples as one batch. `random` serves augmentation."""


class ArrayData(Indexed):
    """Arrays with one row per sample: `ArrayData(x, y, batch_size=64)`.

    Named arrays make batches that are dictionaries: `ArrayData({"input_ids": x, "labels": y}, batch_size=64)`, or
    `ArrayData(input_ids=x, labels=y, batch_size=64)`.
    `augment` (`"flip,crop"`) changes the images of the first array at random, differently in each epoch. With `shift`,
    they are moved by up to that many pixels. `normalise` applies to the first array. `notes` say which types changed.
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        shift: int = 0,
        augment: str | Augment = "",
        normalise: Normalise | None = None,
        keep_short: bool = False,
        name: str = "the data",
        **named: Any,
    ) -> None:
        if arrays and named:
            raise DataError(f"{name} has arrays with and without names. Try: names for all of them, or for none")
        arrays = (named,) if named else arrays
        if not arrays:
            raise DataError(f"{name} holds no arrays. Try: ArrayData(x, y, batch_size=...)")
        #: The names of the arrays, if batches are dictionaries; else empty.
        self.names: tuple[str, ...] = ()
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            self.names, arrays = tuple(arrays[0]), tuple(arrays[0].values())
            if not arrays:
                raise DataError(f"{name} holds no arrays. Try: ArrayData({{'x': x}}, batch_size=...)")
        given = [np.asarray(a.detach().cpu() if hasattr(a, "detach") else a) for a in arrays]
        self.arrays = tuple(map(_as_array, given))
        self.notes = tuple(
            filter(
                None, (cast_note(f"array {i}", a) for i, a in zip(self.names or range(len(given)), given, strict=True))
            )
        )
        lengths = [array.shape[0] if array.ndim else -1 for array in self.arrays]
        if min(lengths) < 0 or len(set(lengths)) > 1:
            shapes = ", ".join(str(array.shape) for array in self.arrays)
            raise DataError(
                f"the arrays of {name} have the shapes {shapes}. "
                "The first dimension of each must be the number of samples"
            )
        super().__init__(lengths[0], batch_size, shuffle=shuffle, seed=seed, keep_short=keep_short, name=name)
        self.shift = shift
        if shift and (self.arrays[0].ndim != 4 or shift < 0):
            raise DataError(
                f"{name} of shape {self.arrays[0].shape} cannot be shifted by {shift}. "
                "Try: images [n, channels, height, width], or shift=0"
            )
        self.augment = Augment.parse(augment) if isinstance(augment, str) else augment
        self.augment.check(self.arrays[0].shape, name)
        self.normalise = normalise
        if normalise is not None:
            normalise.check(self.arrays[0].shape, self.arrays[0].dtype, name)
        # The value of pixels that move in from outside.
        self._edge = self.arrays[0].min() if shift or self.augment.crop else 0

    @cached_property
    def content(self) -> int:
        return checksum(*self.arrays)

    @property
    def prepared(self) -> str:
        """What happens to each sample, for checkpoints."""
        return "; ".join(filter(None, (str(self.augment), str(self.normalise or ""))))

    def take(self, indices: Indices, random: np.random.Generator) -> Batch:
        first, *rest = (array[indices] for array in self.arrays)
        if self.shift:
            first = shifted(first, self.shift, self._edge, random)
        if self.augment:
            first = self.augment(first, self._edge, random)
        if self.normalise is not None:
            first = self.normalise(first)
        if self.names:
            return (dict(zip(self.names, (first, *rest), strict=True)),)
        return (first, *rest)


class IterableData:
    """Any iterable of batches: a list, a DataLoader, or a function of the epoch's number.

    The first batch sets the batch size; the others may have other sizes. An iterator that cannot be
    restarted serves one epoch only.
    """

    def __init__(self, batches: Iterable[Any] | Callable[[int], Iterable[Any]], name: str = "the iterable") -> None:
        if not callable(batches) and not isinstance(batches, Iterable):
            raise DataError(
                f"{name} is a {type(batches).__name__}, which cannot be iterated. "
                "Try: a list of batches, or a function of the epoch's number"
            )
        self.batches, self.name = batches, name
        self.batch_size, self.dropped = 0, 0
        self._spent = False

    @property
    def once(self) -> bool:
        """Whether it can be read only once. `iter` would tell too, but it starts workers and draws a random order."""
        return not callable(self.batches) and isinstance(self.batches, Iterator)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting at batch `start`. Earlier batches are read and skipped."""
        count = 0
        for item in self._items(number):
            batch = as_batch(item)
            if not self.batch_size:
                self.batch_size = rows_in(batch)
            if count >= start:
                yield batch
            count += 1
        if not count:
            raise DataError(f"{self.name} has no batches in epoch {number}")

    def _items(self, number: int) -> Iterable[Any]:
        if callable(self.batches):
            return self.batches(number)
        if self.once and self._spent:
            raise DataError(
                f"{self.name} can be read only once, and epoch {number} needs it again. "
                "Try: a list, or a function that makes a new one for each epoch"
            )
        self._spent = True
        return self.batches


def checksum(*arrays: Array) -> int:
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, crc)
    return crc


def stratified(labels: Any, share: float, seed: int) -> tuple[Array, Array]:
    """Indices of a training and a test set. `share` of each class is held out, drawn with `seed`."""
    _check_share(share)
    labels, rng = np.asarray(labels), np.random.default_rng(seed % 2**32)
    test: list[Array] = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        test.append(members[: round(len(members) * share)])
    chosen = np.zeros(len(labels), bool)
    if test:
        chosen[np.concatenate(test)] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def random_split(count: int, share: float, seed: int) -> tuple[Array, Array]:
    """Indices of a training and a test set, for data without classes."""
    return stratified(np.zeros(count, np.int64), share, seed)


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise DataError(f"the share of the test set is {share}; it must be at least 0 and below 1. Try: 0.2")


def cast_note(name: str, array: Array) -> str:
    """What `ArrayData` changes about an array, or ""."""
    if array.dtype == np.uint8 and array.ndim > 2:
        return f"{name} is uint8: scaled from 0…255 to [0, 1] as float32"
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        return f"{name} is {array.dtype}: converted to float32"
    return ""


def _as_array(array: Array) -> Array:
    """The array as float32, int64 or bool, the types that models take. Image bytes are scaled to [0, 1]."""
    if array.dtype == np.uint8 and array.ndim > 2:
        return array.astype(np.float32) / 255
    kinds: dict[str, Any] = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise DataError(f"a model cannot take an array of type {array.dtype}. Try: numbers or booleans")
    return array.astype(kinds[array.dtype.kind], copy=False)


def as_batch(item: Any) -> Batch:
    """An item of an iterable in the form that a step takes."""
    if isinstance(item, Mapping):
        return ({name: _as_numpy(value) for name, value in item.items()},)
    if isinstance(item, Sequence) and not isinstance(item, str | bytes):
        return tuple(_as_numpy(value) for value in item)
    return (_as_numpy(item),)


def _as_numpy(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def rows_in(batch: Batch) -> int:
    """The number of samples of a batch."""
    arrays = list(batch[0].values()) if batch and isinstance(batch[0], Mapping) else list(batch)
    for array in arrays:
        if array.ndim:
            return int(array.shape[0])
    raise DataError("no input of the batch has a first dimension, so its samples cannot be counted")


def sizes_in(data: Data) -> set[int]:
    """The sizes of the batches of an epoch, as far as they are known before it is read."""
    if isinstance(data, Indexed):
        return _cut(data.samples, data.batch_size, keep_short=not data.dropped)
    source = getattr(data, "batches", None)
    if isinstance(source, list | tuple):  # Other sequences may read files.
        return {rows_in(as_batch(item)) for item in source}
    size, sampler = getattr(source, "batch_size", None), getattr(source, "sampler", None)
    if isinstance(size, int) and isinstance(sampler, Sized):  # A DataLoader.
        with contextlib.suppress(TypeError):  # Some samplers do not know their length.
            return _cut(len(sampler), size, keep_short=not getattr(source, "drop_last", False))
    return set()


def _cut(count: int, size: int, keep_short: bool) -> set[int]:
    return ({size} if count >= size else set()) | ({count % size} if keep_short and count % size else set())
