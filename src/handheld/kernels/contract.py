"""Matrix products, convolutions and their gradients: turns nodes into launches of contract_*.cl.

1. Each op becomes a `Problem`: an implicit GEMM (contract_nodes.py, contract_maps.cl). Its index maps are integer
   arguments of the kernel, so that one program serves many layers of a model.
2. The kind of device selects the variant, which cuts the problem into work-groups:

    matmul ───────┐              ┌─► contract_register.py   CPU: register blocks
    conv ─────────┤              ├─► contract_local.py      GPU: tiles in local memory
    conv_input ───┼─► Problem ───┼─► winograd.py            CPU: convolutions with 3x3 taps, where it pays
    conv_weight ──┘              ├─► direct.py              CPU: other convolutions with more than one tap
                                 ├─► few.py                 CPU: convolutions with few channels on one side
                                 └─► dots.py                CPU: products with few rows

3. If k is cut into parts, a second launch (contract_combine.cl) adds up the partial sums.

Convolutions with one channel per group go to depthwise.py instead.
"""

from __future__ import annotations

import math
from functools import partial
from types import ModuleType

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node
from handheld.kernels import contract_local, contract_register, depthwise, direct, dots, few, winograd
from handheld.kernels.args import ints, line
from handheld.kernels.base import Arg, Buffer, Choice, Launch, Lowered, Start, Texture, Workspace, round_up
from handheld.kernels.contract_nodes import problem_of
from handheld.kernels.contract_problem import MatmulMaps, Problem
from handheld.kernels.contract_text import program_text
from handheld.kernels.expr import Epilogue, epilogue
from handheld.kernels.reshape import OWN, half_output, within

MOST_CANDIDATES = 40
MOST_COLUMNS = 512  # The most columns of a block or a tile.
#: The choices of the kernels without variants.
WINOGRAD, DIRECT, FEW, DOTS = {"winograd": 1}, {"direct": 1}, {"few": 1}, {"dots": 1}


def lower_matmul(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    return _lower(*problem_of(node, graph, caps.kind == "cpu"), graph, caps, choice)


def lower_conv(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv(node, graph, caps)
    return _lower(*problem_of(node, graph, caps.kind == "cpu"), graph, caps, choice)


def lower_conv_input(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_input(node, graph, caps)
    return _lower(*problem_of(node, graph, caps.kind == "cpu"), graph, caps, choice)


def lower_conv_weight(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None) -> Lowered:
    if depthwise.applies(node):
        return depthwise.lower_conv_weight(node, graph, caps)
    return _lower(*problem_of(node, graph, caps.kind == "cpu"), graph, caps, choice)


def candidates(node: Node, graph: Graph, caps: DeviceCaps) -> tuple[Choice, ...]:
    """The choices for a node that are legal on a device and worth timing; empty if there is nothing to choose.

    The first is the best of the register blocks or tiles by their cost model. Winograd and `direct` follow, except the
    one that runs if `lower_*` gets no choice.
    """
    if node.op != "matmul" and depthwise.applies(node):
        return ()
    problem, _ = problem_of(node, graph, caps.kind == "cpu")
    if problem.sets * problem.m * problem.n == 0:
        return ()
    first, *rest = _variant(caps).choices(problem, caps, MOST_CANDIDATES - 2)
    tiles, blocks = winograd.cut(problem, caps, always=True), _blocks(problem, caps)
    legal = ((WINOGRAD, tiles), (DIRECT, blocks), (DOTS, dots.cut(problem, caps, always=True)))
    better = (
        (FEW, few.applies(problem, caps)),
        (WINOGRAD, winograd.cut(problem, caps)),
        (DOTS, dots.cut(problem, caps)),
    )
    own = next((choice for choice, found in better if found), DIRECT)
    others = [choice for choice, can in legal if can and choice != own]
    return (first, *others, *rest)


def flops(node: Node, graph: Graph) -> int:
    """Multiplications plus additions of a node. A convolution and its two gradients need equally many."""
    if node.op == "matmul":
        return 2 * int(math.prod(node.attrs["shape"])) * node.inputs[0].shape[-1]
    shape = tuple(node.attrs["shape"])
    first, second = node.inputs[0].shape, node.inputs[1].shape
    y, w = {"conv": (shape, second), "conv_input": (first, second), "conv_weight": (first, shape)}[node.op]
    return 2 * int(math.prod(y)) * int(math.prod(w[1:]))


def _lower(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None) -> Lowered:
    size = problem.sets * problem.m * problem.n
    if size == 0:
        return Lowered((), why="empty output")
    if problem.half_products and not caps.fp16:
        raise PlanError(f"{caps.name} has no arithmetic in halves (cl_khr_fp16). Try: precision='half'")
    special = _special(problem, node, graph, caps, choice)
    if special is not None:
        return special
    variant = _variant(caps)
    cut = variant.cut(problem, caps, choice or variant.choose(problem, caps))
    k_part = round_up(-(-problem.depth // cut.splits), cut.part)
    splits = max(-(-problem.depth // max(k_part, 1)), 1)
    within(node, splits * size, "partial sums")
    within(node, max(problem.n + MOST_COLUMNS, problem.k + k_part), "columns or terms")
    why = cut.why + (", products in halves" if problem.half_products else "")
    # If there are no terms, the inputs may be empty. The kernel never reads them, so the output can stand in.
    own = (problem.a, problem.b) if problem.k else (node.outputs[0],) * 2
    maps = ints(*problem.maps)
    # Only conv_weight has no epilogue. Its partial sums are the output if there is one part only.
    end = epilogue(node, graph, OWN) if "program" in node.attrs else None
    last = end.args if end else (Buffer(node.outputs[0]),)
    half = half_output(node, graph)
    text = program_text(problem, end if splits == 1 else None, {**cut.defines, **(half if splits == 1 else {})})
    launches: list[Launch] = []
    workspace: list[int] = []
    right: Arg = Buffer(own[1])
    if cut.panel and problem.k:
        panels, chunks = -(-problem.n // cut.panel[0]), -(-problem.k // cut.panel[1])
        elements = problem.sets * panels * cut.panel[0] * problem.k
        within(node, elements, "elements of its panels")
        right = Workspace(0)
        launches.append(Launch("pack", text, (Buffer(own[1]), *maps, right), (chunks, panels, problem.sets), (1, 1, 1)))
        workspace.append(elements * (2 if problem.half_products else 4))
    inputs: tuple[Arg, ...] = (Buffer(own[0]), right)
    if cut.textures:
        inputs = (*map(Texture, own, cut.textures), *map(Start, own))
    args: tuple[Arg, ...] = (*inputs, *maps, *ints(*cut.extra, k_part))
    wide = (cut.grid[0] * cut.local[0], cut.grid[1] * cut.local[1], problem.sets * splits)
    if splits == 1:
        if problem.phased and caps.kind == "cpu":  # contract_register.cl takes the phase from dimension 0.
            wide = (wide[2], wide[1], wide[0])
        launches.append(Launch("contract", text, args + last, wide, cut.local))
        return Lowered(tuple(launches), tuple(workspace), why)
    parts = Workspace(len(workspace))
    workspace.append(splits * size * 4)
    launches.append(Launch("contract", text, (*args, parts), wide, cut.local))
    head: tuple[Arg, ...] = (parts, *ints(splits), *(() if end else ints(size)))
    launches.append(
        line(
            "combine",
            program_text(problem, end, {"COMBINE": 1, **half}),
            (*(maps if end else ()), *head, *last),
            size,
            caps,
        )
    )
    return Lowered(tuple(launches), tuple(workspace), f"{why}, k in {splits} parts")


def _special(problem: Problem, node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None) -> Lowered | None:
    """The launches of a kernel that has no variants, if it is the choice or, without one, better than the others."""
    if choice not in (None, WINOGRAD, DIRECT, FEW, DOTS):
        return None
    if choice in (None, FEW) and few.applies(problem, caps):
        return few.lower(problem, node, graph, caps)
    rows = dots.cut(problem, caps, always=choice == DOTS) if choice in (None, DOTS) else None
    if rows is not None:
        return dots.lower(problem, rows, node, graph, caps)
    tiles = winograd.cut(problem, caps, always=choice == WINOGRAD) if choice in (None, WINOGRAD) else None
    if tiles is not None:
        return winograd.lower(problem, tiles, node, graph, partial(_product, caps))
    blocks = _blocks(problem, caps) if choice in (None, DIRECT) else None
    if blocks is not None:
        return direct.lower(problem, blocks, node, graph, caps)
    if choice is not None:
        raise PlanError(
            f"{dict(choice)} is not possible for this shape on {caps.name}. Try: one of contract.candidates()"
        )
    return None


def _blocks(problem: Problem, caps: DeviceCaps) -> direct.Blocks | None:
    return None if problem.half_products else direct.blocks(problem, caps)


def _product(
    caps: DeviceCaps, a: Arg, b: Arg, out: Arg, more: bool, maps: MatmulMaps, workspace: list[int]
) -> list[Launch]:
    """The launches of matrix products outside a node: of scratch buffers, for winograd.py. With `more`, they are added
    to the result. Bytes that they need themselves are added to `workspace`."""
    problem = Problem("MATMUL", 0, 0, maps, (maps.a_m, maps.a_k), batch=1)
    variant = _variant(caps)
    cut = variant.cut(problem, caps, {**variant.choose(problem, caps), "splits": 1})
    end = Epilogue(
        ", __global float *out, int more",
        (out, *ints(int(more))),
        "",
        "__global float *at_ = out + (d0 * M + d1) * N + d2; *at_ = more ? *at_ + acc : acc;",
    )
    text, launches, right = program_text(problem, end, cut.defines), [], b
    if cut.panel:
        panels, chunks = -(-problem.n // cut.panel[0]), -(-problem.k // cut.panel[1])
        right = Workspace(len(workspace))
        workspace.append(4 * problem.sets * panels * cut.panel[0] * problem.k)
        launches.append(Launch("pack", text, (b, *ints(*maps), right), (chunks, panels, problem.sets), (1, 1, 1)))
    wide = (cut.grid[0] * cut.local[0], cut.grid[1] * cut.local[1], problem.sets)
    k_part = round_up(problem.k, cut.part)
    args = (a, right, *ints(*maps), *ints(*cut.extra, k_part), *end.args)
    return [*launches, Launch("contract", text, args, wide, cut.local)]


def _variant(caps: DeviceCaps) -> ModuleType:
    """The module that cuts problems into work-groups for a kind of device."""
    return contract_local if caps.kind == "gpu" else contract_register
