"""Between what was typed and a plan: data that fits the model, the captured step, the rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from handheld.cli.source import Source, StepFile
from handheld.errors import DataError, HandheldError
from handheld.run.batch import batch_sizes
from handheld.run.data import DataSet, TextData, load_data
from handheld.run.loop import Schedule
from handheld.step import Step


def load(spec: str, size: int, seed: int, source: Source) -> DataSet:
    """The data in the shape that the model takes."""
    shape, options = source.shape(), dict[str, Any]()
    if len(shape) == 4:
        options = {"size": shape[2], "gray": shape[1] == 1}
    elif len(shape) == 2:
        options = {"length": shape[1]}
    return load_data(spec, size, seed=seed, **options)


def capture(source: Source, size: int, seed: int, found: DataSet) -> Step:
    if isinstance(source, StepFile):
        step = source.step([size], seed)
    else:
        import torch

        first = next(iter(found.train.epoch(0)))
        batch = tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in first)
        step = source.step([size], seed, batch, len(found.classes) or None)
    if "train" not in step.graphs and not batch_sizes(step.graphs, "train"):
        raise HandheldError(f"{source.name} has the graphs {', '.join(step.graphs)} and no single "
                            "training step. Train it from Python: trainer.run(name, ...)")
    _check_labels(step, found)
    return step


def _check_labels(step: Step, found: DataSet) -> None:
    """Labels and tokens that the model has no place for are known before the first step."""
    graph = step.graphs.get("train") or step.graphs[batch_sizes(step.graphs, "train").popitem()[1]]
    held: tuple[Any, ...] = getattr(found.train, "arrays", ())
    if isinstance(found.train, TextData):
        held = (found.train.tokens, found.train.tokens)
    limits = {name: rest for name, *rest in graph.notes.get("ranges", ())}
    for (name, _, _), array in zip(graph.inputs, held):
        if name in limits and array.dtype.kind in "iu":
            low, high, ignore = limits[name]
            bad = array[((array < low) | (array >= high)) & (array != ignore)]
            if bad.size:
                raise DataError(f"{found.name} holds {int(bad.flat[0])} where the model's input "
                                f"{name!r} takes classes or tokens from {low} to {high - 1}")


def graphs_for(step: Step, size: int) -> list[str]:
    """Of a step packaged for several batch sizes, those that this run needs."""
    sizes = batch_sizes(step.graphs, "train")
    if not sizes:
        graph = step.graphs["train"]
        shapes = [graph.tensors[tensor].shape for _, tensor, _ in graph.inputs]
        if shapes and shapes[0] and shapes[0][0] != size:
            raise HandheldError(f"the step was captured for a batch of {shapes[0][0]}, not {size}. "
                                f"Try: --batch {shapes[0][0]}, or handheld package --batch {size}")
        return list(step.graphs)
    if size not in sizes:
        raise HandheldError(f"batch {size} is not packaged; there are {', '.join(map(str, sizes))}")
    return [name for name in step.graphs if name.partition("@")[2].partition(".")[0] == str(size)]


def schedule_of(name: str, lr: float | None, own: Sequence[float], epochs: int) -> Schedule:
    """Rates over the epochs, from the optimizer's own or the one that was asked for."""
    base = list(own) if lr is None else [lr] * len(own)
    if name not in ("cosine", "constant"):
        raise HandheldError(f"no schedule is called {name!r}. Try: cosine or constant")

    def rates(epoch: float) -> list[float]:
        part = 0.5 * (1 + math.cos(math.pi * min(epoch / epochs, 1))) if name == "cosine" else 1.0
        return [rate * part for rate in base]

    return rates
