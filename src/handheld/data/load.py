"""Data sets: `.npz` files, folders of images, CSV and text files, scikit-learn's digits, Python's manual.

`load_data` turns what a user types into a training set and a test set (see batches.py). Every error
names the file and says what to do next.
"""

from __future__ import annotations

import difflib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.data.augment import Augment, Normalise, Normalising
from handheld.data.batches import Array, ArrayData, cast_note, random_split, stratified
from handheld.data.dataset import SPLIT, DataFacts, DataSet, listed, no_test_set
from handheld.data.folders import images
from handheld.data.tables import TABLE_SUFFIXES, table
from handheld.data.text_files import pydoc_text, text, windows
from handheld.errors import DataError

TEXT_SUFFIXES = (".txt", ".text", ".md")
#: Files that `load_data` reads.
DATA_SUFFIXES = (".npz", *TABLE_SUFFIXES, *TEXT_SUFFIXES)
_KINDS = "a .npz file, a folder of images, a .csv file, or a .txt file"


def load_data(
    spec: str,
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    size: int | tuple[int, int] = 32,
    gray: bool = False,
    length: int = 64,
    tokens: str = "byte",
    augment: str | Augment = "",
    normalise: Normalising = False,
    label: str | None = None,
    drop: Sequence[str] = (),
    one_hot: Sequence[str] = (),
    regression: bool | None = None,
    names: Sequence[str] | None = None,
    skip_bad: bool = False,
    like: DataFacts | None = None,
) -> DataSet:
    """Load `digits`, `pydoc`, a `.npz`, `.csv` or `.txt` file, or a folder with one sub-folder of images per class.

    `test` is the share that is held out if the data has no test set. `size`, `gray` and `skip_bad` (leave out files
    that cannot be read) apply to images, `augment` to images and image arrays, `length` and `tokens` (byte or char) to
    text, `label`, `drop`, `one_hot` and `regression` (float labels) to a CSV file, `names` (of the inputs of a model
    that takes a dictionary) to a `.npz` file.
    `normalise=True` computes mean and standard deviation from the training set. `like` are the facts of a step file:
    its order of classes, columns, tokens and its normalisation are used again.
    """
    path = Path(spec)
    kind = _kind(spec, path)
    if kind != "table" and (label is not None or drop or one_hot):
        raise DataError(f"{spec} has no columns to name or drop. --label, --drop and --one-hot apply to .csv files")
    if kind in ("table", "text") and Augment.parse(str(augment)):
        raise DataError(f"{spec} holds no images, so it cannot be augmented. Try: without --augment")
    if kind == "text" and normalise:
        raise DataError(f"{spec} is text: tokens cannot be normalised. Try: without --normalise")
    chosen = normalise if normalise or like is None or like.normalise is None else like.normalise
    if kind == "text":
        raw = pydoc_text().encode() if spec == "pydoc" else None
        if raw is None:
            return text(path, batch_size, seed=seed, test=test, length=length, tokens=tokens, like=like)
        return windows(spec, raw, batch_size, seed, test, length, tokens, like)
    if kind == "table":
        return table(
            path,
            batch_size,
            seed=seed,
            test=test,
            label=label,
            drop=drop,
            one_hot=one_hot,
            regression=regression,
            normalise=Normalise.given(chosen),
            like=like,
        )
    common: dict[str, Any] = {"seed": seed, "test": test, "augment": augment, "normalise": chosen}
    if kind == "images":
        return images(path, batch_size, size=size, gray=gray, skip_bad=skip_bad, like=like, **common)
    return digits(batch_size, **common) if kind == "digits" else npz(path, batch_size, names=names, **common)


def no_data(spec: str, kinds: str) -> DataError:
    """The error for data that does not exist, with the data set or the neighbouring file that may be meant."""
    path = Path(spec)
    beside = [each for each in path.parent.glob("[!.]*") if each.suffix.lower() in DATA_SUFFIXES or each.is_dir()]
    known = {"digits": "digits", "pydoc": "pydoc", **{each.name: str(path.with_name(each.name)) for each in beside}}
    meant = [known[name] for name in difflib.get_close_matches(path.name, known, n=2, cutoff=0.7)]
    first = f"Did you mean {' or '.join(meant)}? " if meant else ""
    return DataError(f"there is no data {spec!r}: no such file or folder. {first}Try: {kinds}")


def _kind(spec: str, path: Path) -> str:
    if spec == "digits":
        return "digits"
    if spec == "pydoc":
        return "text"
    if path.is_dir():
        return "images"
    if not path.exists():
        raise no_data(spec, f"digits, pydoc, {_KINDS}")
    suffixes = {".npz": "arrays", **dict.fromkeys(TABLE_SUFFIXES, "table"), **dict.fromkeys(TEXT_SUFFIXES, "text")}
    if path.suffix.lower() not in suffixes:
        raise DataError(f"{path} is not a known kind of data. Try: {_KINDS}")
    return suffixes[path.suffix.lower()]


# Digits


#: Mean and standard deviation of the pixels of the enlarged digits; pixels are between 0 and 1.
_DIGITS = (0.3053, 0.3247)


def digits(
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    shift: int = 2,
    augment: str | Augment = "",
    normalise: Normalising = False,
) -> DataSet:
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
    parts = _split((x[:, None], y), stratified(y, test, SPLIT))
    facts = DataFacts("digits", tuple("0123456789"), image_size=(28, 28), gray=True)
    return _both("digits", *parts, batch_size, seed, facts, shift=shift, augment=augment, normalise=normalise)


def bilinear(size: int, out: int) -> npt.NDArray[np.float64]:
    """The matrix [out, size] that resizes a line of pixels; pixel centres are at half coordinates."""
    at = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
    low = np.minimum(at.astype(np.int64), size - 2) if size > 1 else np.zeros(out, np.int64)
    matrix = np.zeros((out, size))
    matrix[np.arange(out), low] = 1 - (at - low)
    if size > 1:
        matrix[np.arange(out), low + 1] = at - low
    return matrix


def _split(arrays: tuple[Any, ...], split: tuple[Array, Array]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    train, held = (tuple(array[indices] for array in arrays) for indices in split)
    return train, held


def _both(
    name: str,
    train: tuple[Any, ...],
    held: tuple[Any, ...],
    batch_size: int,
    seed: int,
    facts: DataFacts,
    *,
    shift: int = 0,
    augment: str | Augment = "",
    normalise: Normalising = False,
    notes: Sequence[str] = (),
) -> DataSet:
    """The data set of arrays. Test data is normalised with the numbers of the training data."""
    told, chosen = list(notes), Normalise.given(normalise)
    data = ArrayData(*train, batch_size=batch_size, seed=seed, shift=shift, augment=augment, name=f"{name} (training)")
    if chosen is True:
        chosen, constant = Normalise.of([data.arrays[0]], name)
        told += filter(None, (constant,))
    if isinstance(chosen, Normalise):
        chosen.check(data.arrays[0].shape, data.arrays[0].dtype, name)
        data.normalise = chosen
        told.append(f"{name}: normalised with {chosen}")
        facts = facts.normalised(chosen)
    first = next(iter(held[0].values())) if held and isinstance(held[0], Mapping) else held[0] if held else ()
    few = no_test_set(len(first))
    told += filter(None, (few,))
    options: dict[str, Any] = {"shuffle": False, "keep_short": True, "normalise": data.normalise}
    test = None if few else ArrayData(*held, batch_size=batch_size, name=f"{name} (test)", **options)
    return DataSet(name, data, test, facts, tuple(told))


# .npz files


def npz(
    path: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    augment: str | Augment = "",
    normalise: Normalising = False,
    names: Sequence[str] | None = None,
) -> DataSet:
    """Load arrays `x` and `y`, or x_train, y_train, x_test, y_test, or all arrays in order with the labels last.

    Arrays have one row per sample. Floats become float32, integers int64; image bytes are scaled to [0, 1]. If
    `names` are given, batches are dictionaries of the arrays with these names; if it is None, of all arrays of a file
    that has `input_ids`.
    """
    path = Path(path)
    arrays = read_npz(path)
    options: dict[str, Any] = {"augment": augment, "normalise": normalise}
    if names is None and "input_ids" in arrays:
        names = tuple(arrays)
    if names:
        missing = [name for name in names if name not in arrays]
        if missing:
            raise DataError(
                f"{path} has the arrays {listed(list(arrays))} and no {missing[0]!r}, which the model takes. "
                f"Try: numpy.savez(path, {', '.join(f'{n}=...' for n in names)})"
            )
        return _named(path, arrays, tuple(names), batch_size, seed, test, options)
    if {"x_train", "y_train"} <= set(arrays):
        tested = {"x_test", "y_test"} <= set(arrays)
        used = ["x_train", "y_train", *(["x_test", "y_test"] if tested else [])]
        parts = tuple(arrays[n] for n in used[:2]), tuple(arrays[n] for n in used[2:])
        notes = _array_notes(path, arrays, used)
        return _both(str(path), *parts, batch_size, seed, DataFacts("arrays"), notes=notes, **options)
    used = ["x", "y"] if {"x", "y"} <= set(arrays) else list(arrays)
    chosen = tuple(arrays[name] for name in used)
    split = _own_split(path, chosen, chosen[-1], test)
    notes = _array_notes(path, arrays, used)
    return _both(str(path), *_split(chosen, split), batch_size, seed, DataFacts("arrays"), notes=notes, **options)


def _own_split(path: Path, arrays: Sequence[Array], labels: Array, test: float) -> tuple[Array, Array]:
    """A training and a test set of the samples, with the same share of each class if the labels are classes."""
    ArrayData(*arrays, batch_size=1, keep_short=True, name=str(path))  # Checks that the arrays fit together.
    if len(arrays) > 1 and labels.ndim == 1 and labels.dtype.kind in "iu":
        return stratified(labels, test, SPLIT)
    return random_split(len(arrays[0]), test, SPLIT)


def _named(
    path: Path,
    arrays: Mapping[str, Array],
    names: tuple[str, ...],
    batch_size: int,
    seed: int,
    test: float,
    options: Mapping[str, Any],
) -> DataSet:
    """The data set of a model that takes a dictionary."""
    chosen = [arrays[name] for name in names]
    labels = arrays.get("labels", chosen[-1])
    split = _own_split(path, chosen, labels, test)
    train, held = (({name: arrays[name][i] for name in names},) for i in split)
    notes = _array_notes(path, arrays, names)
    return _both(str(path), train, held, batch_size, seed, DataFacts("arrays"), notes=notes, **options)


def _array_notes(path: Path, arrays: Mapping[str, Array], used: Sequence[str]) -> list[str]:
    """What is not used of a file, and which types change."""
    notes = [f"{path}: {note}" for name in used if (note := cast_note(name, arrays[name]))]
    unused = [name for name in arrays if name not in used]
    if unused:
        notes.append(f"{path}: arrays that are not used: {listed(unused)}")
    return notes


def read_npz(path: Path) -> dict[str, Array]:
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
