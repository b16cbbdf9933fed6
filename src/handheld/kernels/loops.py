"""map: generates kernels that compute each point of a space independently.

There are two ways to share the points among work-items:

    blocks (CPU)   A work-item takes up to 2,048 points along the last dimension, in a plain loop that the
                   compiler turns into vector code.
    points (GPU)   A work-item takes one point. In large tensors it takes four (two in long programs), whose
                   distance is the size of a work-group, so that their loads overlap:

        work-group of 4:   | 0 1 2 3 | 0 1 2 3 | 0 1 2 3 | 0 1 2 3 |     (work-item of each point)

`Body` writes the statements of a program. The reductions (rows*.py) use it too.
"""

from __future__ import annotations

import math

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node, Tensor
from handheld.graph.program import Program
from handheld.kernels.args import LIMIT
from handheld.kernels.base import Launch, Lowered, round_up
from handheld.kernels.expr import INDEX, Code, statement
from handheld.kernels.space import Space, collapse

BLOCK = 2048  # CPU: points per work-item.
GROUP = 128  # GPU: work-items per work-group.
POINTS = 4  # GPU: points per work-item in large tensors.
LONG = 24  # GPU: programs with more instructions take half as many points per work-item.
FULL = 4096  # GPU: a tensor is large if it has this many points per compute unit.
_VECTORIZE = "#ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif"
#: Ways to vectorize a loop: iterations at once -> (relative time of an iteration, pragma). The rest of the loop runs
#: one by one (_SINGLE). Two vectors at once help with polynomials, in which each step waits for the one before.
_STEPS = {
    8: (1.0, _VECTORIZE),
    16: (0.65, _VECTORIZE.replace("safety)", "safety) vectorize_width(16)")),
    32: (0.6, _VECTORIZE.replace("safety)", "safety) vectorize_width(16) interleave_count(2)")),
}
_SINGLE = 8.0


class Body:
    """Writes the statements of a program. The coordinates of a point are the variables x0, x1, .."""

    def __init__(self, node: Node, graph: Graph, space: Space) -> None:
        self.node, self.space = node, space
        self.code = Code(graph)
        self.program: Program = node.program
        self.kinds = [i.dtype for i in self.program]
        self.coords = [f"x{d}" for d in range(len(space.sizes))]
        self.sizes = [self.code.integer(n) for n in space.sizes]
        self._indices: dict[int, str] = {}
        self._values: dict[int, str] = {}
        self.array: set[int] = set()  # Instructions whose values are arrays with one element per lane `l`.

    def name(self, i: int) -> str:
        return f"v{i}[l]" if i in self.array else f"v{i}"

    def index_of(self, operand: int) -> str:
        if operand not in self._indices:
            own = operand == INDEX
            strides = self.space.linear if own else self.space.operands[operand]
            offset = 0 if own else self.node.inputs[operand].offset
            self._indices[operand] = self.code.index(strides, offset, self.coords)
        return self._indices[operand]

    def coord(self, dim: int) -> str:
        return self.coords[self.space.keep[dim]]

    def value(self, i: int) -> str:
        if i not in self._values:
            self._values[i] = statement(
                self.code, self.program[i], i, self.name, self.kinds, self.index_of, self.coord, self.node
            )
        return self._values[i]

    def declare(self, i: int) -> str:
        return f"const {DTYPES[self.kinds[i]].c_register} v{i} = {self.value(i)};"

    def stores(self, full: bool) -> list[str]:
        return [
            self.code.store(self._output(n), self._output_index(n), self.name(store.position))
            for n, store in enumerate(self.node.stores)
            if store.full == full
        ]

    def place(self, n: int) -> str:
        """The element of output n, a float, that belongs to the current point."""
        return f"{self.code.pointer(self._output(n), written=True)}[{self._output_index(n)}]"

    def _output(self, n: int) -> Tensor:
        return self.code.graph.tensors[self.node.outputs[n]]

    def _output_index(self, n: int) -> str:
        key = -2 - n
        if key not in self._indices:
            self.code.pointer(self._output(n), written=True)  # Its parameter comes before those of the index.
            self._indices[key] = self.code.index(self.space.outputs[n], 0, self.coords)
        return self._indices[key]

    def kernel(self, name: str, lines: list[str], attributes: str = "") -> str:
        params = ", ".join(self.code.params)
        text = "\n".join(f"  {line}" for line in lines)
        head = f"__kernel {attributes}\nvoid" if attributes else "__kernel void"
        return f"{self.code.helpers}\n{head} {name}({params}) {{\n{text}\n}}\n"

    def split(self, linear: str, dims: list[int]) -> list[str]:
        """Statements that compute the coordinates of `dims` from a linear index; the last dimension is the fastest."""
        lines, rest = [], linear
        for n, d in enumerate(reversed(dims)):
            if n == len(dims) - 1:
                lines.append(f"const int x{d} = {rest};")
            else:
                lines.append(f"const int x{d} = {rest} % {self.sizes[d]};")
                lines.append(f"const int r{d} = {rest} / {self.sizes[d]};")
                rest = f"r{d}"
        return lines


def lower_map(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    space = collapse(node, graph)
    if not any(graph.tensors[out].size for out in node.outputs):
        return Lowered(())
    body = Body(node, graph, space)
    dims = list(range(len(space.sizes)))
    total = math.prod(space.sizes)
    inner = [body.declare(i) for i in range(len(body.program))] + body.stores(True)
    if caps.kind == "cpu" and dims:
        rows, last = math.prod(space.sizes[:-1]), space.sizes[-1]
        blocks = -(-last // BLOCK)
        work, count = body.code.integer(rows * blocks), body.code.integer(blocks)
        end = body.sizes[-1]
        lines = [
            "const int g = get_global_id(0);",
            f"if (g >= {work}) return;",
            f"const int row = g / {count}, begin = (g % {count}) * {BLOCK};",
            f"const int end = min(begin + {BLOCK}, {end});",
            *body.split("row", dims[:-1]),
            *_run(body, inner, last),
        ]
        local = cpu_group(rows * blocks, caps)
        return launch(body, "map_blocks", lines, round_up(rows * blocks, local), local, node)
    bound, local = body.code.integer(total), min(GROUP, caps.max_work_group)
    split, points = body.split("g", dims), POINTS if len(body.program) <= LONG else POINTS // 2
    if total < FULL * caps.compute_units or total + points * local > LIMIT:
        lines = ["const int g = get_global_id(0);", f"if (g >= {bound}) return;", *split, *inner]
        return launch(body, "map_points", lines, round_up(max(total, 1), local), local, node)
    lines = _several(body, split, bound, points, local)
    items = round_up(-(-total // points), local)
    return launch(body, f"map_{points}_points", lines, items, local, node)


def _run(body: Body, inner: list[str], size: int) -> list[str]:
    """CPU: the loop over the points [begin, end) of a row.

    A gather clamps each position, which prevents vector code. If neighbouring points read neighbouring elements of
    the table (as in an embedding), the positions of the whole run are checked once. If all are inside the table, a
    loop without clamps runs; it becomes vector code.
    """
    x, slopes, tests = f"x{len(body.space.sizes) - 1}", _slopes(body), []
    free = {i: body.declare(i) for i, slope in enumerate(slopes) if slope != 0}
    for i, instr in enumerate(body.program):
        if instr.op == "gather" and slopes[at := instr.args[0]] == 1:
            needed = {at}
            for k in range(at, -1, -1):
                needed |= set(body.program[k].args) if k in needed else set()
            table = body.code.graph.tensors[body.node.inputs[instr.params[0]].tensor]
            last = body.code.integer(max(table.size - 1, 0))
            before = [free[k] for k in sorted(needed & set(free))]
            tests += [
                "{",
                f"const int {x} = begin;",
                *before,
                f"inside &= v{at} >= 0 && v{at} <= {last} - (end - 1 - begin);",
                "}",
            ]
            kind = DTYPES[body.kinds[i]].c_register
            free[i] = f"const {kind} v{i} = {body.code.element(table, f'v{at}')};"
    if not tests:
        return loop(x, "begin", "end", inner, size)
    fixed = [body.declare(i) for i in range(len(body.program)) if i not in free]
    quick = loop(x, "begin", "end", [*free.values(), *body.stores(True)], size)
    return [
        *fixed,
        "int inside = 1;",
        *tests,
        "if (inside) {",
        *quick,
        "} else {",
        *loop(x, "begin", "end", inner, size),
        "}",
    ]


def _slopes(body: Body) -> list[int | None]:
    """By how much each value grows from one point of a row to the next; None if that is not constant."""
    space, slopes = body.space, list[int | None]()
    last = len(space.sizes) - 1
    for instr in body.program:
        args = [slopes[a] for a in instr.args]
        slope = 0 if all(a == 0 for a in args) else None
        if instr.op == "iota":
            slope = int(space.keep[instr.params[0]] == last)
        elif instr.op == "index":
            slope = space.linear[last]
        elif instr.op == "load" and (
            space.operands[instr.params[0]][last] or any(space.keep[d] == last for d, _, _ in instr.params[1])
        ):
            slope = None
        elif instr.op == "add" and None not in args:
            slope = sum(a or 0 for a in args)
        slopes.append(slope)
    return slopes


def _several(body: Body, split: list[str], bound: str, count: int, local: int) -> list[str]:
    """GPU: `count` points per work-item. All loads come first and then all stores: a compiler could not move a load
    before a store that might write the same memory."""
    values = [body.declare(i) for i in range(len(body.program))]
    stored = sorted({store.position for store in body.node.stores})
    kinds = {i: DTYPES[body.kinds[i]].c_register for i in stored}
    each = ["#pragma unroll", f"for (int u_ = 0; u_ < {count}; ++u_) {{", f"  const int g = first_ + u_ * {local};"]
    return [
        f"const int first_ = get_group_id(0) * {count * local} + get_local_id(0);",
        f"if (first_ + {(count - 1) * local} < {bound}) {{",
        *(f"{kind} y{i}[{count}];" for i, kind in kinds.items()),
        *each,
        *split,
        *values,
        *(f"y{i}[u_] = v{i};" for i in stored),
        "}",
        *each,
        *split,
        *(f"const {kind} v{i} = y{i}[u_];" for i, kind in kinds.items()),
        *body.stores(True),
        "}",
        "} else {",
        f"for (int g = first_; g < {bound}; g += {local}) {{",
        *split,
        *values,
        *body.stores(True),
        "}",
        "}",
    ]


def cpu_group(work: int, caps: DeviceCaps) -> int:
    """The size of a work-group on a CPU: 16 or 1. PoCL compiles a kernel again for every size of a work-group."""
    return 16 if work >= 64 * 16 and caps.max_work_group >= 16 else 1


def loop(variable: str, begin: str, end: str, inner: list[str], size: int) -> list[str]:
    """A vectorized loop of at most `size` iterations. Each iteration may touch only its own elements, even if pointers
    alias."""
    step = min(_STEPS, key=lambda n: size // n * n * _STEPS[n][0] + size % n * _SINGLE)
    return [
        _STEPS[step][1],
        f"for (int {variable} = {begin}; {variable} < {end}; ++{variable}) {{",
        *(f"  {line}" for line in inner),
        "}",
    ]


def launch(body: Body, name: str, lines: list[str], global_size: int, local: int, node: Node) -> Lowered:
    text = body.kernel(name, lines)
    launch = Launch(name, text, tuple(body.code.args), (global_size,), (local,))
    return Lowered((launch,), (), f"{name} over {'x'.join(map(str, body.space.sizes)) or '1'}")
