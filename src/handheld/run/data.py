"""Data sets: `.npz` files, folders of images, text files, scikit-learn's digits, Python's manual.

`load_data` turns what a user types into a training set and a test set (see batches.py). Every error
names the file and says what to do next.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.errors import DataError
from handheld.run.batches import (
    Array,
    ArrayData,
    Batch,
    Data,
    Indexed,
    Indices,
    IterableData,
    checksum,
    random_split,
    stratified,
)
from handheld.run.image_files import ImageData, classes_in

__all__ = [
    "ArrayData",
    "Batch",
    "Data",
    "DataSet",
    "ImageData",
    "Indexed",
    "IterableData",
    "TextData",
    "digits",
    "images",
    "load_data",
    "npz",
    "text",
]

#: The seed of every split, so that the test set does not depend on the seed of the training.
SPLIT = 0
TEXT_SUFFIXES = (".txt", ".text", ".md")
#: Files that `load_data` reads.
DATA_SUFFIXES = (".npz", *TEXT_SUFFIXES)
_SPLITS = (("train", "test"), ("train", "val"), ("train", "valid"), ("training", "testing"))


@dataclass(frozen=True)
class DataSet:
    """A training set and a test set.

    `classes` are the names of the labels or tokens. `note` is a message for the user, for example why
    there is no test set.
    """

    name: str
    train: Data
    test: Data | None
    classes: tuple[str, ...] = ()
    note: str = ""


def load_data(
    spec: str,
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    size: int = 32,
    gray: bool = False,
    length: int = 64,
    tokens: str = "byte",
) -> DataSet:
    """Load `digits`, `pydoc`, a `.npz` file, a `.txt` file, or a folder with one sub-folder of images per class.

    `test` is the share that is held out if the data has no test set. `size` and `gray` apply to
    images, `length` and `tokens` (byte or char) to text.
    """
    if spec == "digits":
        return digits(batch_size, seed=seed, test=test)
    if spec == "pydoc":
        return _windows(spec, pydoc_text().encode(), batch_size, seed, test, length, tokens)
    path = Path(spec)
    if path.is_dir():
        return images(path, batch_size, seed=seed, test=test, size=size, gray=gray)
    if not path.exists():
        raise DataError(
            f"there is no data {spec!r}: no such file or folder. "
            "Try: digits, pydoc, a .npz file, a folder of images, or a .txt file"
        )
    if path.suffix == ".npz":
        return npz(path, batch_size, seed=seed, test=test)
    if path.suffix in TEXT_SUFFIXES:
        return text(path, batch_size, seed=seed, test=test, length=length, tokens=tokens)
    raise DataError(f"{path} is not a known kind of data. Try: a .npz file, a folder of images, or a .txt file")


# Digits


#: Mean and standard deviation of the pixels of the enlarged digits; pixels are between 0 and 1.
_DIGITS = (0.3053, 0.3247)


def digits(batch_size: int, *, seed: int = 0, test: float = 0.2, shift: int = 2) -> DataSet:
    """1,797 handwritten digits (scikit-learn), enlarged from 8x8 to 28x28 and normalised.

    The test set is the same for every seed. Training images are moved by up to `shift` pixels.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits are part of scikit-learn, which is not installed. Try: pip install scikit-learn"
        ) from error
    bunch = load_digits()
    grow = bilinear(8, 28)
    x = (((grow @ (bunch.images / 16.0) @ grow.T) - _DIGITS[0]) / _DIGITS[1]).astype(np.float32)
    y = bunch.target.astype(np.int64)
    split = stratified(y, test, SPLIT)
    return _arrays("digits", (x[:, None], y), split, batch_size, seed, tuple("0123456789"), shift)


def bilinear(size: int, out: int) -> npt.NDArray[np.float64]:
    """The matrix [out, size] that resizes a line of pixels; pixel centres are at half coordinates."""
    at = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
    low = np.minimum(at.astype(np.int64), size - 2) if size > 1 else np.zeros(out, np.int64)
    matrix = np.zeros((out, size))
    matrix[np.arange(out), low] = 1 - (at - low)
    if size > 1:
        matrix[np.arange(out), low + 1] = at - low
    return matrix


def _arrays(
    name: str,
    arrays: tuple[Any, ...],
    split: tuple[Array, Array],
    batch_size: int,
    seed: int,
    classes: tuple[str, ...] = (),
    shift: int = 0,
) -> DataSet:
    train, held = (tuple(array[indices] for array in arrays) for indices in split)
    return _both(name, train, held, batch_size, seed, classes, shift)


def _both(
    name: str,
    train: tuple[Any, ...],
    held: tuple[Any, ...],
    batch_size: int,
    seed: int,
    classes: tuple[str, ...] = (),
    shift: int = 0,
) -> DataSet:
    data = ArrayData(*train, batch_size=batch_size, seed=seed, shift=shift, name=f"{name} (training)")
    note = _too_few(len(held[0]) if held else 0, batch_size)
    test = None if note else ArrayData(*held, batch_size=batch_size, shuffle=False, name=f"{name} (test)")
    return DataSet(name, data, test, classes, note)


def _too_few(held: int, batch_size: int) -> str:
    """Why there is no test set, or ""."""
    if held >= batch_size:
        return ""
    return f"no test set: only {held} samples are held out, and a batch has {batch_size}"


# .npz files


def npz(path: str | Path, batch_size: int, *, seed: int = 0, test: float = 0.2) -> DataSet:
    """Load arrays `x` and `y`, or x_train, y_train, x_test, y_test, or all arrays in order with the labels last.

    Arrays have one row per sample. Floats become float32, integers int64; image bytes are scaled to [0, 1].
    """
    path = Path(path)
    arrays = _read_npz(path)
    if {"x_train", "y_train"} <= set(arrays):
        tested = {"x_test", "y_test"} <= set(arrays)
        held = (arrays["x_test"], arrays["y_test"]) if tested else ()
        return _both(str(path), (arrays["x_train"], arrays["y_train"]), held, batch_size, seed)
    names = ["x", "y"] if {"x", "y"} <= set(arrays) else list(arrays)
    chosen = tuple(arrays[name] for name in names)
    ArrayData(*chosen, batch_size=1, keep_short=True, name=str(path))  # Checks that the arrays fit together.
    labels = chosen[-1]
    if len(chosen) > 1 and labels.ndim == 1 and labels.dtype.kind in "iu":
        split = stratified(labels, test, SPLIT)
    else:
        split = random_split(len(chosen[0]), test, SPLIT)
    return _arrays(str(path), chosen, split, batch_size, seed)


def _read_npz(path: Path) -> dict[str, Array]:
    """The arrays of a file by name. All of them hold numbers or booleans."""
    again = "Try: write it with numpy.savez(path, x=..., y=...)"
    arrays: dict[str, Array] = {}
    try:
        if not zipfile.is_zipfile(path):  # NumPy would try to read such a file as a pickle.
            what = "is not a .npz file, or it is cut off" if path.stat().st_size else "is empty"
            raise DataError(f"{path} {what}. {again}")
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = file[name]
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}. {again}") from error
    except ValueError as error:
        objects = "allow_pickle" in str(error)
        raise DataError(
            f"the array {file.files[len(arrays)]!r} of {path} "
            + ("holds Python objects. Try: arrays of numbers" if objects else f"cannot be read: {error}. {again}")
        ) from error
    if not arrays:
        raise DataError(f"{path} holds no arrays. {again}")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            hint = {
                "c": "its real and imaginary parts as two channels",
                "U": "one number per class",
                "S": "one number per class",
            }.get(array.dtype.kind, "numbers or booleans")
            raise DataError(f"the array {name!r} of {path} has type {array.dtype}, which no model takes. Try: {hint}")
    return arrays


# Images


def images(
    folder: str | Path, batch_size: int, *, seed: int = 0, test: float = 0.2, size: int = 32, gray: bool = False
) -> DataSet:
    """One sub-folder per class, or two such folders named train and test."""
    folder = Path(folder)
    own = next(((folder / a, folder / b) for a, b in _SPLITS if (folder / a).is_dir() and (folder / b).is_dir()), None)
    options: dict[str, Any] = {"batch_size": batch_size, "size": size, "gray": gray}
    if own is not None:
        classes, files, labels = classes_in(own[0])
        others, held_files, held_labels = classes_in(own[1])
        if others != classes:
            raise DataError(
                f"{own[0]} has the classes {', '.join(classes)} and {own[1]} "
                f"{', '.join(others)}. Try: the same sub-folders in both"
            )
    else:
        classes, every, of = classes_in(folder)
        train, rest = stratified(of, test, SPLIT)
        files, labels = [every[i] for i in train], [of[i] for i in train]
        held_files, held_labels = [every[i] for i in rest], [of[i] for i in rest]
    note = _too_few(len(held_files), batch_size)
    held = None if note else ImageData(held_files, held_labels, shuffle=False, name=f"{folder} (test)", **options)
    data = ImageData(files, labels, seed=seed, name=f"{folder} (training)", **options)
    return DataSet(str(folder), data, held, tuple(classes), note)


# Text


class TextData(Indexed):
    """Windows of a sequence of tokens: x[n, length], and y, which is x one token later."""

    def __init__(
        self,
        tokens: npt.NDArray[np.int64],
        *,
        length: int,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        name: str = "the text",
    ) -> None:
        if length < 1:
            raise DataError(f"windows of {length} tokens are not possible. Try: length 64")
        self.tokens, self.length = tokens, length
        super().__init__(
            max(len(tokens) - 1, 0) // length,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            keep_short=False,
            name=f"{name} in windows of {length}",
        )

    @cached_property
    def content(self) -> int:
        return checksum(self.tokens)

    def take(self, indices: Indices, random: np.random.Generator) -> tuple[Array, ...]:
        rows = self.tokens[indices[:, None] * self.length + np.arange(self.length + 1)]
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def text(
    path: str | Path, batch_size: int, *, seed: int = 0, test: float = 0.2, length: int = 64, tokens: str = "byte"
) -> DataSet:
    """A text as bytes (256 tokens) or as characters (one token per distinct character). The end is the test set."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read as text: {error}") from error
    return _windows(str(path), raw, batch_size, seed, test, length, tokens)


def pydoc_text() -> str:
    """The topics of Python's manual that Python ships for `help()`: about 500 kB of English."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:  # Some systems leave it out.
        raise DataError("this Python has no text of its manual (pydoc_data). Try: a .txt file") from error
    return "\n".join(topics[name] for name in sorted(topics))


def _windows(path: str, raw: bytes, batch_size: int, seed: int, test: float, length: int, tokens: str) -> DataSet:
    """The tokens of a text, split into a training and a test set of windows."""
    try:
        content = raw.decode() if tokens == "char" else ""
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as text: {error}. Try: tokens as bytes") from error
    if tokens == "byte":
        row = np.frombuffer(raw, np.uint8).astype(np.int64)
        classes = tuple(chr(i) if 32 <= i < 127 else f"\\x{i:02x}" for i in range(256))
    elif tokens == "char":
        classes = tuple(sorted(set(content)))
        places = {character: i for i, character in enumerate(classes)}
        row = np.array([places[character] for character in content], np.int64)
    else:
        raise DataError(f"there are no tokens {tokens!r}. Try: byte or char")
    random_split(1, test, SPLIT)  # Checks that the share is possible.
    cut = len(row) - round(len(row) * test)
    train = TextData(row[:cut], length=length, batch_size=batch_size, seed=seed, name=f"{path} (training)")
    note = _too_few((len(row) - cut - 1) // length, batch_size)
    held = (
        None
        if note
        else TextData(row[cut:], length=length, batch_size=batch_size, shuffle=False, name=f"{path} (test)")
    )
    return DataSet(path, train, held, classes, note)
