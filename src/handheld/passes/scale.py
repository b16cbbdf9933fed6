"""Loss scaling: with halves, the backward pass starts from a large number instead of 1.

The smallest half is 2^-24, and many gradients are smaller. Every captured training graph therefore multiplies
the gradient of its loss by the slot SCALE. `without_scale` removes this for plans in float32. `with_scale` adds
the rest, all of it on the device:

    gradients ──► finite? ──► control ──► inverse scale ──► each update: g * inverse
    (parameters')    │           │
                     └─ bad ─────┴──► where(bad, old, new) for all that an update writes

If some gradients are not finite, the step changes no parameter, no optimizer state and no counter, and divides
the scale by two. After `growth` good steps in a row the scale doubles. Running statistics that the forward pass
writes change even in a skipped step, as in PyTorch. Accumulated gradients are stored without the scale, so that
the scale may change between two batches. Their sums restart after every update, also after a skipped one.
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
GROWTH = 2000  # The scale doubles after this many good steps in a row.
SMALLEST, LARGEST = 2.0**-24, 2.0**24

#: The prefix of slots that hold sums of gradients which were not applied yet.
ACCUMULATED = "accumulated."
#: The slot with the share of the batch that a part of it has, if a step runs in micro-batches.
WEIGHT = "handheld.weight"
#: The step counter that random numbers depend on. Graphs that only accumulate gradients count it too.
_COUNTER = "handheld.step"
_ORIGIN = Origin("update", "handheld", "loss scale")
#: Elements that one row of a check covers. A tensor with at most _SHORT elements is one row.
ROW = 128
_SHORT = 4096
#: The most tensors that one launch checks.
MOST = 8

Tables = dict[str, np.ndarray]


# ── without ───────────────────────────────────────────────────────────────────────────────────


def without_scale(graph: Graph) -> Graph:
    """Returns the graph with 1 as the gradient of the loss."""
    scale = graph.slots.get(SCALE)
    if scale is None:
        return graph
    ones = max(graph.tensors) + 1
    nodes = [_without(node, scale, ones) for node in graph.nodes]
    if not any(view.tensor == ones for node in nodes for view in node.inputs):
        return graph.with_nodes(nodes)
    attrs = {"shape": (), "axes": (), "program": (Instr("const", F32, (), (1.0,)),), "stores": (Store(0),)}
    origin = replace(_ORIGIN, phase="backward")
    tensors = {**graph.tensors, ones: Tensor(ones, (), F32, "gradient")}
    return replace(graph, tensors=tensors).with_nodes([Node("map", (), (ones,), attrs, origin), *nodes])


def _without(node: Node, scale: int, ones: int) -> Node:
    if all(view.tensor != scale for view in node.inputs):
        return node
    if "program" in node.attrs:
        node = _folded(node, scale)
    views = (replace(v, tensor=ones) if v.tensor == scale else v for v in node.inputs)
    return replace(node, inputs=tuple(views))


def _folded(node: Node, scale: int) -> Node:
    """Replaces loads of the scale by 1, and products with it by the other factor."""
    out = Builder()
    where: dict[int, int] = {}
    for i, instr in enumerate(node.program):
        args = tuple(where[a] for a in instr.args)
        if instr.op == "load" and node.inputs[instr.params[0]].tensor == scale and not instr.params[1]:
            where[i] = out.const(1.0, F32)
            continue
        ones = [a for a in args if out.instrs[a] == Instr("const", F32, (), (1.0,))]
        if instr.op == "mul" and ones:
            where[i] = args[1] if args[0] == ones[0] else args[0]
            continue
        where[i] = out.add(Instr(instr.op, instr.dtype, args, instr.params))
    stores = tuple(replace(store, position=where[store.position]) for store in node.stores)
    node = replace(node, attrs={**node.attrs, "program": out.program, "stores": stores})
    return trim(node, set(range(len(node.outputs))))


# ── with ──────────────────────────────────────────────────────────────────────────────────────


def with_scale(graph: Graph, growth: int = GROWTH) -> tuple[Graph, Tables]:
    """Returns the graph with updates that unscale gradients and skip bad steps, and the constants that it needs."""
    updates = [n for n in graph.nodes if n.origin.phase == "update"]
    written = {t for n in updates for t in _parts(graph, n.outputs)}
    if not any(write.tensor in written and write.slot != _COUNTER for write in graph.writes):
        return graph, {}
    if SCALE not in graph.slots:
        raise PlanError(
            f"graph {graph.name!r} was captured by an earlier version of Handheld, without a scale for its loss. "
            "Try: capture it again, or precision='float32'"
        )
    return _Scaling(graph, updates, written, growth).done()


def _parts(graph: Graph, tensors: Iterable[int]) -> list[int]:
    """Returns the tensors and the members of packs among them."""
    return [t for tensor in tensors for t in (tensor, *graph.packs.get(tensor, ()))]


class _Scaling:
    """Rewrites one graph. `done` returns the result."""

    def __init__(self, graph: Graph, updates: list[Node], written: set[int], growth: int) -> None:
        self.graph, self.updates, self.written, self.growth = graph, updates, written, growth
        self.tensors, self.packs = dict(graph.tensors), dict(graph.packs)
        self.slots, self.tables = dict(graph.slots), Tables()
        self.writes = list(graph.writes)
        self.old = {write.tensor: write.slot for write in graph.writes}
        slot_of = {t: s for s, t in graph.slots.items()}
        read = dict.fromkeys(v.tensor for n in updates for v in n.inputs)
        #: The tensors that updates read: gradients times the scale, and accumulated sums.
        self.gradients = [
            t
            for t in read
            if t == graph.slots[SCALE] or not any(p in slot_of or p in written for p in _parts(graph, [t]))
        ]
        self.sums = [
            t for t in read if all(slot_of.get(m, "").startswith(ACCUMULATED) for m in graph.packs.get(t, (t,)))
        ]
        #: Whether the graph changes parameters. If not, it only accumulates gradients.
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
        """Groups gradients and sums so that one launch can check each group: a pack, or tensors of one size."""
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
        """Returns nodes that look for NaN and infinity. The result also includes that of earlier checks."""
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
        """Returns a slot that says how many elements of each row of a pack belong to a member.

        The others are a gap between members and may have any value.
        """
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
        """Returns a node that finds out whether any element of a row (the last dimension) is NaN or infinite.

        For a pack, only the first `filled` elements of each row count.
        """
        b = Builder()
        each = [b.load(k, dtype) for k in range(len(views))]
        if dtype == F32:  # x - x is 0 unless x is NaN or infinite.
            zero = b.const(0.0, F32)
            each = [b.op("ne", BOOL, b.op("sub", F32, x, x), zero) for x in each]
        bad = each[0]
        for other in each[1:]:
            bad = b.op("or", BOOL, bad, other)
        if filled is not None:
            views = [*views, filled]
            inside = b.op("lt", BOOL, b.op("iota", I32, params=(1,)), b.load(len(views) - 1, I32))
            bad = b.op("and", BOOL, bad, inside)
        any_bad = b.op("any_of", BOOL, bad)
        if last and self.bad is not None:
            views = [*views, View(self.bad, shape, (0,) * len(shape))]
            any_bad = b.op("or", BOOL, any_bad, b.load(len(views) - 1, BOOL))
        out = self._tensor(shape[:-1], BOOL)
        if last:
            self.bad = out
        attrs = {
            "shape": shape,
            "axes": (len(shape) - 1,),
            "program": b.program,
            "stores": (Store(any_bad, full=False),),
        }
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
        """Returns the node with unscaled gradients. In a bad step its results are the old values."""
        scaled = [k for k, v in enumerate(node.inputs) if v.tensor in self.gradients]
        kept = [self._old(out) for out in node.outputs]
        if not scaled and not any(old is not None for old in kept):
            return node
        if node.op not in ("map", "reduce"):
            raise PlanError(
                f"{node.op} of {node.origin.path} is part of an update, and loss scaling does not "
                "support that op there. Try: precision='float32'"
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
        """Returns the old value that a bad step must keep: the tensor of a slot, or a pack of slots if `out` is a pack.

        Returns None if the result may change in a bad step.
        """
        members = self.graph.packs.get(out, (out,))
        names = [self.old.get(m, "") for m in members]
        if not self.applies or not all(names) or names[0].startswith(ACCUMULATED):
            return None
        olds = tuple(self.graph.slots[n] for n in names)
        if out not in self.graph.packs:
            return olds[0]
        pack = next((p for p, parts in self.packs.items() if parts == olds), None)
        if pack is None:
            like = self.tensors[out]
            pack = self._tensor(like.shape, like.dtype, self.tensors[olds[0]].role, "pack")
            self.packs[pack] = olds
        return pack


def _like(tensor: Tensor, node: Node, full: bool) -> View:
    """Returns a view of the old value at the points where the new one is stored."""
    shape, axes = tuple(node.attrs["shape"]), tuple(node.attrs["axes"])
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        if full or d not in axes:
            strides[d] = step
            step *= max(shape[d], 1)
    return View(tensor.id, shape, tuple(strides))


def _row(size: int) -> int:
    """Returns a row length that divides the size of a tensor, so that rows can be checked in parallel."""
    if size <= _SHORT:
        return size
    return next((row for row in range(2 * ROW, 15, -1) if size % row == 0), size)
