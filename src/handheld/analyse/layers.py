"""Time, bytes and joules per layer: the module tree, opened where the time is.

The tree starts closed. The layer that takes the longest is opened again and again, as long as it is worth it and the
table stays short. So a small model shows every layer, and a large one shows its stages and the layers that matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from handheld.analyse.ops import OpTime
from handheld.store.record import Record

if TYPE_CHECKING:
    from handheld.analyse.run import Run

OPEN_SHARE = 0.1  # A layer that takes at least this share of all ops is opened, if there is room.
MOST_SHARE = 0.5  # A layer that takes at least this share is opened even if there is no room for all layers inside it.
MODEL = "(model)"  # ops outside of all modules


@dataclass(frozen=True, slots=True)
class Layer(Record):
    """A module and all modules inside it. `own` is true if modules inside it have their own rows."""

    optional: ClassVar[frozenset[str]] = frozenset({"joules"})

    path: str
    own: bool
    ms: float
    share: float  # of the whole step, as in the table of its parts
    forward_ms: float
    backward_ms: float
    update_ms: float
    bytes: int
    flops: int
    launches: int
    ops: int
    joules: float | None = None


def layers(run: Run, graph: str | None = None, most: int = 10) -> list[Layer]:
    """About `most` layers of one graph, the longest first; more if one layer holds most of the time.

    Every timed op belongs to exactly one of them.
    """
    rows = [row for row in run.ops() if row.mean_ms is not None and row.graph == (graph or run.graph)]
    total = sum(row.mean_ms or 0.0 for row in rows) or 1.0
    groups: dict[str, list[OpTime]] = {"": rows}
    closed: set[str] = set()  # cannot be opened, or was opened and holds only its own ops now
    while waiting := [path for path in groups if path not in closed]:
        path = max(waiting, key=lambda path: _ms(groups[path]))
        closed.add(path)
        inside = _open(path, groups[path])
        room = len(groups) - 1 + len(inside) <= most
        least = OPEN_SHARE if room else MOST_SHARE
        if set(inside) != {path} and (_ms(groups[path]) >= least * total or not path):
            del groups[path]
            groups |= inside
    joules = _joules(run)
    parts = run.parts(graph or run.graph)
    step_ms = parts.ms if parts else total
    made = [_layer(path, group, _inside(path, groups), step_ms, joules) for path, group in groups.items()]
    return sorted(made, key=lambda layer: -layer.ms)


def _ms(rows: Sequence[OpTime]) -> float:
    return sum(row.mean_ms or 0.0 for row in rows)


def _open(path: str, rows: Sequence[OpTime]) -> dict[str, list[OpTime]]:
    """The modules directly inside a module, and the module itself for its own ops."""
    depth = len(path.split(".")) if path else 0
    inside: dict[str, list[OpTime]] = {}
    for row in rows:
        inside.setdefault(".".join(row.path.split(".")[: depth + 1]) if row.path else MODEL, []).append(row)
    return inside


def _inside(path: str, groups: Mapping[str, object]) -> bool:
    """Whether modules inside this one have their own rows."""
    return any(other.startswith(f"{path}.") for other in groups)


def _layer(path: str, rows: Sequence[OpTime], own: bool, step_ms: float, joules: Mapping[int, float]) -> Layer:
    phases = {
        phase: sum(row.mean_ms or 0.0 for row in rows if row.phase == phase)
        for phase in ("forward", "backward", "update")
    }
    return Layer(
        path=path or MODEL,
        own=own,
        ms=_ms(rows),
        share=_ms(rows) / step_ms,
        forward_ms=phases["forward"],
        backward_ms=phases["backward"],
        update_ms=phases["update"],
        bytes=sum(row.bytes for row in rows),
        flops=sum(row.flops for row in rows),
        launches=sum(row.launches for row in rows),
        ops=len(rows),
        joules=sum(joules[row.id] for row in rows) if joules and all(row.id in joules for row in rows) else None,
    )


def _joules(run: Run) -> dict[int, float]:
    """Joules per op on all rails that are not part of another one. Empty if there are none."""
    rows = run.joules()
    parts = {row.rail for row in run.step_joules() if row.part_of} if rows else set()
    sums: dict[int, float] = {}
    for row in rows:
        if row.rail not in parts:
            sums[row.id] = sums.get(row.id, 0.0) + row.joules
    return sums
