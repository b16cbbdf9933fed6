"""Writing nodes: tensors, maps, reductions and constants of the graph under construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from handheld.frontend.layout import expand
from handheld.frontend.state import StateBuilder
from handheld.frontend.values import Val
from handheld.graph.graph import Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Store

Build = Callable[..., Any]


class Emitter:
    """The nodes of one graph over the slots of `state`, each with where it comes from."""

    def __init__(self, state: StateBuilder) -> None:
        self.state = state
        self.tensors: dict[int, Tensor] = {}
        self.nodes: list[Node] = []
        self.slots: dict[str, int] = {}
        self.path: list[str] = []
        self.phase = "forward"
        self.torch_op = ""

    def _module(self) -> str:
        """The module whose forward, or whose gradient, is being computed."""
        return self.path[-1] if self.path else ""

    def slot_tensor(self, name: str) -> int:
        """The tensor that holds a slot at the start of the step."""
        if name not in self.slots:
            slot = self.state.slots[name]
            self.slots[name] = self.new_tensor(slot.shape, slot.dtype, slot.role, name)
        return self.slots[name]

    def new_tensor(self, shape: Sequence[int], dtype: str, role: str = "", name: str = "") -> int:
        number = len(self.tensors)
        if not role:
            role = "gradient" if self._phase() == "backward" else "activation"
        self.tensors[number] = Tensor(number, tuple(shape), dtype, role, name)
        return number

    def dtype_of(self, view: View) -> str:
        return self.tensors[view.tensor].dtype

    def dense(self, tensor: int) -> View:
        shape = self.tensors[tensor].shape
        return View(tensor, shape, contiguous_strides(shape))

    def _phase(self) -> str:
        if self.phase == "forward" and torch._C._current_autograd_node() is not None:
            return "backward"
        return self.phase

    def emit(
        self, op: str, inputs: Sequence[View], outputs: Sequence[tuple[Sequence[int], str]], attrs: Mapping[str, Any]
    ) -> list[int]:
        made = [self.new_tensor(shape, dtype) for shape, dtype in outputs]
        origin = Origin(self._phase(), self._module(), self.torch_op)
        self.nodes.append(Node(op, tuple(inputs), tuple(made), dict(attrs), origin))
        return made

    def loops(
        self,
        shape: Sequence[int],
        axes: Sequence[int],
        inputs: Sequence[View],
        build: Build,
        full: Sequence[bool] | None = None,
        gathered: Sequence[View] = (),
    ) -> list[View]:
        """A map or reduce node. `build` gets one Val an input (or the builder itself, if there are
        none or `gathered` ones) and returns one Val or a list, stored full or per row."""
        builder = Builder(reducing=bool(axes))
        shape = tuple(shape)
        vals = [Val(builder, builder.load(i, self.dtype_of(v)), self.dtype_of(v)) for i, v in enumerate(inputs)]
        result = build(builder, *vals) if gathered or not inputs else build(*vals)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        flags = list(full) if full is not None else [not axes] * len(results)
        outer = tuple(n for d, n in enumerate(shape) if d not in set(axes))
        attrs = {
            "shape": shape,
            "axes": tuple(axes),
            "program": builder.program,
            "stores": tuple(Store(r.index, f) for r, f in zip(results, flags, strict=True)),
        }
        outs = [(shape if f else outer, r.dtype) for r, f in zip(results, flags, strict=True)]
        made = self.emit("reduce" if axes else "map", [*inputs, *gathered], outs, attrs)
        return [self.dense(t) for t in made]

    def map(self, shape: Sequence[int], inputs: Sequence[View], build: Build, gathered: Sequence[View] = ()) -> View:
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
        """A reduction; over no axes at all it is a map."""
        views = [expand(v, tuple(shape)) for v in inputs]
        return self.loops(shape, axes, views, build, gathered=gathered)[0]

    def contiguous(self, view: View) -> View:
        """The view as a whole dense tensor, copied only if it is not one."""
        if view.is_contiguous and view.size == self.tensors[view.tensor].size:
            return view
        return self.map(view.shape, [view], lambda x: x)

    def constant(self, value: np.ndarray) -> View:
        """A constant computed here: interpolation matrices and the like."""
        same = [
            n
            for n, s in self.state.slots.items()
            if s.role == "constant" and s.shape == value.shape and np.array_equal(self.state.values[n], value)
        ]
        count = sum(slot.role == "constant" for slot in self.state.slots.values())
        name = same[0] if same else self.state.add_value(f"constant.{count}", value, "constant")
        return self.dense(self.slot_tensor(name))

    def random_key(self) -> int:
        """A number for one random op, the same at every capture. It comes from PyTorch's generator,
        so that what restores the generator (checkpointing) gets the same random numbers again."""
        with torch.utils._python_dispatch._disable_current_modes():
            return int(torch.randint(2**31 - 1, (), dtype=torch.int64))
