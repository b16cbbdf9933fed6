"""map and reduce: generated kernels, three ways to walk a space.

    blocks   (map on a CPU)     a work-item takes a run of the last dimension, a plain loop that the
                                compiler turns into vector code
    points   (map on a GPU)     a work-item takes one point
    lanes    (reduce on a CPU)  a work-item takes one row; 16 partial results run along it
    columns  (reduce)           a work-item takes 16 (CPU) or 1 (GPU) neighbouring rows, so that
                                memory is read in order where rows, not elements, are adjacent
    group    (reduce on a GPU)  a work-group takes one row and folds in local memory

A reduce kernel runs in stages: each stage walks the row once and ends in reductions; what later
stages need of a row is computed again rather than stored. The last walk writes the full outputs:

    x ──► stage 1: sum(x) ──► stage 2: sum((x - mean)^2) ──► walk: y = (x - mean) * rstd

Sums are kept in two levels (a run of at most 256 terms, then the total), so that a sum of a
million terms errs like one of a thousand.
"""

from __future__ import annotations

import math

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.graph.program import REDUCTIONS, Instr, Program
from handheld.kernels.base import Launch, Lowered, round_up
from handheld.kernels.expr import INDEX, REGISTER, Code, statement
from handheld.kernels.space import Space, collapse

LANES = 16
BLOCK = 2048
NEUTRAL = {
    "sum": {"f32": "0.0f", "i32": "0"},
    "prod": {"f32": "1.0f", "i32": "1"},
    "max_of": {"f32": "-INFINITY", "i32": "INT_MIN", "bool": "0"},
    "min_of": {"f32": "INFINITY", "i32": "INT_MAX", "bool": "1"},
    "arg_max": {"f32": "-INFINITY", "i32": "INT_MIN", "bool": "0"},
    "arg_min": {"f32": "INFINITY", "i32": "INT_MAX", "bool": "1"},
    "any_of": {"bool": "0"},
    "all_of": {"bool": "1"},
}


def lower_loops(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    """map or reduce on a device."""
    space = collapse(node, graph)
    if not any(graph.tensors[out].size for out in node.outputs):
        return Lowered(())
    if node.op == "map":
        return _lower_map(node, graph, caps, space)
    return _lower_reduce(node, graph, caps, space)


class _Body:
    """Writes the statements of a program with the coordinate names of one walk."""

    def __init__(self, node: Node, graph: Graph, space: Space) -> None:
        self.node, self.space = node, space
        self.code = Code(graph)
        self.program: Program = node.attrs["program"]
        self.kinds = [i.dtype for i in self.program]
        self.coords = [f"x{d}" for d in range(len(space.sizes))]
        self.sizes = [self.code.integer(n) for n in space.sizes]
        self._indices: dict[int, str] = {}
        self._values: dict[int, str] = {}
        self.array: set[int] = set()  # values kept per lane

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
                self.code, self.program[i], i, self.name, self.kinds, self.index_of, self.coord,
                self.node,
            )
        return self._values[i]

    def declare(self, i: int) -> str:
        return f"const {REGISTER[self.kinds[i]]} v{i} = {self.value(i)};"

    def stores(self, full: bool) -> list[str]:
        lines = []
        for (position, is_full), out, walk in zip(
            self.node.attrs["stores"], self.node.outputs, self.space.outputs
        ):
            if is_full == full:
                tensor = self.code.graph.tensors[out]
                pointer = self.code.pointer(tensor, written=True)
                key = -2 - out
                if key not in self._indices:
                    self._indices[key] = self.code.index(walk, 0, self.coords)
                cast = "(uchar)" if tensor.dtype == "bool" else ""
                lines.append(f"{pointer}[{self._indices[key]}] = {cast}{self.name(position)};")
        return lines

    def kernel(self, name: str, lines: list[str]) -> str:
        params = ", ".join(self.code.params)
        text = "\n".join(f"  {line}" for line in lines)
        return f"{self.code.helpers}\n__kernel void {name}({params}) {{\n{text}\n}}\n"

    def split(self, linear: str, dims: list[int], declare: bool = True) -> list[str]:
        """Coordinates of `dims` from a linear index, the last dimension fastest."""
        lines, rest = [], linear
        for n, d in enumerate(reversed(dims)):
            if n == len(dims) - 1:
                lines.append(f"const int x{d} = {rest};")
            else:
                lines.append(f"const int x{d} = {rest} % {self.sizes[d]};")
                lines.append(f"const int r{d} = {rest} / {self.sizes[d]};")
                rest = f"r{d}"
        return lines


def _lower_map(node: Node, graph: Graph, caps: DeviceCaps, space: Space) -> Lowered:
    body = _Body(node, graph, space)
    dims = list(range(len(space.sizes)))
    total = math.prod(space.sizes)
    inner = [body.declare(i) for i in range(len(body.program))] + body.stores(True)
    if caps.kind == "cpu" and dims:
        rows, last = math.prod(space.sizes[:-1]), space.sizes[-1]
        blocks = -(-last // BLOCK)
        work, count = body.code.integer(rows * blocks), body.code.integer(blocks)
        end = body.sizes[-1]
        lines = [
            "const int g = get_global_id(0);", f"if (g >= {work}) return;",
            f"const int row = g / {count}, begin = (g % {count}) * {BLOCK};",
            f"const int end = min(begin + {BLOCK}, {end});",
            *body.split("row", dims[:-1]), *_loop(f"x{dims[-1]}", "begin", "end", inner),
        ]
        local = _cpu_group(rows * blocks, caps)
        return _launch(body, "map_blocks", lines, round_up(rows * blocks, local), local, node)
    bound = body.code.integer(total)
    lines = ["const int g = get_global_id(0);", f"if (g >= {bound}) return;"]
    lines += body.split("g", dims) + inner
    local = min(128, caps.max_work_group)
    return _launch(body, "map_points", lines, round_up(max(total, 1), local), local, node)


def _cpu_group(work: int, caps: DeviceCaps) -> int:
    """Two sizes only: PoCL compiles a kernel again for every size of its groups."""
    return 16 if work >= 64 * 16 and caps.max_work_group >= 16 else 1


def _loop(variable: str, begin: str, end: str, inner: list[str]) -> list[str]:
    """A loop whose iterations touch only their own elements, whatever the pointers alias."""
    return [
        "#ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif",
        f"for (int {variable} = {begin}; {variable} < {end}; ++{variable}) {{",
        *(f"  {line}" for line in inner), "}",
    ]


def _launch(
    body: _Body, name: str, lines: list[str], global_size: int, local: int, node: Node
) -> Lowered:
    source = body.kernel(name, lines)
    launch = Launch(name, source, tuple(body.code.args), (global_size,), (local,))
    return Lowered((launch,), (), f"{name} over {'x'.join(map(str, body.space.sizes)) or '1'}")


class _Stages:
    """Which instruction runs where: per row or per element, and in which stage."""

    def __init__(self, body: _Body) -> None:
        program, space, node = body.program, body.space, body.node
        self.inner: list[bool] = []
        self.stage: list[int] = []  # the stage whose end makes the value available
        for instr in program:
            stage = max((self.stage[a] for a in instr.args), default=0)
            inner = any(self.inner[a] for a in instr.args)
            if instr.op == "load":
                walk = space.operands[instr.params[0]]
                inner = any(s for s, is_inner in zip(walk, space.inner) if is_inner)
                inner |= any(space.inner[space.keep[d]] for d, _, _ in instr.params[1])
            elif instr.op == "index":
                inner = any(s for s, is_inner in zip(space.linear, space.inner) if is_inner)
            elif instr.op == "iota":
                inner = space.inner[space.keep[instr.params[0]]]
            elif instr.op in REDUCTIONS:
                stage, inner = stage + 1, False
            self.inner.append(inner)
            self.stage.append(stage)
        self.last = max(self.stage, default=0)
        self.has_full = any(full for _, full in node.attrs["stores"])

    def needed(self, program: Program, roots: list[int]) -> list[int]:
        """Inner instructions that `roots` need, in order."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i not in found and self.inner[i]:
                found.add(i)
                stack.extend(program[i].args)
        return sorted(found)


def _lower_reduce(node: Node, graph: Graph, caps: DeviceCaps, space: Space) -> Lowered:
    body = _Body(node, graph, space)
    stages = _Stages(body)
    outer = [d for d, inner in enumerate(space.inner) if not inner]
    rows = math.prod(space.sizes[d] for d in outer)
    if _adjacent_rows(space, outer):
        return _columns(body, stages, outer, rows, caps)
    if caps.kind == "cpu":
        return _lanes(body, stages, outer, rows, caps)
    return _group(body, stages, outer, rows, caps)


def _adjacent_rows(space: Space, outer: list[int]) -> bool:
    """Whether most operands run along the last outer dimension rather than along the row."""
    if not outer or space.sizes[outer[-1]] < 8:
        return False
    inner = [d for d, i in enumerate(space.inner) if i]
    along = sum(walk[outer[-1]] in (1, -1) for walk in space.operands if any(walk[d] for d in inner))
    across = sum(any(walk[d] == 1 for d in inner) for walk in space.operands)
    return along > across


def _available(body: _Body, stages: _Stages, stage: int, done: set[int]) -> list[int]:
    """Outer, non-reducing instructions whose inputs are complete after `stage`."""
    ready = [
        i for i, instr in enumerate(body.program)
        if i not in done and not stages.inner[i] and instr.op not in REDUCTIONS
        and stages.stage[i] <= stage
    ]
    done.update(ready)
    return ready


def _reductions(stages: _Stages, program: Program, stage: int) -> list[int]:
    return [i for i, n in enumerate(program) if n.op in REDUCTIONS and stages.stage[i] == stage]


def _update(instr: Instr, kind: str, into: str, value: str, where: str, at: str) -> str:
    """One step of a reduction."""
    if instr.op in ("sum", "prod"):
        return f"{into} {'+' if instr.op == 'sum' else '*'}= {value};"
    if instr.op in ("any_of", "all_of"):
        return f"{into} {'|' if instr.op == 'any_of' else '&'}= ({value} != 0);"
    largest = instr.op in ("max_of", "arg_max")
    if instr.op in ("arg_max", "arg_min"):
        better = _better(largest, kind, value, into)
        # `where` starts at INT_MAX, so that a row of neutral elements still names its first one
        tie = f"({value} == {into} && {at} < {where})"
        return f"if ({better} || {tie}) {{ {into} = {value}; {where} = {at}; }}"
    call = ("f_max" if largest else "f_min") if kind == "f32" else ("max" if largest else "min")
    return f"{into} = {call}({into}, {value});"


def _better(largest: bool, kind: str, value: str, into: str) -> str:
    compare = f"{value} {'>' if largest else '<'} {into}"
    if kind != "f32":
        return f"({compare})"
    return f"(({compare}) || (isnan({value}) && !isnan({into})))"


def _fold(body: _Body, i: int, a: str, b: str, wa: str, wb: str) -> str:
    """Joins partial result b into a."""
    instr = body.program[i]
    return _update(instr, body.kinds[instr.args[0]], a, b, wa, wb)


def _neutral(body: _Body, i: int) -> tuple[str, str]:
    """C type and start value of reduction i."""
    kind = body.kinds[body.program[i].args[0]]
    return REGISTER[kind], NEUTRAL[body.program[i].op][kind]


def _is_arg(instr: Instr) -> bool:
    return instr.op in ("arg_max", "arg_min")


def _linear(body: _Body) -> str:
    """Position in the row: the reduced dimensions, row-major."""
    inner = [d for d, i in enumerate(body.space.inner) if i]
    text = "0"
    for d in inner:
        text = f"({text} * {body.sizes[d]} + x{d})" if text != "0" else f"x{d}"
    return text


def _nest(body: _Body, dims: list[int], inner: list[str]) -> list[str]:
    """Plain loops over `dims` around `inner`."""
    lines = inner
    for d in reversed(dims):
        lines = [f"for (int x{d} = 0; x{d} < {body.sizes[d]}; ++x{d}) {{",
                 *(f"  {line}" for line in lines), "}"]
    return lines


def _lanes(body: _Body, stages: _Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    bound = body.code.integer(rows)
    lines = ["const int g = get_global_id(0);", f"if (g >= {bound}) return;"]
    lines += body.split("g", outer) if outer else []
    done: set[int] = set()
    last = inner[-1] if inner else None
    for stage in range(stages.last + 1):
        lines += [body.declare(i) for i in _available(body, stages, stage, done)]
        todo = _reductions(stages, body.program, stage + 1)
        if todo:
            lines += _lane_stage(body, stages, todo, inner[:-1], last)
    if stages.has_full:
        roots = [p for p, full in body.node.attrs["stores"] if full]
        text = [body.declare(i) for i in stages.needed(body.program, roots)] + body.stores(True)
        walk = text if last is None else _loop(f"x{last}", "0", body.sizes[last], text)
        lines += _nest(body, inner[:-1], walk)
    lines += body.stores(False)
    local = _cpu_group(rows, caps)
    return _launch(body, "reduce_lanes", lines, round_up(rows, local), local, body.node)


def _lane_stage(
    body: _Body, stages: _Stages, todo: list[int], outer_loops: list[int], last: int | None
) -> list[str]:
    lines, updates, flush, start = [], [], [], []
    at = _linear(body)
    for i in todo:
        instr = body.program[i]
        kind, neutral = _neutral(body, i)
        two_level = instr.op == "sum" and kind == "float"
        where = f"w{i}[l]" if _is_arg(instr) else ""
        lines.append(f"{kind} p{i}[{LANES}]; for (int l = 0; l < {LANES}; ++l) p{i}[l] = {neutral};")
        if _is_arg(instr):
            lines.append(f"int w{i}[{LANES}]; for (int l = 0; l < {LANES}; ++l) w{i}[l] = INT_MAX;")
        if two_level:
            lines.append(f"float q{i}[{LANES}]; for (int l = 0; l < {LANES}; ++l) q{i}[l] = 0.0f;")
            flush.append(f"for (int l = 0; l < {LANES}; ++l) p{i}[l] += q{i}[l];")
            start.append(f"for (int l = 0; l < {LANES}; ++l) q{i}[l] = 0.0f;")
        into = f"q{i}[l]" if two_level else f"p{i}[l]"
        value = body.name(instr.args[0])
        updates.append(_update(instr, body.kinds[instr.args[0]], into, value, where, at))
    roots = [a for i in todo for a in body.program[i].args]
    text = [body.declare(i) for i in stages.needed(body.program, roots)] + updates
    if last is None:
        lines += ["{ const int l = 0;", *start, *text, *flush, "}"]
    else:
        x, n, run = f"x{last}", body.sizes[last], LANES * 256
        vector = [
            f"for (; b_ + {LANES} <= e_; b_ += {LANES}) {{",
            "  #ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif",
            f"  for (int l = 0; l < {LANES}; ++l) {{ const int {x} = b_ + l;",
            *(f"    {t}" for t in text), "  } }",
            f"for (int l = 0; b_ + l < e_; ++l) {{ const int {x} = b_ + l;",
            *(f"  {t}" for t in text), "}",
        ]
        walk = [
            f"for (int c_ = 0; c_ < {n}; c_ += {run}) {{", f"  int b_ = c_; const int e_ = min(c_ + {run}, {n});",
            *(f"  {t}" for t in (*start, *vector, *flush)), "}",
        ]
        lines += _nest(body, outer_loops, walk)
    for i in todo:
        kind, _ = _neutral(body, i)
        fold = _fold(body, i, f"p{i}[l]", f"p{i}[l + h]", f"w{i}[l]", f"w{i}[l + h]")
        lines.append(f"for (int h = {LANES // 2}; h; h >>= 1) for (int l = 0; l < h; ++l) {{ {fold} }}")
        lines.append(f"const {REGISTER[body.kinds[i]]} v{i} = {f'w{i}[0]' if _is_arg(body.program[i]) else f'p{i}[0]'};")
    return lines


def _columns(body: _Body, stages: _Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    width = LANES if caps.kind == "cpu" else 1
    inner = [d for d, i in enumerate(body.space.inner) if i]
    column, size = outer[-1], body.space.sizes[outer[-1]]
    tiles = -(-size // width)
    work = rows // size * tiles
    bound, count = body.code.integer(work), body.code.integer(tiles)
    lines = ["const int g = get_global_id(0);", f"if (g >= {bound}) return;",
             f"const int begin = (g % {count}) * {width}, row = g / {count};",
             f"const int width = min({width}, {body.sizes[column]} - begin);",
             *body.split("row", outer[:-1])]
    body.array = {i for i in range(len(body.program)) if not stages.inner[i]}

    def lanes(text: list[str]) -> list[str]:
        return ["#ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif",
                f"for (int l = 0; l < width; ++l) {{ const int x{column} = begin + l;",
                *(f"  {t}" for t in text), "}"]

    done: set[int] = set()
    for stage in range(stages.last + 1):
        ready = _available(body, stages, stage, done)
        if ready:
            lines += [f"{REGISTER[body.kinds[i]]} v{i}[{width}];" for i in ready]
            lines += lanes([f"v{i}[l] = {body.value(i)};" for i in ready])
        todo = _reductions(stages, body.program, stage + 1)
        if todo:
            lines += _column_stage(body, stages, todo, inner, width, lanes)
    if stages.has_full:
        roots = [p for p, full in body.node.attrs["stores"] if full]
        text = [body.declare(i) for i in stages.needed(body.program, roots)] + body.stores(True)
        lines += _nest(body, inner, lanes(text))
    partial = body.stores(False)
    if partial:
        lines += lanes(partial)
    local = min(64, caps.max_work_group)
    if caps.kind == "cpu":
        local = _cpu_group(work, caps)
    return _launch(body, "reduce_columns", lines, round_up(work, local), local, body.node)


def _column_stage(body, stages, todo, inner, width, lanes):  # type: ignore[no-untyped-def]
    lines, updates, flush = [], [], []
    at = _linear(body)
    for i in todo:
        instr = body.program[i]
        kind, neutral = _neutral(body, i)
        two_level = instr.op == "sum" and kind == "float"
        every = f"for (int l = 0; l < {width}; ++l)"
        result = f"m{i}" if _is_arg(instr) else f"v{i}"
        lines.append(f"{kind} {result}[{width}]; {every} {result}[l] = {neutral};")
        if _is_arg(instr):
            lines.append(f"int v{i}[{width}]; {every} v{i}[l] = INT_MAX;")
        if two_level:
            lines.append(f"float q{i}[{width}]; {every} q{i}[l] = 0.0f;")
            flush.append(f"{every} {{ v{i}[l] += q{i}[l]; q{i}[l] = 0.0f; }}")
        into = f"q{i}[l]" if two_level else f"{result}[l]"
        value = body.name(instr.args[0])
        updates.append(_update(instr, body.kinds[instr.args[0]], into, value, f"v{i}[l]", at))
    roots = [a for i in todo for a in body.program[i].args]
    text = [body.declare(i) for i in stages.needed(body.program, roots)] + updates
    walk = lanes(text)
    if flush:
        count = f"run{todo[0]}"
        lines.append(f"int {count} = 0;")
        walk = [*walk, f"if (++{count} == 256) {{ {count} = 0; {' '.join(flush)} }}"]
    return [*lines, *_nest(body, inner, walk), *flush]


def _group(body: _Body, stages: _Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    length = math.prod(body.space.sizes[d] for d in inner)
    size = 1
    while size * 2 <= min(128, caps.max_work_group) and size < length:
        size *= 2
    n = body.code.integer(length)
    lines = [f"__local float scratch_[{size}];", f"__local int places_[{size}];",
             "const int g = get_group_id(0), l = get_local_id(0);"]
    lines += body.split("g", outer) if outer else []
    done: set[int] = set()
    for stage in range(stages.last + 1):
        lines += [body.declare(i) for i in _available(body, stages, stage, done)]
        todo = _reductions(stages, body.program, stage + 1)
        if todo:
            lines += _group_stage(body, stages, todo, inner, n, size)
    if stages.has_full:
        roots = [p for p, full in body.node.attrs["stores"] if full]
        text = [body.declare(i) for i in stages.needed(body.program, roots)] + body.stores(True)
        lines += [f"for (int i_ = l; i_ < {n}; i_ += {size}) {{", *body.split("i_", inner), *text, "}"]
    partial = body.stores(False)
    if partial:
        lines += ["if (l == 0) {", *partial, "}"]
    return _launch(body, "reduce_group", lines, rows * size, size, body.node)


def _group_stage(
    body: _Body, stages: _Stages, todo: list[int], inner: list[int], n: str, size: int
) -> list[str]:
    lines, updates, flush = [], [], []
    for i in todo:
        instr = body.program[i]
        kind, neutral = _neutral(body, i)
        two_level = instr.op == "sum" and kind == "float"
        lines.append(f"{kind} p{i} = {neutral};")
        if _is_arg(instr):
            lines.append(f"int w{i} = INT_MAX;")
        if two_level:
            lines.append(f"float q{i} = 0.0f;")
            flush.append(f"p{i} += q{i}; q{i} = 0.0f;")
        into = f"q{i}" if two_level else f"p{i}"
        value = body.name(instr.args[0])
        updates.append(_update(instr, body.kinds[instr.args[0]], into, value, f"w{i}", "i_"))
    roots = [a for i in todo for a in body.program[i].args]
    text = [body.declare(i) for i in stages.needed(body.program, roots)] + updates
    lines += [
        f"for (int c_ = l; c_ < {n}; c_ += {256 * size}) {{",
        f"  for (int i_ = c_; i_ < min({n}, c_ + {256 * size}); i_ += {size}) {{",
        *(f"    {t}" for t in (*body.split("i_", inner), *text)), "  }",
        *(f"  {t}" for t in flush), "}",
    ]
    for i in todo:
        lines += _tree(body, i, size)
    return lines


def _tree(body: _Body, i: int, size: int) -> list[str]:
    """Folds the work-group's partial results; every work-item gets the result."""
    instr = body.program[i]
    kind, _ = _neutral(body, i)
    scratch = "scratch_" if kind == "float" else f"((__local {kind} *)scratch_)"
    fold = _fold(body, i, f"{scratch}[l]", f"{scratch}[l + h]", "places_[l]", "places_[l + h]")
    lines = [f"{scratch}[l] = p{i};"]
    if _is_arg(instr):
        lines.append(f"places_[l] = w{i};")
    lines += [
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"for (int h = {size // 2}; h; h >>= 1) {{ if (l < h) {{ {fold} }} barrier(CLK_LOCAL_MEM_FENCE); }}",
        f"const {REGISTER[body.kinds[i]]} v{i} = {'places_[0]' if _is_arg(instr) else f'{scratch}[0]'};",
        "barrier(CLK_LOCAL_MEM_FENCE);",
    ]
    return lines

