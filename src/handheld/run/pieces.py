"""Runs any number of samples through graphs that have one batch size each.

Samples are cut into pieces. A whole batch runs as it is. The rest runs in a graph of its own size: one that the step
has, or one that the code of the step adds. Without the code (a step file), the rest is filled up to a whole batch.
The outputs are cut to the real samples again. That is right only if the samples of a batch do not influence each
other, so the first such piece runs with two different fillings that must give the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.errors import BatchError, HandheldError
from handheld.graph.graph import Graph
from handheld.run.batch import choose_graph, fitting_graph, in_order, input_shapes
from handheld.run.sizes import rows, samples_in, sizes_of

if TYPE_CHECKING:
    from handheld.run.trainer import Loss, Trainer

Array = np.ndarray


@dataclass(frozen=True)
class Result:
    """The loss and the outputs of some samples. `covered` of them count in the loss; `why` says why not all do."""

    loss: Loss | float
    outputs: dict[str, Array]
    samples: int
    covered: int
    why: str = ""
    #: Says that an output includes the filling, because it does not have one row per sample.
    uncut: str = ""


def run_pieces(trainer: Trainer, kind: str, batch: tuple[Any, ...], strict: bool = True) -> Result:
    """Runs the graphs of a kind (evaluate, predict) over all samples of the batch.

    If samples are filled up, an output that does not have one row per sample is an error; without `strict`, it
    stays as it is, and `uncut` says so.
    """
    graphs = trainer.plan.graphs
    name = fitting_graph(graphs, kind, batch)
    sizes = sizes_of(graphs, kind)
    count = None if name or not sizes else samples_in(graphs[next(iter(sizes.values()))].graph, batch)
    if count is None:  # It fits exactly, or running it raises the error that says what does not fit.
        loss = trainer.run(name or choose_graph(graphs, kind, batch), *batch)
        own = rows(trainer.plan.graphs[trainer.last].graph)
        return Result(loss, trainer.outputs(), own, own)
    if not count:
        raise BatchError(f"the batch has no samples. Try: at least one sample for {kind}")
    graph = graphs[next(iter(sizes.values()))].graph
    values = [np.asarray(v.detach().cpu() if hasattr(v, "detach") else v) for v in in_order(graph, batch)]
    batched = [shape[:1] == (rows(graph),) for shape in input_shapes(graph)]
    parts, start = [], 0
    pieces = list(_cut(trainer, kind, count))
    for name, size in pieces:
        graph = trainer.plan.graphs[name].graph
        if len(pieces) > 1 or (strict and size < rows(graph)):
            _check_rows(graph)
        piece = [v[start : start + size] if cut else v for v, cut in zip(values, batched, strict=True)]
        parts.append(_run(trainer, name, piece, batched, size))
        start += size
    return parts[0] if len(parts) == 1 else _joined(parts)


def _cut(trainer: Trainer, kind: str, count: int) -> Iterator[tuple[str, int]]:
    """The graph of each piece and its number of samples, which is less than a batch only if it must be filled up."""
    while count:
        sizes = sizes_of(trainer.plan.graphs, kind)
        size = max(sizes)
        if count < size and not trainer.add_sizes(kind, [count]):
            sizes = sizes_of(trainer.plan.graphs, kind)
            size = count
        elif count < size:
            size = max((s for s in sizes if s <= count), default=min(sizes))
        yield sizes[size], min(size, count)
        count -= min(size, count)


def _run(trainer: Trainer, name: str, piece: list[Array], batched: list[bool], count: int) -> Result:
    graph = trainer.plan.graphs[name].graph
    if count == rows(graph):
        loss = trainer.run(name, *piece)
        return Result(float(loss), trainer.outputs(), count, count)
    return _Filled(trainer, name, piece, batched, count).result()


def _check_rows(graph: Graph) -> None:
    """Raises an error if an output does not have one row per sample."""
    size = rows(graph)
    for shown in graph.outputs:
        if shown.name != "loss" and shown.view.shape[:1] != (size,):
            raise HandheldError(
                f"output {shown.name!r} of graph {graph.name!r} has shape {shown.view.shape}, not one row for each of "
                f"its {size} samples, so the outputs of several batches cannot be joined. "
                f"Try: batches of {size}, one at a time"
            )


def _joined(parts: list[Result]) -> Result:
    outputs = {key: np.concatenate([part.outputs[key] for part in parts]) for key in parts[0].outputs}
    covered = sum(part.covered for part in parts)
    total = sum(float(part.loss) * part.covered for part in parts if part.covered)
    why = next((part.why for part in parts if part.why), "")
    return Result(total / covered if covered else np.nan, outputs, sum(part.samples for part in parts), covered, why)


class _Filled:
    """Samples in a graph for more, filled up with copies of the first sample (or of that sample, changed)."""

    def __init__(self, trainer: Trainer, name: str, piece: list[Array], batched: list[bool], count: int) -> None:
        self.trainer, self.name, self.piece, self.batched, self.count = trainer, name, piece, batched, count
        self.graph = trainer.plan.graphs[name].graph
        self.size = rows(self.graph)
        ignored = [self.graph.ranges.get(given.name) for given in self.graph.inputs]
        #: For each input, the value that the loss ignores, or None.
        self.ignore = [None if range_ is None else range_.ignore for range_ in ignored]

    def result(self) -> Result:
        has_loss = self.graph.outputs and self.graph.outputs[0].name == "loss"
        loss, outputs = self._run(changed=False)
        whole = [key for key, value in outputs.items() if value.shape[:1] != (self.count,)]
        uncut = f"output {whole[0]!r} includes samples that fill up the last batch" if whole else ""
        why = ""
        if has_loss or self.name not in self.trainer.by_sample:
            other_loss, other = self._run(changed=True)
            for key, value in outputs.items():
                if key not in whole and not _close(value, other[key]):
                    raise HandheldError(
                        f"output {key!r} of graph {self.name!r} depends on the other samples of the batch, so "
                        f"{self.count} samples cannot run in a graph for {self.size}. Try: capture the model with "
                        f"a batch of {self.count} too, or handheld package --batch {self.size},{self.count}"
                    )
            self.trainer.by_sample.add(self.name)
            if has_loss:
                loss, why = self._loss(loss, other_loss)
        return Result(loss, outputs, self.count, 0 if why else self.count, why, uncut)

    def _run(self, changed: bool, fill_all: bool = False) -> tuple[float, dict[str, Array]]:
        loss = self.trainer.run(self.name, *self._fill(changed, fill_all))
        outputs = self.trainer.outputs()
        return float(loss), {
            key: value[: self.count] if value.shape[:1] == (self.size,) else value for key, value in outputs.items()
        }

    def _fill(self, changed: bool, fill_all: bool) -> list[Array]:
        filled = []
        for value, batched, ignore in zip(self.piece, self.batched, self.ignore, strict=True):
            if not batched:
                filled.append(value)
                continue
            real = 0 if fill_all else self.count
            row = _other(value[:1]) if changed else value[:1]
            if ignore is not None and not fill_all:
                row = np.full_like(row, ignore)
            filled.append(np.concatenate([value[:real], np.repeat(row, self.size - real, axis=0)]))
        return filled

    def _loss(self, one: float, other: float) -> tuple[float, str]:
        """The loss of the real samples from the losses with two fillings, or why it cannot be known."""
        if any(value is not None for value in self.ignore):
            known = _close(one, other)
        else:
            # If the loss is the mean of one value per sample, the values of the filling can be subtracted.
            added = self.size - self.count
            of_one, of_other = (self._run(changed, fill_all=True)[0] for changed in (False, True))
            one, other = ((self.size * a - added * b) / self.count for a, b in ((one, of_one), (other, of_other)))
            known = _close(one, other, 1e-3)
        if known:
            return one, ""
        return np.nan, (
            f"the loss of {self.count} samples cannot be known from a graph for {self.size}, because it is not a mean "
            "over samples"
        )


def _other(row: Array) -> Array:
    """A sample of the same kind with other values; its integers are valid where those of `row` are."""
    if row.dtype.kind == "f":
        return (row * 0.5).astype(row.dtype)
    return np.roll(row, 1, axis=-1) if row.ndim > 1 else row


def _close(a: Array | float, b: Array | float, tolerance: float = 1e-4) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    scale = float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
