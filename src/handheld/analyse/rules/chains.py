"""Memory-bound ops that pass a tensor on: it is written and read again, although nobody else reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.roofline import Ceiling
from handheld.analyse.rules.base import MODEL, STEP, Advice, Gain
from handheld.units import count, size

if TYPE_CHECKING:
    from handheld.analyse.run import Run

LEAST = 0.05  # share of a step that the passed tensors must cost


def chains(run: Run) -> Advice | None:
    step_ms, bound = run.step_ms()[0], run.bound()
    ceiling = Ceiling.of(run.meta.get("ceilings"))
    limited = {row.id: row for row in bound.ops if row.limit == "memory"}
    links = [link for link in run.meta.get("chains") or () if link[0] in limited and link[1] in limited]
    if not step_ms or ceiling is None or not links or not bound.step_ms:
        return None
    scale = min(step_ms / bound.step_ms, 1.0)
    ids = {op for link in links for op in link[:2]}
    costs = scale * sum(_cost(limited[a].ms, limited[b].ms, nbytes, rows) for a, b, nbytes, *rows in links)
    least = sum(2e3 * nbytes / ceiling.bandwidth(nbytes) for _, _, nbytes, *_ in links)
    if costs < LEAST * step_ms:
        return None
    rows = {row.id: row for row in run.op_rows}
    first, second, nbytes, *_ = max(links, key=lambda link: link[2])
    whole = sum(link[2] for link in links)
    return Advice(
        rule="chains",
        seen=f"{count(len(ids), 'memory-bound op')} pass {size(whole)} to one another, which nothing else reads; most: "
        f"{size(nbytes)} from {rows[first].title} to {rows[second].title}",
        costs_ms=costs,
        change="fewer passes over the same tensor: join what the model computes there (an activation that is one "
        "function, a norm without a following scale), or leave it out. Handheld has fused what one kernel can compute",
        gain=Gain(STEP, step_ms, step_ms - costs / 2, step_ms - costs, step_ms - min(least, costs) * 0.25),
        command="change the model, then: handheld profile MODEL",
        effect=MODEL,
        why_not="only the model's own code can change what is computed",
    )


def _cost(first_ms: float, second_ms: float, nbytes: int, moved: list[int]) -> float:
    """The time of two ops that goes to the tensor they pass on, by its share of their bytes."""
    if len(moved) < 2 or not all(moved):
        return 0.0
    return first_ms * min(nbytes / moved[0], 1.0) + second_ms * min(nbytes / moved[1], 1.0)
