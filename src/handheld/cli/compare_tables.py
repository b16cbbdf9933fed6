"""Prints a comparison of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from handheld.analyse.compare import FEW, SAME, SHORT, Comparison, LoneOp, ModuleChange, OpChange, Pair, Timing
from handheld.analyse.quantities import Quantity
from handheld.cli import output
from handheld.cli.tables import Column, table

SHOWN, CALM, LONE = 12, 5, 5  # rows: that differ, that do not, and ops of one run only
STYLES = {"slower": "red", "faster": "green", "more": "red", "less": "green"}


def present(comparison: Comparison) -> None:
    for number, pair in enumerate(comparison.pairs):
        if number:
            output.out.print()
        present_pair(pair)


def present_pair(pair: Pair) -> None:
    out = output.out
    for warning in pair.warnings:
        output.caution(warning)
    out.print(output.grid(_facts(pair)))
    for made in _tables(pair):
        out.print()
        out.print(made)
    for name, lone in (("a", pair.only_a), ("b", pair.only_b)):
        if lone:
            out.print()
            out.print(_lone(name, lone))


def present_rows(runs: Mapping[str, Pair], unread: Mapping[str, str]) -> None:
    """What differs beyond noise in the run files of two results folders."""
    rows: list[tuple[str, str | Text]] = []
    for key, pair in runs.items():
        named = _differing(pair)
        if pair.few:
            rows.append((output.middle(key, 30), pair.few))
        if named:
            more = f", and {len(named) - 3} more" if len(named) > 3 else ""
            rows.append((output.middle(key, 30), ", ".join(named[:3]) + more))
    equal = sum(not pair.few and not _differing(pair) for pair in runs.values())
    if equal:
        rows.append(("beyond noise", f"nothing differs in the run files of {output.count(equal, 'row')}"))
    rows += [(output.middle(key, 30), f"not compared: {why}") for key, why in unread.items()]
    if rows:
        output.out.print()
        output.out.print(Text("ops, judged against the noise of both runs", style="bold"))
        output.out.print(output.grid(rows))


def _differing(pair: Pair) -> list[str]:
    """What differs beyond noise, with by how much."""
    named = [_named(row.title, row) for row in pair.ops if row.differs]
    return named + [_named(name, t) for name, t in pair.wholes() if t and t.differs]


def _named(name: str, timing: Timing) -> str:
    return f"{name} {timing.verdict} by {abs(timing.beyond - 1):.1%}"


def _facts(pair: Pair) -> list[tuple[str, str | Text]]:
    facts: list[tuple[str, str | Text]] = [("a", pair.a), ("b", pair.b)]
    if pair.device_a == pair.device_b:
        facts.append(("device", pair.device_a))
    facts.append(("step", _whole(pair.step)))
    if pair.per_sample:
        facts.append(("per sample", _whole(pair.sample)))
        facts.append(("", f"batches differ ({pair.batch_a} / {pair.batch_b}): all times below are per sample"))
    facts.append(("all ops", _whole(pair.device)))
    if abs(pair.common - 1) >= 0.005:
        word = "slower" if pair.common > 1 else "faster"
        facts.append(("", f"most ops are {word} by {abs(pair.common - 1):.1%}: that is left out below"))
    facts += [(row.name, _quantity(row)) for row in pair.memory if row.verdict != "same"]
    same = [row.name for row in pair.memory if row.verdict == "same"]
    if same:
        facts.append(("the same", ", ".join(same)))
    facts += [("joules", Text.assemble(f"{row.name}: ", _quantity(row))) for row in pair.energy]
    if pair.joules:
        facts.append(("joules of ops", _joules(pair)))
    facts += [("differs", text) for text in pair.differences]
    return facts


def _joules(pair: Pair) -> str:
    differ = [row for row in pair.joules if row.verdict in ("more", "less")]
    if not differ:
        return f"no interval of {output.count(len(pair.joules), 'op')} is apart from that of the other run"
    named = ", ".join(f"{row.title} {row.ratio:.2f}x" for row in differ[:3] if row.ratio is not None)
    more = f", and {len(differ) - 3} more" if len(differ) > 3 else ""
    return f"{named}{more}; their intervals do not overlap"


def _whole(timing: Timing | None) -> str | Text:
    if timing is None:
        return "not measured in both runs"
    text = f"{_ms(timing.a_ms)} / {_ms(timing.b_ms)} ms, {timing.ratio:.3f}x"
    if timing.low is not None and timing.high is not None:
        text += f" (95%: {timing.low:.2f} to {timing.high:.2f}x)"
    return Text.assemble(text, ": ", (_verdict(timing), STYLES.get(timing.verdict, "dim")))


def _verdict(timing: Timing) -> str:
    return "within noise" if timing.verdict == SAME else timing.verdict


def _quantity(row: Quantity) -> Text:
    shown = output.size if row.unit == "bytes" else lambda value: f"{value:.4g} {row.unit}"
    verdict = "within noise" if row.verdict == SAME else row.verdict
    ratio = "" if row.ratio is None else f", {row.ratio:.3f}x"
    return Text.assemble(f"{shown(row.a)} / {shown(row.b)}{ratio}: ", (verdict, STYLES.get(row.verdict, "dim")))


COLUMNS = (
    Column("op", name_of=True, least=16, end=True),
    Column("phase", drop=2),
    Column("a ms"),
    Column("b ms"),
    Column("b/a"),
    Column("95%", drop=1),
    Column("verdict", name_of=True, least=6),
)
KERNELS = Column("variants a / b", name_of=True, drop=3)
MARK = "*"
LEGEND = f"{MARK} the shapes of this op differ"


def _tables(pair: Pair) -> Iterable[RenderableType]:
    judged = [row for row in pair.ops if row.verdict != SHORT]
    if not pair.ops:
        return
    differ = [row for row in judged if row.differs]
    calm = [row for row in judged if not row.differs]
    rows = [*differ[:SHOWN], *calm[: 0 if len(differ) >= SHOWN else CALM]]
    kernels = any(row.variants for row in rows)
    cells = [(*_op(row), row.variants) if kernels else _op(row) for row in rows]
    if rows:
        styles = [STYLES.get(row.verdict, "dim") for row in rows]
        yield table((*COLUMNS, KERNELS) if kernels else COLUMNS, cells, styles=styles)
    if any(row.reshaped for row in rows):
        yield Text(LEGEND, style="dim")
    yield Text(_counts(pair, len(differ)), style="dim")
    if pair.few:
        yield Text(pair.few, style=STYLES["slower"])
    modules = [row for row in pair.modules if row.differs]
    if modules:
        columns = (Column("module", name_of=True, least=16), *COLUMNS[2:])
        yield table(columns, [_module(row) for row in modules[:SHOWN]], styles=[STYLES[r.verdict] for r in modules])


def _counts(pair: Pair, differ: int) -> str:
    short, few = (sum(row.verdict == verdict for row in pair.ops) for verdict in (SHORT, FEW))
    text = f"{output.count(differ, 'op')} of {len(pair.ops) - few} differ by more than noise"
    if few and few + short == len(pair.ops):
        text = "no op could be judged"
    return text + (f"; {short} are too short to judge" if short else "")


def _op(row: OpChange) -> tuple[str, ...]:
    return (f"{row.title} {MARK}" if row.reshaped else row.title, row.phase, *_cells(row))


def _module(row: ModuleChange) -> tuple[str, ...]:
    return (row.path if row.complete else f"{row.path} (not all ops have a partner)", *_cells(row))


def _cells(row: Timing) -> tuple[str, ...]:
    between = "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
    return _ms(row.a_ms), _ms(row.b_ms), f"{row.beyond:.3f}x", between, row.verdict


def _lone(name: str, ops: Sequence[LoneOp]) -> RenderableType:
    shown = ops[:LONE]
    rows = [(op.title, op.phase, "" if op.ms is None else _ms(op.ms)) for op in shown]
    if len(ops) > LONE:
        times = [op.ms for op in ops[LONE:] if op.ms is not None]
        rows.append((output.count(len(ops) - LONE, "more op"), "", _ms(sum(times)) if times else ""))
    return table((Column(f"only in {name}", name_of=True, least=16), Column("phase", drop=1), Column("ms")), rows)


def _ms(value: float) -> str:
    if value < 0.01:
        return f"{value:.5f}"  # times per sample
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}"
