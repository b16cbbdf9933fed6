"""Prints a run as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from handheld.analyse.commands import LaunchCost
from handheld.analyse.energy import OpEnergy, RailEnergy
from handheld.analyse.memory import MemorySummary
from handheld.analyse.overhead import Overhead
from handheld.analyse.run import FEW, Run
from handheld.analyse.summary import GraphSummary
from handheld.cli import output
from handheld.measure.ceilings import disturbed

SHOWN = 12  # Rows per table.
LEAST_SHARE = 0.0005  # Parts below this share of a step are not shown.


def present(run: Run, json: bool = False) -> None:
    """Print everything: what `handheld profile` shows at its end and `handheld show` always."""
    if json:
        output.print_json(
            {
                **run.summary().to_json(),
                "ops": [row.to_json() for row in run.ops()[:SHOWN]],
                "findings": [row.to_json() for row in run.findings()],
                "op_energy": [row.to_json() for row in run.op_energy()],
                "notes": [row.to_json() for row in run.notes()],
            }
        )
        return
    output.out.print(head(run))
    for graph in run.graphs if run.periods else ():
        if run.parts(graph):
            output.out.print(parts(run, graph))
    if run.periods:
        output.out.print(ops(run, SHOWN))
    rows = run.op_energy()
    for rail in dict.fromkeys(row.rail for row in rows):
        output.out.print(joules(run, [row for row in rows if row.rail == rail], rail))
    for finding in run.findings():
        output.out.print(Text.assemble((f"{finding.kind}: ", "bold"), finding.text), soft_wrap=False)
    for note in run.notes():
        output.warn(note.text)
    output.out.print(Text.assemble(("run file ", "dim"), str(run.path)), soft_wrap=True)


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
            + (", half precision" if summary.precision == "half" else "")
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
                f"device busy {use.device_busy:.0%}, {use.gflops:.1f} GFLOP/s"
                f"{_share(use.flops_share)}, at least {use.gbytes_s:.1f} GB/s"
                f"{_share(use.bandwidth_share)}{_cores(use.cores)}",
            )
        )
    low = disturbed((run.meta.get("ceilings") or {}).get("others"))
    if low:
        rows.append(("", f"the ceilings are {low}"))
    if summary.launches:
        rows.append(("launches", _launches(summary.launches)))
    rows += _memory(summary.memory)
    rows.append(("energy", _energy(summary.energy)))
    rows.append(("overhead", _overhead(summary.overhead)))
    if summary.status not in ("complete", "running"):
        rows.append(("ended", summary.status))
    return output.grid(rows)


def _time(graph: GraphSummary) -> str:
    times, parts = graph.variance.times, graph.parts
    if times is None or times.n < FEW:
        return f"{parts.ms:.3f} ms per step, from recorded steps only (too few others)" if parts else "too few steps"
    count = graph.variance.warm_up
    warm = f"; {output.count(count, 'step')} to warm up" if count else ""
    return f"{times.median:.3f} ms per step in the median (5% {times.p5:.3f}, 95% {times.p95:.3f}){warm}"


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} of the ceiling)"


def _cores(cores: dict[str, float]) -> str:
    if not cores:
        return ""
    return f"; cores busy {', '.join(f'{min(share, 1):.0%}' for share in list(cores.values())[:8])}"


def _launches(launch: LaunchCost) -> str:
    late = launch.start_us
    return f"{launch.per_step:.0f} per step, {launch.enqueue_us:.1f} µs of host time each" + (
        "" if late is None else f"; an idle device starts after {max(late, 0.0):.0f} µs"
    )


def _memory(memory: MemorySummary) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    if memory.peak_bytes:
        biggest = ", ".join(f"{owner.name} {output.size(owner.bytes)}" for owner in memory.owners[:3])
        rows.append(("memory", f"{output.size(memory.peak_bytes)} alive at the peak: {biggest}"))
    grown = memory.process_growth_bytes
    allocated = memory.allocated_bytes
    text = f"{output.size(allocated)} allocated" if allocated is not None else ""
    if grown is not None:
        text += (", " if text else "") + f"the process grew by {output.size(grown)}"
    if text:
        rows.append(("", text))
    return rows


def _energy(rows: list[RailEnergy]) -> str:
    measured = [row for row in rows if not row.estimate]
    text = "; ".join(
        f"{row.rail} {row.joules_step:.4g} J per step, {row.watts:.1f} W"
        + (f" (idle {row.idle_watts:.1f} W)" if row.idle_watts is not None else "")
        for row in measured
    )
    text = text or "not measured: there is no power sensor here (handheld doctor says why)"
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
    texts.append(f"sensors {sampler.cpu_share:.1%} of a core" if sampler else "no sensors")
    return ", ".join(texts)


def parts(run: Run, graph: str) -> Table:
    """Where the time of a step goes, as the mean of the steps with op times."""
    parts = run.parts(graph)
    assert parts is not None
    title = "where a recorded step goes"
    if len(run.graphs) > 1:
        title = f"a recorded step of {graph}"
    table = _table(title, "mean ms", "share")
    for name, ms in parts.by_name().items():
        if abs(ms) > LEAST_SHARE * parts.ms:
            table.add_row(name, f"{ms:.3f}", f"{ms / parts.ms:.1%}")
    table.add_row("all", f"{parts.ms:.3f}", "100%", style="bold")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column(first, overflow="ellipsis", no_wrap=True, max_width=34)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def ops(run: Run, count: int) -> Table:
    """The ops that take the longest."""
    table = _table("op", "phase", "ms", "share", "spread", "GFLOP/s", "GB/s")
    rows = [row for row in run.ops() if row.ms is not None]
    for row in rows[:count]:
        table.add_row(
            row.title,
            row.phase,
            f"{row.ms:.3f}",
            f"{row.share:.1%}",
            f"{row.cv:.0%}",
            *(f"{rate:.1f}" if rate else "" for rate in (row.gflops, row.gbytes_s)),
        )
    rest = rows[count:]
    if rest:
        table.add_row(
            output.count(len(rest), "more op"),
            "",
            f"{sum(r.ms or 0.0 for r in rest):.3f}",
            f"{sum(r.share or 0.0 for r in rest):.1%}",
            "",
            "",
            "",
            style="dim",
        )
    return table


def _millijoules(joules: float | None) -> str:
    return "" if joules is None else f"{joules * 1e3:.3f}"


def joules(run: Run, rows: list[OpEnergy], rail: str) -> Table:
    """Energy per op signature on one rail, one column per method."""
    methods = list(dict.fromkeys(row.method for row in rows))
    title = "energy of ops (an estimate)" if "estimate" in methods else f"energy of ops, {rail}"
    heads = [word for m in methods for word in ((f"{m} mJ",) if m == "estimate" else (f"{m} mJ", "±"))]
    table = _table(title, *heads)
    by_key = {(row.signature, row.method): row for row in rows}
    most: dict[str, float] = {}
    for row in rows:
        most[row.signature] = max(row.joules, most.get(row.signature, row.joules))
    for key in sorted(most, key=lambda key: -most[key])[:SHOWN]:
        cells = []
        for method in methods:
            energy = by_key.get((key, method))
            cells.append(f"{energy.joules * 1e3:.3f}" if energy else "")
            if method != "estimate":
                high = energy.high_joules if energy else None
                cells.append("" if energy is None or high is None else f"{(high - energy.joules) * 1e3:.3f}")
        table.add_row(key, *cells)
    if "estimate" in methods:
        return table
    for step in run.step_energy():
        if step.rail == rail:
            totals = {"slope": step.slope, "alone": step.alone}
            sums = [cell for m in methods for cell in (_millijoules(totals[m]), "")]
            table.add_row("sum over ops", *sums, style="bold")
            table.add_row(
                "one step, measured", f"{step.joules * 1e3:.3f}", f"{step.half_width * 1e3:.3f}", "", "", style="bold"
            )
    return table
