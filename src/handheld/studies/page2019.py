"""The page of the 2019 study: its answers, and the paper's figures drawn from the runs of this device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from handheld.report.document import Payload
from handheld.report.page import NOTHING, Block, Column, busy, callout, group, listing, page, section, table, text
from handheld.studies.checks2019 import FORETOLD
from handheld.studies.figures2019 import FIGURES
from handheld.studies.findings2019 import FAILS, HOLDS, UNKNOWN
from handheld.units import count as plural

WORDS = {True: "yes", False: "no", None: "not measured"}
MIB = 2**20
PLURAL = {HOLDS: "hold", FAILS: "do not hold"}

Row = dict[str, Any]


def draw(result: Row) -> Payload:
    """The payload of the page, from a result alone."""
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
        about="Liu, Liu, Du and Li measured how training uses the memory, processors and power of a mobile "
        "device (arXiv 1906.04278, Jetson TX2). This page asks the same questions "
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
    return f"{plural(machine['cores'], 'core')}{': ' if kinds else ''}{', '.join(kinds)}"


def _sizes(rows: Iterable[Row]) -> str:
    return ", ".join(dict.fromkeys(row.get("size") or "" for row in rows))


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def _answers(result: Row) -> Block:
    """A table of the answers, and below it the checks that they rest on."""
    answers = result["answers"]
    count = {word: sum(answer["answer"] == word for answer in answers) for word in (HOLDS, FAILS, UNKNOWN)}
    rows = [
        [
            str(answer["number"]),
            answer["claim"],
            f"{answer['answer']} ({answer['extent']})" if answer["extent"] else answer["answer"],
            _said(answer),
            answer["paper"],
        ]
        for answer in answers
    ]
    checks = [
        [str(answer["number"]), check["what"], WORDS[check["holds"]], _said(check), check["paper"]]
        for answer in answers
        for check in answer["checks"]
    ]
    counts = ", ".join(
        f"{number} {word if number == 1 else PLURAL.get(word, word)}" for word, number in count.items() if number
    )
    warning = result["disturbed"]
    return section(
        "The ten findings",
        busy(warning),
        callout(
            "note",
            f"Of ten findings, here: {counts}",
            "A claim about many workloads holds if it holds for three of four; the others are "
            "named. A finding holds if every check that could be measured holds. Something"
            f" counts as predicted if the error is at most {FORETOLD:.0%}; a pattern must also"
            " be no worse than the naive guess.",
        ),
        table(["", "finding", "answer", "here", "paper"], rows),
        table(["", "check", "holds", "here, or why not", "paper"], checks, caption="What the answers rest on"),
        _absent(result),
    )


def _said(row: Row) -> str:
    """The figure, and why a part of it is missing."""
    return "; ".join(filter(None, (row["here"], row["why"] and f"not measured: {row['why']}")))


def _absent(result: Row) -> Block:
    absent = result["sensors_absent"]
    if not absent or any(row.get("power") for row in result["rows"]):
        return NOTHING
    return group(
        text("Power and energy are not measured here, for these reasons:"),
        listing(f"{name}: {why}" for name, why in absent.items()),
    )


def _runs(result: Row) -> Block:
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
    return section(
        "What ran",
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
        table(["workload", "batch", "status", "reason"], failed, caption="What did not") if failed else NOTHING,
        text(f"{left} more did not run yet; the same command continues.") if left else NOTHING,
    )
