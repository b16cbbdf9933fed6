"""Aligns the ops of two runs by their place in the graph.

Ops match if graph, module path, phase, kind and PyTorch op are equal; several such ops match in their order, those with
the same signature (the same shapes) first. Batch sizes in names of graphs (`train@16`) do not count. What has no
partner is in only one of the runs: it was renamed, fused with another op, or belongs to another model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from handheld.store.rows import OpRow


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of ops, and the ops that only one run has, each in the order of its run."""

    pairs: tuple[tuple[OpRow, OpRow], ...]
    only_a: tuple[OpRow, ...]
    only_b: tuple[OpRow, ...]


def align(a: Sequence[OpRow], b: Sequence[OpRow]) -> Alignment:
    pairs: list[tuple[OpRow, OpRow]] = []
    left, right = list(a), list(b)
    for key in (_same_work, _same_place):
        found = _matched(left, right, key)
        pairs += found
        taken_a, taken_b = {x.id for x, _ in found}, {y.id for _, y in found}
        left = [op for op in left if op.id not in taken_a]
        right = [op for op in right if op.id not in taken_b]
    return Alignment(tuple(sorted(pairs, key=lambda pair: pair[0].id)), tuple(left), tuple(right))


def _same_place(op: OpRow) -> Hashable:
    return op.graph.partition("@")[0], op.phase, op.path, op.op, op.source


def _same_work(op: OpRow) -> Hashable:
    return _same_place(op), op.signature


def _matched(a: Sequence[OpRow], b: Sequence[OpRow], key: Callable[[OpRow], Hashable]) -> list[tuple[OpRow, OpRow]]:
    waiting: dict[Hashable, list[OpRow]] = {}
    for op in b:
        waiting.setdefault(key(op), []).append(op)
    pairs = []
    for op in a:
        partners = waiting.get(key(op))
        if partners:
            pairs.append((op, partners.pop(0)))
    return pairs
