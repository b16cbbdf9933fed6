"""A training set and a test set, and the facts about them that a step file keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from handheld.data.augment import Normalise
from handheld.data.batches import Data
from handheld.errors import StepFileError
from handheld.step import Step

#: The seed of every split, so that the test set does not depend on the seed of the training.
SPLIT = 0
#: The key of the facts in the meta of a step.
META = "data"


@dataclass(frozen=True)
class DataFacts:
    """How data becomes the input of the model. A step file keeps it, so that later data is prepared in the same way.

    `kind` is images, table, arrays, text or digits. A field that does not apply is empty.
    """

    kind: str = ""
    #: The names of the labels or tokens, in the order of their numbers.
    classes: tuple[str, ...] = ()
    #: Height and width in pixels.
    image_size: tuple[int, ...] = ()
    gray: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    #: The columns of a table that are the input, and the column with the labels.
    features: tuple[str, ...] = ()
    label: str = ""
    #: For each column of text: its name and its values, which are one input each (0 or 1).
    one_hot: tuple[tuple[str, ...], ...] = ()
    #: Text: byte or char, and the tokens per window.
    tokens: str = ""
    length: int = 0

    @property
    def normalise(self) -> Normalise | None:
        return Normalise(self.mean, self.std) if self.mean else None

    def normalised(self, by: Normalise) -> DataFacts:
        return replace(self, mean=by.mean, std=by.std)

    def to_meta(self) -> dict[str, object]:
        """The fields that apply, as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    @staticmethod
    def of(meta: Mapping[str, Any]) -> DataFacts | None:
        """The facts that a step was saved with; None in a file without them. Fields of later versions are ignored."""
        stored = meta.get(META)
        if stored is None:
            return None
        if not isinstance(stored, dict):
            raise StepFileError(f"malformed step file: its facts about data are a {type(stored).__name__}")
        given = {}
        for known in fields(DataFacts):
            if known.name in stored:
                value = stored[known.name]
                if not _fits(value, known.name, known.default):
                    raise StepFileError(f"malformed step file: {known.name} of its data is {value!r:.60}")
                given[known.name] = value
        return DataFacts(**given)


_NUMBERS = ("mean", "std")
_WHOLE = ("image_size",)


def _fits(value: object, name: str, default: object) -> bool:
    if not isinstance(default, tuple):
        return type(value) is type(default)
    if name == "one_hot":
        return isinstance(value, tuple) and all(_fits(v, "", ()) and len(v) > 1 for v in value)
    kind = (int, float) if name in _NUMBERS else int if name in _WHOLE else str
    return isinstance(value, tuple) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


@dataclass(frozen=True)
class DataSet:
    """A training set and a test set.

    `notes` tell the user what was done to the data (resized, converted, skipped) and why there is no test set.
    """

    name: str
    train: Data
    test: Data | None
    facts: DataFacts = field(default_factory=DataFacts)
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels or tokens."""
        return self.facts.classes

    def remember(self, step: Step) -> None:
        """Keep the facts in the step, so that its step file knows class names, image size and normalisation."""
        step.meta[META] = self.facts.to_meta()


def listed(names: tuple[str, ...] | list[str], most: int = 12) -> str:
    """Names for a message, the first ones if there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def no_test_set(held: int) -> str:
    """Why there is no test set, or "". A test set may be smaller than a batch."""
    return "" if held else "no test set: no samples are held out. Try: more samples, or data with a test set of its own"


def class_numbers(name: str, own: list[str], like: DataFacts | None) -> tuple[list[str], list[int], list[str]]:
    """The classes, the number of each of the data's own classes, and notes about differences from an earlier file."""
    known = list(like.classes) if like is not None else []
    if not known or own == known:
        return own, list(range(len(own))), []
    missing = [c for c in known if c not in own]
    if set(own) <= set(known):
        return known, [known.index(c) for c in own], [f"{name} has no samples of the model's classes {listed(missing)}"]
    return (
        own,
        list(range(len(own))),
        [
            f"the classes of {name} are not those of the model ({listed(known)}): they replace them, in the order "
            f"{listed(own)}"
        ],
    )
