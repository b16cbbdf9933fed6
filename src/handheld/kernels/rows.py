"""reduce: generated kernels, and two ways to walk the rows of a space on a CPU.

    lanes      a work-item takes one row; 16 partial results run along it
    columns    a work-item takes 16 or 128 neighbouring rows, so that memory is read in order where
               rows, not elements, are adjacent

What a GPU does is in rows_gpu.py, and what both share in stages.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.graph.program import REDUCTIONS
from handheld.kernels.base import Lowered, round_up
from handheld.kernels.expr import REGISTER
from handheld.kernels.loops import Body, cpu_group, launch, loop
from handheld.kernels.rows_gpu import lower_groups
from handheld.kernels.space import Space, collapse
from handheld.kernels.stages import RUN, Stages, fold_of, is_arg, reductions_of, start_of, update

LANES = 16


def lower_reduce(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    space = collapse(node, graph)
    if not any(graph.tensors[out].size for out in node.outputs):
        return Lowered(())
    if caps.kind == "gpu":
        return lower_groups(node, graph, space, caps)
    body = Body(node, graph, space)
    stages = Stages(body)
    outer = [d for d, inner in enumerate(space.inner) if not inner]
    rows = math.prod(space.sizes[d] for d in outer)
    if _adjacent_rows(space, outer):
        return _columns(body, stages, outer, rows, caps)
    return _lanes(body, stages, outer, rows, caps)


def _adjacent_rows(space: Space, outer: list[int]) -> bool:
    """Whether most operands that fill the space run along the last outer dimension rather than
    along the row."""
    if not outer or space.sizes[outer[-1]] < 8:
        return False
    inner = [d for d, i in enumerate(space.inner) if i]
    full = [w for w in space.operands if w[outer[-1]] and any(w[d] for d in inner)]
    along = sum(walk[outer[-1]] in (1, -1) for walk in full)
    across = sum(any(walk[d] == 1 for d in inner) for walk in full)
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
    lines = [
        "typedef float8 __attribute__((aligned(4))) loose8;",
        "const int g = get_global_id(0);", f"if (g >= {bound}) return;",
    ]
    lines += body.split("g", outer) if outer else []
    done: set[int] = set()
    last = inner[-1] if inner else None
    for stage in range(stages.last + 1):
        lines += [body.declare(i) for i in _available(body, stages, stage, done)]
        todo = reductions_of(stages, body.program, stage + 1)
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
    """One walk: LANES elements at a time into vectors (float) or arrays, the rest of a row one by
    one into z. Vectors are filled through u: an array that is added to would live in memory, and
    each step wait for the store of the one before. Sums of a run (q, r) join the total (p, z)."""
    lines: list[str] = []
    start, before, lanes, after, rest, flush = ([""][:0] for _ in range(6))
    at, every = _linear(body), f"for (int l = 0; l < {LANES}; ++l)"
    for i in todo:
        instr = body.program[i]
        kind, neutral = start_of(body, i)
        value, element = body.name(instr.args[0]), body.kinds[instr.args[0]]
        two_level = instr.op == "sum" and kind == "float"
        sums, tail = ("q", "r") if two_level else ("p", "z")
        lines.append(f"{kind} z{i} = {neutral}; {kind} p{i}[{LANES}];")
        if is_arg(instr):
            lines.append(f"int y{i} = INT_MAX, w{i}[{LANES}]; {every} w{i}[l] = INT_MAX;")
        if two_level:
            start.append(f"float r{i} = 0.0f;")
            flush.append(f"z{i} += r{i};")
        if kind == "float" and not is_arg(instr):
            lines.append(f"float8 p{i}a = {neutral}, p{i}b = {neutral};")
            if two_level:
                start.append(f"float8 q{i}a = 0.0f, q{i}b = 0.0f;")
                flush.append(f"p{i}a += q{i}a; p{i}b += q{i}b;")
            before.append(f"float u{i}[{LANES}];")
            lanes.append(f"u{i}[l] = {value};")
            after.append(f"{_wide(instr.op, f'{sums}{i}a', f'u{i}')} "
                         f"{_wide(instr.op, f'{sums}{i}b', f'u{i} + 8')}")
        else:
            lines.append(f"{every} p{i}[l] = {neutral};")
            lanes.append(update(instr, element, f"p{i}[l]", value, f"w{i}[l]", at))
        rest.append(update(instr, element, f"{tail}{i}", value, f"y{i}", at))
    roots = [a for i in todo for a in body.program[i].args]
    text = [body.declare(i) for i in stages.needed(body.program, roots)]
    if last is None:
        lines += ["{", *start, *text, *rest, *flush, "}"]
    else:
        x, n, run = f"x{last}", body.sizes[last], LANES * RUN
        walk = [
            f"for (int c_ = 0; c_ < {n}; c_ += {run}) {{",
            f"  int b_ = c_; const int e_ = min(c_ + {run}, {n});",
            *(f"  {t}" for t in start),
            f"  for (; b_ + {LANES} <= e_; b_ += {LANES}) {{",
            *(f"    {t}" for t in before),
            "    #ifdef __clang__\n#pragma clang loop vectorize(assume_safety)\n#endif",
            f"    {every} {{ const int {x} = b_ + l;",
            *(f"      {t}" for t in (*text, *lanes)),
            "    }",
            *(f"    {t}" for t in after),
            "  }",
            f"  for (; b_ < e_; ++b_) {{ const int {x} = b_;",
            *(f"    {t}" for t in (*text, *rest)),
            "  }",
            *(f"  {t}" for t in flush),
            "}",
        ]
        lines += _nest(body, outer_loops, walk)
    for i in todo:
        if f"float u{i}[{LANES}];" in before:
            lines.append(f"*(loose8 *)p{i} = p{i}a; *(loose8 *)(p{i} + 8) = p{i}b;")
        fold = fold_of(body, i, f"p{i}[l]", f"p{i}[l + h]", f"w{i}[l]", f"w{i}[l + h]")
        lines += [
            f"for (int h = {LANES // 2}; h; h >>= 1) for (int l = 0; l < h; ++l) {{ {fold} }}",
            fold_of(body, i, f"p{i}[0]", f"z{i}", f"w{i}[0]", f"y{i}"),
        ]
        source = "w" if is_arg(body.program[i]) else "p"
        lines.append(f"const {REGISTER[body.kinds[i]]} v{i} = {source}{i}[0];")
    return lines


def _wide(op: str, into: str, array: str) -> str:
    """A step of a reduction of eight floats; a NaN stays, as in f_max."""
    value = f"*(const loose8 *)({array})"
    if op in ("sum", "prod"):
        return f"{into} {'+' if op == 'sum' else '*'}= {value};"
    sign = ">=" if op == "max_of" else "<="
    return (f"{{ const float8 t_ = {value}; "
            f"{into} = (({into} {sign} t_) | ({into} != {into})) ? {into} : t_; }}")


def _columns(body: Body, stages: Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    column, size = outer[-1], body.space.sizes[outer[-1]]
    # long runs suit the memory so much better that it pays to leave some of the units idle
    wide = 8 * LANES
    width = wide if size >= wide // 2 and 4 * rows >= wide * caps.compute_units else LANES
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
        todo = reductions_of(stages, body.program, stage + 1)
        if todo:
            lines += _column_stage(body, stages, todo, inner, width, lanes)
    if stages.has_full:
        roots = [p for p, full in body.node.attrs["stores"] if full]
        text = [body.declare(i) for i in stages.needed(body.program, roots)] + body.stores(True)
        lines += _nest(body, inner, lanes(text))
    partial = body.stores(False)
    if partial:
        lines += lanes(partial)
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
        kind, neutral = start_of(body, i)
        two_level = instr.op == "sum" and kind == "float"
        every = f"for (int l = 0; l < {width}; ++l)"
        result = f"m{i}" if is_arg(instr) else f"v{i}"
        lines.append(f"{kind} {result}[{width}]; {every} {result}[l] = {neutral};")
        if is_arg(instr):
            lines.append(f"int v{i}[{width}]; {every} v{i}[l] = INT_MAX;")
        if two_level:
            lines.append(f"float q{i}[{width}]; {every} q{i}[l] = 0.0f;")
            flush.append(f"{every} {{ v{i}[l] += q{i}[l]; q{i}[l] = 0.0f; }}")
        into = f"q{i}[l]" if two_level else f"{result}[l]"
        value = body.name(instr.args[0])
        updates.append(update(instr, body.kinds[instr.args[0]], into, value, f"v{i}[l]", at))
    roots = [a for i in todo for a in body.program[i].args]
    text = [body.declare(i) for i in stages.needed(body.program, roots)] + updates
    walk = lanes(text)
    if flush:
        count = f"run{todo[0]}"
        lines.append(f"int {count} = 0;")
        walk = [*walk, f"if (++{count} == {RUN}) {{ {count} = 0; {' '.join(flush)} }}"]
    return [*lines, *_nest(body, inner, walk), *flush]
