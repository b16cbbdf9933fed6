"""The page of the 2019 study: its answers, and the paper's figures drawn from the runs here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from handheld.report.markup import Markup, join
from handheld.report.page import Column, callout, listing, page, section, table, text
from handheld.studies.checks2019 import FORETOLD
from handheld.studies.figures2019 import FIGURES
from handheld.studies.findings2019 import FAILS, HOLDS, UNKNOWN

WORDS = {True: "yes", False: "no", None: "not measured"}
MIB = 2**20
PLURAL = {HOLDS: "hold", FAILS: "do not hold"}

Row = dict[str, Any]


def draw(result: Row) -> str:
    """The whole page, from a result alone."""
    rows = [row for row in result["rows"] if row["status"] == "measured"]
    blocks = [_answers(result), _runs(result)]
    for make in FIGURES:
        blocks.append(make(rows, result))
    caps = result["caps"]
    kind = "" if caps.get("kind") != "cpu" else "; this device is the CPU itself"
    return page(
        "Training on this device: the 2019 study, repeated",
        blocks,
        device=f"{result['device']} ({caps.get('name', 'not known')})",
        date=result["date"],
        about="Liu, Liu, Du and Li measured what training does to a mobile device's memory, "
        "processors and power (arXiv 1906.04278, Jetson TX2). The same questions, asked "
        f"here{kind}.",
        facts={
            "machine": _machine(result["machine"]),
            "size": _sizes(result["rows"]),
            "runs": f"{len(rows)} of {result['runs']}",
            "handheld": result["handheld"],
        },
    )


def _machine(machine: Row) -> str:
    kinds = sorted(set((machine.get("core_kinds") or {}).values()))
    return f"{machine['cores']} cores{': ' if kinds else ''}{', '.join(kinds)}"


def _sizes(rows: Iterable[Row]) -> str:
    return ", ".join(dict.fromkeys(row.get("size") or "" for row in rows))


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def _answers(result: Row) -> Markup:
    """The answers in a table, and below it what each rests on."""
    found = result["answers"]
    count = {word: sum(one["answer"] == word for one in found) for word in (HOLDS, FAILS, UNKNOWN)}
    rows = [
        [
            str(one["number"]),
            one["claim"],
            f"{one['answer']} ({one['extent']})" if one["extent"] else one["answer"],
            _said(one),
            one["paper"],
        ]
        for one in found
    ]
    checks = [
        [str(one["number"]), check["what"], WORDS[check["holds"]], _said(check), check["paper"]]
        for one in found
        for check in one["checks"]
    ]
    said = ", ".join(
        f"{number} {word if number == 1 else PLURAL.get(word, word)}" for word, number in count.items() if number
    )
    return section(
        "The ten findings",
        callout(
            "note",
            f"Of ten findings, here: {said}",
            "What is said of many workloads holds if it does for three of four; the others are "
            "named. A finding holds if every check of it does that could be measured. Something"
            f" is foretold if the prediction errs by at most {FORETOLD:.0%}, and a pattern only"
            " if the naive one is not better.",
        ),
        table(["", "finding", "answer", "here", "paper"], rows),
        table(["", "check", "holds", "here, or why not", "paper"], checks, caption="What the answers rest on"),
        _absent(result),
    )


def _said(one: Row) -> str:
    """The figure, and why there is not more of it."""
    return "; ".join(filter(None, (one["here"], one["why"] and f"not measured: {one['why']}")))


def _absent(result: Row) -> Markup:
    absent = result["sensors_absent"]
    if not absent or any(row.get("power") for row in result["rows"]):
        return Markup()
    return join(
        text("Power and energy are not measured here. Each sensor says why:"),
        listing(f"{name}: {why}" for name, why in absent.items()),
    )


def _runs(result: Row) -> Markup:
    """What ran, and what did not, with the reason."""
    cells = [
        [
            row["workload"],
            row["batch"],
            row["step_ms"],
            row["samples_s"],
            row["device_busy"] and 100 * row["device_busy"],
            row["memory"] and row["memory"]["peak_bytes"] / MIB,
            row["others_cores"] and round(row["others_cores"], 2),
        ]
        for row in result["rows"]
        if row["status"] == "measured"
    ]
    failed = [
        [
            row["workload"],
            str(row["batch"]),
            row["status"],
            row["why"]
            + (
                f" (the plan needs {row['planned_bytes'] / MIB:,.0f} MiB)"
                if row.get("planned_bytes") and "needs" not in row["why"]
                else ""
            ),
        ]
        for row in result["rows"]
        if row["status"] != "measured"
    ]
    left = result["runs"] - len(result["rows"])
    said = result["disturbed"]
    return section(
        "What ran",
        callout("bad", "Not alone", f"{said[0].upper()}{said[1:]}.") if said else "",
        table(
            [
                Column("workload"),
                Column("batch"),
                Column("step", "ms"),
                Column("samples", "1/s"),
                Column("device busy", "%"),
                Column("peak", "MiB"),
                Column("others", "cores"),
            ],
            cells,
        ),
        table(["workload", "batch", "became", "why"], failed, caption="What did not") if failed else "",
        text(f"{left} more were not run yet: the same command goes on with them.") if left else "",
    )
