"""Samples to predict: the same kinds of data as for training, prepared in the same way, with or without labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from handheld.data.augment import Normalise
from handheld.data.batches import Array, ArrayData, Indexed, Indices, cast_note, checksum
from handheld.data.dataset import DataFacts, listed
from handheld.data.image_files import SUFFIXES, ImageData, describe, images_below, skipped_note
from handheld.data.load import TEXT_SUFFIXES, digits, no_data, read_npz
from handheld.data.readable import check_images
from handheld.data.tables import TABLE_SUFFIXES, Table, as_number, chosen_columns, input_names, read_table
from handheld.data.text_files import encode, pydoc_text
from handheld.errors import DataError
from handheld.graph.graph import Graph

_KINDS = "digits, pydoc, a folder of images, an image, or a .npz, .csv or .txt file"


@dataclass(frozen=True)
class Samples:
    """The inputs in their order, a name for each sample, and what is known about its label.

    `labels` are class numbers (-1 where unknown), or numbers [n, 1] of a regression; None without labels.
    """

    data: Indexed
    names: Sequence[str]
    labels: Array | None = None
    notes: tuple[str, ...] = ()


def load_samples(spec: str, graph: Graph, facts: DataFacts | None, batch_size: int, skip_bad: bool = False) -> Samples:
    """Load data for the predict graph of a model. `facts` say how its training data was prepared.

    `skip_bad` leaves out images that cannot be read.
    """
    path = Path(spec)
    facts = facts or DataFacts()
    shape = graph.tensors[graph.inputs[0].tensor].shape
    if spec == "digits":
        held = digits(1).test
        assert isinstance(held, ArrayData)
        labels = held.arrays[1]
        x = ArrayData(held.arrays[0], batch_size=batch_size, shuffle=False, keep_short=True, normalise=facts.normalise)
        return Samples(x, _numbered(len(labels)), labels, ("digits: only the test set is predicted",))
    if spec == "pydoc" or (path.is_file() and path.suffix.lower() in TEXT_SUFFIXES):
        return _text(spec, path, shape, facts, batch_size)
    if not path.exists():
        raise no_data(spec, _KINDS)
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        return _images(path, shape, facts, batch_size, skip_bad)
    if path.suffix.lower() in TABLE_SUFFIXES:
        return _table(path, shape, facts, batch_size)
    if path.suffix.lower() == ".npz":
        return _arrays(path, graph, facts, batch_size)
    raise DataError(f"{path} is not a known kind of data. Try: {_KINDS}")


def _numbered(count: int) -> list[str]:
    return [str(i + 1) for i in range(count)]


# Images


def _images(path: Path, shape: tuple[int, ...], facts: DataFacts, batch_size: int, skip_bad: bool) -> Samples:
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise DataError(f"{path} holds images, but the model takes {list(shape)}. Try: a .npz file")
    skipped: Counter[str] = Counter()
    files = images_below(path, skipped) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no images. Try: a folder with .png or .jpg files")
    bad, found = check_images(path, files, skip_bad)
    files = [file for file in files if file not in bad]
    size, gray = (shape[2], shape[3]), shape[1] == 1
    changes = describe(files, size, gray)
    notes = [*([f"{path}: {'; '.join(changes)}"] if changes else []), *found]
    if skipped:
        notes.append(skipped_note(path, skipped))
    labels = None
    if path.is_dir():
        labels, told = _folder_labels(path, files, facts.classes)
        notes += told
    data = ImageData(
        files,
        None,
        batch_size=batch_size,
        size=size,
        gray=gray,
        normalise=facts.normalise,
        shuffle=False,
        keep_short=True,
        name=str(path),
    )
    names = [str(f.relative_to(path)) if path.is_dir() else f.name for f in files]
    return Samples(data, names, labels, tuple(notes))


def _folder_labels(path: Path, files: list[Path], classes: tuple[str, ...]) -> tuple[Array | None, list[str]]:
    """The class of each file: the nearest folder that has the name of a class. -1 for files without one."""
    numbers = {name: i for i, name in enumerate(classes)}
    labels, others = [], set()
    for file in files:
        folders = file.relative_to(path).parts[:-1]
        named = next((numbers[f] for f in reversed(folders) if f in numbers), -1)
        labels.append(named)
        if named < 0 and folders:
            others.add(folders[-1])
    if classes and others:
        return (np.array(labels), [f"{path}: folders that are no classes of the model: {listed(sorted(others))}"])
    return (np.array(labels) if max(labels) >= 0 else None), []


# Arrays


def _arrays(path: Path, graph: Graph, facts: DataFacts, batch_size: int) -> Samples:
    arrays = read_npz(path)
    inputs = [given.name for given in graph.inputs]
    label: str | None
    if set(inputs) <= set(arrays):
        label = next((n for n in ("labels", "label", "y") if n in arrays and n not in inputs), None)
    else:
        suffix = "_test" if "x_test" in arrays else ""
        names = list(arrays)
        if f"x{suffix}" in arrays and len(inputs) == 1:
            inputs, label = [f"x{suffix}"], f"y{suffix}" if f"y{suffix}" in arrays else None
        else:
            inputs, rest = names[: len(inputs)], names[len(inputs) :]
            label = rest[0] if len(rest) == 1 else None
        if len(inputs) < len(graph.inputs):
            raise DataError(
                f"{path} has the arrays {listed(names)}; the model takes {len(graph.inputs)}: "
                f"{listed([given.name for given in graph.inputs])}. Try: arrays with these names"
            )
    notes = [f"{path}: {note}" for name in inputs if (note := cast_note(name, arrays[name]))]
    unused = [name for name in arrays if name not in inputs and name != label]
    notes += [f"{path}: arrays that are not used: {listed(unused)}"] if unused else []
    data = ArrayData(
        *(arrays[name] for name in inputs),
        batch_size=batch_size,
        shuffle=False,
        keep_short=True,
        normalise=facts.normalise,
        name=str(path),
    )
    labels = None if label is None else arrays[label]
    if labels is not None and len(labels) != data.samples:
        raise DataError(f"{path} has {data.samples} samples and {len(labels)} labels. Try: one label per sample")
    return Samples(data, _numbered(data.samples), labels, tuple(notes))


# Tables


def _table(path: Path, shape: tuple[int, ...], facts: DataFacts, batch_size: int) -> Samples:
    content = read_table(path)
    columns, label = content.names, facts.label if facts.label in content.names else ""
    if not facts.features and len(shape) == 2 and len(columns) == shape[1] + 1:
        label = columns[-1]
    features, notes = chosen_columns(content, tuple(c for c in columns if c != label), facts)
    if len(shape) == 2 and len(input_names(features, facts.one_hot)) != shape[1]:
        raise DataError(
            f"{path} has the columns {listed(columns)}; the model takes {shape[1]}. "
            f"Try: {shape[1]} columns, with or without the label as the last one"
        )
    x = content.numbers(features, facts.one_hot)
    if facts.normalise is not None:
        x = _scaled(x, facts.normalise)
    data = ArrayData(x.astype(np.float32), batch_size=batch_size, shuffle=False, keep_short=True, name=str(path))
    labels, told = _column_labels(content, label, facts) if label else (None, [])
    return Samples(data, _numbered(data.samples), labels, (*notes, *told))


def _scaled(x: Array, by: Normalise) -> Array:
    """The same computation in float64 as in training."""
    scaled: Array = (x - np.array(by.mean)) / np.array(by.std)
    return scaled


def _column_labels(content: Table, label: str, facts: DataFacts) -> tuple[Array | None, list[str]]:
    cells = content.column(label)
    if facts.classes:
        numbers = {name: i for i, name in enumerate(facts.classes)}
        unknown = sorted({cell for cell in cells if cell and cell not in numbers})
        notes = [f"{content.path}: labels that are no classes of the model: {listed(unknown)}"] if unknown else []
        return np.array([numbers.get(cell, -1) for cell in cells]), notes
    values = [as_number(cell) for cell in cells]
    if any(value is None for value in values):
        return None, [f"{content.path}: column {label!r} is not used: it holds text, and the model has no class names"]
    if facts.kind != "table" and all(v is not None and v.is_integer() for v in values):
        return np.array(values, np.int64), []
    return np.array(values, np.float32)[:, None], []


# Text


class _Windows(Indexed):
    """Windows of tokens of which the last one ends where the text ends."""

    def __init__(self, tokens: Array, length: int, batch_size: int, name: str) -> None:
        self.tokens, self.length, self.first = tokens, length, len(tokens) % length
        super().__init__(len(tokens) // length, batch_size, shuffle=False, seed=0, keep_short=True, name=name)

    @cached_property
    def content(self) -> int:
        return checksum(self.tokens)

    def take(self, indices: Indices, random: np.random.Generator) -> tuple[Array, ...]:
        return (self.tokens[self.first + indices[:, None] * self.length + np.arange(self.length)],)


def _text(spec: str, path: Path, shape: tuple[int, ...], facts: DataFacts, batch_size: int) -> Samples:
    if len(shape) != 2:
        raise DataError(f"{spec} is text, but the model takes {list(shape)}. Try: a .npz file")
    try:
        raw = pydoc_text().encode() if spec == "pydoc" else path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read as text: {error}. Try: another file") from error
    tokens, _ = encode(spec, raw, facts.tokens or "byte", facts.classes if facts.tokens == "char" else ())
    length = shape[1]
    if len(tokens) < length:
        unit = "characters" if facts.tokens == "char" else "bytes"
        raise DataError(
            f"{spec} has {len(tokens)} {unit}, but the model takes windows of {length}. Try: a text of at least "
            f"{length} {unit} (the token after its end is predicted), or train with --length {max(len(tokens), 1)}"
        )
    data = _Windows(tokens, length, batch_size, f"{spec} in windows of {length}")
    followed = np.append(tokens, -1)[data.first + length :: length][: data.samples]
    notes = [f"{spec}: the first {data.first} tokens are not used, so that the last window ends with the text"]
    told = notes if data.first else []
    return Samples(data, _numbered(data.samples), followed, tuple(told))
