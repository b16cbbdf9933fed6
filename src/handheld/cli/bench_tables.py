"""Prints what `bench` reports: one line per run, the report card, a comparison of two folders."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.text import Text

from handheld import suite
from handheld.analyse.compare import SAME
from handheld.bench import Results, Row
from handheld.bench.compare import disturbed
from handheld.bench.folder import statuses
from handheld.bench.judged import RUN_FILES, SPREAD
from handheld.bench.shapes import Comparison, Line, Pair, Side, Untrained
from handheld.cli import output
from handheld.cli.tables import Column, Lines

NOT_MEASURED = "not measured"


def say_row(row: Row, number: int) -> None:
    """Print the line of a finished run."""
    lines = Lines(
        (Column(""), 4),
        (Column("workload", name_of=True), 19),
        (Column("on", name_of=True, least=8), 14),
        (Column("batch"), 5),
        (Column("samples/s"), 10),
        (Column("ms/step", drop=1), 10),
        (Column("memory", drop=2), 10),
    )
    if number == 1:
        output.out.print(Text(lines.head, style="dim"))
    batch = "own" if row["batch"] is None else str(row["batch"])
    start = (str(number), row["workload"], row["device"], batch)
    if row["status"] == "trained":
        output.out.print(Text(lines.line(*start, *_numbers(row))))
        for part in textwrap.wrap(f"to fit: {row['fit']}", output.out.width - 5) if row.get("fit") else ():
            output.out.print(Text(f"     {part}", style="dim"))
        return
    _say_why(lines.line(*start), row)


def _say_why(start: str, row: Row | Line) -> None:
    """Print the reason on the same line if it fits, else below it."""
    text, room = why(row), output.out.width - len(start)
    if len(text) <= room:
        output.out.print(Text.assemble(start, (text, "yellow")))
        return
    output.out.print(Text.assemble(start, (row["status"], "yellow")))
    for part in textwrap.wrap(text.removeprefix(row["status"]).lstrip(":, "), output.out.width - 5):
        output.out.print(Text(f"     {part}", style="yellow"))


def why(row: Row | Line | Untrained) -> str:
    """Why a row did not train, with the memory it needed if that is known."""
    needed, available = row.get("planned_bytes"), row.get("available_bytes")
    if row["status"] == "does not fit" and needed and isinstance(available, int):
        return f"does not fit, needs {output.size(needed)}, available {output.size(available)}"
    more = f" (planned {output.size(needed)})" if needed and row["status"] == "out of memory" else ""
    return f"{row['status']}{more}: {row['reason']}".replace("\n", " ")


def _numbers(row: Row) -> tuple[str, str, str]:
    memory = row.get("planned_bytes") or row.get("peak_bytes")
    return _rate(row.get("samples_s")), _ms(row.get("step_ms")), output.size(memory) if memory else ""


def _rate(value: float | None) -> str:
    if value is None:
        return "too short"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}x" if ratio >= 0.01 else f"{ratio:.1g}x"


def joules(value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    for unit, scale in (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)):
        if value >= scale or unit == "µJ":
            return f"{value / scale:.3g} {unit}"
    raise AssertionError


def present(results: Results, lines: list[Line], ran: int, seconds: float) -> None:
    """Print the report card."""
    out = output.out
    out.print()
    output.caution(disturbed(results))
    out.print(Text("what trains here", style="bold"))
    layout = Lines(
        (Column("workload", name_of=True), 18),
        (Column("best on", name_of=True, least=8), 14),
        (Column("batch"), 5),
        (Column("samples/s"), 9),
        (Column("J/sample", drop=1), 12),
        (Column("others", name_of=True, drop=2, least=17), 17),
    )
    out.print(Text(layout.head, style="dim"))
    for line in lines:
        if not line["trains"]:
            _say_why(layout.line(line["workload"]), line)
            continue
        figures = (str(line["batch"]), _rate(line["samples_s"]), joules(line["joules_sample"]))
        first, *more = _others(line) or [""]
        out.print(Text(layout.line(line["workload"], line["device"], *figures, first)))
        for other in more if layout.shows("others") else ():
            out.print(Text(layout.line("", "", "", "", "", other), style="dim"))
    out.print()
    out.print(output.grid(_facts(results, lines, ran, seconds)))


def _others(line: Line) -> list[str]:
    """Each other device with its own ratio, in at most 17 columns."""
    ratios = [(other["device"], _times(other["ratio"])) for other in line["others"]]
    return [f"{output.middle(device, 16 - len(ratio))} {ratio}" for device, ratio in ratios]


def present_workloads(names: Iterable[str], json: bool) -> None:
    """Print the names that `bench` takes: workloads, and the domains and studies that name groups of them."""
    workloads = [suite.get(name) for name in names]
    if json:
        output.print_json(
            {
                "workloads": [
                    {
                        "name": w.name,
                        "domain": w.domain,
                        "source": list(w.used_in),
                        "batch": w.default_batch,
                        "about": w.about,
                    }
                    for w in workloads
                ]
            }
        )
        return
    layout = Lines(
        (Column("workload", name_of=True, least=19), 19),
        (Column("domain", name_of=True, drop=1, least=8), 8),
        (Column("from", name_of=True, drop=2, least=16), 16),
        (Column("batch"), 5),
        (Column("about", name_of=True, least=26), 26),
    )
    output.out.print(Text(layout.head.removesuffix(" "), style="dim"))
    for workload in workloads:
        start = layout.line(workload.name, workload.domain, ", ".join(workload.used_in), str(workload.default_batch))
        lines = textwrap.wrap(workload.about, max(output.out.width - len(start), 20)) or [""]
        for number, line in enumerate(lines):
            output.out.print(Text.assemble(start if not number else " " * len(start), (line, "dim")))


def _facts(results: Results, lines: list[Line], ran: int, seconds: float) -> list[tuple[str, str | Text]]:
    rows = results.rows
    facts: list[tuple[str, str | Text]] = [
        (output.middle(device, 14), f"{caps['name']} ({caps['driver']})" if caps.get("driver") else caps["name"])
        for device, caps in results.info["devices"].items()
    ]
    facts.append(
        (
            "trains",
            f"{sum(line['trains'] for line in lines)} of "
            f"{output.count(len(lines), 'workload')}; rows: "
            + ", ".join(f"{count} {name}" for name, count in statuses(rows).items()),
        )
    )
    for line in lines:
        for failure in line.get("not_trained", []):
            where = f"{failure['device']}, batch {failure['batch'] or 'own'}"
            facts.append((output.middle(line["workload"], 13), f"{where}: {output.middle(why(failure), 200)}"))
    rails = sorted({rail for row in rows if (rail := row.get("rail"))})
    facts.append(
        (
            "energy",
            f"from {', '.join(rails)}"
            if rails
            else "not measured: there is no power sensor here, or the runs were too short for it (see handheld doctor)",
        )
    )
    facts.append(("heat", _heat(rows)))
    if not any(row.get("others_cores") is not None for row in rows):
        facts.append(("other load", "not known: the system does not report it, or the runs were too short"))
    facts.append(
        (
            "data",
            "synthetic"
            if all("synthetic" in (row.get("data") or "synthetic") for row in rows)
            else "synthetic, or random",
        )
    )
    facts.append(("time", f"{output.duration(seconds)} for {output.count(ran, 'run')} now; {len(rows)} in all"))
    facts.append(("results", output.path(results.folder)))
    return facts


def _heat(rows: list[Row]) -> str:
    known = [warmer for row in rows if (warmer := row.get("warmer_by")) is not None]
    if not known:
        return "there is no temperature sensor here: runs paused between each other, in random order"
    return (
        f"runs started at most {max(*known, 0.0):.0f} °C warmer than the first "
        f"(the hottest at {max(celsius for row in rows if (celsius := row.get('celsius'))):.0f} °C)"
    )


def present_compared(comparison: Comparison) -> None:
    """Print the comparison of two folders; ratios are b divided by a."""
    out = output.out
    for warning in comparison["warnings"]:
        output.caution(warning)
    out.print(output.grid([("a", comparison["a"]), ("b", comparison["b"])]))
    layout = Lines(
        (Column("workload", name_of=True), 15),
        (Column("on", name_of=True, least=8), 10),
        (Column("batch"), 5),
        (Column("a: /s"), 8),
        (Column("b: /s"), 8),
        (Column("b/a"), 7),
        (Column("range"), 12),
        (Column("memory", drop=1), 7),
    )
    out.print(Text(layout.head, style="dim"))
    for line in comparison["rows"]:
        a, b, ratios = line["a"], line["b"], line["ratios"]
        batch = "own" if line["batch"] is None else str(line["batch"])
        speed = _ratio(ratios.get("samples_s")) + (_mark(line) if "samples_s" in ratios else "")
        figures = (_side(a), _side(b), speed, _range(line), _ratio(ratios.get("planned_bytes")))
        out.print(Text(layout.line(line["workload"], line["device"], batch, *figures)))
    means = comparison["means"]
    out.print()
    facts: list[tuple[str, str | Text]] = []
    for name, text in (("samples_s", "samples/s"), ("planned_bytes", "memory"), ("joules_sample", "J/sample")):
        mean = means.get(name)
        facts.append(
            (
                text,
                f"{mean['ratio']:.3f}x, the geometric mean of {output.count(mean['rows'], 'row')}"
                if mean
                else "no row was measured in both",
            )
        )
    facts += [("differs", text) for text in comparison["differences"]]
    facts += _judged(comparison)
    out.print(output.grid(facts))


def _mark(line: Pair) -> str:
    judged = line["judged"]
    return "?" if judged is None else "~" if judged["verdict"] == SAME else " "


def _range(line: Pair) -> str:
    """The interval of the ratio of the speeds."""
    judged = line["judged"]
    return "" if judged is None else f"{1 / judged['high']:.2f} to {1 / judged['low']:.2f}"


def _judged(comparison: Comparison) -> list[tuple[str, str | Text]]:
    """What the marks behind the ratios mean, where their ranges come from, and which rows were not compared."""
    marks = [_mark(line) for line in comparison["rows"] if "samples_s" in line["ratios"]]
    facts: list[tuple[str, str | Text]] = []
    if "~" in marks:
        facts.append(("~", f"{output.count(marks.count('~'), 'row')}: the range holds 1, so it may be chance"))
    if "?" in marks:
        rows = output.count(marks.count("?"), "row")
        facts.append(("?", f"{rows}: too few steps to tell whether the difference is chance. Try: a longer --seconds"))
    sources = [line["judged"]["by"] for line in comparison["rows"] if line["judged"]]
    for by, text in ((RUN_FILES, "95%, from the run files of"), (SPREAD, "the spread of the steps (5% to 95%) of")):
        if by in sources:
            facts.append(("range", f"{text} {output.count(sources.count(by), 'row')}"))
    for line in comparison["rows"]:
        if any(side is None or side["status"] != "trained" for side in (line["a"], line["b"])):
            facts.append(("not compared", f"{output.middle(line['key'], 30)}: {line['why']}"))
    return facts


def _side(row: Side | None) -> str:
    if row is None:
        return "no row"
    return _rate(row["samples_s"]) if row["status"] == "trained" else output.middle(row["status"], 8)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"
