"""Defines what a legal graph is. `check` runs after every pass and after reading a file.

A legal graph cannot make a kernel read or write outside its buffers: every view stays inside its tensor, every
shape and type fits its op, and every number fits the 32-bit integers of a kernel. Kernels handle indices that
depend on data: a gather out of range reads the nearest element, a scatter out of range is ignored.

check_ops.py has the rules of each op, check_program.py those of programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from handheld.errors import GraphError
from handheld.graph.check_ops import LIMIT, RULES, check_view, need
from handheld.graph.check_program import check_program
from handheld.graph.dtypes import DTYPES, F16, NARROW, TORCH_DTYPES
from handheld.graph.graph import PHASES, ROLES, SLOT_ROLES, Graph, Node, Slot, Tensor, pack_offsets
from handheld.graph.ops import OPS

#: The roles of tensors that a node may write.
MADE = frozenset({"activation", "gradient", "workspace"})


def check(graph: Graph, slots: Mapping[str, Slot] | None = None, before: Graph | None = None) -> Graph:
    """Returns the graph if it is legal; otherwise raises GraphError that names the wrong node.

    If `slots` is given, the slots of the graph must agree with it in shape and type. `before` is a legal graph that a
    pass made this one of: of nodes that both have, only the place is checked.
    """
    try:
        for key, tensor in graph.tensors.items():
            _check_tensor(key, tensor)
        _check_ends(graph)
        _check_packs(graph)
        _check_host(graph)
        _check_notes(graph)
        if slots is not None:
            _check_state(graph, slots)
    except GraphError as error:
        raise GraphError(f"graph {graph.name!r}: {error}") from None
    same = _Same(graph, before)
    known, narrow = _Known(graph), {i for i, tensor in graph.tensors.items() if tensor.dtype in NARROW}
    for index, node in enumerate(graph.nodes):
        try:
            _check_place(graph, node, known.tensors)
            if node not in same:
                _check_node(graph, node)
            if narrow and node.op not in ("map", "reduce"):
                touched = {view.tensor for view in node.inputs} | set(node.outputs)
                need(not narrow & touched, "only maps and reductions know the types of optimizer state")
        except GraphError as error:
            where = f"node {index} ({node.op} from {node.origin.path or 'no module'})"
            raise GraphError(f"graph {graph.name!r}, {where}: {error}") from None
        for out in node.outputs:
            known.add(out)
    try:
        _check_results(graph, known.tensors)
    except GraphError as error:
        raise GraphError(f"graph {graph.name!r}: {error}") from None
    return graph


class _Same:
    """The nodes that were checked in an earlier graph, with the same tensors."""

    def __init__(self, graph: Graph, before: Graph | None) -> None:
        self._nodes = {} if before is None else {id(node): node for node in before.nodes}
        old = {} if before is None else before.tensors
        self._changed = {i for i, tensor in graph.tensors.items() if i not in old or old[i] != tensor}

    def __contains__(self, node: Node) -> bool:
        return id(node) in self._nodes and self._changed.isdisjoint(
            (*node.outputs, *(view.tensor for view in node.inputs))
        )


class _Known:
    """The tensors that exist so far. A pack exists once all its members exist, and the other way round."""

    def __init__(self, graph: Graph) -> None:
        self.tensors: set[int] = set()
        self._packs = graph.packs
        self._pack_of = {m: pack for pack, members in graph.packs.items() for m in members}
        self._missing = {pack: len(members) for pack, members in graph.packs.items()}
        for tensor in (*(given.tensor for given in graph.inputs), *graph.slots.values()):
            self.add(tensor)

    def add(self, tensor: int) -> None:
        for part in (tensor, *self._packs.get(tensor, ())):
            self.tensors.add(part)
            pack = self._pack_of.get(part)
            if pack is not None:
                self._missing[pack] -= 1
                if not self._missing[pack]:
                    self.tensors.add(pack)


def _check_tensor(key: int, tensor: Tensor) -> None:
    need(key == tensor.id, f"tensor {key} calls itself {tensor.id}")
    need(tensor.dtype in DTYPES, f"tensor {key} has the unknown type {tensor.dtype!r}")
    need(tensor.role in ROLES, f"tensor {key} has the unknown role {tensor.role!r}")
    need(
        all(0 <= n <= LIMIT for n in tensor.shape) and math.prod(tensor.shape) <= LIMIT,
        f"tensor {key} {tensor.shape} has more elements than a 32-bit index reaches",
    )


def _check_ends(graph: Graph) -> None:
    """Checks the inputs and slots. Each must have its own tensor."""
    _unique("input", [given.name for given in graph.inputs])
    _unique("output", [shown.name for shown in graph.outputs])
    _unique("input or slot tensor", [given.tensor for given in graph.inputs] + list(graph.slots.values()))
    for given in graph.inputs:
        need(given.tensor in graph.tensors, f"input {given.name!r} has no tensor {given.tensor}")
        role, kind = graph.tensors[given.tensor].role, given.torch_dtype
        need(role == "input", f"input {given.name!r} has the role {role}")
        need(kind in TORCH_DTYPES, f"input {given.name!r} has the unknown PyTorch type {kind!r}")
    for name, tensor_id in graph.slots.items():
        need(tensor_id in graph.tensors, f"slot {name!r} has no tensor {tensor_id}")
        role = graph.tensors[tensor_id].role
        need(role in SLOT_ROLES, f"slot {name!r} has the role {role}")


def _check_packs(graph: Graph) -> None:
    """Checks that a pack is as long as its members end to end, and that no tensor is in two packs."""
    _unique("member of a pack", [m for members in graph.packs.values() for m in members])
    ends = {given.tensor for given in graph.inputs}
    for pack, members in graph.packs.items():
        need(
            pack in graph.tensors and bool(members) and set(members) <= set(graph.tensors),
            f"pack {pack} or one of its members does not exist",
        )
        need(
            not ends & set(members) and pack not in ends | set(graph.slots.values()),
            f"pack {pack} holds an input, or is an input or a slot itself",
        )
        need(not any(m in graph.packs for m in members), f"pack {pack} holds another pack")
        whole = graph.tensors[pack]
        need(all(graph.tensors[m].dtype == whole.dtype for m in members), f"pack {pack} has members of another type")
        need(
            whole.shape == (pack_offsets(graph.tensors, members)[1],),
            f"pack {pack} of shape {whole.shape} is not as long as its members",
        )


def _check_host(graph: Graph) -> None:
    """Checks that only whole copies between the device and the host touch tensors in the memory of the host."""
    host = graph.host
    if not host:
        return
    need(host <= set(graph.tensors), "a tensor in the host's memory does not exist")
    ends = {given.tensor for given in graph.inputs} | graph.kept
    inside = set(graph.packs) | {m for members in graph.packs.values() for m in members}
    need(not host & (ends | inside), "an input, an output, a written slot or a pack is in the host's memory")
    for index, node in enumerate(graph.nodes):
        touched = [*(view.tensor for view in node.inputs), *node.outputs]
        if host.isdisjoint(touched):
            continue
        whole = len(touched) == 2 and len(node.inputs) == 1 and node.op == "map" and len(node.program) == 1
        need(
            whole and sum(t in host for t in touched) == 1 and node.inputs[0].is_contiguous,
            f"node {index} ({node.op}) uses a tensor in the host's memory and is no copy",
        )
        sizes = {(graph.tensors[t].size, graph.tensors[t].dtype) for t in touched if t in graph.tensors}
        need(len(sizes) == 1 and node.inputs[0].size == graph.tensors[touched[0]].size, f"node {index} copies a part")


def _check_notes(graph: Graph) -> None:
    """Checks the notes that the program itself reads."""
    for key in ("no_gradient", "frozen"):
        texts = graph.notes.get(key, ())
        need(
            isinstance(texts, tuple) and all(isinstance(t, str) for t in texts),
            f"the note {key!r} is not a tuple of strings",
        )
    count = graph.notes.get("accumulate", 1)
    need(type(count) is int and 0 < count <= LIMIT, f"the note 'accumulate' is {count!r:.40}")
    names = {given.name for given in graph.inputs}
    ranges = graph.notes.get("ranges", ())
    need(
        isinstance(ranges, tuple) and all(_is_range(entry, names) for entry in ranges),
        "the note 'ranges' does not name inputs with their limits",
    )


def _is_range(entry: object, names: set[str]) -> bool:
    """Whether `entry` is (input, lowest index, highest index + 1, the index to ignore or None)."""
    if not isinstance(entry, tuple) or len(entry) != 4 or type(entry[0]) is not str:
        return False
    _, low, high, ignored = entry
    return entry[0] in names and type(low) is int and type(high) is int and (ignored is None or type(ignored) is int)


def _unique(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        need(name not in seen, f"the {what} {name!r} appears twice")
        seen.add(name)


def _check_state(graph: Graph, slots: Mapping[str, Slot]) -> None:
    for name, tensor_id in graph.slots.items():
        need(name in slots, f"slot {name!r} is not in the state")
        tensor, slot = graph.tensors[tensor_id], slots[name]
        need(
            (tensor.shape, tensor.dtype) == (slot.shape, slot.dtype),
            f"slot {name!r} is {slot.dtype}{slot.shape} in the state and {tensor.dtype}{tensor.shape} in the graph",
        )
        need(slot.dtype != F16, f"slot {name!r} is f16, but state is never f16")
    ends = {given.name: given.tensor for given in graph.inputs}
    ends |= {shown.name: shown.view.tensor for shown in graph.outputs}
    for name, tensor_id in ends.items():
        need(
            tensor_id not in graph.tensors or graph.tensors[tensor_id].dtype != F16,
            f"{name!r} is f16, but inputs and outputs are never f16",
        )


def _check_results(graph: Graph, known: set[int]) -> None:
    """Checks the outputs and the new values of slots."""
    for shown in graph.outputs:
        kind = shown.torch_dtype
        need(shown.view.tensor in known, f"no node writes output {shown.name!r}")
        need(kind in TORCH_DTYPES, f"output {shown.name!r} has the unknown PyTorch type {kind!r}")
        check_view(graph, shown.view)
    _unique("written slot", [write.slot for write in graph.writes])
    for write in graph.writes:
        slot = write.slot
        need(slot in graph.slots, f"an unknown slot {slot!r} is written")
        need(write.tensor in known, f"no node writes the new value of slot {slot!r}")
        old, new = graph.tensors[graph.slots[slot]], graph.tensors[write.tensor]
        need(old.role != "constant", f"slot {slot!r} is a constant but is written")
        need(
            (old.size, old.dtype) == (new.size, new.dtype),
            f"slot {slot!r} is {old.dtype}{old.shape} but its new value is {new.dtype}{new.shape}",
        )


def _check_place(graph: Graph, node: Node, known: set[int]) -> None:
    """What depends on the nodes before this one."""
    for view in node.inputs:
        need(view.tensor in known, f"reads tensor {view.tensor} before it is written")
    for out in node.outputs:
        need(
            out in graph.tensors and known.isdisjoint((out, *graph.packs.get(out, ()))),
            f"output {out} is missing or written twice",
        )


def _check_node(graph: Graph, node: Node) -> None:
    """What depends on the node and its tensors alone."""
    need(node.op in OPS, f"unknown op {node.op!r}")
    op = OPS[node.op]
    need(node.origin.phase in PHASES, f"unknown phase {node.origin.phase!r}")
    given = set(node.attrs) - set(op.optional)
    need(given == set(op.attrs), f"has attributes {sorted(node.attrs)}, not {op.attrs}")
    arithmetic = node.attrs.get("arithmetic", "half")
    need(arithmetic == "half", f"has the arithmetic {arithmetic!r}; the only one that can be named is 'half'")
    need(bool(node.outputs), "has no outputs")
    _unique("output", node.outputs)
    for out in node.outputs:
        role = graph.tensors[out].role
        need(role in MADE, f"output {out} has the role {role}, which no node can write")
    if op.inputs is not None:
        right = len(node.inputs) == op.inputs or (op.epilogue and len(node.inputs) > op.inputs)
        need(right, f"has {len(node.inputs)} inputs but needs {op.inputs}")
    if op.outputs is not None:
        need(len(node.outputs) == op.outputs, f"has {len(node.outputs)} outputs but needs {op.outputs}")
    for view in node.inputs[: op.inputs] if "program" not in node.attrs or op.epilogue else ():
        check_view(graph, view)
    if node.op in RULES:
        RULES[node.op](graph, node)
    if "program" in node.attrs:
        check_program(graph, node)
