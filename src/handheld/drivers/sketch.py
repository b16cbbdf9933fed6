"""Builds small graphs by hand, with random inputs, so that a check needs neither PyTorch nor a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.graph.check import check
from handheld.graph.dtypes import DTYPES, F32, I32
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Builder, Instr, Store

Array = npt.NDArray[Any]
ACC = ((Instr("acc", F32),), (Store(0),))


@dataclass(frozen=True)
class Sketch:
    """A graph with the values of its inputs by tensor. Its first nodes may be copies, which are not what is checked."""

    name: str
    graph: Graph
    inputs: dict[int, Array]
    copies: int = 0

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.op for node in self.graph.nodes[self.copies :]))


class Pencil:
    """Draws one sketch. Tensors are returned as views of all their elements."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._chance = np.random.default_rng(len(name) + sum(map(ord, name)))
        self._tensors: dict[int, Tensor] = {}
        self._inputs: dict[int, Array] = {}
        self._nodes: list[Node] = []

    def _tensor(self, shape: tuple[int, ...], dtype: str, role: str) -> View:
        number = len(self._tensors)
        self._tensors[number] = Tensor(number, shape, dtype, role)
        return View(number, shape, contiguous_strides(shape))

    def normal(self, *shape: int, scale: float = 1.0) -> View:
        return self.given(scale * self._chance.standard_normal(shape))

    def ints(self, low: int, high: int, *shape: int) -> View:
        return self.given(self._chance.integers(low, high, shape))

    def given(self, array: Array) -> View:
        dtype = {"f": F32, "i": I32, "b": "bool"}[array.dtype.kind]
        view = self._tensor(array.shape, dtype, "input")
        self._inputs[view.tensor] = np.ascontiguousarray(array, DTYPES[dtype].numpy)
        return view

    def node(
        self, op: str, inputs: tuple[View, ...], *outputs: tuple[tuple[int, ...], str], **attrs: object
    ) -> list[View]:
        made = [self._tensor(shape, dtype, "activation") for shape, dtype in outputs]
        origin = Origin("forward", self.name, op)
        self._nodes.append(Node(op, inputs, tuple(v.tensor for v in made), attrs, origin))
        return made

    def points(
        self,
        shape: tuple[int, ...],
        axes: tuple[int, ...],
        inputs: tuple[View, ...],
        write: Callable[[Builder], list[Store]],
    ) -> list[View]:
        """A map, or with `axes` a reduce. `write` adds the instructions and says what is stored."""
        builder = Builder()
        stores = tuple(write(builder))
        outer = tuple(n for d, n in enumerate(shape) if d not in axes)
        outputs = [(shape if s.full else outer, builder.program[s.position].dtype) for s in stores]
        op = "reduce" if axes else "map"
        return self.node(op, inputs, *outputs, shape=shape, axes=axes, program=builder.program, stores=stores)

    def product(self, a: View, b: View, *rest: View, end: tuple[Any, Any] = ACC) -> View:
        shape = (*a.shape[:-1], b.shape[-1])
        return self.node("matmul", (a, b, *rest), (shape, F32), shape=shape, program=end[0], stores=end[1])[0]

    def done(self) -> Sketch:
        outputs = [v for node in self._nodes for v in node.outputs]
        shown = tuple(
            GraphOutput(f"t{t}", View(t, self._tensors[t].shape, contiguous_strides(self._tensors[t].shape)), torch)
            for t in outputs
            for torch in (DTYPES[self._tensors[t].dtype].torch,)
        )
        given = tuple(GraphInput(f"t{t}", t, DTYPES[self._tensors[t].dtype].torch) for t in self._inputs)
        graph = Graph(self.name, dict(self._tensors), tuple(self._nodes), given, {}, (), shown)
        return Sketch(self.name, check(graph), dict(self._inputs))


def turned(view: View) -> View:
    """The view with its last two dimensions exchanged."""
    order = [*range(len(view.shape) - 2), len(view.shape) - 1, len(view.shape) - 2]
    return View(view.tensor, tuple(view.shape[d] for d in order), tuple(view.strides[d] for d in order), view.offset)


def spread(view: View, shape: tuple[int, ...]) -> View:
    """A vector as the rows of a larger shape."""
    return View(view.tensor, shape, (*(0 for _ in shape[1:]), view.strides[-1]), view.offset)
