"""Records: rows and results with named, typed fields.

A record is a frozen dataclass. `to_json` returns what `--json` prints: plain dictionaries, lists, numbers and text.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
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

    # Rows were dictionaries in older versions; `row["ms"]`, `"ms" in row` and `dict(row)` in users' code still work.
    # The return type is `object`, so that a type checker points to the attribute.
    def __getitem__(self, name: str) -> object:
        return self.to_json()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.to_json()

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def keys(self) -> KeysView[str]:
        return self.to_json().keys()

    def get(self, name: str, default: object = None) -> object:
        return self.to_json().get(name, default)


def plain(value: object) -> object:
    """The value in its JSON form: records become dictionaries, tuples become lists."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
