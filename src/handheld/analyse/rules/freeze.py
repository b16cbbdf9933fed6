"""First layers that need not be trained: their backward pass and their updates disappear."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from handheld.analyse.rules.base import MODEL, STEP, Advice, Change, Gain, one_graph

if TYPE_CHECKING:
    from handheld.analyse.ops import OpTime
    from handheld.analyse.run import Run

LEAST = 0.15  # share of a step that freezing must save
HALF = 0.5  # share of the forward pass up to which layers are frozen


def freeze(run: Run) -> Advice | None:
    step_ms, parts = run.step_ms()[0], run.parts()
    rows = sorted((row for row in run.ops() if row.graph == run.graph and row.mean_ms), key=lambda row: row.position)
    if not step_ms or parts is None or not one_graph(run) or not rows:
        return None
    layers = _first(rows)
    inside = _removed(rows, layers)
    if not layers or not any(row.phase == "backward" for row in inside):
        return None
    scale = min(step_ms / parts.ms, 1.0)
    saved = scale * sum(row.mean_ms or 0.0 for row in inside)
    if saved < LEAST * step_ms:
        return None
    shown = layers[0] if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
    return Advice(
        rule="freeze",
        seen=f"the backward pass and the updates of {shown} take {saved:.3g} of {step_ms:.3g} ms",
        costs_ms=saved,
        change=f"for fine-tuning: requires_grad_(False) for {shown}, which then keep what they have learned",
        gain=Gain(STEP, step_ms, step_ms - saved, step_ms - 1.1 * saved, step_ms - 0.85 * saved),
        command=f"handheld advise {shlex.quote(str(run.path))} --try --rule freeze",
        effect=MODEL,
        to=Change(freeze=tuple(layers)),
        evidence={"layers": list(layers)},
    )


def _removed(rows: list[OpTime], layers: list[str]) -> list[OpTime]:
    """The ops that disappear: updates of the layers, and their backward ops behind which no other layer waits for its
    gradient. An embedding that the last layer shares, or a parameter of the model itself, still needs all of it."""
    backward = [row for row in rows if row.phase == "backward"]
    last = max((row.position for row in backward if not _within(row.path, layers)), default=-1)
    updates = [row for row in rows if row.phase == "update" and _within(row.path, layers)]
    return [row for row in backward if row.position > last] + updates


def _first(rows: list[OpTime]) -> list[str]:
    """The first layers whose forward passes take about half of the whole. Layers with ops in the rest stay."""
    forward = [row for row in rows if row.phase == "forward"]
    whole, taken = sum(row.mean_ms or 0.0 for row in forward), 0.0
    first: dict[str, None] = {}
    later: set[str] = set()
    for row in forward:
        taken += row.mean_ms or 0.0
        if taken <= HALF * whole:
            first[row.path] = None
        else:
            later.add(row.path)
    return [path for path in first if path and not any(_same(path, other) for other in later)]


def _same(path: str, other: str) -> bool:
    """Whether one of two module paths is inside the other, or both are the same."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def _within(path: str, layers: list[str]) -> bool:
    return any(path == layer or path.startswith(f"{layer}.") for layer in layers)
