"""What the page of a comparison shows, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import handheld
from handheld.analyse.compare import Comparison, ModuleChange, OpChange, Pair, Timing
from handheld.report.pack import columns, rounded
from handheld.store.record import Record


def compare_payload(comparison: Comparison) -> dict[str, object]:
    """The payload of `document`: the pairs of a comparison."""
    names = [Path(path).stem for path in comparison.runs]
    return {
        "kind": "compare",
        "title": " and ".join(names) if len(names) == 2 else f"{names[0]} and {len(names) - 1} more runs",
        "facts": _facts(comparison),
        "made": f"Made by Handheld {handheld.__version__}.",
        "pairs": [_pair(pair) for pair in comparison.pairs],
    }


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    """The names of the runs, without their folders: a page may be given away."""
    first = comparison.pairs[0]
    if len(comparison.pairs) > 1:
        return [("base (a)", Path(first.a).name), ("device", first.device_a)]
    return [("a", Path(first.a).name), ("b", Path(first.b).name), *_devices(first)]


def _devices(pair: Pair) -> list[tuple[str, str]]:
    if pair.device_a == pair.device_b:
        return [("device", pair.device_a)]
    return [("device of a", pair.device_a), ("device of b", pair.device_b)]


def _pair(pair: Pair) -> dict[str, object]:
    return {
        "name_a": Path(pair.a).name,
        "name_b": Path(pair.b).name,
        "batches": [pair.batch_a, pair.batch_b] if pair.per_sample else None,
        "step": _timing(pair.step),
        "sample": _timing(pair.sample),
        "device": _timing(pair.device),
        "few": pair.few,
        "common": rounded(pair.common),
        "ops": columns({**_table(pair.ops, OpChange), "title": [op.title for op in pair.ops]}, ("phase", "verdict")),
        "modules": columns(_table(pair.modules, ModuleChange), ("verdict",)),
        "only_a": [{**op.to_json(), "title": op.title} for op in pair.only_a],
        "only_b": [{**op.to_json(), "title": op.title} for op in pair.only_b],
        "memory": [row.to_json() for row in pair.memory],
        "energy": [row.to_json() for row in pair.energy],
        "joules": [row.to_json() for row in pair.joules],
        "differences": list(pair.differences),
        "warnings": list(pair.warnings),
    }


def _timing(timing: Timing | None) -> dict[str, object] | None:
    return None if timing is None else timing.to_json()


def _table(rows: Sequence[Record], kind: type[Record]) -> dict[str, list[object]]:
    return {field.name: [getattr(row, field.name) for row in rows] for field in fields(kind)}
