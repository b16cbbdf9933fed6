"""What all reduce kernels share: which instruction runs where, and how partial results are joined.

A kernel runs in stages. Each stage walks along the row once and ends in reductions. Values of an element that a
later stage needs are computed again instead of stored. The last walk writes the full outputs:

    x ──► stage 1: sum(x) ──► stage 2: sum((x - mean)^2) ──► walk: y = (x - mean) * rstd

Words used here and in rows*.py: a *row* holds the elements that one result is reduced from. An *inner* value
differs between the elements of a row; an *outer* value is the same for the whole row. A *full* output has the
shape of the input, and not one element per row.

Sums have two levels: runs of at most RUN terms, then the total. So the error of a sum of a million terms is about
that of a thousand.
"""

from __future__ import annotations

from collections.abc import Collection

from handheld.graph.dtypes import BOOL, DTYPES, F32, I32
from handheld.graph.program import REDUCTIONS, Instr, Program
from handheld.kernels.loops import Body

RUN = 64  # Terms of the first level of a sum.
#: The start value of each reduction, by dtype.
NEUTRAL = {
    "sum": {F32: "0.0f", I32: "0"},
    "prod": {F32: "1.0f", I32: "1"},
    "max_of": {F32: "-INFINITY", I32: "INT_MIN", BOOL: "0"},
    "min_of": {F32: "INFINITY", I32: "INT_MAX", BOOL: "1"},
    "arg_max": {F32: "-INFINITY", I32: "INT_MIN", BOOL: "0"},
    "arg_min": {F32: "INFINITY", I32: "INT_MAX", BOOL: "1"},
    "any_of": {BOOL: "0"},
    "all_of": {BOOL: "1"},
}


class Stages:
    """For each instruction, whether it runs per row or per element, and in which stage."""

    def __init__(self, body: Body) -> None:
        program, space, node = body.program, body.space, body.node
        self.inner: list[bool] = []
        self.stage: list[int] = []  # The stage after which the value is available.
        for instr in program:
            stage = max((self.stage[a] for a in instr.args), default=0)
            inner = any(self.inner[a] for a in instr.args)
            if instr.op == "load":
                walk = space.operands[instr.params[0]]
                inner = any(s for s, is_inner in zip(walk, space.inner, strict=True) if is_inner)
                inner |= any(space.inner[space.keep[d]] for d, _, _ in instr.params[1])
            elif instr.op == "index":
                inner = any(s for s, is_inner in zip(space.linear, space.inner, strict=True) if is_inner)
            elif instr.op == "iota":
                inner = space.inner[space.keep[instr.params[0]]]
            elif instr.op in REDUCTIONS:
                stage, inner = stage + 1, False
            self.inner.append(inner)
            self.stage.append(stage)
        self.last = max(self.stage, default=0)
        self.full_roots = [store.position for store in node.stores if store.full]
        self.has_full = bool(self.full_roots)
        #: Whether one walk is enough: no full output depends on a reduction, so the only stage can write them.
        self.early = self.last == 1 and all(self.stage[p] == 0 for p in self.full_roots)

    def needed(self, program: Program, roots: list[int], known: Collection[int] = ()) -> list[int]:
        """The inner instructions that `roots` need, in order. The search stops at instructions in `known`."""
        needed: set[int] = set()
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i not in needed and self.inner[i]:
                needed.add(i)
                stack.extend(() if i in known else program[i].args)
        return sorted(needed)


def closure(program: Program, roots: list[int]) -> list[int]:
    """The instructions that `roots` need, in order. The search stops at reductions, which are included."""
    needed: set[int] = set()
    stack = list(roots)
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            if program[i].op not in REDUCTIONS:
                stack.extend(program[i].args)
    return sorted(needed)


def reductions_of(stages: Stages, program: Program, stage: int) -> list[int]:
    """The reductions at the end of a stage."""
    return [i for i, n in enumerate(program) if n.op in REDUCTIONS and stages.stage[i] == stage]


def update(instr: Instr, kind: str, into: str, value: str, where: str, at: str) -> str:
    """The statement that takes `value` into the partial result `into`.

    For arg_max and arg_min, `where` is the variable that holds the position of the result, and `at` is the position
    of `value`. Of equal elements, the first wins.
    """
    if instr.op in ("sum", "prod"):
        return f"{into} {'+' if instr.op == 'sum' else '*'}= {value};"
    if instr.op in ("any_of", "all_of"):
        return f"{into} {'|' if instr.op == 'any_of' else '&'}= ({value} != 0);"
    largest = instr.op in ("max_of", "arg_max")
    if instr.op in ("arg_max", "arg_min"):
        better = _better(largest, kind, value, into)
        # `where` starts at INT_MAX, so that a row of neutral elements still gets the position of its first one.
        equal = f"{value} == {into}"
        if kind == F32:
            equal = f"({equal} || (isnan({value}) && isnan({into})))"
        tie = f"({equal} && {at} < {where})"
        return f"if ({better} || {tie}) {{ {into} = {value}; {where} = {at}; }}"
    call = ("f_max" if largest else "f_min") if kind == F32 else ("max" if largest else "min")
    return f"{into} = {call}({into}, {value});"


def _better(largest: bool, kind: str, value: str, into: str) -> str:
    compare = f"{value} {'>' if largest else '<'} {into}"
    if kind != F32:
        return f"({compare})"
    return f"(({compare}) || (isnan({value}) && !isnan({into})))"


def fold_of(body: Body, i: int, a: str, b: str, wa: str, wb: str) -> str:
    """The statement that joins the partial result b into a; wa and wb hold their positions."""
    instr = body.program[i]
    return update(instr, body.kinds[instr.args[0]], a, b, wa, wb)


def start_of(body: Body, i: int) -> tuple[str, str]:
    """The C type and the start value of reduction i."""
    kind = body.kinds[body.program[i].args[0]]
    return DTYPES[kind].c_register, NEUTRAL[body.program[i].op][kind]


def is_arg(instr: Instr) -> bool:
    return instr.op in ("arg_max", "arg_min")


def available(body: Body, stages: Stages, stage: int, done: set[int]) -> list[int]:
    """The outer instructions, except reductions, that can be computed after `stage`. Adds them to `done`."""
    ready = [
        i
        for i, instr in enumerate(body.program)
        if i not in done and not stages.inner[i] and instr.op not in REDUCTIONS and stages.stage[i] <= stage
    ]
    done.update(ready)
    return ready


def linear(body: Body) -> str:
    """The position in the row: the row-major index over the reduced dimensions."""
    inner = [d for d, i in enumerate(body.space.inner) if i]
    text = "0"
    for d in inner:
        text = f"({text} * {body.sizes[d]} + x{d})" if text != "0" else f"x{d}"
    return text


def nest(body: Body, dims: list[int], inner: list[str]) -> list[str]:
    """Plain loops over `dims` around `inner`."""
    lines = inner
    for d in reversed(dims):
        lines = [f"for (int x{d} = 0; x{d} < {body.sizes[d]}; ++x{d}) {{", *(f"  {line}" for line in lines), "}"]
    return lines
