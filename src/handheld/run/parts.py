"""Steps in micro-batches: a batch runs in parts, and one update uses the gradients of all of them.

    batch of 64 ──► train@16.part.accumulate, three times ──► train@16.part: the update

Each part has a share of the batch (slot `handheld.weight`): its samples, or its labels that the loss does not ignore,
divided by those of the batch. So the update is that of the whole batch, except for rounding, also if the last part is
smaller. For a loss that is a sum over samples, every share is 1. limits/parts.py decides about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.errors import BatchError, HandheldError
from handheld.graph.graph import Graph
from handheld.passes.scale import WEIGHT
from handheld.run.batch import in_order, input_shapes

if TYPE_CHECKING:
    from handheld.plan.plan import Plan
    from handheld.run.trainer import Loss, Trainer


@dataclass(frozen=True)
class Parts:
    """How batches are divided: parts of `size` samples, for batches of `batch`. `loss` is mean or sum."""

    batch: int
    size: int
    loss: str

    @property
    def count(self) -> int:
        return -(-self.batch // self.size)

    @property
    def graph(self) -> str:
        """The graph of the last part, which updates the parameters. The others have `.accumulate` added."""
        return part_graph(self.size)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parts_of(plan: Plan) -> Parts | None:
    """How a plan divides batches; None if it does not."""
    found: Mapping[str, Any] | None = plan.options.get("parts")
    return Parts(found["batch"], found["size"], found["loss"]) if found else None


def part_graph(size: int) -> str:
    return f"train@{size}.part"


def step_in_parts(trainer: Trainer, parts: Parts, batch: tuple[Any, ...]) -> Loss:
    """A training step on a batch of any number of samples."""
    from handheld.run.trainer import Loss

    graph = trainer.plan.graphs[parts.graph].graph
    values = [np.asarray(v.detach().cpu() if hasattr(v, "detach") else v) for v in in_order(graph, batch)]
    batched = [shape[:1] == (parts.size,) for shape in input_shapes(graph)]
    counts = {len(v) if v.ndim else 0 for v, cut in zip(values, batched, strict=True) if cut}
    if len(counts) != 1 or not min(counts):
        raise BatchError(f"the tensors of the batch have {sorted(counts)} samples; all must have the same, at least 1")
    problem = add_parts(trainer, parts, counts)
    if problem:
        raise BatchError(f"a batch of {min(counts)} samples cannot be divided into parts of {parts.size}: {problem}")
    pieces = [
        [v[start : start + parts.size] if cut else v for v, cut in zip(values, batched, strict=True)]
        for start in range(0, min(counts), parts.size)
    ]
    first = batched.index(True)
    shares = _shares(graph, pieces, first, parts.loss)
    losses = []
    for number, (piece, share) in enumerate(zip(pieces, shares, strict=True), 1):
        trainer.session.write_slot(WEIGHT, np.array(share, np.float32))
        name = part_graph(len(piece[first]))
        losses.append(trainer.run(name if number == len(pieces) else f"{name}.accumulate", *piece))
    return Loss(_Sum(losses, shares))


def _shares(graph: Graph, pieces: Sequence[Sequence[np.ndarray]], first: int, loss: str) -> list[float]:
    """The share of the batch that each part has."""
    if loss == "sum":
        return [1.0] * len(pieces)
    ignored = [k for k, given in enumerate(graph.inputs) if _ignores(graph, given.name)]
    counts = [float(len(piece[first])) for piece in pieces]
    if len(ignored) == 1:  # A mean over labels leaves out those that it ignores.
        label = graph.ranges[graph.inputs[ignored[0]].name].ignore
        known = [float((piece[ignored[0]] != label).sum()) for piece in pieces]
        counts = known if sum(known) else counts
    return [count / sum(counts) for count in counts]


def _ignores(graph: Graph, name: str) -> bool:
    return name in graph.ranges and graph.ranges[name].ignore is not None


def add_parts(trainer: Trainer, parts: Parts, sizes: Iterable[int]) -> str:
    """Adds the graphs for the last parts of batches of these sizes. Returns "", or why one cannot be added."""
    rests = {size % parts.size for size in sizes} | {parts.size}
    missing = [rest for rest in sorted(rests) if rest and part_graph(rest) not in trainer.plan.graphs]
    if not missing:
        return ""
    step = trainer.plan.step
    try:
        if step.code is None:
            raise BatchError("a step file has no code. Try: batches of one size")
        added = [step.code.add_part(step, rest) for rest in missing]
        both = [name for last in added for name in (last, f"{last}.accumulate")]
        trainer.reopen([*trainer.plan.graphs, *both])
    except HandheldError as error:
        return str(error)
    return ""


class _Sum:
    """The loss of a batch from those of its parts."""

    def __init__(self, losses: Sequence[Loss], shares: Sequence[float]) -> None:
        self._losses, self._shares = losses, shares

    def read(self) -> np.ndarray:
        # The loss of a part without labels is 0 / 0, and counts as nothing.
        known = [float(loss) * share for loss, share in zip(self._losses, self._shares, strict=True) if share]
        return np.array(sum(known), np.float32)
