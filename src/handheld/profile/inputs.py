"""What the graphs of a step are given when only the step is of interest, not what it learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from handheld.errors import HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph
from handheld.profile.run import default_graphs
from handheld.run.batch import batch_sizes


def graphs_in_turn(graphs: Mapping[str, Graph], size: int) -> list[str]:
    """The graph that trains on this batch size, or all updates of a step that has several."""
    sizes = batch_sizes(graphs, "train")
    return [sizes.get(size, next(iter(sizes.values())))] if sizes else default_graphs(graphs)


def inputs_for(example: Any, graph: Graph, seed: int) -> Any:
    """What of an example the graph takes, by name or else by shape; without one, random values."""
    if example is None:
        return _random(graph, seed)
    if isinstance(example, Mapping):
        names = [given.name for given in graph.inputs]
        return {name: np.asarray(example[name]) for name in names if name in example}
    left, found = [np.asarray(one) for one in example], []
    for given in graph.inputs:
        shape = graph.tensors[given.tensor].shape
        at = next((i for i, one in enumerate(left) if one.shape == shape), None)
        if at is None:
            raise HandheldError(
                f"graph {graph.name!r} takes {given.name} of {list(shape)}, and the example has nothing of that shape"
            )
        found.append(left.pop(at))
    return tuple(found)


def _random(graph: Graph, seed: int) -> tuple[np.ndarray, ...]:
    """A batch that fits: a step file has none of its own."""
    draw, arrays = np.random.default_rng(seed), []
    for given in graph.inputs:
        made = graph.tensors[given.tensor]
        allowed = graph.ranges.get(given.name)
        low, high = (allowed.low, allowed.high) if allowed else (0, 2)
        values = (
            draw.standard_normal(made.shape)
            if DTYPES[made.dtype].is_float
            else draw.integers(low, max(high, low + 1), made.shape)
        )
        arrays.append(np.asarray(values).astype(DTYPES[made.dtype].numpy))
    return tuple(arrays)
