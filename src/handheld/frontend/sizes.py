"""Captures graphs of a step for other batch sizes, from the code that the step was captured from.

A graph has one batch size. While the code is at hand, the last and smaller batch of a data set gets its own graph
(`train@18`) over the same state. The example batch of the first capture gives the types and the other dimensions;
its samples are repeated or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from handheld.errors import CaptureError, HandheldError
from handheld.frontend.parts import batch_norms, kind_of_loss

#: Larger tensors of a batch are not filled with values for a capture.
LAZY_BYTES = 16 << 20

if TYPE_CHECKING:
    from handheld.frontend.capture import Capture
    from handheld.step import Step


@dataclass(frozen=True)
class Recipe:
    """How a graph was recorded: `record(batch, name)` records it again."""

    record: Callable[..., object]
    batch: object
    #: Whether each module was in training mode.
    modes: Mapping[nn.Module, bool]
    #: What was recorded.
    fn: Callable[[Any], Any]


class Code:
    """The code of a step, which can be captured again. It belongs to this process and is not part of a step file."""

    def __init__(self, builder: Capture) -> None:
        self._builder = builder

    def add(self, step: Step, kind: str, size: int) -> str:
        """Adds the graph of a kind (train, evaluate, predict) for another batch size, and returns its name.

        Raises CaptureError if the code does not run with this batch size, or is no longer as it was.
        """
        return self._add(step, kind, size, f"{kind}@{size}")

    def add_part(self, step: Step, size: int) -> str:
        """Adds the training graphs for a part of a batch (`run/parts.py`), and returns the name of the last part's."""
        return self._add(step, "train", size, f"train@{size}.part", part=True)

    def kind_of_loss(self) -> str:
        """ "mean" or "sum": how the losses of parts make the loss of a batch. Raises CaptureError if they do not."""
        return kind_of_loss(self._builder, self._recipe("train", 1))

    def batch_norms(self) -> int:
        """The number of batch norms whose results depend on the other samples of a batch."""
        return batch_norms(self._recipe("train", 1))

    def _recipe(self, kind: str, size: int) -> Recipe:
        if kind not in self._builder.recipes:
            raise CaptureError(f"no code of graph {kind!r} is at hand. Try: handheld package --batch {size}")
        return self._builder.recipes[kind]

    def _add(self, step: Step, kind: str, size: int, name: str, **more: Any) -> str:
        builder, recipe = self._builder, self._recipe(kind, size)
        if name not in builder.graphs:
            self._check_same()
            try:
                with builder._modes(recipe.modes):
                    recipe.record(resized(recipe.batch, size, not self._reads_values(kind)), name, **more)
            except HandheldError as error:
                raise CaptureError(f"graph {kind!r} cannot be captured for a batch of {size}: {error}") from error
            except Exception as error:  # The user's code may raise anything.
                first_line = str(error).strip().partition("\n")[0]
                raise CaptureError(
                    f"graph {kind!r} cannot be captured for a batch of {size}: {type(error).__name__}: {first_line}"
                ) from error
        self._check_names(kind, name)
        builder._give(step, [n for n in builder.graphs if n in (name, f"{name}.accumulate")])
        return name

    def _reads_values(self, kind: str) -> bool:
        """Whether Python code read values when the graph was captured, so that it needs those of the batch again."""
        graphs = [graph for name, graph in self._builder.graphs.items() if name.partition("@")[0] == kind]
        return any(graph.notes.get("frozen") for graph in graphs)

    def _check_same(self) -> None:
        """Raises CaptureError if the model has other tensors than when it was captured."""
        state = self._builder.state
        for prefix, module in self._builder.modules.items():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if not tensor.is_complex() and not state.knows(tensor):
                    raise CaptureError(
                        f"{prefix}{'.' if prefix else ''}{name} is another tensor than when the model was captured, so "
                        "no graph for another batch size can be added. Try: capture the model again"
                    )

    def _check_names(self, kind: str, name: str) -> None:
        """Raises CaptureError if the graph has other inputs or outputs than the first one of its kind."""
        graphs = self._builder.graphs
        first = next(graph for n, graph in graphs.items() if n.partition("@")[0] == kind)
        for what in ("inputs", "outputs"):
            old, new = ([value.name for value in getattr(graph, what)] for graph in (first, graphs[name]))
            if old != new:
                raise CaptureError(
                    f"graph {name!r} has the {what} {', '.join(new)}; {first.name!r} has {', '.join(old)}. "
                    f"Try: a model whose {what} do not depend on the batch size"
                )


def resized(batch: object, size: int, lazy: bool = False) -> object:
    """The batch with its samples repeated or cut to `size`. Tensors without the dimension of samples stay.

    With `lazy`, large tensors hold zeros: the system gives them memory only when it is used, and a capture uses none.
    """
    leaves, spec = pytree.tree_flatten(batch)
    rows = next((leaf.shape[0] for leaf in leaves if getattr(leaf, "ndim", 0)), 0)
    return pytree.tree_unflatten([_rows(leaf, rows, size, lazy) for leaf in leaves], spec)


def leaves_of(batch: object, one: Callable[[Any, bool], Any]) -> object:
    """The batch with `one(leaf, batched)` instead of each leaf. `batched` says whether its rows are samples."""
    leaves, spec = pytree.tree_flatten(batch)
    rows = next((leaf.shape[0] for leaf in leaves if getattr(leaf, "ndim", 0)), 0)
    made = [one(leaf, bool(getattr(leaf, "ndim", 0)) and leaf.shape[0] == rows) for leaf in leaves]
    return pytree.tree_unflatten(made, spec)


def _rows(leaf: Any, rows: int, size: int, lazy: bool) -> Any:
    if not getattr(leaf, "ndim", 0) or leaf.shape[0] != rows:
        return leaf
    if lazy and isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and size * leaf[:1].nbytes > LAZY_BYTES:
        return torch.zeros((size, *leaf.shape[1:]), dtype=leaf.dtype, requires_grad=leaf.requires_grad)
    chosen = np.arange(size) % rows
    if isinstance(leaf, np.ndarray):
        return leaf[chosen]
    with torch.no_grad():
        return leaf.detach()[torch.from_numpy(chosen).to(leaf.device)].requires_grad_(leaf.requires_grad)
