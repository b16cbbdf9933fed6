"""Checks a batch before anything runs: which graph it is for, and whether it fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.errors import BatchError
from handheld.graph.dtypes import DTYPES, I32
from handheld.graph.graph import Graph, IndexRange

if TYPE_CHECKING:
    from handheld.plan.plan import GraphPlan


def own_size(function: Callable[..., object] | None) -> int | None:
    """The default of the first argument of a batch function, if it is a size."""
    if function is None:
        return None
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # Some functions in C have no signature.
        return None
    size = first.default if first else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def batch_sizes(names: Iterable[str], kind: str) -> dict[int, str]:
    """Maps each batch size to its graph, for the graphs named `kind@size`."""
    sizes = {}
    for name in names:
        base, _, size = name.partition("@")
        if base == kind and size.isdigit():
            sizes[int(size)] = name
    return dict(sorted(sizes.items()))


def choose_graph(graphs: Mapping[str, GraphPlan], kind: str, batch: tuple[Any, ...]) -> str:
    """The graph of a kind (train, evaluate, predict) for this batch. If none fits, `check_batch` will say why."""
    name = fitting_graph(graphs, kind, batch)
    if name is not None:
        return name
    sizes = batch_sizes(graphs, kind)
    if kind in graphs or not sizes:
        return kind
    shapes = [tuple(np.shape(value)) for value in _values(batch)]
    size = next((s[0] for s in shapes if s), 0)
    if size in sizes:
        return sizes[size]
    raise BatchError(
        f"a batch of {size} fits no {kind} graph; the step has batches of "
        f"{', '.join(map(str, sizes))}. Try: handheld package --batch {size}"
    )


def fitting_graph(graphs: Mapping[str, GraphPlan], kind: str, batch: tuple[Any, ...]) -> str | None:
    """The graph of a kind whose inputs have exactly the shapes of this batch, or None."""
    if kind in graphs and _fits(graphs[kind].graph, batch):  # Nearly every step ends here.
        return kind
    return next((name for name in batch_sizes(graphs, kind).values() if _fits(graphs[name].graph, batch)), None)


def _fits(graph: Graph, batch: tuple[Any, ...]) -> bool:
    values = _by_name(graph, batch)
    return values is not None and [tuple(np.shape(v)) for v in values] == input_shapes(graph)


def input_shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [graph.tensors[given.tensor].shape for given in graph.inputs]


def _values(batch: tuple[Any, ...]) -> list[Any]:
    return list(batch[0].values()) if len(batch) == 1 and isinstance(batch[0], Mapping) else list(batch)


def _by_name(graph: Graph, batch: tuple[Any, ...]) -> list[Any] | None:
    """The values of the batch in the order of the graph's inputs, or None if there are others."""
    try:
        return in_order(graph, batch)
    except BatchError:
        return None


def in_order(graph: Graph, batch: tuple[Any, ...]) -> list[Any]:
    """The values of the batch in the order of the graph's inputs."""
    names = [given.name for given in graph.inputs]
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        missing = [n for n in names if n not in batch[0]]
        if missing:
            raise BatchError(f"the batch has no {missing[0]!r}; graph {graph.name!r} takes {', '.join(names)}")
        batch = tuple(batch[0][n] for n in names)
    if len(batch) != len(names):
        raise BatchError(f"graph {graph.name!r} takes {len(names)} tensors ({', '.join(names)}), not {len(batch)}")
    return list(batch)


def check_batch(graph: Graph, batch: tuple[Any, ...], *, own: bool = True) -> list[np.ndarray]:
    """The batch in the graph's order and types. Raises BatchError with what does not fit.

    If `own` is false, an array that needs no conversion is returned without a copy.
    """
    values = in_order(graph, batch)
    ranges = graph.ranges
    arrays = []
    for given, value in zip(graph.inputs, values, strict=True):
        name, tensor = given.name, graph.tensors[given.tensor]
        array = _array(value, name, given.torch_dtype)
        if array.shape != tensor.shape:
            raise BatchError(
                f"input {name!r} of graph {graph.name!r} has shape {array.shape}; the plan was made for "
                f"{tensor.shape}. Try: pad or resize every batch to one shape, or capture with a batch of the new shape"
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
        raise BatchError(
            f"input {name!r} holds {int(array[bad][0])}; indices must be from {low} to {high - 1}", allowed
        )


def _convert(array: np.ndarray, dtype: str, name: str, torch_dtype: str, own: bool) -> np.ndarray:
    if array.dtype.kind not in DTYPES[dtype].numpy_kinds:
        raise BatchError(f"input {name!r} is {array.dtype}; the model was captured with {torch_dtype}")
    if dtype == I32 and array.dtype.itemsize > 4 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -(2**31) or high > 2**31 - 1:
            raise BatchError(f"input {name!r} holds {low if low < 0 else high}, which does not fit 32 bits")
    return array.astype(DTYPES[dtype].numpy, order="C" if own else "K", copy=own)
