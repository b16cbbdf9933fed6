"""reduce on a CPU, for rows whose elements are adjacent in memory: a work-item takes one row.

    row:   |x x .. x|x x .. x|x x ..     blocks of 16 or 32 elements
    p, q:  |+ + .. +|                    one partial result per lane of the block

The lanes are joined at the end of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES, F32
from handheld.kernels.base import Lowered, round_up
from handheld.kernels.loops import Body, cpu_group, launch, loop
from handheld.kernels.stages import (
    RUN,
    Stages,
    available,
    fold_of,
    is_arg,
    linear,
    nest,
    reductions_of,
    start_of,
    update,
)

LANES = 16
#: Instructions that cost more than writing a float and reading it again.
DEAR = {"exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "pow"}


def lower_lanes(body: Body, stages: Stages, outer: list[int], rows: int, caps: DeviceCaps) -> Lowered:
    inner = [d for d, i in enumerate(body.space.inner) if i]
    bound = body.code.integer(rows)
    width = 16 if caps.vector_width >= 16 else 8
    lines = [
        f"typedef float{width} __attribute__((aligned(4))) loose;",
        "const int g = get_global_id(0);",
        f"if (g >= {bound}) return;",
    ]
    lines += body.split("g", outer) if outer else []
    done: set[int] = set()
    kept, early = _kept(body, stages), stages.early
    writes = [f"{kept.place} = v{kept.value};"] if kept else body.stores(True) if early else []
    for stage in range(stages.last + 1):
        lines += [body.declare(i) for i in available(body, stages, stage, done)]
        todo = reductions_of(stages, body.program, stage + 1)
        if todo:
            own = writes if stage == stages.last - 1 else []
            lines += LaneWalk(body, stages, todo, inner, own, width).lines()
    if stages.has_full and not early:
        lines += _last_walk(body, stages, inner, kept)
    lines += body.stores(False)
    local = cpu_group(rows, caps)
    return launch(body, "reduce_lanes", lines, round_up(rows, local), local, body.node)


def _last_walk(body: Body, stages: Stages, inner: list[int], kept: Kept | None) -> list[str]:
    """The walk that writes the full outputs."""
    roots = stages.full_roots
    if kept is None:
        text = [body.declare(i) for i in stages.needed(body.program, roots)]
    else:
        text = [
            f"const float v{kept.value} = {kept.place};" if i == kept.value else body.declare(i)
            for i in stages.needed(body.program, roots, {kept.value})
        ]
    text += body.stores(True)
    if not inner:
        return text
    size = body.space.sizes[inner[-1]]
    return nest(body, inner[:-1], loop(f"x{inner[-1]}", "0", body.sizes[inner[-1]], text, size))


@dataclass(frozen=True)
class Kept:
    """An expensive value, such as the exponentials of a softmax. The last walk with reductions stores it in an output,
    and the writing walk reads it there instead of computing it again."""

    value: int  # The instruction.
    place: str  # The element of the output.


def _kept(body: Body, stages: Stages) -> Kept | None:
    """The value to keep, or None. The writing walk may then read nothing else, because the output may share the memory
    of an input."""
    program, stores = body.program, body.node.stores
    outputs = [
        n for n, store in enumerate(stores) if store.full and body.code.graph.tensors[body.node.outputs[n]].dtype == F32
    ]
    roots = stages.full_roots
    costly = [i for i in stages.needed(program, roots) if program[i].op in DEAR]
    before = [a for i in reductions_of(stages, program, stages.last) for a in program[i].args]
    if stages.early or not outputs or len(costly) != 1:
        return None
    reads = [i for i in stages.needed(program, roots, costly) if program[i].op in ("load", "gather")]
    if reads or costly[0] not in stages.needed(program, before):
        return None
    return Kept(costly[0], body.place(outputs[0]))


class LaneWalk:
    """The text of one walk along a row that ends in reductions.

    A block has LANES elements, or twice as many in long rows. Its partial results are vectors (floats) or arrays (other
    types). The last block of a row is moved back so that it ends with the row; elements that the block before it
    has taken do not count again. A row that is shorter than a block is walked element by element.

    Vectors are filled from the array u, or directly from memory if nothing is computed. (Adding to an array would
    keep it in memory, and each step would wait for the store of the step before.) p are the totals; q are the sums
    of the current run, which are added to p. `writes` are statements that run for each element.
    """

    def __init__(
        self, body: Body, stages: Stages, todo: list[int], inner: list[int], writes: list[str], width: int
    ) -> None:
        self.body, self.stages, self.todo, self.inner = body, stages, todo, inner
        self.writes, self.width = writes, width
        self.vectors = [i for i in todo if start_of(body, i)[0] == "float" and not is_arg(body.program[i])]
        size = body.space.sizes[inner[-1]] if inner else 1
        self.block = 0 if size < LANES else LANES
        if size >= 2 * LANES and self.vectors == todo:
            self.block = 2 * LANES
        self.at = linear(body)

    def lines(self) -> list[str]:
        make = self._blocks if self.block else self._singly
        return [
            *(line for i in self.todo for line in self._start(i)),
            *make(),
            *(line for i in self.todo for line in self._result(i)),
        ]

    def _value(self, i: int) -> str:
        return self.body.name(self.body.program[i].args[0])

    def _update(self, i: int, into: str, where: str) -> str:
        instr = self.body.program[i]
        return update(instr, self.body.kinds[instr.args[0]], into, self._value(i), where, self.at)

    def _two_level(self, i: int) -> bool:
        return i in self.vectors and self.body.program[i].op == "sum"

    def _text(self, reductions: list[int]) -> list[str]:
        """The statements per element that these reductions need."""
        roots = [a for i in reductions for a in self.body.program[i].args]
        roots += self.stages.full_roots if self.stages.early else []
        return [self.body.declare(i) for i in self.stages.needed(self.body.program, roots)]

    def _parts(self, name: str, i: int) -> list[str]:
        """The names of the vectors that hold p or q of a block."""
        return [f"{name}{i}_{k}" for k in range(self.block // self.width)]

    def _start(self, i: int) -> list[str]:
        kind, neutral = start_of(self.body, i)
        arg = is_arg(self.body.program[i])
        if not self.block:
            return [f"{kind} p{i} = {neutral};", *([f"int w{i} = INT_MAX;"] if arg else [])]
        if i in self.vectors:
            parts = ", ".join(f"{p} = {neutral}" for p in self._parts("p", i))
            bad = [] if self.body.program[i].op in ("sum", "prod") else [f"int{self.width} b{i} = 0;"]
            return [f"float{self.width} {parts};", *bad]
        every = f"for (int l = 0; l < {self.block}; ++l)"
        lines = [f"{kind} p{i}[{self.block}]; {every} p{i}[l] = {neutral};"]
        return lines + ([f"int w{i}[{self.block}]; {every} w{i}[l] = INT_MAX;"] if arg else [])

    def _result(self, i: int) -> list[str]:
        kind, prefix = DTYPES[self.body.kinds[i]].c_register, "w" if is_arg(self.body.program[i]) else "p"
        if not self.block:
            return [f"const {kind} v{i} = {prefix}{i};"]
        if i in self.vectors:
            op, parts, lines = self.body.program[i].op, self._parts("p", i), []
            while len(parts) > 1:
                half = len(parts) // 2
                lines += [_wide(op, a, b, self.width) for a, b in zip(parts, parts[half:], strict=False)]
                parts = parts[:half]
            whole, fold = _halved(parts[0], self.width, lambda a, b, n: _wide(op, a, b, n), "float")
            lines += [*fold, f"float p{i} = {whole}.x;", fold_of(self.body, i, f"p{i}", f"{whole}.y", "", "")]
            if op in ("sum", "prod"):
                return [*lines, f"const float v{i} = p{i};"]
            bad, fold = _halved(f"b{i}", self.width, lambda a, b, n: f"{a} |= {b};", "int")
            return [*lines, *fold, f"const float v{i} = ({bad}.x | {bad}.y) ? NAN : p{i};"]
        pair = fold_of(self.body, i, f"p{i}[l]", f"p{i}[l + h]", f"w{i}[l]", f"w{i}[l + h]")
        return [
            f"for (int h = {self.block // 2}; h; h >>= 1) for (int l = 0; l < h; ++l) {{ {pair} }}",
            f"const {kind} v{i} = {prefix}{i}[0];",
        ]

    def _singly(self) -> list[str]:
        runs = [i for i in self.todo if self._two_level(i)]
        start = [f"float q{i} = 0.0f;" for i in runs]
        text = [
            *self._text(self.todo),
            *self.writes,
            *(self._update(i, f"{'q' if i in runs else 'p'}{i}", f"w{i}") for i in self.todo),
        ]
        flush = [f"p{i} += q{i}; q{i} = 0.0f;" for i in runs]
        walk = nest(self.body, self.inner[-1:], text)
        if runs and self.inner:  # The innermost loop may be short, so a run spans several of them.
            n = self.body.sizes[self.inner[-1]]
            walk += [f"if ((run_ += {n}) >= {RUN}) {{", "run_ = 0;", *flush, "}"]
            start.append("int run_ = 0;")
        return ["{", *start, *nest(self.body, self.inner[:-1], walk), *flush, "}"]

    def _blocks(self) -> list[str]:
        block, n, run = self.block, self.body.sizes[self.inner[-1]], self.block * RUN
        runs = [i for i in self.todo if self._two_level(i)]
        walk = [
            f"for (int c_ = 0; c_ < {n}; c_ += {run}) {{",
            f"  int b_ = c_; const int e_ = min(c_ + {run}, {n});",
            *(f"  float{self.width} {', '.join(f'{q} = 0.0f' for q in self._parts('q', i))};" for i in runs),
            f"  for (; b_ + {block} <= e_; b_ += {block}) {{",
            *(f"    {t}" for t in self._one("b_", "")),
            "  }",
            "  if (b_ < e_) {",
            *(f"    {t}" for t in self._one(f"{n} - {block}", f"x{self.inner[-1]} >= b_")),
            "  }",
            *(f"  {p} += {q};" for i in runs for p, q in zip(self._parts("p", i), self._parts("q", i), strict=True)),
            "}",
        ]
        return nest(self.body, self.inner[:-1], walk)

    def _one(self, begin: str, counts: str) -> list[str]:
        """One block from element `begin`. If `counts` is given, only elements for which it is true count."""
        x = f"x{self.inner[-1]}"
        straight = {} if counts or self.writes else {i: place for i in self.vectors if (place := self._straight(i))}
        through = [i for i in self.todo if i not in straight]
        text = self._text(through)
        for i in through:
            if i in self.vectors:
                value = f"{counts} ? {self._value(i)} : {start_of(self.body, i)[1]}" if counts else self._value(i)
                text.append(f"u{i}[l] = {value};")
            else:
                step = self._update(i, f"p{i}[l]", f"w{i}[l]")
                text.append(f"if ({counts}) {{ {step} }}" if counts else step)
        text += [f"if ({counts}) {t}" if counts else t for t in self.writes]
        lines = [f"float u{i}[{self.block}];" for i in through if i in self.vectors]
        if through:
            lines += loop("l", "0", str(self.block), [f"const int {x} = {begin} + l;", *text], self.block)
        for i in self.vectors:
            parts = self._parts("q" if self._two_level(i) else "p", i)
            op = self.body.program[i].op
            for k, into in enumerate(parts):
                first = self.width * k
                if i in straight:
                    load = f"*(const __global loose *)({straight[i]})"
                    lines.append(
                        f"{{ const int {x} = {begin} + {first}; {_wide(op, into, load, self.width, f'b{i}')} }}"
                    )
                else:
                    lines.append(_wide(op, into, f"*(const loose *)(u{i} + {first})", self.width, f"b{i}"))
        return lines

    def _straight(self, i: int) -> str:
        """The address of the elements that i reduces, if they are plain contiguous floats; otherwise ""."""
        load = self.body.program[self.body.program[i].args[0]]
        if load.op != "load" or load.params[1]:
            return ""
        operand = load.params[0]
        tensor = self.body.code.graph.tensors[self.body.node.inputs[operand].tensor]
        if tensor.dtype != F32 or self.body.space.operands[operand][self.inner[-1]] != 1:
            return ""
        return f"{self.body.code.pointer(tensor)} + {self.body.index_of(operand)}"


def _wide(op: str, into: str, value: str, width: int, bad: str = "") -> str:
    """One step of a reduction, for `width` floats at once. The lanes of a maximum never hold a NaN; `bad` notes it."""
    if op in ("sum", "prod"):
        return f"{into} {'+' if op == 'sum' else '*'}= {value};"
    sign = ">" if op == "max_of" else "<"
    note = f" {bad} |= t_ != t_;" if bad else ""
    return f"{{ const float{width} t_ = {value}; {into} = t_ {sign} {into} ? t_ : {into};{note} }}"


def _halved(name: str, width: int, join: Callable[[str, str, int], str], kind: str) -> tuple[str, list[str]]:
    """Statements that join the two halves of a vector until two elements are left, and the name of the rest."""
    lines, rest, n = [], name, width // 2
    while n > 1:
        half = f"{name}_{n}"
        lines += [f"{kind}{n} {half} = {rest}.lo;", join(half, f"{rest}.hi", n)]
        rest, n = half, n // 2
    return rest, lines
