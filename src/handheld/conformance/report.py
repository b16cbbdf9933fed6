"""The report of the op cases on a device: report.json, report.md and report.html, to be published with a driver."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict

from handheld.cache import write_json
from handheld.files import replace_file
from handheld.report.document import write_document
from handheld.report.page import Column, Tile, listing, page, section, table, text, tiles

STATES = ("passed", "failed", "crashed", "skipped")


class Result(TypedDict):
    """The result of one op case."""

    case: str
    status: str
    problems: list[str]
    ops: list[str]
    shapes: list[list[int]]
    fallbacks: list[str]
    s: NotRequired[float]


class Summary(TypedDict):
    """A whole report."""

    device: str
    caps: dict[str, Any]
    handheld: str
    kernels: str
    system: str
    date: str
    cases: int
    check: list[str]
    quirks: list[str]
    results: list[Result]


def counts(summary: Summary) -> dict[str, int]:
    """How many cases ended in each way."""
    found = Counter(result["status"] for result in summary["results"])
    left = summary["cases"] - len(summary["results"])
    return {**{state: found[state] for state in STATES}, "not run": left}


def bad(summary: Summary) -> list[Result]:
    return [result for result in summary["results"] if result["status"] in ("failed", "crashed")]


def _facts(summary: Summary) -> dict[str, str]:
    caps = summary["caps"]
    return {
        "device": f"{caps['name']} ({caps['kind']})",
        "vendor": str(caps["vendor"]),
        "driver": str(caps["driver"]),
        "handheld": f"{summary['handheld']}, kernels {summary['kernels']}",
        "system": summary["system"],
        "date": summary["date"],
    }


def _row(result: Result) -> list[str]:
    shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in result["shapes"])
    return [result["case"], ", ".join(result["ops"]), shapes, result["status"], "; ".join(result["problems"])[:300]]


def markdown(summary: Summary) -> str:
    """The report as a page of Markdown."""
    lines = [f"# Op cases on {summary['caps']['name']}", ""]
    lines += [f"- {name}: {value}" for name, value in _facts(summary).items()]
    lines += ["", "| " + " | ".join(counts(summary)) + " |", "|" + "---|" * len(counts(summary))]
    lines += ["| " + " | ".join(map(str, counts(summary).values())) + " |", "", "## The driver", ""]
    lines += [f"- {line}" for line in (*summary["check"], *summary["quirks"])]
    if bad(summary):
        lines += ["", "## What failed", "", "| case | ops | shapes | status | error |", "|---|---|---|---|---|"]
        for result in bad(summary):
            cells = [cell.replace("|", "/").replace("\n", " ") for cell in _row(result)]
            lines.append("| " + " | ".join(cells) + " |")
    fallbacks = [f"- {r['case']}: {line}" for r in summary["results"] for line in r["fallbacks"]]
    if fallbacks:
        lines += ["", "## Fallbacks", "", *(line.replace("\n", " ") for line in fallbacks)]
    return "\n".join(lines) + "\n"


def write_pages(summary: Summary, folder: Path) -> None:
    """Write report.json, report.md and report.html."""
    write_json(folder / "report.json", {**summary, "counts": counts(summary)})
    text_of = markdown(summary).encode()

    def fill(file: BinaryIO) -> None:
        file.write(text_of)

    replace_file(folder / "report.md", fill)
    failed = bad(summary)
    columns = [Column(name) for name in ("case", "ops", "shapes", "status", "error")]
    shown = counts(summary)
    fallbacks = [f"{r['case']}: {line}" for r in summary["results"] for line in r["fallbacks"]]
    payload = page(
        "Op cases",
        [
            tiles(*(Tile(state, float(number)) for state, number in shown.items())),
            section("The driver", listing([*summary["check"], *summary["quirks"]])),
            section("What failed", table(columns, [_row(r) for r in failed]) if failed else text("Nothing.")),
            *([section("Fallbacks", listing(fallbacks))] if fallbacks else []),
        ],
        device=f"{summary['caps']['name']} ({summary['caps']['kind']})",
        date=summary["date"],
        about="Every op case and its gradients, compared with PyTorch in float64.",
        facts={k: v for k, v in _facts(summary).items() if k not in ("device", "date")},
    )
    write_document(payload, folder / "report.html")
