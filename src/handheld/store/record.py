"""Records: rows and results with named, typed fields.

A record is a frozen dataclass. `to_json` returns what `--json` prints: plain dictionaries, lists, numbers and text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Record:
    """The base class of all rows and results. A field is None if it was not measured or is not known."""

    #: Fields that the JSON form leaves out if they are None.
    optional: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> dict[str, object]:
        values = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None or name not in self.optional}

    # Rows were dictionaries in older versions; `row["ms"]` in users' code still works.
    # The return type is `object`, so that a type checker points to the attribute.
    def __getitem__(self, name: str) -> object:
        return self.to_json()[name]


def plain(value: object) -> object:
    """The value in its JSON form: records become dictionaries, tuples become lists."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
