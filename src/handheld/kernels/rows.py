"""reduce: generated kernels, three ways to walk the rows of a space.

    lanes    (on a CPU)   a work-item takes one row; 16 partial results run along it
    columns               a work-item takes 16 (CPU) or 1 (GPU) neighbouring rows, so that memory is
                          read in order where rows, not elements, are adjacent
    group    (on a GPU)   a work-group takes one row and folds in local memory

A kernel runs in stages: each stage walks the row once and ends in reductions; what later stages
need of a row is computed again rather than stored. The last walk writes the full outputs:

    x ──► stage 1: sum(x) ──► stage 2: sum((x - mean)^2) ──► walk: y = (x - mean) * rstd

Sums are kept in two levels (a run of at most 64 terms, then the total), so that a sum of a
million terms errs like one of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.graph.program import REDUCTIONS, Instr, Program
from handheld.kernels.base import Lowered, round_up
from handheld.kernels.expr import REGISTER
from handheld.kernels.loops import Body, cpu_group, launch, loop
from handheld.kernels.space import Space, collapse

LANES = 16
RUN = 64  # terms added up before they join a larger sum
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


class Stages:
    """Which instruction runs where: per row or per element, and in which stage."""

    def __init__(self, body: Body) -> None:
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


def lower_reduce(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    space = collapse(node, graph)
    if not any(graph.tensors[out].size for out in node.outputs):
        return Lowered(())
    body = Body(node, graph, space)
    stages = Stages(body)
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
    along = sum(
        walk[outer[-1]] in (1, -1) for walk in space.operands if any(walk[d] for d in inner)
    )
    across = sum(any(walk[d] == 1 for d in inner) for walk in space.operands)
    return along > across


def _available(body: Body, stages: Stages, stage: int, done: set[int]) -> list[int]:
    """Outer, non-reducing instructions whose inputs are complete after `stage`."""
    ready = [
        i
        for i, instr in enumerate(body.program)
        if i not in done
        and not stages.inner[i]
        and instr.op not in REDUCTIONS
        and stages.stage[i] <= stage
    ]
    done.update(ready)
    return ready


def _reductions(stages: Stages, program: Program, stage: int) -> list[int]:
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


def _fold(body: Body, i: int, a: str, b: str, wa: str, wb: str) -> str:
    """Joins partial result b into a."""
    instr = body.program[i]
    return _update(instr, body.kinds[instr.args[0]], a, b, wa, wb)


def _neutral(body: Body, i: int) -> tuple[str, str]:
    """C type and start value of reduction i."""
    kind = body.kinds[body.program[i].args[0]]
    return REGISTER[kind], NEUTRAL[body.program[i].op][kind]


def _is_arg(instr: Instr) -> bool:
    return instr.op in ("arg_max", "arg_min")


def _linear(body: Body) -> str:
    """Position in the row: the reduced dimensions, row-major."""
    inner = [d for d, i in enumerate(body.space.inner) if i]
    text = "0"
    for d in inner:
        text = f"({text} * {body.sizes[d]} + x{d})" if text != "0" else f"x{d}"
    return text


def _nest(body: Body, dims: list[int], inner: list[str]) -> list[str]:
    """Plain loops over `dims` around `inner`."""
    lines = inner
    for d in reversed(dims):
        lines = [
            f"for (int x{d} = 0; x{d} < {body.sizes[d]}; ++x{d}) {{",
            *(f"  {line}" for line in lines),
            "}",
        ]
    return lines


def _lanes(body: Body, stages: Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
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
        walk = text if last is None else loop(f"x{last}", "0", body.sizes[last], text)
        lines += _nest(body, inner[:-1], walk)
    lines += body.stores(False)
    local = cpu_group(rows, caps)
    return launch(body, "reduce_lanes", lines, round_up(rows, local), local, body.node)


def _lane_stage(
    body: Body, stages: Stages, todo: list[int], outer_loops: list[int], last: int | None
) -> list[str]:
    lines, updates, flush, start = [], [], [], []
    at = _linear(body)
    for i in todo:
        instr = body.program[i]
        kind, neutral = _neutral(body, i)
        two_level = instr.op == "sum" and kind == "float"
        where = f"w{i}[l]" if _is_arg(instr) else ""
        lines.append(
            f"{kind} p{i}[{LANES}]; for (int l = 0; l < {LANES}; ++l) p{i}[l] = {neutral};"
        )
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
        x, n, run = f"x{last}", body.sizes[last], LANES * RUN
        vector = [
            f"for (; b_ + {LANES} <= e_; b_ += {LANES}) {{",
            "  #ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif",
            f"  for (int l = 0; l < {LANES}; ++l) {{ const int {x} = b_ + l;",
            *(f"    {t}" for t in text),
            "  } }",
            f"for (int l = 0; b_ + l < e_; ++l) {{ const int {x} = b_ + l;",
            *(f"  {t}" for t in text),
            "}",
        ]
        walk = [
            f"for (int c_ = 0; c_ < {n}; c_ += {run}) {{",
            f"  int b_ = c_; const int e_ = min(c_ + {run}, {n});",
            *(f"  {t}" for t in (*start, *vector, *flush)),
            "}",
        ]
        lines += _nest(body, outer_loops, walk)
    for i in todo:
        kind, _ = _neutral(body, i)
        fold = _fold(body, i, f"p{i}[l]", f"p{i}[l + h]", f"w{i}[l]", f"w{i}[l + h]")
        lines.append(
            f"for (int h = {LANES // 2}; h; h >>= 1) for (int l = 0; l < h; ++l) {{ {fold} }}"
        )
        source = "w" if _is_arg(body.program[i]) else "p"
        lines.append(f"const {REGISTER[body.kinds[i]]} v{i} = {source}{i}[0];")
    return lines


def _columns(body: Body, stages: Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    column, size = outer[-1], body.space.sizes[outer[-1]]
    # neighbouring rows come in runs that are long for the memory, but leave work for every unit
    width = 1
    if caps.kind == "cpu":
        width = 8 * LANES if rows >= 8 * LANES * caps.compute_units else LANES
    tiles = -(-size // width)
    work = rows // size * tiles
    bound, count = body.code.integer(work), body.code.integer(tiles)
    lines = [
        "const int g = get_global_id(0);",
        f"if (g >= {bound}) return;",
        f"const int begin = (g % {count}) * {width}, row = g / {count};",
        f"const int width = min({width}, {body.sizes[column]} - begin);",
        *body.split("row", outer[:-1]),
    ]
    body.array = {i for i in range(len(body.program)) if not stages.inner[i]}

    def lanes(text: list[str]) -> list[str]:
        return [
            "#ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif",
            f"for (int l = 0; l < width; ++l) {{ const int x{column} = begin + l;",
            *(f"  {t}" for t in text),
            "}",
        ]

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
        local = cpu_group(work, caps)
    return launch(body, "reduce_columns", lines, round_up(work, local), local, body.node)


def _column_stage(
    body: Body,
    stages: Stages,
    todo: list[int],
    inner: list[int],
    width: int,
    lanes: Callable[[list[str]], list[str]],
) -> list[str]:
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
        walk = [*walk, f"if (++{count} == {RUN}) {{ {count} = 0; {' '.join(flush)} }}"]
    return [*lines, *_nest(body, inner, walk), *flush]


def _group(body: Body, stages: Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    length = math.prod(body.space.sizes[d] for d in inner)
    size = 1
    while size * 2 <= min(128, caps.max_work_group) and size < length:
        size *= 2
    n = body.code.integer(length)
    lines = [
        f"__local float scratch_[{size}];",
        f"__local int places_[{size}];",
        "const int g = get_group_id(0), l = get_local_id(0);",
    ]
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
        lines += [
            f"for (int i_ = l; i_ < {n}; i_ += {size}) {{",
            *body.split("i_", inner),
            *text,
            "}",
        ]
    partial = body.stores(False)
    if partial:
        lines += ["if (l == 0) {", *partial, "}"]
    return launch(body, "reduce_group", lines, rows * size, size, body.node)


def _group_stage(
    body: Body, stages: Stages, todo: list[int], inner: list[int], n: str, size: int
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
        f"for (int c_ = l; c_ < {n}; c_ += {RUN * size}) {{",
        f"  for (int i_ = c_; i_ < min({n}, c_ + {RUN * size}); i_ += {size}) {{",
        *(f"    {t}" for t in (*body.split("i_", inner), *text)),
        "  }",
        *(f"  {t}" for t in flush),
        "}",
    ]
    for i in todo:
        lines += _tree(body, i, size)
    return lines


def _tree(body: Body, i: int, size: int) -> list[str]:
    """Folds the work-group's partial results; every work-item gets the result."""
    instr = body.program[i]
    kind, _ = _neutral(body, i)
    scratch = "scratch_" if kind == "float" else f"((__local {kind} *)scratch_)"
    fold = _fold(body, i, f"{scratch}[l]", f"{scratch}[l + h]", "places_[l]", "places_[l + h]")
    result = "places_" if _is_arg(instr) else scratch
    lines = [f"{scratch}[l] = p{i};"]
    if _is_arg(instr):
        lines.append(f"places_[l] = w{i};")
    lines += [
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"for (int h = {size // 2}; h; h >>= 1) {{ "
        f"if (l < h) {{ {fold} }} barrier(CLK_LOCAL_MEM_FENCE); }}",
        f"const {REGISTER[body.kinds[i]]} v{i} = {result}[0];",
        "barrier(CLK_LOCAL_MEM_FENCE);",
    ]
    return lines
