"""Loss scaling: the backward pass of a step in halves starts from a large number.

Halves end at 2^-24, and many gradients are smaller. Every captured training graph therefore
multiplies the gradient of its loss by the slot SCALE. `without_scale` takes that out again, for
plans in float32; `with_scale` adds the rest, all of it on the device:

    gradients ──► finite? ──► control ──► inverse scale ──► each update: g * inverse
    (parameters')    │           │
                     └─ bad ─────┴──► where(bad, old, new) for all that an update writes

A step whose gradients are not all finite changes no parameter, no optimizer state and no counter,
and halves the scale; after `growth` good steps in a row the scale doubles. What the forward pass
writes (running statistics) it has written, as in PyTorch. Sums of accumulated gradients are kept
unscaled, so that the scale may change between two batches, and start again in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from handheld.errors import PlanError
from handheld.graph.dtypes import BOOL, F32, I32
from handheld.graph.graph import PACK_ALIGN, Graph, Node, Origin, SlotWrite, Tensor, View
from handheld.graph.program import Builder, Instr, Store
from handheld.passes.clean import trim

SCALE, GOOD, SKIPPED = "handheld.scale", "handheld.good_steps", "handheld.skipped_steps"
START = 2.0**16
GROWTH = 2000  # good steps after which the scale doubles
SMALLEST, LARGEST = 2.0**-24, 2.0**24

#: slots with the sums of gradients that were not applied yet begin with this
ACCUMULATED = "accumulated."
#: random numbers depend on this; every graph that trains counts it, also one that only accumulates
_COUNTER = "handheld.step"
_ORIGIN = Origin("update", "handheld", "loss scale")
ROW = 128  # gradients that are looked at together
_SHORT = 4096  # and below which all are
MOST = 8  # tensors that a launch looks at

Tables = dict[str, np.ndarray]


# ── without ───────────────────────────────────────────────────────────────────────────────────


def without_scale(graph: Graph) -> Graph:
    """The graph as if the gradient of the loss were 1."""
    scale = graph.slots.get(SCALE)
    if scale is None:
        return graph
    ones = max(graph.tensors) + 1
    nodes = [_without(node, scale, ones) for node in graph.nodes]
    if not any(view.tensor == ones for node in nodes for view in node.inputs):
        return graph.with_nodes(nodes)
    one = {"shape": (), "axes": (), "program": (Instr("const", F32, (), (1.0,)),), "stores": (Store(0),)}
    origin = replace(_ORIGIN, phase="backward")
    tensors = {**graph.tensors, ones: Tensor(ones, (), F32, "gradient")}
    return replace(graph, tensors=tensors).with_nodes([Node("map", (), (ones,), one, origin), *nodes])


def _without(node: Node, scale: int, ones: int) -> Node:
    if all(view.tensor != scale for view in node.inputs):
        return node
    if "program" in node.attrs:
        node = _folded(node, scale)
    views = (replace(v, tensor=ones) if v.tensor == scale else v for v in node.inputs)
    return replace(node, inputs=tuple(views))


def _folded(node: Node, scale: int) -> Node:
    """Plain loads of the scale become 1, and products with it the other factor."""
    out = Builder()
    where: dict[int, int] = {}
    for i, instr in enumerate(node.program):
        args = tuple(where[a] for a in instr.args)
        if instr.op == "load" and node.inputs[instr.params[0]].tensor == scale and not instr.params[1]:
            where[i] = out.const(1.0, F32)
            continue
        one = [a for a in args if out.instrs[a] == Instr("const", F32, (), (1.0,))]
        if instr.op == "mul" and one:
            where[i] = args[1] if args[0] == one[0] else args[0]
            continue
        where[i] = out.add(Instr(instr.op, instr.dtype, args, instr.params))
    stores = tuple(replace(store, position=where[store.position]) for store in node.stores)
    node = replace(node, attrs={**node.attrs, "program": out.program, "stores": stores})
    return trim(node, set(range(len(node.outputs))))


# ── with ──────────────────────────────────────────────────────────────────────────────────────


def with_scale(graph: Graph, growth: int = GROWTH) -> tuple[Graph, Tables]:
    """The graph with unscaled and skipped updates, and constants that it needs."""
    updates = [n for n in graph.nodes if n.origin.phase == "update"]
    written = {t for n in updates for t in _parts(graph, n.outputs)}
    if not any(write.tensor in written and write.slot != _COUNTER for write in graph.writes):
        return graph, {}
    if SCALE not in graph.slots:
        raise PlanError(
            f"graph {graph.name!r} was captured without a scale for its loss, by an "
            "earlier Handheld. Try: capture it again, or precision='float32'"
        )
    return _Scaling(graph, updates, written, growth).done()


def _parts(graph: Graph, tensors: Iterable[int]) -> list[int]:
    """The tensors and, for packs, their members."""
    return [t for tensor in tensors for t in (tensor, *graph.packs.get(tensor, ()))]


class _Scaling:
    """One graph under reconstruction."""

    def __init__(self, graph: Graph, updates: list[Node], written: set[int], growth: int) -> None:
        self.graph, self.updates, self.written, self.growth = graph, updates, written, growth
        self.tensors, self.packs = dict(graph.tensors), dict(graph.packs)
        self.slots, self.tables = dict(graph.slots), Tables()
        self.writes = list(graph.writes)
        self.old = {write.tensor: write.slot for write in graph.writes}
        slot_of = {t: s for s, t in graph.slots.items()}
        read = dict.fromkeys(v.tensor for n in updates for v in n.inputs)
        #: what an update reads: gradients, times the scale; and sums of them
        self.gradients = [
            t
            for t in read
            if t == graph.slots[SCALE] or not any(p in slot_of or p in written for p in _parts(graph, [t]))
        ]
        self.sums = [
            t for t in read if all(slot_of.get(m, "").startswith(ACCUMULATED) for m in graph.packs.get(t, (t,)))
        ]
        #: whether parameters change, rather than sums only
        self.applies = any(
            write.tensor in written and write.slot != _COUNTER and not write.slot.startswith(ACCUMULATED)
            for write in graph.writes
        )
        self.bad: int | None = None
        self.inverse = -1

    def _tensor(self, shape: tuple[int, ...], dtype: str, role: str = "workspace", name: str = "") -> int:
        number = max(self.tensors) + 1
        self.tensors[number] = Tensor(number, shape, dtype, role, name)
        return number

    def _slot(self, name: str, shape: tuple[int, ...], dtype: str, role: str) -> int:
        if name not in self.slots:
            self.slots[name] = self._tensor(shape, dtype, role, name)
        return self.slots[name]

    def done(self) -> tuple[Graph, Tables]:
        rest = [n for n in self.graph.nodes if n.origin.phase != "update"]
        checks: list[Node] = []
        if self.applies:
            for group in self._groups():
                checks += self._finite(group)
        control = self._control()
        updates = [self._update(node) for node in self.updates]
        graph = replace(self.graph, tensors=self.tensors, packs=self.packs, slots=self.slots, writes=tuple(self.writes))
        return graph.with_nodes([*rest, *checks, control, *updates]), self.tables

    # ── whether all gradients are finite ──────────────────────────────────────────────────────

    def _groups(self) -> list[list[int]]:
        """Gradients and sums of them that one launch can look at: a pack, or some of one size."""
        groups: list[list[int]] = []
        last: dict[int, list[int]] = {}
        for tensor in (*self.gradients, *self.sums):
            if tensor == self.graph.slots[SCALE]:
                continue
            size = self.graph.tensors[tensor].size
            if tensor in self.graph.packs:
                groups.append([tensor])
            elif size in last and len(last[size]) < MOST:
                last[size].append(tensor)
            else:
                last[size] = [tensor]
                groups.append(last[size])
        return groups

    def _finite(self, tensors: list[int]) -> list[Node]:
        """Nodes that find a number that is none, joined to what was found before."""
        size, members = self.graph.tensors[tensors[0]].size, self.graph.packs.get(tensors[0])
        row = ROW if members else _row(size)
        if not members and row == size:
            views = [View(t, (size,), (1,)) for t in tensors]
            return [self._reduce((size,), views, F32, last=True)]
        shape = (size // row, row)
        views = [View(t, shape, (row, 1)) for t in tensors]
        filled = View(self._filled(tensors[0], members), shape, (1, 0)) if members else None
        first = self._reduce(shape, views, F32, last=False, filled=filled)
        flags = View(first.outputs[0], shape[:1], (1,))
        return [first, self._reduce(shape[:1], [flags], BOOL, last=True)]

    def _filled(self, pack: int, members: tuple[int, ...]) -> int:
        """How many of each ROW elements of a pack are a member's; the rest is a gap, in which
        anything may be."""
        assert PACK_ALIGN % ROW == 0
        counts = []
        for member in members:
            size = max(self.graph.tensors[member].size, 1)
            rows = -(-size // PACK_ALIGN) * (PACK_ALIGN // ROW)
            counts += [min(max(self.graph.tensors[member].size - i * ROW, 0), ROW) for i in range(rows)]
        name = f"handheld.filled.{self.graph.name}.{pack}"
        self.tables[name] = np.array(counts, np.int32)
        return self._slot(name, (len(counts),), I32, "constant")

    def _reduce(
        self, shape: tuple[int, ...], views: list[View], dtype: str, last: bool, filled: View | None = None
    ) -> Node:
        """Whether any element of a row (of the last dimension) is bad; of a pack only the first
        `filled` of a row count."""
        b = Builder()
        each = [b.load(k, dtype) for k in range(len(views))]
        if dtype == F32:  # x - x is 0 unless x is NaN or an infinity
            zero = b.const(0.0, F32)
            each = [b.op("ne", BOOL, b.op("sub", F32, x, x), zero) for x in each]
        bad = each[0]
        for other in each[1:]:
            bad = b.op("or", BOOL, bad, other)
        if filled is not None:
            views = [*views, filled]
            inside = b.op("lt", BOOL, b.op("iota", I32, params=(1,)), b.load(len(views) - 1, I32))
            bad = b.op("and", BOOL, bad, inside)
        found = b.op("any_of", BOOL, bad)
        if last and self.bad is not None:
            views = [*views, View(self.bad, shape, (0,) * len(shape))]
            found = b.op("or", BOOL, found, b.load(len(views) - 1, BOOL))
        out = self._tensor(shape[:-1], BOOL)
        if last:
            self.bad = out
        attrs = {"shape": shape, "axes": (len(shape) - 1,), "program": b.program, "stores": (Store(found, full=False),)}
        return Node("reduce", tuple(views), (out,), attrs, _ORIGIN)

    # ── the scale and the counters ────────────────────────────────────────────────────────────

    def _control(self) -> Node:
        b = Builder()
        views = [View(self.slots[SCALE], (), ())]
        scale = b.load(0, F32)
        stores = [b.op("div", F32, b.const(1.0, F32), scale)]
        self.inverse = self._tensor((), F32)
        outputs = [self.inverse]
        if self.applies:
            assert self.bad is not None
            good, skipped = (self._slot(name, (), I32, "control") for name in (GOOD, SKIPPED))
            views += [View(t, (), ()) for t in (good, skipped, self.bad)]
            one, bad = b.const(1, I32), b.load(3, BOOL)
            more = b.op("add", I32, b.load(1, I32), one)
            grown = b.op("ge", BOOL, more, b.const(self.growth, I32))
            up = b.op("min", F32, b.op("mul", F32, scale, b.const(2.0, F32)), b.const(LARGEST, F32))
            down = b.op("max", F32, b.op("mul", F32, scale, b.const(0.5, F32)), b.const(SMALLEST, F32))
            past = b.load(2, I32)
            stores += [
                b.op("where", F32, bad, down, b.op("where", F32, grown, up, scale)),
                b.op("where", I32, b.op("or", BOOL, bad, grown), b.const(0, I32), more),
                b.op("where", I32, bad, b.op("add", I32, past, one), past),
            ]
            for name, dtype in ((SCALE, F32), (GOOD, I32), (SKIPPED, I32)):
                outputs.append(self._tensor((), dtype))
                self.writes.append(SlotWrite(name, outputs[-1]))
        attrs = {"shape": (), "axes": (), "program": b.program, "stores": tuple(Store(s) for s in stores)}
        return Node("map", tuple(views), tuple(outputs), attrs, _ORIGIN)

    # ── updates ───────────────────────────────────────────────────────────────────────────────

    def _update(self, node: Node) -> Node:
        """The node with its gradients unscaled, and its results only if they are to be kept."""
        scaled = [k for k, v in enumerate(node.inputs) if v.tensor in self.gradients]
        kept = [self._old(out) for out in node.outputs]
        if not scaled and not any(old is not None for old in kept):
            return node
        if node.op not in ("map", "reduce"):
            raise PlanError(
                f"{node.op} of {node.origin.path} is part of an update, and losses are "
                "not scaled through it. Try: precision='float32'"
            )
        shape = tuple(node.attrs["shape"])
        inputs, out = list(node.inputs), Builder()

        def scalar(tensor: int, dtype: str) -> int:
            return operand(View(tensor, shape, (0,) * len(shape)), dtype)

        def operand(view: View, dtype: str) -> int:
            if view not in inputs:
                inputs.append(view)
            return out.load(inputs.index(view), dtype)

        where: dict[int, int] = {}
        for i, instr in enumerate(node.program):
            args = tuple(where[a] for a in instr.args)
            where[i] = out.add(Instr(instr.op, instr.dtype, args, instr.params))
            if instr.op in ("load", "gather") and instr.params[0] in scaled:
                where[i] = out.op("mul", F32, where[i], scalar(self.inverse, F32))
        stores = []
        for store, old in zip(node.stores, kept, strict=True):
            new = where[store.position]
            if old is not None:
                dtype = out.instrs[new].dtype
                before = operand(_like(self.tensors[old], node, store.full), dtype)
                assert self.bad is not None
                new = out.op("where", dtype, scalar(self.bad, BOOL), before, new)
            stores.append(replace(store, position=new))
        attrs = {**node.attrs, "program": out.program, "stores": tuple(stores)}
        return replace(node, inputs=tuple(inputs), attrs=attrs)

    def _old(self, out: int) -> int | None:
        """What a result replaces, if a bad step must leave that: a slot's tensor, or the pack of
        the slots whose pack the result is."""
        members = self.graph.packs.get(out, (out,))
        names = [self.old.get(m, "") for m in members]
        if not self.applies or not all(names) or names[0].startswith(ACCUMULATED):
            return None
        olds = tuple(self.graph.slots[n] for n in names)
        if out not in self.graph.packs:
            return olds[0]
        found = next((p for p, parts in self.packs.items() if parts == olds), None)
        if found is None:
            like = self.tensors[out]
            found = self._tensor(like.shape, like.dtype, self.tensors[olds[0]].role, "pack")
            self.packs[found] = olds
        return found


def _like(tensor: Tensor, node: Node, full: bool) -> View:
    """The old value at the points where the new one is stored."""
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs["axes"])
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        if full or d not in axes:
            strides[d] = step
            step *= max(shape[d], 1)
    return View(tensor.id, shape, tuple(strides))


def _row(size: int) -> int:
    """A length of rows that divides a tensor, so that many can be looked at at once."""
    if size <= _SHORT:
        return size
    return next((row for row in range(2 * ROW, 15, -1) if size % row == 0), size)
