"""Builds the nodes of a graph: tensors, maps, reductions and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from handheld.frontend.layout import expand
from handheld.frontend.state import StateBuilder
from handheld.frontend.values import Val
from handheld.graph.graph import (
    Attr,
    Graph,
    GraphInput,
    GraphOutput,
    Node,
    Origin,
    SlotWrite,
    Tensor,
    View,
    contiguous_strides,
)
from handheld.graph.program import Builder, Store

Build = Callable[..., Any]


class Emitter:
    """Builds the nodes of one graph over the slots of `state`. Every node keeps its origin: phase, module and op."""

    def __init__(self, state: StateBuilder) -> None:
        self.state = state
        self.tensors: dict[int, Tensor] = {}
        self.nodes: list[Node] = []
        self.slots: dict[str, int] = {}
        self.path: list[str] = []
        self.phase = "forward"
        self.torch_op = ""

    def _module(self) -> str:
        """Returns the path of the module whose forward pass or gradient is being computed."""
        return self.path[-1] if self.path else ""

    def slot_tensor(self, name: str) -> int:
        """Returns the tensor that holds a slot at the start of the step."""
        if name not in self.slots:
            slot = self.state.slots[name]
            self.slots[name] = self.new_tensor(slot.shape, slot.dtype, slot.role, name)
        return self.slots[name]

    def new_tensor(self, shape: Sequence[int], dtype: str, role: str = "", name: str = "") -> int:
        """Adds a tensor and returns its number. Without `role` it is an activation or a gradient, by phase."""
        number = len(self.tensors)
        if not role:
            role = "gradient" if self._phase() == "backward" else "activation"
        self.tensors[number] = Tensor(number, tuple(shape), dtype, role, name)
        return number

    def dtype_of(self, view: View) -> str:
        return self.tensors[view.tensor].dtype

    def dense(self, tensor: int) -> View:
        """Returns a view of a whole tensor."""
        shape = self.tensors[tensor].shape
        return View(tensor, shape, contiguous_strides(shape))

    def _phase(self) -> str:
        if self.phase == "forward" and torch._C._current_autograd_node() is not None:
            return "backward"
        return self.phase

    def emit(
        self, op: str, inputs: Sequence[View], outputs: Sequence[tuple[Sequence[int], str]], attrs: Mapping[str, Attr]
    ) -> list[int]:
        """Adds a node. `outputs` lists shape and type of each result. Returns the numbers of the new tensors."""
        numbers = [self.new_tensor(shape, dtype) for shape, dtype in outputs]
        origin = Origin(self._phase(), self._module(), self.torch_op)
        self.nodes.append(Node(op, tuple(inputs), tuple(numbers), dict(attrs), origin))
        return numbers

    def loops(
        self,
        shape: Sequence[int],
        axes: Sequence[int],
        inputs: Sequence[View],
        build: Build,
        full: Sequence[bool] | None = None,
        gathered: Sequence[View] = (),
    ) -> list[View]:
        """Adds a map node, or a reduce node over `axes`.

        `build` gets one Val per input and returns one Val or a list of them. If there are no inputs, or if there
        are `gathered` operands, it gets the builder first. `full` says for each result whether it has the whole
        shape or one value per row.
        """
        builder = Builder(reducing=bool(axes))
        shape = tuple(shape)
        vals = [Val(builder, builder.load(i, self.dtype_of(v)), self.dtype_of(v)) for i, v in enumerate(inputs)]
        result = build(builder, *vals) if gathered or not inputs else build(*vals)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        flags = list(full) if full is not None else [not axes] * len(results)
        outer = tuple(n for d, n in enumerate(shape) if d not in set(axes))
        attrs: dict[str, Attr] = {
            "shape": shape,
            "axes": tuple(axes),
            "program": builder.program,
            "stores": tuple(Store(r.index, f) for r, f in zip(results, flags, strict=True)),
        }
        outputs = [(shape if f else outer, r.dtype) for r, f in zip(results, flags, strict=True)]
        numbers = self.emit("reduce" if axes else "map", [*inputs, *gathered], outputs, attrs)
        return [self.dense(t) for t in numbers]

    def map(self, shape: Sequence[int], inputs: Sequence[View], build: Build, gathered: Sequence[View] = ()) -> View:
        """Adds a map over `shape`. Inputs are broadcast to it; see `loops` for `build` and `gathered`."""
        views = [expand(v, tuple(shape)) for v in inputs]
        return self.loops(shape, (), views, build, gathered=gathered)[0]

    def reduce(
        self,
        shape: Sequence[int],
        axes: Sequence[int],
        inputs: Sequence[View],
        build: Build,
        gathered: Sequence[View] = (),
    ) -> View:
        """Adds a reduction. Without axes it is a map."""
        views = [expand(v, tuple(shape)) for v in inputs]
        return self.loops(shape, axes, views, build, gathered=gathered)[0]

    def contiguous(self, view: View) -> View:
        """Returns the view as a whole dense tensor. Copies it only if necessary."""
        if view.is_contiguous and view.size == self.tensors[view.tensor].size:
            return view
        return self.map(view.shape, [view], lambda x: x)

    def constant(self, value: np.ndarray) -> View:
        """Returns a constant computed at capture (an interpolation matrix, say). Equal constants are shared."""
        same = [
            n
            for n, s in self.state.slots.items()
            if s.role == "constant" and s.shape == value.shape and np.array_equal(self.state.values[n], value)
        ]
        count = sum(slot.role == "constant" for slot in self.state.slots.values())
        name = same[0] if same else self.state.add_value(f"constant.{count}", value, "constant")
        return self.dense(self.slot_tensor(name))

    def graph(
        self,
        name: str,
        inputs: Sequence[GraphInput],
        outputs: Sequence[GraphOutput],
        writes: Mapping[str, int],
        notes: Mapping[str, object],
    ) -> Graph:
        """Returns what was built so far as a graph. `writes` has the new tensor of each slot."""
        return Graph(
            name,
            dict(self.tensors),
            tuple(self.nodes),
            tuple(inputs),
            dict(self.slots),
            tuple(SlotWrite(slot, tensor) for slot, tensor in writes.items()),
            tuple(outputs),
            dict(notes),
        )

    def random_key(self) -> int:
        """Returns the key of one random op. It is the same at every capture.

        The key comes from PyTorch's generator. Code that restores the generator (checkpointing) therefore gets the
        same random numbers again.
        """
        with torch.utils._python_dispatch._disable_current_modes():
            return int(torch.randint(2**31 - 1, (), dtype=torch.int64))
