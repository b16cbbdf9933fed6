"""Text files: windows of bytes or characters."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.data.batches import Array, Indexed, Indices, checksum, random_split
from handheld.data.dataset import SPLIT, DataFacts, DataSet, no_test_set
from handheld.errors import DataError

BYTES = tuple(chr(i) if 32 <= i < 127 else f"\\x{i:02x}" for i in range(256))


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
        keep_short: bool = False,
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
            keep_short=keep_short,
            name=f"{name} in windows of {length}",
        )

    @cached_property
    def content(self) -> int:
        return checksum(self.tokens)

    def take(self, indices: Indices, random: np.random.Generator) -> tuple[Array, ...]:
        rows = self.tokens[indices[:, None] * self.length + np.arange(self.length + 1)]
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def text(
    path: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    length: int = 64,
    tokens: str = "byte",
    like: DataFacts | None = None,
) -> DataSet:
    """A text as bytes (256 tokens) or as characters (one token per distinct character). The end is the test set.

    With `like`, the tokens are those of an earlier text.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read as text: {error}") from error
    return windows(str(path), raw, batch_size, seed, test, length, tokens, like)


def pydoc_text() -> str:
    """The topics of Python's manual that Python ships for `help()`: about 500 kB of English."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:  # Some systems leave it out.
        raise DataError("this Python has no text of its manual (pydoc_data). Try: a .txt file") from error
    return "\n".join(topics[name] for name in sorted(topics))


def encode(path: str, raw: bytes, tokens: str, known: tuple[str, ...] = ()) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The tokens of a text and their names. `known` are the characters of an earlier text, in their order."""
    if tokens == "byte":
        return np.frombuffer(raw, np.uint8).astype(np.int64), list(BYTES)
    if tokens != "char":
        raise DataError(f"there are no tokens {tokens!r}. Try: byte or char")
    try:
        content = raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as text: {error}. Try: tokens as bytes") from error
    classes = list(known) or sorted(set(content))
    places = {character: i for i, character in enumerate(classes)}
    unknown = sorted(set(content) - set(places))
    if unknown:
        raise DataError(
            f"{path} has characters that the model does not know: {' '.join(map(repr, unknown[:8]))}. "
            "Try: remove them from the text"
        )
    return np.array([places[character] for character in content], np.int64), classes


def windows(
    path: str, raw: bytes, batch_size: int, seed: int, test: float, length: int, tokens: str, like: DataFacts | None
) -> DataSet:
    """The tokens of a text, split into a training and a test set of windows."""
    if like is not None and like.kind == "text":
        tokens = like.tokens
    row, classes = encode(path, raw, tokens, like.classes if like is not None and like.tokens == "char" else ())
    random_split(1, test, SPLIT)  # Checks that the share is possible.
    cut = len(row) - round(len(row) * test)
    train = TextData(row[:cut], length=length, batch_size=batch_size, seed=seed, name=f"{path} (training)")
    note = no_test_set(max(len(row) - cut - 1, 0) // length)
    options: dict[str, Any] = {"shuffle": False, "keep_short": True, "name": f"{path} (test)"}
    held = None if note else TextData(row[cut:], length=length, batch_size=batch_size, **options)
    unit = "bytes" if tokens == "byte" else "characters"
    facts = DataFacts("text", tuple(classes), tokens=tokens, length=length)
    return DataSet(path, train, held, facts, tuple(filter(None, (f"{path}: windows of {length} {unit}", note))))
