"""reduce on a CPU, for long rows that are adjacent in memory (columns): two launches.

    x [n, columns]      chunk 0 ──► part 0 [columns]
                        chunk 1 ──► part 1 [columns]     ──► result [columns]
                        ...

A work-item of the first launch takes a few hundred elements of every row and walks over them in the order of
memory. If it took some columns over their whole length instead, every element would be on another page. The second
launch joins the parts. This works for programs with one walk only; the walk can also write full outputs.
"""

from __future__ import annotations

import math

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Launch, Lowered, Workspace, round_up
from handheld.kernels.loops import Body, cpu_group, loop
from handheld.kernels.space import Space
from handheld.kernels.stages import Stages, closure, fold_of, is_arg, nest, reductions_of, start_of, update

LEAST = 64 << 10  # Smaller spaces, in elements, are not cut into chunks.
TERMS = 256  # The most terms of a chunk. They are added up one by one, and more would cost accuracy.
CHUNKS = 4  # The least chunks per compute unit, as long as each gets TERMS_LEAST terms.
TERMS_LEAST = 32
TILE = 8192  # The partial results of this many columns stay in a near cache.
JOIN = 256  # Second launch: columns per work-item.


def chunks_of(body: Body, stages: Stages, outer: list[int], caps: DeviceCaps) -> int:
    """The number of chunks that the first reduced dimension is cut into; 0 if another kernel should run the node."""
    space = body.space
    inner = [d for d, is_inner in enumerate(space.inner) if is_inner]
    if len(outer) != 1 or not inner or stages.last != 1 or math.prod(space.sizes) < LEAST:
        return 0
    if stages.has_full and not stages.early:
        return 0
    if any(is_arg(body.program[i]) for i in reductions_of(stages, body.program, 1)):
        return 0
    first, each = space.sizes[inner[0]], math.prod(space.sizes[d] for d in inner[1:])
    least = min(CHUNKS * caps.compute_units, first * each // TERMS_LEAST)
    chunks = min(max(least, -(-first * each // TERMS)), first)
    return chunks if chunks > 1 else 0


def lower_chunks(node: Node, graph: Graph, space: Space, caps: DeviceCaps, chunks: int) -> Lowered:
    first, workspace = _parts(node, graph, space, chunks)
    return Lowered(
        (first, _join(node, graph, space, caps, chunks)),
        workspace,
        f"{chunks} chunks of {'x'.join(map(str, space.sizes))}, then joined",
    )


def _parts(node: Node, graph: Graph, space: Space, chunks: int) -> tuple[Launch, tuple[int, ...]]:
    body = Body(node, graph, space)
    stages = Stages(body)
    column, inner = space.inner.index(False), [d for d, i in enumerate(space.inner) if i]
    todo = reductions_of(stages, body.program, 1)
    extent = -(-space.sizes[inner[0]] // chunks)
    count, length = body.code.integer(chunks), body.code.integer(extent)
    size, x = body.sizes[column], f"x{column}"
    parts = {i: _part(body, k, i) for k, i in enumerate(todo)}
    start = [f"{parts[i]} = {start_of(body, i)[1]};" for i in todo]
    roots = [*(a for i in todo for a in body.program[i].args), *stages.full_roots]
    text = [body.declare(i) for i in closure(body.program, roots)]
    for i in todo:
        instr = body.program[i]
        kind = body.kinds[instr.args[0]]
        text.append(update(instr, kind, parts[i], body.name(instr.args[0]), "", ""))
    text += body.stores(True)
    tile = min(space.sizes[column], TILE)
    walk = nest(body, inner[1:], loop(x, "low_", "high_", text, tile))
    lines = [
        "const int g = get_global_id(0);",
        f"if (g >= {count}) return;",
        f"const int begin_ = g * {length}, end_ = min(begin_ + {length}, {body.sizes[inner[0]]});",
        f"for (int low_ = 0; low_ < {size}; low_ += {TILE}) {{",
        f"  const int high_ = min(low_ + {TILE}, {size});",
        *(f"  {t}" for t in loop(x, "low_", "high_", start, tile)),
        f"  for (int x{inner[0]} = begin_; x{inner[0]} < end_; ++x{inner[0]}) {{",
        *(f"    {t}" for t in walk),
        "  }",
        "}",
    ]
    program = body.kernel("reduce_chunks", lines)
    launch = Launch("reduce_chunks", program, tuple(body.code.args), (chunks,), (1,))
    return launch, (4 * chunks * space.sizes[column],) * len(todo)


def _join(node: Node, graph: Graph, space: Space, caps: DeviceCaps, chunks: int) -> Launch:
    body = Body(node, graph, space)
    stages = Stages(body)
    column, todo = space.inner.index(False), reductions_of(stages, body.program, 1)
    size, x, count = body.sizes[column], f"x{column}", body.code.integer(chunks)
    parts = {i: _part(body, k, i) for k, i in enumerate(todo)}
    lines = [
        f"const int low_ = get_global_id(0) * {JOIN}, high_ = min(low_ + {JOIN}, {size});",
        *(f"{start_of(body, i)[0]} p{i}[{JOIN}];" for i in todo),
        f"for (int l = 0; l < {JOIN}; ++l) {{",
        *(f"  p{i}[l] = {start_of(body, i)[1]};" for i in todo),
        "}",
        f"for (int g = 0; g < {count}; ++g) {{",
        *(
            f"  {t}"
            for t in loop(
                x, "low_", "high_", [fold_of(body, i, f"p{i}[{x} - low_]", parts[i], "", "") for i in todo], JOIN
            )
        ),
        "}",
    ]
    roots = [store.position for store in node.stores if not store.full]
    text = [f"const {DTYPES[body.kinds[i]].c_register} v{i} = p{i}[{x} - low_];" for i in todo]
    text += [body.declare(i) for i in closure(body.program, roots) if i not in todo]
    lines += loop(x, "low_", "high_", text + body.stores(False), JOIN)
    work = -(-space.sizes[column] // JOIN)
    local = cpu_group(work, caps)
    return Launch(
        "reduce_join", body.kernel("reduce_join", lines), tuple(body.code.args), (round_up(work, local),), (local,)
    )


def _part(body: Body, k: int, i: int) -> str:
    """The element of workspace k that belongs to chunk g and the current column. Adds the workspace as a parameter."""
    column = body.space.inner.index(False)
    body.code.params.append(f"__global {start_of(body, i)[0]} *w{i}")
    body.code.args.append(Workspace(k))
    return f"w{i}[g * {body.sizes[column]} + x{column}]"
