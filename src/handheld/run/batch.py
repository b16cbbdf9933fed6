"""Checks a batch before anything runs: which graph it is for, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.errors import BatchError
from handheld.graph.dtypes import DTYPES, I32
from handheld.graph.graph import Graph, IndexRange

if TYPE_CHECKING:
    from handheld.plan.plan import GraphPlan


def batch_sizes(names: Iterable[str], kind: str) -> dict[int, str]:
    """Maps each batch size to its graph, for the graphs named `kind@size`."""
    sizes = {}
    for name in names:
        base, _, size = name.partition("@")
        if base == kind and size.isdigit():
            sizes[int(size)] = name
    return dict(sorted(sizes.items()))


def choose_graph(graphs: Mapping[str, GraphPlan], kind: str, batch: tuple[Any, ...]) -> str:
    """The graph of a kind (train, evaluate, predict) that was captured for this batch."""
    sizes = batch_sizes(graphs, kind)
    if kind in graphs or not sizes:
        return kind
    named = batch[0] if len(batch) == 1 and isinstance(batch[0], Mapping) else None
    shapes: list[tuple[int, ...]] = []
    for name in sizes.values():
        graph = graphs[name].graph
        values: Sequence[Any] = batch
        if named is not None:
            values = [named.get(given.name) for given in graph.inputs]
        shapes = [tuple(np.shape(value)) for value in values]
        if shapes == [graph.tensors[given.tensor].shape for given in graph.inputs]:
            return name
    size = next((s[0] for s in shapes if s), 0)
    if size in sizes:
        return sizes[size]  # check_batch reports what else does not fit.
    raise BatchError(
        f"a batch of {size} fits no {kind} graph; the step has batches of "
        f"{', '.join(map(str, sizes))}. Try: handheld package --batch {size}"
    )


def check_batch(graph: Graph, batch: tuple[Any, ...], *, own: bool = True) -> list[np.ndarray]:
    """The batch in the graph's order and types. Raises BatchError with what does not fit.

    If `own` is false, an array that needs no conversion is returned without a copy.
    """
    names = [given.name for given in graph.inputs]
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        missing = [n for n in names if n not in batch[0]]
        if missing:
            raise BatchError(f"the batch has no {missing[0]!r}; graph {graph.name!r} takes {', '.join(names)}")
        batch = tuple(batch[0][n] for n in names)
    if len(batch) != len(names):
        raise BatchError(f"graph {graph.name!r} takes {len(names)} tensors ({', '.join(names)}), not {len(batch)}")
    ranges = graph.ranges
    arrays = []
    for given, value in zip(graph.inputs, batch, strict=True):
        name, tensor = given.name, graph.tensors[given.tensor]
        array = _array(value, name, given.torch_dtype)
        if array.shape != tensor.shape:
            raise BatchError(
                f"input {name!r} of graph {graph.name!r} has shape {array.shape}; the plan was made for {tensor.shape}"
            )
        arrays.append(_convert(array, tensor.dtype, name, given.torch_dtype, own))
        if name in ranges and array.size:
            _check_range(arrays[-1], ranges[name])
    return arrays


def _array(value: Any, name: str, torch_dtype: str) -> np.ndarray:
    if not hasattr(value, "detach"):
        return np.asarray(value)
    try:
        array: np.ndarray = value.detach().cpu().numpy()
    except TypeError:  # NumPy has no bfloat16.
        raise BatchError(
            f"input {name!r} is {str(value.dtype).removeprefix('torch.')}; the model was captured with {torch_dtype}"
        ) from None
    return array


def _check_range(array: np.ndarray, allowed: IndexRange) -> None:
    name, low, high, ignore = allowed
    bad = (array < low) | (array >= high)
    if ignore is not None:
        bad &= array != ignore
    if bad.any():
        raise BatchError(f"input {name!r} holds {int(array[bad][0])}; indices must be from {low} to {high - 1}")


def _convert(array: np.ndarray, dtype: str, name: str, torch_dtype: str, own: bool) -> np.ndarray:
    if array.dtype.kind not in DTYPES[dtype].numpy_kinds:
        raise BatchError(f"input {name!r} is {array.dtype}; the model was captured with {torch_dtype}")
    if dtype == I32 and array.dtype.itemsize > 4 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -(2**31) or high > 2**31 - 1:
            raise BatchError(f"input {name!r} holds {low if low < 0 else high}, which does not fit 32 bits")
    return array.astype(DTYPES[dtype].numpy, order="C" if own else "K", copy=own)
