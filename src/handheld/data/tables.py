"""CSV files: a header row with the names of the columns, then one row per sample. Every input column is a number."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.data.augment import Normalise
from handheld.data.batches import Array, ArrayData, random_split, stratified
from handheld.data.dataset import SPLIT, DataFacts, DataSet, class_numbers, listed, no_test_set
from handheld.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv")
#: What people write for a value that they do not have.
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
#: Whole numbers in the label column are classes if there are at most this many different ones.
MOST_CLASSES = 100
#: For each column of text: its name and its values.
OneHot = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """The cells of a file as text, with the line of each row for messages."""

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def column(self, name: str) -> list[str]:
        at = self.names.index(name)
        return [row[at] for row in self.rows]

    def check(self, name: str, what: str) -> None:
        if name not in self.names:
            raise DataError(f"{self.path} has no column {name!r}{what}. It has: {listed(self.names)}")

    def numbers(self, names: Sequence[str], one_hot: OneHot = ()) -> npt.NDArray[np.float64]:
        """Columns as numbers [rows, columns]. A column of `one_hot` becomes one column of 0 and 1 per value."""
        values = {name: words for name, *words in one_hot}
        return np.concatenate(
            [self._one_hot(name, values[name]) if name in values else self._floats(name) for name in names], axis=1
        )

    def _floats(self, name: str) -> npt.NDArray[np.float64]:
        return np.array([[self._number(name, row, cell)] for row, cell in enumerate(self.column(name))])

    def _one_hot(self, name: str, values: Sequence[str]) -> npt.NDArray[np.float64]:
        places = {value: i for i, value in enumerate(values)}
        result = np.zeros((len(self.rows), len(values)))
        for row, cell in enumerate(self.column(name)):
            self.check_present(name, row, cell)
            if cell not in places:
                raise DataError(
                    f"column {name!r} of {self.path} holds {cell[:40]!r} in line {self.lines[row]}, which the model "
                    f"was not trained with. It knows: {listed(tuple(values))}. Try: remove the row, or train again"
                )
            result[row, places[cell]] = 1
        return result

    def _number(self, name: str, row: int, cell: str) -> float:
        number = as_number(cell)
        if number is not None and math.isfinite(number):
            return number
        self.check_present(name, row, cell)
        where = f"column {name!r} of {self.path} is not a number in line {self.lines[row]}: {cell[:40]!r}"
        if number is not None:
            raise DataError(f"{where}. Try: remove the row")
        raise DataError(
            f"{where}. Try: --drop {_quoted(name)} to leave the column out, --one-hot {_quoted(name)} for one input "
            "per value, or numbers instead of words"
        )

    def check_present(self, name: str, row: int, cell: str) -> None:
        if cell.strip().lower() in _MISSING:
            shown = f" ({cell.strip()!r})" if cell.strip() else ""
            raise DataError(
                f"{self.path} has no value in line {self.lines[row]}, column {name!r}{shown}. "
                f"Try: fill it in, remove the row, or --drop {_quoted(name)}"
            )


def _quoted(name: str) -> str:
    return f"'{name}'" if " " in name else name


def as_number(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None  # Python takes 1_000; other programs do not.
    except ValueError:
        return None


def read_table(path: Path) -> Table:
    """The cells of a CSV file. Fields end with a comma, or with a semicolon or tab if the header has no comma."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            ends = next((c for c in (",", "\t", ";") if c in header), ",")
            reader = csv.reader(file, delimiter=ends, strict=True)
            read = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader if row]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as text: {error}. Try: save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}. Try: a header row, then one row per sample") from error
    if len(read) < 2:
        raise DataError(f"{path} has no samples. Try: a header row, then one row per sample")
    names = read[0][1]
    if all(as_number(name) is not None for name in names):
        raise DataError(f"the first row of {path} holds numbers. Try: a header row with the names of the columns")
    twice = [name for i, name in enumerate(names) if name in names[:i] or not name]
    if twice:
        what = f"twice a column {twice[0]!r}" if twice[0] else "a column without a name"
        raise DataError(f"the header of {path} has {what}. Try: another name for each column")
    for line, row in read[1:]:
        if len(row) != len(names):
            raise DataError(
                f"line {line} of {path} has {len(row)} fields; the header has {len(names)}. Try: quotes around commas"
            )
    return Table(path, names, tuple(row for _, row in read[1:]), tuple(line for line, _ in read[1:]))


def labels_of(
    content: Table, label: str, regression: bool | None, like: DataFacts | None
) -> tuple[Array, tuple[str, ...], list[str]]:
    """The label column: numbers of classes with their names, or float32 [n, 1] without names; and notes."""
    cells = content.column(label)
    for row, cell in enumerate(cells):
        content.check_present(label, row, cell)
    numbers = [as_number(cell) for cell in cells]
    pairs = list(zip(numbers, cells, strict=True))
    whole = all(n is not None and n.is_integer() and ("." not in c or regression is False) for n, c in pairs)
    values = {int(n) for n in numbers if n is not None} if whole else set()
    many = regression is None and len(values) > MOST_CLASSES
    if all(n is not None for n in numbers) and (not whole or many or regression):
        target = content.numbers([label]).astype(np.float32)
        return target, (), [f"{content.path}: column {label!r} holds numbers, so it is a regression"]
    own = [str(v) for v in sorted(values)] if whole else sorted(set(cells))
    names = [str(int(n)) if whole and n is not None else cell for n, cell in pairs]
    classes, order, notes = class_numbers(str(content.path), own, like)
    places = {name: order[i] for i, name in enumerate(own)}
    notes.insert(0, f"{content.path}: label {label!r}, classes {listed(classes)}")
    if whole and own != [str(i) for i in range(len(own))]:
        notes.append(f"{content.path}: the labels {listed(own)} became the classes 0 to {len(own) - 1}")
    y: Array = np.array([places[name] for name in names], np.int64)
    if regression:  # Two classes as 0 and 1, for a binary cross entropy.
        y = y.astype(np.float32)[:, None]
    return y, tuple(classes), notes


def table(
    path: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    label: str | None = None,
    drop: Sequence[str] = (),
    one_hot: Sequence[str] = (),
    regression: bool | None = None,
    normalise: bool | Normalise = False,
    like: DataFacts | None = None,
) -> DataSet:
    """A CSV file with a header row. `label` is the column to predict, by default the last; `drop` are unused columns;
    `one_hot` are columns of text, with one input (0 or 1) per value.

    Text labels and whole numbers are classes. Labels with a decimal point are numbers [n, 1], for a regression.
    `regression` says whether the model takes float labels, if that is known.
    """
    path = Path(path)
    content = read_table(path)
    for name in drop:
        content.check(name, " to drop")
    kept = tuple(name for name in content.names if name not in drop)
    before = like.label if like is not None and like.kind == "table" and like.label in kept else ""
    label = label or before or (kept[-1] if kept else "")
    content.check(label, " for the labels")
    features, notes = chosen_columns(content, tuple(n for n in kept if n != label), like)
    notes += [f"{path}: dropped {listed(tuple(drop))}"] if drop else []
    y, classes, told = labels_of(content, label, regression, like)
    values, told_values = one_hot_values(content, features, one_hot, like)
    x = content.numbers(features, values)
    split = stratified(y, test, SPLIT) if classes else random_split(len(y), test, SPLIT)
    facts = DataFacts("table", classes, features=features, label=label, one_hot=values)
    told = [*told, *notes, *told_values]
    if normalise is True:
        normalise, constant = Normalise.of([x[split[0]]], str(path))
        told += filter(None, (constant,))
    if isinstance(normalise, Normalise):
        normalise.check(x.shape, x.dtype, str(path))
        facts = facts.normalised(normalise)
        x = (x - np.array(normalise.mean)) / np.array(normalise.std)  # In float64, before anything is rounded.
        told.append(f"{path}: normalised with {normalise}")
    large = [name for i, name in enumerate(input_names(features, values)) if (abs(x[:, i]) > 2**24).any()]
    if large:
        told.append(f"{path}: numbers above 16,777,216 are rounded to float32 in {listed(large)}. Try: --normalise")
    options: dict[str, Any] = {"batch_size": batch_size}
    rows = x.astype(np.float32)
    data = ArrayData(rows[split[0]], y[split[0]], seed=seed, name=f"{path} (training)", **options)
    few = no_test_set(len(split[1]))
    told += filter(None, (few,))
    options |= {"shuffle": False, "keep_short": True, "name": f"{path} (test)"}
    held = None if few else ArrayData(rows[split[1]], y[split[1]], **options)
    return DataSet(str(path), data, held, facts, tuple(told))


def chosen_columns(
    content: Table, columns: tuple[str, ...], like: DataFacts | None
) -> tuple[tuple[str, ...], list[str]]:
    """The input columns in the order of the training, and a note about columns that the model does not take."""
    if like is None or not like.features:
        if not columns:
            raise DataError(f"{content.path} has only the label column. Try: at least one more column")
        return columns, []
    for name in like.features:
        content.check(name, ", which the model was trained with")
    unused = [name for name in columns if name not in like.features]
    return like.features, [f"{content.path}: columns that the model does not take: {listed(unused)}"] if unused else []


def one_hot_values(
    content: Table, features: Sequence[str], names: Sequence[str], like: DataFacts | None
) -> tuple[OneHot, list[str]]:
    """The values of each column of text, those of the training with `like`, and notes about the inputs they become."""
    for name in names:
        content.check(name, " for --one-hot")
        if name not in features:
            raise DataError(
                f"column {name!r} of {content.path} is no input, so --one-hot does not apply. Try: without --one-hot"
            )
    if like is not None and like.features:
        other = [name for name in names if name not in {known[0] for known in like.one_hot}]
        if other:
            raise DataError(
                f"the model was not trained with --one-hot {_quoted(other[0])}. Try: without it, or train again"
            )
        return like.one_hot, []
    chosen = tuple((name, *sorted(set(content.column(name)))) for name in features if name in names)
    return chosen, [
        f"{content.path}: column {name!r} became {len(values)} inputs of 0 or 1: {listed(values)}"
        for name, *values in chosen
    ]


def input_names(features: Sequence[str], one_hot: OneHot) -> list[str]:
    """One name per input of the model: `colour=red` for a value of a column of text."""
    values = {name: words for name, *words in one_hot}
    return [
        text
        for name in features
        for text in ([f"{name}={word}" for word in values[name]] if name in values else [name])
    ]
