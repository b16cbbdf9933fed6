"""Records: rows and results with named, typed fields.

A record is a frozen dataclass. `to_json` is what `--json` prints of it: plain dictionaries, lists,
numbers and text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Record:
    """The base of all rows and results. A field that is None was not measured or is not known."""

    #: fields that JSON has only where they are known
    optional: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> dict[str, object]:
        found = {one.name: plain(getattr(self, one.name)) for one in fields(self)}
        return {name: value for name, value in found.items() if value is not None or name not in self.optional}

    # Rows were dictionaries at first, and `row["ms"]` in the code of users still works.
    # The type is `object`, so that a type checker points to the attribute.
    def __getitem__(self, name: str) -> object:
        return self.to_json()[name]


def plain(value: object) -> object:
    """A value as JSON has it: records as dictionaries, tuples as lists."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value
