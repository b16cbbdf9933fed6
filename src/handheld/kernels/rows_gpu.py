"""reduce on a GPU: a work-group takes some rows, and its work-items ("items") join their results in local memory.

    group      Elements of a row are adjacent in memory. A work-group takes `slots` rows, with `lanes` items each.
    columns    Rows are adjacent in memory. A work-group takes 32 neighbouring rows (more if they are short), also
               with `lanes` items each. Neighbouring items are on neighbouring rows.

        group, 2 slots, 4 lanes           columns, 4 slots, 2 lanes
        row 0:  0 1 2 3 0 1 2 3 ..        row:   0 1 2 3
        row 1:  4 5 6 7 4 5 6 7 ..               -------
                                                 0 1 2 3
        (the number of the item that             4 5 6 7
        takes each element)                      0 1 2 3 ..

Along a row, x is the last dimension and j stands for all others. `lanes_x` items run along x and the other lanes
along j, in plain loops without divisions per element. The longer loop is the inner one.

If rows are few and long, a work-group takes a chunk of a row, and a stage leaves its partial results in a
workspace. Each work-group of the next launch first joins these parts, in order:

    walk 1 ─► parts ─► join, walk 2 ─► parts ─► join, last walk: stores

If there is one stage only, the first walk stores full outputs that do not depend on a reduction. If several
work-groups share a row in the last walk, they read the values of the row from the workspace: another work-group may
already have overwritten the operand with results (plan/memory.py: in_place).
"""

from __future__ import annotations

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, Node
from handheld.graph.program import REDUCTIONS
from handheld.kernels.args import ints
from handheld.kernels.base import Launch, Lowered, Workspace
from handheld.kernels.loops import Body
from handheld.kernels.rows_shape import Shape, joining, shape_of
from handheld.kernels.space import Space
from handheld.kernels.stages import RUN, Stages, closure, fold_of, is_arg, reductions_of, start_of, update

UNROLL = 4  # Elements whose loads overlap.
UNROLL_SIZE = 24  # Programs with more statements per element take half as many elements when they store.


def lower_groups(node: Node, graph: Graph, space: Space, caps: DeviceCaps) -> Lowered:
    program = node.program
    results = [i for i in program if i.op in REDUCTIONS]
    shape = shape_of(space, sum(1 + is_arg(i) for i in results), caps)
    name = "reduce_columns" if shape.columns else "reduce_group"
    size = "x".join(map(str, space.sizes)) or "1"
    if shape.chunks == 1:
        kernel = Kernel(node, graph, space, shape, 1)
        return Lowered((kernel.whole(name),), (), f"{name} over {size}, {shape.lanes} work-items per row")
    stages = Stages(Body(node, graph, space))
    early = stages.early
    last = joining(shape) if early else shape
    saved = [] if early else _row_loads(stages, node)
    launches = []
    for stage in range(1, stages.last + 1):
        kernel = Kernel(node, graph, space, shape, shape.chunks)
        launches.append(kernel.part(f"{name}_part", stage, early, saved if stage == 1 else []))
    kernel = Kernel(node, graph, space, last, shape.chunks)
    launches.append(kernel.join(f"{name}_join", not early, saved))
    why = f"{name} over {size}, {shape.chunks} chunks per row"
    return Lowered(tuple(launches), (4 * kernel.words(len(saved)),), why)


def _row_loads(stages: Stages, node: Node) -> list[int]:
    """The loads that run once per row and that the stores need."""
    program = node.program
    roots = [store.position for store in node.stores]
    return [i for i in closure(program, roots) if program[i].op == "load" and not stages.inner[i]]


class Kernel:
    """One kernel while it is written. In the generated text:

    s_ and row_ are the slot and the row of an item, l_ its lane (lx_ along x, lj_ along j), live_ is 0 for rows past
    the end. p and q are the partial results of a reduction, and v its result.
    """

    def __init__(self, node: Node, graph: Graph, space: Space, shape: Shape, parts: int) -> None:
        self.node, self.shape, self.parts = node, shape, parts
        self.body = Body(node, graph, space)
        self.program = self.body.program
        self.stages = Stages(self.body)
        self.outer = [d for d, inner in enumerate(space.inner) if not inner]
        self.inner = [d for d, inner in enumerate(space.inner) if inner]
        self.x = f"x{self.inner[-1]}" if self.inner else "x_"
        self.lines: list[str] = []
        self.declared: set[int] = set()
        self.folded = 0  # The most reductions that one tree joins.
        self.places = 0  # The most arg_max and arg_min that one tree joins.
        self.trees = 0  # The number of trees so far.
        #: The index of a reduction's parts in the workspace. Positions of arg_max and arg_min use the next index.
        self.slot: dict[int, int] = {}
        self.count = 0
        for i, instr in enumerate(self.program):
            if instr.op in REDUCTIONS:
                self.slot[i] = self.count
                self.count += 1 + is_arg(instr)
        self._begin()

    def words(self, saved: int) -> int:
        """The 4-byte words of the workspace, with `saved` values per row."""
        return self.shape.rows * (self.count * self.parts + saved)

    # ── the three kinds of kernel ─────────────────────────────────────────────────────────────

    def whole(self, name: str) -> Launch:
        """The kernel that runs all stages and stores."""
        every = list(range(len(self.program)))
        full = self._full()
        early = self.stages.last == 1 and all(self.stages.stage[p] == 0 for p in full)
        for stage in range(self.stages.last + 1):
            self._declare(every, stage)
            todo = reductions_of(self.stages, self.program, stage + 1)
            if todo:
                self._walk(todo, full if early else [])
                self._tree(todo)
        if full and not early:
            self._walk([], full)
        self._row_stores("")
        return self._launch(name)

    def part(self, name: str, stage: int, store: bool, saved: list[int]) -> Launch:
        """The kernel that runs one stage over a chunk. Its results go to the workspace."""
        todo = reductions_of(self.stages, self.program, stage)
        full = self._full() if store else []
        roots = [a for i in todo for a in self.program[i].args]
        self._prepare([*roots, *full, *saved], {})
        for n, i in enumerate(saved):
            self.lines.append(f"if (l_ == 0 && chunk_ == 0 && live_) {self._saved(n, i)} = v{i};")
        self._walk(todo, full)
        self._tree(todo, parts=True)
        return self._launch(name)

    def join(self, name: str, store: bool, saved: list[int]) -> Launch:
        """The kernel that joins the parts of the last stage and stores the outputs."""
        full = self._full() if store else []
        rows = [store.position for store in self.node.stores if not store.full]
        self._prepare([*full, *rows], {i: self._saved(n, i) for n, i in enumerate(saved)})
        if full:
            self._walk([], full)
        self._row_stores("chunk_ == 0 && " if store else "")
        return self._launch(name)

    def _full(self) -> list[int]:
        return [store.position for store in self.node.stores if store.full]

    # ── the frame ─────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        shape, integer = self.shape, self.body.code.integer
        slots, lanes_x = integer(shape.slots), integer(shape.lanes_x)
        self.slots, self.lanes_x = slots, lanes_x
        self.lanes, self.lanes_j = integer(shape.lanes), integer(shape.lanes // shape.lanes_x)
        self.rows = integer(shape.rows)
        size_j, size_x = integer(shape.size_j), integer(shape.size_x)
        self.size_x = size_x
        place = [
            f"const int lx_ = id_ % {lanes_x}, s_ = id_ / {lanes_x} % {slots};",
            f"const int lj_ = id_ / {lanes_x} / {slots};",
        ]
        if shape.columns:
            place = [
                f"const int s_ = id_ % {slots}, lx_ = id_ / {slots} % {lanes_x};",
                f"const int lj_ = id_ / {slots} / {lanes_x};",
            ]
        self.lines += [
            "const int id_ = get_local_id(0);",
            *place,
            f"const int l_ = lj_ * {lanes_x} + lx_, at_ = l_ * {slots} + s_;",
            f"const int row_ = get_group_id(0) * {slots} + s_, live_ = row_ < {self.rows};",
            f"const int g_ = min(row_, {self.rows} - 1);",
            *(self.body.split("g_", self.outer) if self.outer else []),
        ]
        begin_j = begin_x = "0"
        end_j, end_x = size_j, size_x
        if shape.chunks > 1:
            chunk_j, chunk_x = integer(shape.chunk_j), integer(shape.chunk_x)
            chunks_x = integer(shape.chunks_x)
            begin_j = f"chunk_ / {chunks_x} * {chunk_j}"
            begin_x = f"chunk_ % {chunks_x} * {chunk_x}"
            end_j, end_x = f"min({size_j}, jb_ + {chunk_j})", f"min({size_x}, xb_ + {chunk_x})"
        if self.parts > 1:
            self.body.code.params.append("__global float *parts_")
            self.body.code.args.append(Workspace(0))
            self.chunks = integer(self.parts)
            self.lines.append("const int chunk_ = get_group_id(1);")
        self.lines += [
            f"const int jb_ = {begin_j}, xb_ = {begin_x}, xe_ = {end_x};",
            f"const int je_ = live_ ? {end_j} : 0;",
        ]

    def _launch(self, name: str) -> Launch:
        shape = self.shape
        local = [f"__local float s{n}_[{shape.items}];" for n in range(self.folded)]
        local += [f"__local int w{n}_[{shape.items}];" for n in range(self.places)]
        ints(shape.groups * shape.items)
        attribute = f"__attribute__((reqd_work_group_size({shape.items}, 1, 1)))"
        text = self.body.kernel(name, [*local, *self.lines], attribute)
        size: tuple[int, ...] = (shape.groups * shape.items,)
        if shape.chunks == 1:
            return Launch(name, text, tuple(self.body.code.args), size, (shape.items,))
        size = (*size, shape.chunks)
        return Launch(name, text, tuple(self.body.code.args), size, (shape.items, 1))

    # ── values of a row ───────────────────────────────────────────────────────────────────────

    def _declare(self, wanted: list[int], stage: int) -> None:
        """Declares the outer values among `wanted` that can be computed after `stage`."""
        for i in wanted:
            if (
                i not in self.declared
                and not self.stages.inner[i]
                and self.program[i].op not in REDUCTIONS
                and self.stages.stage[i] <= stage
            ):
                self.declared.add(i)
                self.lines.append(self.body.declare(i))

    def _prepare(self, roots: list[int], saved: dict[int, str]) -> None:
        """Loads and declares what `roots` need: results of earlier launches and outer values. `saved` tells which
        outer values to read from the workspace."""
        wanted = closure(self.program, roots)
        for i in sorted(set(wanted) & set(saved)):
            self.declared.add(i)
            self.lines.append(f"const {DTYPES[self.body.kinds[i]].c_register} v{i} = {saved[i]};")
        todo = [i for i in wanted if self.program[i].op in REDUCTIONS]
        if todo:
            self._start(todo)
            steps = f"int k_ = l_; k_ < {self.chunks}; k_ += {self.lanes}"
            self.lines.append(f"if (live_) for ({steps}) {{")
            for i in todo:
                value, where = self._part(i, "k_")
                self.lines.append(f"  {fold_of(self.body, i, f'p{i}', value, f'p{i}w', where)}")
            self.lines.append("}")
            self._tree(todo)
        self._declare(wanted, self.stages.last)

    def _part(self, i: int, chunk: str) -> tuple[str, str]:
        """Where the workspace holds a chunk's result of reduction i, and the position of that result in the row."""
        kind, _ = start_of(self.body, i)
        at = f"row_ * {self.chunks} + {chunk}"
        if self.shape.columns:
            at = f"{chunk} * {self.rows} + row_"

        def value(slot: int, kind: str) -> str:
            text = f"{slot} * {self.chunks} * {self.rows} + {at}" if slot else at
            return f"((__global {kind} *)parts_)[{text}]" if kind != "float" else f"parts_[{text}]"

        return value(self.slot[i], kind), value(self.slot[i] + 1, "int")

    def _saved(self, n: int, i: int) -> str:
        """Where the workspace holds the n-th saved value of the row."""
        kind = DTYPES[self.body.kinds[i]].c_register
        text = f"({self.count} * {self.chunks} + {n}) * {self.rows} + g_"
        return f"((__global {kind} *)parts_)[{text}]"

    def _row_stores(self, condition: str) -> None:
        stores = self.body.stores(False)
        if stores:
            self.lines += [f"if ({condition}l_ == 0 && live_) {{", *stores, "}"]

    # ── walks ─────────────────────────────────────────────────────────────────────────────────

    def _start(self, todo: list[int]) -> None:
        for i in todo:
            kind, start = start_of(self.body, i)
            self.lines.append(f"{kind} p{i} = {start};")
            if is_arg(self.program[i]):
                self.lines.append(f"int p{i}w = INT_MAX;")

    def _walk(self, todo: list[int], full: list[int]) -> None:
        """Walks along the item's elements. Reduces `todo` and stores `full`."""
        body, program = self.body, self.program
        self._start(todo)
        updates, flush = [], []
        at = f"j_ * {self.size_x} + {self.x}" if len(self.inner) > 1 else self.x
        for i in todo:
            kind, _ = start_of(body, i)
            two_level = program[i].op == "sum" and kind == "float"
            if two_level:
                self.lines.append(f"float q{i} = 0.0f;")
                flush.append(f"p{i} += q{i}; q{i} = 0.0f;")
            into, value = f"q{i}" if two_level else f"p{i}", body.name(program[i].args[0])
            kind = body.kinds[program[i].args[0]]
            updates.append(update(program[i], kind, into, value, f"p{i}w", at))
        roots = [a for i in todo for a in program[i].args] + full
        text = [body.declare(i) for i in self.stages.needed(program, roots)] + updates
        # One of x and j is the outer loop. The longer one is the inner loop, cut into runs of RUN elements.
        split = [f"  {t}" for t in body.split("j_", self.inner[:-1])]
        inside, count, first, end = self.x, self.lanes_x, "xb_ + lx_", "xe_"
        outside = [f"for (int j_ = jb_ + lj_; j_ < je_; j_ += {self.lanes_j}) {{", *split]
        if self.shape.along_j:
            inside, count, first, end = "j_", self.lanes_j, "jb_ + lj_", "je_"
            outside = [f"for (int {self.x} = xb_ + lx_; {self.x} < xe_; {self.x} += {self.lanes_x}) {{"]
            text = [*split, *text]
        loop = (
            self._storing(inside, count, text, full, split)
            if full
            else [
                f"#pragma unroll {UNROLL}",
                f"for (int i_ = c_; i_ < e_; i_ += {count}) {{ const int {inside} = i_;",
                *(f"  {t}" for t in text),
                "}",
            ]
        )
        step = f"{RUN} * {count}"
        if flush:
            run = f"run{todo[0]}_"
            self.lines.append(f"int {run} = 0;")
            loop.append(f"if (({run} += e_ - c_) >= {step}) {{ {run} = 0; {' '.join(flush)} }}")
        self.lines += [
            *outside,
            f"  for (int c_ = {first}; c_ < {end}; c_ += {step}) {{",
            f"    const int e_ = min({end}, c_ + {step});",
            *(f"    {t}" for t in loop),
            "  }",
            "}",
            *flush,
        ]

    def _storing(self, inside: str, count: str, text: list[str], full: list[int], split: list[str]) -> list[str]:
        """The inner loop of a walk that stores, several elements at a time. All loads come first and then all stores: a
        compiler could not move a load before a store that might write the same memory."""
        inner = sorted({i for i in full if self.stages.inner[i]})
        kinds = {i: DTYPES[self.body.kinds[i]].c_register for i in inner}
        times = UNROLL if len(text) <= UNROLL_SIZE else UNROLL // 2
        each = ["#pragma unroll", f"for (int u_ = 0; u_ < {times}; ++u_) {{ const int {inside} = i_ + u_ * {count};"]
        stores = self.body.stores(True)
        again = split if self.shape.along_j else []
        return [
            "int i_ = c_;",
            f"for (; i_ + {times - 1} * {count} < e_; i_ += {times} * {count}) {{",
            *(f"  {kinds[i]} y{i}[{times}];" for i in inner),
            *each,
            *(f"  {t}" for t in text),
            *(f"  y{i}[u_] = v{i};" for i in inner),
            "}",
            *each,
            *again,
            *(f"  const {kinds[i]} v{i} = y{i}[u_];" for i in inner),
            *(f"  {t}" for t in stores),
            "}",
            "}",
            f"for (; i_ < e_; i_ += {count}) {{ const int {inside} = i_;",
            *(f"  {t}" for t in (*text, *stores)),
            "}",
        ]

    # ── the end of a stage ────────────────────────────────────────────────────────────────────

    def _tree(self, todo: list[int], parts: bool = False) -> None:
        """Joins the lanes of each row in a tree. Every item gets the results; with `parts`, the workspace gets them."""
        barrier = "barrier(CLK_LOCAL_MEM_FENCE);"
        if self.trees:
            self.lines.append(barrier)  # Other items may still read the results of the tree before.
        self.trees += 1
        folds, ends, places = [], [], 0
        for n, i in enumerate(todo):
            kind, _ = start_of(self.body, i)
            values = f"s{n}_" if kind == "float" else f"((__local {kind} *)s{n}_)"
            where = f"w{places}_" if is_arg(self.program[i]) else ""
            self.lines.append(f"{values}[at_] = p{i};")
            if where:
                self.lines.append(f"{where}[at_] = p{i}w;")
                places += 1
            other = f"[at_ + h_ * {self.slots}]"
            folds.append(
                fold_of(self.body, i, f"{values}[at_]", f"{values}{other}", f"{where}[at_]", f"{where}{other}")
            )
            result = f"{where or values}[s_]"
            if not parts:
                ends.append(f"const {DTYPES[self.body.kinds[i]].c_register} v{i} = {result};")
                continue
            value, place = self._part(i, "chunk_")
            ends.append(f"{value} = {values}[s_];")
            if where:
                ends.append(f"{place} = {where}[s_];")
        self.folded, self.places = max(self.folded, len(todo)), max(self.places, places)
        self.lines += [
            barrier,
            f"for (int h_ = {self.lanes} / 2; h_; h_ >>= 1) {{",
            "  if (l_ < h_) {",
            *(f"    {t}" for t in folds),
            "  }",
            f"  {barrier}",
            "}",
            *(["if (l_ == 0 && live_) {", *(f"  {t}" for t in ends), "}"] if parts else ends),
        ]
