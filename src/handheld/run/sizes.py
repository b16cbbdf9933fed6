"""The batch sizes of a trainer's graphs, and how graphs for other sizes are added while it runs.

Other graphs come from the step (a step file may hold several sizes) or from its code, which captures them
(frontend/sizes.py). The plan is then made again, and the state is carried over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.data.batches import Data, Indexed, sizes_in
from handheld.errors import BatchError, HandheldError
from handheld.graph.graph import Graph
from handheld.run.batch import batch_sizes, choose_graph, in_order, input_shapes
from handheld.run.parts import add_parts, parts_of

if TYPE_CHECKING:
    from handheld.plan.plan import GraphPlan
    from handheld.run.trainer import Trainer

#: How many graphs of other batch sizes a plan may have of each kind.
MOST = 8


def rows(graph: Graph) -> int:
    """The batch size of a graph: the first dimension of its first input that has one; 0 without one."""
    return next((shape[0] for shape in input_shapes(graph) if shape), 0)


def sizes_of(graphs: Mapping[str, GraphPlan], kind: str) -> dict[int, str]:
    """The batch sizes of all planned graphs of a kind, smallest first."""
    names = [name for name in (kind, *batch_sizes(graphs, kind).values()) if name in graphs]
    return dict(sorted((rows(graphs[name].graph), name) for name in names))


def samples_in(graph: Graph, batch: tuple[Any, ...]) -> int | None:
    """The number of samples of a batch that fits the graph except for that number, or None if it does not."""
    size, found = rows(graph), set[int]()
    try:
        values = in_order(graph, batch)
    except BatchError:
        return None
    for value, shape in zip(values, input_shapes(graph), strict=True):
        given = tuple(np.shape(value))
        if shape[:1] == (size,) and len(given) == len(shape) and given[1:] == shape[1:]:
            found.add(given[0])
        elif given != shape:
            return None
    return found.pop() if len(found) == 1 else None


def own_graph(trainer: Trainer, batch: tuple[Any, ...]) -> str:
    """The training graph for a batch of another size, which is added. Raises BatchError if that is not possible."""
    graphs = trainer.plan.graphs
    sizes = sizes_of(graphs, "train")
    count = samples_in(graphs[next(iter(sizes.values()))].graph, batch) if sizes else None
    if not count:
        return choose_graph(graphs, "train", batch)  # Running it raises the error that says what does not fit.
    problem = add_sizes(trainer, {"train": [count]})
    if problem:
        known = ", ".join(map(str, sizes))
        raise BatchError(f"the batch has {count} samples; the plan has training graphs for {known}. {problem}")
    return sizes_of(trainer.plan.graphs, "train")[count]


def add_sizes(trainer: Trainer, wanted: Mapping[str, Iterable[int]]) -> str:
    """Adds the graphs of each kind (train, evaluate, predict) for other batch sizes, and keeps the state.

    Returns "", or why one of them cannot be added.
    """
    parts = parts_of(trainer.plan)
    if parts is not None and "train" in wanted:
        problem = add_parts(trainer, parts, wanted["train"])
        if problem:
            return problem
        wanted = {kind: sizes for kind, sizes in wanted.items() if kind != "train"}
    refused, added = trainer.refused, dict[tuple[str, int], list[str]]()
    missing = [
        (kind, size)
        for kind, sizes in wanted.items()
        for size in dict.fromkeys(sizes)
        if size not in sizes_of(trainer.plan.graphs, kind)
    ]
    for kind, size in missing:
        if (kind, size) not in refused:
            known = len(sizes_of(trainer.plan.graphs, kind)) + sum(k == kind for k, _ in added)
            try:
                added[kind, size] = _graphs(trainer, kind, size, known)
            except HandheldError as error:
                refused[kind, size] = str(error)
    try:
        if added:
            trainer.reopen([*trainer.plan.graphs, *(name for names in added.values() for name in names)])
    except HandheldError as error:
        refused |= dict.fromkeys(added, str(error))
    return next((refused[key] for key in missing if key in refused), "")


def sizes_for(trainer: Trainer, data: Data, test: Data | None) -> dict[str, set[int]]:
    """The batch sizes that training and evaluation will need, as far as they are known before they start."""
    wanted = {"train": {n for n in sizes_in(data) if n < largest(trainer, "train")}}
    size = largest(trainer, "evaluate")
    if test is not None and size:
        whole = {test.samples % test.batch_size, test.batch_size} if isinstance(test, Indexed) else sizes_in(test)
        wanted["evaluate"] = {n % size for n in whole} - {0}
    return wanted


def largest(trainer: Trainer, kind: str) -> int:
    """The largest batch size of the planned graphs of a kind; 0 if there is none."""
    parts = parts_of(trainer.plan)
    if parts is not None and kind == "train":
        return parts.batch
    return max(sizes_of(trainer.plan.graphs, kind), default=0)


def _graphs(trainer: Trainer, kind: str, size: int, known: int) -> list[str]:
    """The names of the graphs of a kind for a batch size, from the step or from its code."""
    step = trainer.plan.step
    names = [name for name in (kind, *batch_sizes(step.graphs, kind).values()) if name in step.graphs]
    own = [name for name in names if rows(step.graphs[name]) == size]
    if not own and step.code is None:
        known_sizes = ",".join(map(str, (*sizes_of(trainer.plan.graphs, kind), size)))
        raise BatchError(f"Try: handheld package --batch {known_sizes}, or batches of a size that the step has")
    if trainer.observer is not None:
        raise BatchError("No graph can be added during a profile. Try: batches of one size")
    if known > MOST:
        raise BatchError(f"The plan already has graphs for {MOST} other sizes. Try: batches of fewer sizes")
    name = own[0] if own or step.code is None else step.code.add(step, kind, size)
    with_sums = f"{name}.accumulate"
    return [name, *([with_sums] if with_sums in step.graphs or with_sums in step.added else [])]
