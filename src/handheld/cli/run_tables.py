"""Prints a run as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from handheld.analyse.busy import Others, disturbed
from handheld.analyse.commands import LaunchCost
from handheld.analyse.energy import OpEnergy, RailEnergy
from handheld.analyse.memory import MemorySummary
from handheld.analyse.overhead import Overhead
from handheld.analyse.run import FEW, Run
from handheld.analyse.summary import GraphSummary
from handheld.cli import output, run_answers, run_joules
from handheld.cli.tables import Column, table
from handheld.cli.time_unit import TimeUnit
from handheld.store.alive import alive

SHOWN = 12  # Rows per table.
LAYERS_SHOWN = 8
MOST_CORES = 8  # Of more cores, the busiest are shown.
FULL = 1_000_000  # rows per table with --full
LEAST_SHARE = 0.0005  # Parts below this share of a step are not shown.
#: How the line of the step names a precision.
HALVES = {"half": ", half precision", "half-compute": ", half precision and products in halves"}


def present(run: Run, json: bool = False, full: bool = False, page: Path | None = None) -> None:
    """Print what limits the step, and then the tables; with `full`, all rows and the table of memory. `page` is the
    page that was written, if any."""
    if json:
        output.print_json(
            {
                **run.summary().to_json(),
                "bound": run.bound().to_json(),
                "ops": [row.to_json() for row in (run.ops() if full else run.ops()[:SHOWN])],
                "layers": [row.to_json() for row in run.layers(most=FULL if full else LAYERS_SHOWN)],
                "untuned": (known := run.untuned()) and known.to_json(),
                "findings": [row.to_json() for row in run.findings()],
                "op_energy": [row.to_json() for row in run.op_energy()],
                "joules": [row.to_json() for row in run.joules()],
                "no_joules": run.no_joules(),
                "step_joules": [row.to_json() for row in run.step_joules()],
                "notes": [row.to_json() for row in run.notes()],
                **({"report": str(page)} if page else {}),
            }
        )
        return
    output.out.print(run_answers.answer(run))
    output.out.print()
    others = run.others()
    output.caution(others.warning if others else "")
    output.out.print(head(run))
    for made in _tables(run, full):
        output.out.print()
        output.out.print(made)
    findings = run.findings()
    if findings:
        output.out.print()
    for finding in findings:
        output.out.print(Text.assemble((f"{finding.kind}: ", "bold"), finding.text), soft_wrap=False)
    output.out.print()
    for note in run.notes():
        output.warn(note.text)
    output.out.print(Text.assemble(("run file ", "dim"), str(run.path)), soft_wrap=True)
    if page:
        output.out.print(Text.assemble(("page     ", "dim"), str(page)), soft_wrap=True)


def _tables(run: Run, full: bool) -> Iterable[RenderableType]:
    graphs = [graph for graph in run.graphs if run.parts(graph)] if run.periods else []
    for graph in graphs:
        yield parts(run, graph)
    for graph in graphs:
        yield run_answers.layers(run, graph, FULL if full else LAYERS_SHOWN)
    if run.periods:
        yield ops(run, FULL if full else SHOWN)
    if full and run_answers.categories(run):
        yield run_answers.memory(run)
    rows = run.op_energy()
    for rail in dict.fromkeys(row.rail for row in rows):
        yield joules(run, [row for row in rows if row.rail == rail], rail)


def live(run: Run, count: int) -> Iterable[RenderableType]:
    """The tables that are shown during a run."""
    yield head(run)
    if run.periods:
        yield ops(run, count)


def head(run: Run) -> Table:
    summary = run.summary()
    rows: list[tuple[str, str | Text]] = [
        ("device", f"{summary.device} ({summary.name})"),
        (
            "step",
            " and ".join(run.graphs)
            + (f", batch {summary.batch}" if summary.batch else "")
            + HALVES.get(summary.precision or "", "")
            + f"; {output.count(summary.steps, 'step')}, {summary.recorded} with op times",
        ),
    ]
    rows += [
        ("time" if len(run.graphs) == 1 else f"time of {name}", _time(graph)) for name, graph in summary.graphs.items()
    ]
    use = summary.utilisation
    if use.device_busy is not None:
        rows.append(
            (
                "use",
                f"device busy {use.device_busy:.0%}"
                + (f", {use.gflops:.1f} GFLOP/s{_share(use.flops_share)}" if use.gflops else "")
                + (f", at least {use.gbytes_s:.1f} GB/s{_share(use.bandwidth_share)}" if use.gbytes_s else "")
                + cores(use.cores),
            )
        )
    low = disturbed((run.meta.get("ceilings") or {}).get("others"))
    if low:
        rows.append(("", f"the ceilings are {low}"))
    if summary.launches:
        rows.append(("launches", _launches(summary.launches)))
    tuning = run_answers.tuning(run)
    if tuning:
        rows.append(("tuning", tuning))
    rows += _memory(summary.memory, run_answers.categories(run))
    if run.meta.get("fit"):
        rows.append(("to fit", run.meta["fit"]))
    if run.meta.get("half"):
        rows.append(("half", run.meta["half"]))
    few = min((row.recorded or 0 for row in run.ops() if row.ms is not None), default=FEW)
    if few < FEW:
        rows.append(
            ("op times", f"from {output.count(few, 'step')} only, too few to tell their spread. Try: --steps 50")
        )
    if summary.others is None or not summary.others.busy:  # A busy machine has its warning above.
        rows.append(("other load", _others(summary.others)))
    rows.append(("energy", _energy(summary.energy, run.on_option)))
    rows += [("", line) for line in run_joules.lines(run)]
    rows.append(("overhead", _overhead(summary.overhead)))
    ended = _ended(summary.status, run.meta.get("process"))
    if ended:
        rows.append(("ended", ended))
    return output.grid(rows)


def _ended(status: str, process: Mapping[str, float] | None) -> str:
    """How a run ended that is not complete, or "" for one that is complete or still runs."""
    if status == "complete":
        return ""
    if status != "running":
        return status
    going = alive(process)
    if going is None:
        return "not marked: it is still running, or its process was killed"
    if going:
        return ""
    return "killed: its process is gone, and the file holds what was written until then"


def _time(graph: GraphSummary) -> str:
    times, parts = graph.variance.times, graph.parts
    if times is None or times.n < FEW:
        if parts is None:
            return "too few steps"
        unit = TimeUnit.for_ms(parts.ms)
        return f"{unit.number(parts.ms)} {unit.name} per step, from recorded steps only (too few others)"
    count = graph.variance.warm_up
    warm = f"; {output.count(count, 'step')} to warm up" if count else ""
    unit = TimeUnit.for_ms(times.median)
    low, high = unit.number(times.p5), unit.number(times.p95)
    return f"{unit.number(times.median)} {unit.name} per step in the median (5% {low}, 95% {high}){warm}"


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} of the ceiling)"


def cores(busy: dict[str, float]) -> str:
    """How busy the cores were, for the line about use."""
    if not busy:
        return ""
    shares = list(busy.values())
    if len(shares) > MOST_CORES:
        shares = sorted(shares, reverse=True)[:MOST_CORES]
    which = f"the busiest {MOST_CORES} of {len(busy)} cores:" if len(busy) > MOST_CORES else "cores busy"
    return f"; {which} {', '.join(f'{min(share, 1):.0%}' for share in shares)}"


def _launches(launch: LaunchCost) -> str:
    late = launch.start_us
    return f"{launch.per_step:.0f} per step, {launch.enqueue_us:.1f} µs of host time each" + (
        "" if late is None else f"; an idle device starts after {late:.0f} µs"
    )


def _memory(memory: MemorySummary, categories: list[tuple[str, int]]) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    if memory.peak_bytes:
        parts = ", ".join(f"{name} {output.size(size)}" for name, size in categories)
        rows.append(("memory", f"{output.size(memory.peak_bytes)} alive at the peak: {parts}"))
        rows.append(("", f"largest: {', '.join(_largest(memory)[:3])}"))
    grown = memory.process_growth_bytes
    allocated = memory.allocated_bytes
    text = f"{output.size(allocated)} allocated" if allocated is not None else ""
    if grown is not None:
        text += (", " if text else "") + f"the process grew by {output.size(grown)}"
    if text:
        rows.append(("", text))
    return rows


def _largest(memory: MemorySummary) -> list[str]:
    """The largest tensors. An op may have several of one size: they are counted, or they would look like one."""
    counts = Counter((owner.name, owner.bytes) for owner in memory.owners)
    return [
        f"{name} {output.size(nbytes)}" if many == 1 else f"{name} {many} × {output.size(nbytes)}"
        for (name, nbytes), many in counts.items()
    ]


def _others(others: Others | None) -> str:
    if others is None:
        return "not known: the system does not report it, or the run was too short"
    return f"other processes held {others.share:.0%} of the {output.count(others.count, 'core')}"


def _energy(rows: list[RailEnergy], on: str) -> str:
    measured = [row for row in rows if not row.estimate]
    text = "; ".join(
        f"{row.rail} {row.joules_step:.4g} J per step, {row.watts:.1f} W"
        + (f" (idle {row.idle_watts:.1f} W)" if row.idle_watts is not None else "")
        for row in measured
    )
    text = text or f"not measured: no power sensor was read (handheld doctor{on} says why)"
    for row in rows:
        if row.estimate:
            text += f"; estimate, not measured: {row.joules_step:.4g} J per step at the stated power"
    return text


def _overhead(overhead: Overhead) -> str:
    sampler, share = overhead.sampler, overhead.recording_share
    ratio = overhead.recorded_over_others
    texts = [f"recording {share:.1%} of the run" if share is not None else "recording: not timed yet"]
    if ratio is not None:
        texts.append(f"a recorded step takes {ratio:.2f}x the time of others")
    elif share is not None:
        texts.append("too few steps to compare recorded ones with others")
    texts.append(f"sensors {sampler.cpu_share:.1%} of a core" if sampler else "no sensors")
    return ", ".join(texts)


def parts(run: Run, graph: str) -> RenderableType:
    """Where the time of a step goes, as the mean of the steps with op times."""
    parts = run.parts(graph)
    assert parts is not None
    unit = TimeUnit.of(run)
    title = "where a recorded step goes"
    if len(run.graphs) > 1:
        title = f"a recorded step of {graph}"
    shown = {name: ms for name, ms in parts.by_name().items() if abs(ms) > LEAST_SHARE * parts.ms}
    return table(
        [Column(title, name_of=True), Column(f"mean {unit.name}"), Column("of step")],
        [
            *((name, unit.number(ms), f"{ms / parts.ms:.1%}") for name, ms in shown.items()),
            ("all", unit.number(parts.ms), "100%"),
        ],
        styles=[*[""] * len(shown), "bold"],
    )


OPS = (
    Column("op", name_of=True, least=26, end=True),
    Column("phase", drop=1),
    Column("mean ms"),
    Column("of step"),
    Column("spread", drop=4),
    Column("GFLOP/s", drop=2),
    Column("GB/s", drop=3),
)
JOULES = Column("mJ")


def ops(run: Run, count: int) -> RenderableType:
    """The ops that take the longest: means over the same steps as the table of parts, so that both add up. With an
    energy model, also their joules on the rail that covers most, and the sum beside the counter."""
    known = sorted(((row, row.mean_ms) for row in run.ops() if row.mean_ms is not None), key=lambda pair: -pair[1])
    step_ms = sum(parts.ms for graph in run.graphs if (parts := run.parts(graph))) or 1.0
    energy, unit = run_joules.main_rail(run), TimeUnit.of(run)
    rows = [
        (
            row.title,
            row.phase,
            unit.number(ms),
            f"{ms / step_ms:.1%}",
            f"{row.cv:.0%}" if (row.recorded or 0) >= FEW else "",
            *(f"{work / ms * 1e-6:.1f}" if work and ms else "" for work in (row.flops, row.bytes)),
            *([run_joules.cell(energy.get(row.id))] if energy else []),
        )
        for row, ms in known[:count]
    ]
    rest = known[count:]
    if rest:
        ms = sum(ms for _, ms in rest)
        left = [f"{sum(energy[row.id].joules for row, _ in rest if row.id in energy) * 1e3:.3f}"] if energy else []
        rows.append((output.count(len(rest), "more op"), "", unit.number(ms), f"{ms / step_ms:.1%}", "", "", "", *left))
    columns = [*OPS[:2], Column(f"mean {unit.name}"), *OPS[3:], *([JOULES] if energy else [])]
    return table(columns, rows, styles=[*[""] * min(count, len(known)), *["dim"] * bool(rest)])


def _millijoules(joules: float | None) -> str:
    return "" if joules is None else f"{joules * 1e3:.3f}"


def joules(run: Run, rows: list[OpEnergy], rail: str) -> RenderableType:
    """Energy per op signature on one rail, one column per method."""
    methods = list(dict.fromkeys(row.method for row in rows))
    title = "energy of ops (an estimate)" if "estimate" in methods else f"energy of ops, {rail}"
    heads = [word for m in methods for word in ((f"{m} mJ",) if m == "estimate" else (f"{m} mJ", "±"))]
    by_key = {(row.signature, row.method): row for row in rows}
    most: dict[str, float] = {}
    for row in rows:
        most[row.signature] = max(row.joules, most.get(row.signature, row.joules))
    lines = []
    for key in sorted(most, key=lambda key: -most[key])[:SHOWN]:
        cells = []
        for method in methods:
            energy = by_key.get((key, method))
            cells.append(f"{energy.joules * 1e3:.3f}" if energy else "")
            if method != "estimate":
                high = energy.high_joules if energy else None
                cells.append("" if energy is None or high is None else f"{(high - energy.joules) * 1e3:.3f}")
        lines.append((key, *cells))
    sums = [] if "estimate" in methods else _sums(run, methods, rail)
    return table(
        [Column(title, name_of=True, least=16), *(Column(head) for head in heads)],
        [*lines, *sums],
        styles=[*[""] * len(lines), *["bold"] * len(sums)],
    )


def _sums(run: Run, methods: list[str], rail: str) -> list[tuple[str, ...]]:
    """The sums over ops, and the energy of a step, in the columns of the methods."""
    rows = []
    for step in run.step_energy():
        if step.rail == rail:
            totals = {"slope": step.slope, "alone": step.alone}
            sums = [cell for m in methods for cell in (_millijoules(totals[m]), "")]
            rows.append(("sum over ops", *sums))
            whole = (f"{step.joules * 1e3:.3f}", f"{step.half_width * 1e3:.3f}")
            rows.append(("one step, measured", *whole, *[""] * (len(sums) - 2)))
    return rows
