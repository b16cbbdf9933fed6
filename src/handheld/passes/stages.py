"""Splits a reduction into stages, so that each can be computed in slices.

A normalisation reads its input several times: for the mean, for the variance, and to normalise.

    reduce (x -> mean, rstd, y)   becomes   sum (x -> s)   sum (x, s -> q)   map (s, q -> mean, rstd)   map (x -> y)

Sums that depend on the same sums belong to one stage. What is computed once per row follows them in a map over rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Node, Tensor, View
from handheld.graph.program import REDUCTIONS, Builder, Program, Store
from handheld.passes.slices import depths
from handheld.passes.spaces import store_strides


def in_stages(node: Node, tensors: dict[int, Tensor], sums: bool) -> list[Node]:
    """Returns nodes that together make the outputs of a reduction: per stage with `sums`, otherwise one for all that is
    computed once per row, and a map for the rest. New tensors are added to `tensors`."""
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs["axes"])
    work = _Stages(node, tensors, shape, axes, {})
    rows = [(out, s) for out, s in zip(node.outputs, node.stores, strict=True) if not s.full]
    full = [(out, s) for out, s in zip(node.outputs, node.stores, strict=True) if s.full]
    level = depths(node.program)
    needed = _needed(node, [s.position for _, s in zip(node.outputs, node.stores, strict=True)])
    reductions = [p for p in sorted(needed) if node.program[p].op in REDUCTIONS]
    stored = {s.position: out for out, s in rows}
    nodes: list[Node] = []
    for depth in sorted({level[p] for p in reductions}) if sums else ():
        here = [p for p in reductions if level[p] == depth]
        outs = [stored[p] if p in stored else work.new(p) for p in here]
        nodes.append(work.node("reduce", [(out, Store(p, False)) for out, p in zip(outs, here, strict=True)]))
        work.known.update(zip(here, outs, strict=True))
    if not sums:
        rows += [(work.new(p), Store(p, False)) for p in reductions if p not in stored]
        nodes.append(work.node("reduce", rows))
    elif rest := [(out, s) for out, s in rows if s.position not in work.known]:
        nodes.append(work.node("map", rest))
    work.known.update({s.position: out for out, s in rows})
    if full:
        nodes.append(work.node("map", full, whole=True))
    return nodes


def _needed(node: Node, positions: Iterable[int]) -> set[int]:
    found, stack = set[int](), list(positions)
    while stack:
        at = stack.pop()
        if at not in found:
            found.add(at)
            stack += node.program[at].args
    return found


@dataclass
class _Stages:
    """`known` has the tensors of instructions that are computed once per row and exist already."""

    source: Node
    tensors: dict[int, Tensor]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    known: dict[int, int]

    def new(self, position: int) -> int:
        """A tensor for the value of an instruction, once per row."""
        number = max(self.tensors) + 1
        outer = tuple(n for d, n in enumerate(self.shape) if d not in self.axes)
        phase = self.source.origin.phase
        role = "activation" if phase == "forward" else "gradient"
        self.tensors[number] = Tensor(number, outer, self.source.program[position].dtype, role)
        return number

    def node(self, op: str, results: list[tuple[int, Store]], whole: bool = False) -> Node:
        """A node that computes these outputs from what is known. A map that is not `whole` runs once per row."""
        known = {p: t for p, t in self.known.items() if op == "map" or p not in {s.position for _, s in results}}
        program, inputs, where = self._program([s.position for _, s in results], known)
        rows = op == "map" and not whole
        shape = tuple(1 if rows and d in self.axes else n for d, n in enumerate(self.shape))
        stores = tuple(Store(where[s.position], s.full or op == "map") for _, s in results)
        attrs = {
            **self.source.attrs,
            "shape": shape,
            "axes": self.axes if op == "reduce" else (),
            "program": program,
            "stores": stores,
        }
        if rows:
            gathered = {i.params[0] for i in program if i.op == "gather"}
            inputs = [v if k in gathered else replace(v, shape=shape) for k, v in enumerate(inputs)]
        return Node(op, tuple(inputs), tuple(out for out, _ in results), attrs, self.source.origin)

    def _program(self, targets: Iterable[int], known: Mapping[int, int]) -> tuple[Program, list[View], dict[int, int]]:
        builder, inputs, where = Builder(), list[View](), dict[int, int]()
        gathers: dict[int, int] = {}

        def operand(view: View) -> int:
            if view not in inputs:
                inputs.append(view)
            return inputs.index(view)

        def visit(at: int) -> int:
            if at in where:
                return where[at]
            instr = self.source.program[at]
            if at in known:
                view = View(known[at], self.shape, store_strides(self.shape, self.axes, False))
                where[at] = builder.load(operand(view), DTYPES[self.tensors[known[at]].dtype].value)
            elif instr.op == "load":
                params = (operand(self.source.inputs[instr.params[0]]), *instr.params[1:])
                where[at] = builder.add(replace(instr, params=params))
            elif instr.op == "gather":
                own = instr.params[0]
                if own not in gathers:  # An operand of its own: it keeps its shape.
                    inputs.append(self.source.inputs[own])
                    gathers[own] = len(inputs) - 1
                args = tuple(visit(a) for a in instr.args)
                where[at] = builder.add(replace(instr, args=args, params=(gathers[own],)))
            else:
                where[at] = builder.add(replace(instr, args=tuple(visit(a) for a in instr.args)))
            return where[at]

        for at in targets:
            visit(at)
        return builder.program, inputs, where
