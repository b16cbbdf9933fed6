"""Writes graphs as text for people: one line per node, programs as formulas.

A line looks like this (wrapped here):

    %12 f32[32,6,24,24] = conv($x f32[32,1,28,28], @conv1.weight f32[6,1,5,5]) stride=1,1
        { max(acc + x2, 0) } | forward conv1 aten.convolution

`%7` is tensor 7, `$x` an input and `@conv1.weight` a slot. A view that is not the whole tensor in row-major
order shows its strides and offset: `%7 f32[10,32; 1,10; +5]`. In a formula, `x2` is input 2 of the node at this
point, `i0` is the coordinate in dimension 0, and `t3` is a value that is used more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from handheld.graph.graph import PHASES, ROLES, Graph, Node, View
from handheld.graph.ops import OPS
from handheld.graph.program import ARITY, Instr, Program

_INFIX = {
    "or": ("|", 1),
    "xor": ("^", 2),
    "and": ("&", 3),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "shl": ("<<", 5),
    "shr": (">>", 5),
    "add": ("+", 6),
    "sub": ("-", 6),
    "mul": ("*", 7),
    "div": ("/", 7),
    "floordiv": ("//", 7),
    "mod": ("%", 7),
    "pow": ("**", 9),
}
_PREFIX = {"neg": "-", "not": "!", "bitnot": "~"}
_COMPARE, _UNARY, _ATOM = 4, 8, 10
#: Attributes that have their own place in the line.
_SPELLED = ("program", "stores", "shape", "axes")


def show(graph: Graph) -> str:
    """Returns the whole graph as text."""
    names = _names(graph)
    lines = [f"graph {graph.name}"]
    lines += [f"  {key}: {value}" for key, value in graph.notes.items()]
    lines += [
        f"  input {names[given.tensor]} {_typed(graph, given.tensor)} ({given.torch_dtype})" for given in graph.inputs
    ]
    lines += [
        f"  slot {names[t]} {_typed(graph, t)} {graph.tensors[t].role}"
        for t in graph.slots.values()
        if t in graph.tensors
    ]
    lines += ["  " + _line(node, graph, names) for node in graph.nodes]
    lines += [
        f"  output {shown.name} = {_view(shown.view, graph, names)} ({shown.torch_dtype})" for shown in graph.outputs
    ]
    lines += [f"  @{write.slot} <- {names.get(write.tensor, f'%{write.tensor}')}" for write in graph.writes]
    return "\n".join(lines)


def show_node(node: Node, graph: Graph) -> str:
    """Returns one node as one line."""
    return _line(node, graph, _names(graph))


def summary(graph: Graph) -> str:
    """Returns the number of nodes per op and phase, and of tensors and bytes per role, as text."""
    ops = Counter(node.op for node in graph.nodes)
    phases = Counter(node.origin.phase for node in graph.nodes)
    lines = [
        f"graph {graph.name}: {len(graph.nodes)} nodes, {len(graph.tensors)} tensors, "
        f"{_bytes(sum(t.nbytes for t in graph.tensors.values()))}",
        "  ops: " + ", ".join(f"{op} {n}" for op, n in ops.most_common()),
        "  phases: " + ", ".join(f"{p} {phases[p]}" for p in PHASES if phases[p]),
    ]
    for role in ROLES:
        tensors = [t for t in graph.tensors.values() if t.role == role]
        if tensors:
            size = _bytes(sum(t.nbytes for t in tensors))
            lines.append(f"  {role}: {len(tensors)} tensors, {size}")
    return "\n".join(lines)


def formula(program: Program, stores: Sequence[int]) -> str:
    """Writes a program as a formula: assignments of values that are used more than once, then the stored values."""
    uses = Counter(a for instr in program for a in instr.args)
    uses.update(stores)
    shared: dict[int, str] = {}
    done: dict[int, tuple[str, int]] = {}
    for i, instr in enumerate(program):
        text, level = _expression(instr, [done.get(a, ("?", _ATOM)) for a in instr.args])
        if uses[i] > 1 and level < _ATOM:
            shared[i] = text
            text, level = f"t{i}", _ATOM
        done[i] = (text, level)
    parts = [f"t{i} = {text}" for i, text in shared.items()]
    parts.append(", ".join(done.get(position, ("?", _ATOM))[0] for position in stores))
    return "; ".join(parts)


def _expression(instr: Instr, args: list[tuple[str, int]]) -> tuple[str, int]:
    """Returns the text of an instruction and its binding strength."""
    op, plain = instr.op, [text for text, _ in args]
    if len(args) != ARITY.get(op):  # Illegal graphs are shown too.
        return f"{op}({', '.join(plain)})", 9
    if op == "load":
        operand, guards, fill = instr.params
        ranges = " & ".join(f"{low} <= i{dim} < {high}" for dim, low, high in guards)
        return (f"where({ranges}, x{operand}, {_number(fill)})", 9) if guards else (f"x{operand}", _ATOM)
    if op == "gather":
        return f"x{instr.params[0]}[{plain[0]}]", 9
    if op == "iota":
        return f"i{instr.params[0]}", _ATOM
    if op == "const":
        return _number(instr.params[0]), _ATOM if instr.params[0] >= 0 else _UNARY
    if op in ("acc", "index"):
        return op, _ATOM
    if op in _INFIX:
        sign, level = _INFIX[op]
        left = level + (op == "pow" or level == _COMPARE)  # This gives a - b - c, but (a ** b) ** c.
        return f"{_inside(args[0], left)} {sign} {_inside(args[1], level + 1)}", level
    if op in _PREFIX:
        return _PREFIX[op] + _inside(args[0], _UNARY + 1), _UNARY
    if op == "cast":
        return f"{instr.dtype}({plain[0]})", 9
    if op == "random":
        plain.append(f"key={instr.params[0]}")
    return f"{op}({', '.join(plain)})", 9


def _inside(arg: tuple[str, int], level: int) -> str:
    return arg[0] if arg[1] >= level else f"({arg[0]})"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _names(graph: Graph) -> dict[int, str]:
    names = {t: f"%{t}" for t in graph.tensors}
    names |= {t: f"@{slot}" for slot, t in graph.slots.items()}
    return names | {given.tensor: f"${given.name}" for given in graph.inputs}


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _typed(graph: Graph, tensor: int) -> str:
    record = graph.tensors.get(tensor)
    return f"{record.dtype}[{_join(record.shape)}]" if record else "?"


def _view(view: View, graph: Graph, names: dict[int, str]) -> str:
    tensor = graph.tensors.get(view.tensor)
    text = f"{names.get(view.tensor, f'%{view.tensor}')} {tensor.dtype if tensor else '?'}"
    if view.is_contiguous:
        return f"{text}[{_join(view.shape)}]"
    offset = f"; +{view.offset}" if view.offset else ""
    return f"{text}[{_join(view.shape)}; {_join(view.strides)}{offset}]"


def _line(node: Node, graph: Graph, names: dict[int, str]) -> str:
    attrs = node.attrs
    outputs = ", ".join(f"{names.get(t, f'%{t}')} {_typed(graph, t)}" for t in node.outputs)
    prefix = "x{}=" if node.op in ("map", "reduce") else ""
    own = OPS[node.op].inputs if node.op in OPS else None
    inputs = ", ".join(
        ("x{}=" if own is not None and i >= own else prefix).format(i) + _view(view, graph, names)
        for i, view in enumerate(node.inputs)
    )
    words = [f"{outputs} = {node.op}({inputs})"]
    if "axes" in attrs:
        words.append(f"over [{_join(attrs['shape'])}]")
    if attrs.get("axes"):
        words.append(f"reducing {_join(attrs['axes'])}")
    words += [f"{key}={_attribute(value)}" for key, value in attrs.items() if key not in _SPELLED]
    if "program" in attrs:
        text = formula(node.program, [store.position for store in node.stores])
        if text != "acc":
            words.append("{ " + text + " }")
    origin = node.origin
    words.append(f"| {origin.phase} {origin.path or '-'} {origin.torch_op}")
    return " ".join(words)


def _attribute(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_attribute, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
