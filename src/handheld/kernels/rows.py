"""reduce: generates kernels that reduce the rows of a space. This file selects the kernel, and has one for CPUs.

On a CPU there are three ways to walk along the rows:

    lanes      Elements of a row are adjacent in memory. A work-item takes one row and keeps 16 or 32 partial
               results along it (rows_lanes.py).
    columns    Rows are adjacent in memory. A work-item takes 16 or 128 neighbouring rows, so that it reads memory
               in order (this file).
    chunks     Rows are adjacent in memory and long. A work-item takes a part of all rows (rows_chunks.py).

        lanes:  row 0  x x x x x x ──►         columns:  row 0  row 1  row 2
                row 1  x x x x x x ──►                     x      x      x
                                                           x      x      x
                                                           ▼      ▼      ▼

rows_gpu.py has the kernels for GPUs, and stages.py what all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Lowered, round_up
from handheld.kernels.loops import Body, cpu_group, launch, loop
from handheld.kernels.rows_chunks import chunks_of, lower_chunks
from handheld.kernels.rows_gpu import lower_groups
from handheld.kernels.rows_lanes import LANES, lower_lanes
from handheld.kernels.rows_shape import adjacent_rows
from handheld.kernels.space import collapse
from handheld.kernels.stages import RUN, Stages, available, is_arg, linear, nest, reductions_of, start_of, update


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
    if adjacent_rows(space):
        chunks = chunks_of(body, stages, outer, caps)
        return lower_chunks(node, graph, space, caps, chunks) if chunks else _columns(body, stages, outer, rows, caps)
    return lower_lanes(body, stages, outer, rows, caps)


def _columns(body: Body, stages: Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    column, size = outer[-1], body.space.sizes[outer[-1]]
    # Long contiguous reads are so much faster that it pays to leave some compute units idle.
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
        return loop("l", "0", "width", [f"const int x{column} = begin + l;", *text], width)

    done: set[int] = set()
    for stage in range(stages.last + 1):
        ready = available(body, stages, stage, done)
        if ready:
            lines += [f"{DTYPES[body.kinds[i]].c_register} v{i}[{width}];" for i in ready]
            lines += lanes([f"v{i}[l] = {body.value(i)};" for i in ready])
        todo = reductions_of(stages, body.program, stage + 1)
        if todo:
            lines += _column_stage(body, stages, todo, inner, width, lanes)
    if stages.has_full and not stages.early:
        text = [body.declare(i) for i in stages.needed(body.program, stages.full_roots)]
        lines += nest(body, inner, lanes(text + body.stores(True)))
    partial = body.stores(False)
    if partial:
        lines += lanes(partial)
    local = cpu_group(work, caps)
    return launch(body, "reduce_columns", lines, round_up(work, local), local, body.node)


def _column_stage(
    body: Body, stages: Stages, todo: list[int], inner: list[int], width: int, lanes: Callable[[list[str]], list[str]]
) -> list[str]:
    lines, updates, flush = [], [], []
    at = linear(body)
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
    if stages.early:
        roots += stages.full_roots
        updates += body.stores(True)
    text = [body.declare(i) for i in stages.needed(body.program, roots)] + updates
    walk = lanes(text)
    if flush:
        count = f"run{todo[0]}"
        lines.append(f"int {count} = 0;")
        walk = [*walk, f"if (++{count} == {RUN}) {{ {count} = 0; {' '.join(flush)} }}"]
    return [*lines, *nest(body, inner, walk), *flush]
