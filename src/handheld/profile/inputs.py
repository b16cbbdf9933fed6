"""Inputs for the graphs of a step when only its cost is measured, not what it learns."""

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
    """The graph's inputs from an example, matched by name or else by shape. Without an example, random values."""
    if example is None:
        return _random(graph, seed)
    if isinstance(example, Mapping):
        names = [given.name for given in graph.inputs]
        return {name: np.asarray(example[name]) for name in names if name in example}
    unused, arrays = [np.asarray(value) for value in example], []
    for given in graph.inputs:
        shape = graph.tensors[given.tensor].shape
        at = next((i for i, array in enumerate(unused) if array.shape == shape), None)
        if at is None:
            raise HandheldError(
                f"graph {graph.name!r} takes {given.name} of shape {list(shape)}, "
                "but the example has no array of that shape"
            )
        arrays.append(unused.pop(at))
    return tuple(arrays)


def _random(graph: Graph, seed: int) -> tuple[np.ndarray, ...]:
    """A random batch that fits the graph, for example of a step file, which has no example batch."""
    draw, arrays = np.random.default_rng(seed), []
    for given in graph.inputs:
        tensor = graph.tensors[given.tensor]
        allowed = graph.ranges.get(given.name)
        low, high = (allowed.low, allowed.high) if allowed else (0, 2)
        values = (
            draw.standard_normal(tensor.shape)
            if DTYPES[tensor.dtype].is_float
            else draw.integers(low, max(high, low + 1), tensor.shape)
        )
        arrays.append(np.asarray(values).astype(DTYPES[tensor.dtype].numpy))
    return tuple(arrays)
