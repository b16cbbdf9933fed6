"""Writes docs/results.md from the files in results/: a summary, a table per benchmark, and what misses its goal.

    python scripts/make_results.py           write it
    python scripts/make_results.py --check   exit with 1 if it is stale

A benchmark renews its figures with `--json results/NAME.json`; see bench/result_file.py for the format.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from result_file import DEVICES, ResultFile, Row, Value, read  # noqa: E402

PAGE = ROOT / "docs" / "results.md"
WIDTH = 120
NOTE = "<!-- Written by scripts/make_results.py from the files in results/. Change those, then run it again. -->"
INTRO = (
    "Ratios are Handheld's figure divided by the other's: below 1, Handheld needs less time or memory. Times on a "
    "shared machine are an indication; counts, errors and bytes are exact. A commit with a + had local changes."
)


def files() -> list[ResultFile]:
    found = [read(path) for path in sorted((ROOT / "results").glob("*.json")) if path != DEVICES]
    return sorted(found, key=lambda content: (content.order, content.title))


def number(value: Value) -> str:
    """Three significant digits; larger numbers are rounded to whole ones."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def filled(content: ResultFile, text: str) -> str:
    """{ratio:WHAT|DEVICE} and {value:WHAT|DEVICE} replaced by the row's figure."""

    def figure(match: re.Match[str]) -> str:
        kind, what, device = match.groups()
        row = content.find(what, device)
        found = row.ratio if kind == "ratio" else row.value
        return f"{found:.2f}" if kind == "ratio" else number(found)

    return re.sub(r"\{(ratio|value):([^|}]+)\|([^}]+)\}", figure, text)


def wrapped(text: str, bullet: bool = False) -> str:
    """Text in lines of at most WIDTH columns; words are not cut."""
    return textwrap.fill(
        ("- " if bullet else "") + text,
        WIDTH,
        subsequent_indent="  " if bullet else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def goal(row: Row) -> str:
    """A goal as `≤ 0 ✓`, or with the name of its figure: `ratio ≤ 1.2 ✗`."""
    text = row.goal.removeprefix("value ").replace("<=", "≤").replace(">=", "≥")
    return text if row.met is None else f"{text} {'✓' if row.met else '✗'}"


def columns(rows: tuple[Row, ...]) -> dict[str, list[str]]:
    """Header -> cells; empty columns are left out."""
    units = {row.unit for row in rows}
    peers = {row.against for row in rows if row.against}
    made = {"what": [row.what for row in rows]}
    if len(units) == 1:
        made[units.pop() or "value"] = [number(row.value) for row in rows]
    else:
        made["value"] = [f"{number(row.value)} {row.unit}".strip() for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row.details):
        made[name] = [number(row.details.get(name)) for row in rows]
    if len(peers) > 1:
        made["against"] = [row.against for row in rows]
    head = f"ratio to {peers.pop()}" if len(peers) == 1 else "ratio"
    made[head] = ["" if row.ratio is None else f"{row.ratio:.2f}" for row in rows]
    made["goal"] = [goal(row) for row in rows]
    for name in ("device", "date", "commit"):
        made[name] = [str(getattr(row, name)) for row in rows]
    return {head: cells for head, cells in made.items() if any(cells)}


def table(made: dict[str, list[str]]) -> str:
    texts = ("what", "device", "date", "commit", "goal", "against")
    lines = [list(made), ["---" if head in texts else "---:" for head in made], *zip(*made.values(), strict=True)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def wide(text: str) -> bool:
    return any(len(line) > WIDTH for line in text.splitlines())


def tables(rows: tuple[Row, ...]) -> list[str]:
    """One table. If that is too wide: one per set of details, with what all its rows share in a line above."""
    whole = table(columns(rows))
    if not wide(whole):
        return [whole]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(sorted(row.details)), []).append(row)
    parts = []
    for group in groups.values():
        made = columns(tuple(group))
        shared = {name: made.pop(name)[0] for name in ("device", "date", "commit") if len(set(made[name])) == 1}
        if shared:
            parts.append("Measured: " + ", ".join(f"{name} {value}" for name, value in shared.items()) + ".")
        parts.append(table(made))
    return parts


def section(content: ResultFile) -> str:
    parts = [f"## {content.title}", *(wrapped(filled(content, text)) for text in content.about), *tables(content.rows)]
    notes = dict.fromkeys((row.notes, row.what, row.device) for row in content.rows if row.notes)
    if notes:
        parts.append("\n".join(wrapped(f"{what}, {device}: {text}", bullet=True) for text, what, device in notes))
    commands = dict.fromkeys(row.command for row in content.rows if row.command)
    if commands:
        parts.append("\n".join(f"    {command}" for command in commands))
    return "\n\n".join(parts)


def misses(contents: list[ResultFile]) -> str:
    found = [(content.title, row) for content in contents for row in content.rows if row.met is False]
    lines = [
        wrapped(f"{title}: {row.what}, {row.device}: {number(row.judged)}, wanted {goal(row)[:-2]}.", bullet=True)
        for title, row in found
    ]
    return "## Misses\n\nEvery figure that does not reach its goal.\n\n" + ("\n".join(lines) or "None.")


def devices() -> str:
    known = json.loads(DEVICES.read_text(encoding="utf-8"))
    return "## Devices\n\n" + "\n".join(wrapped(f"`{d['id']}`: {d['about']}", bullet=True) for d in known)


def page() -> str:
    contents = files()
    top = [wrapped(filled(content, content.summary), bullet=True) for content in contents if content.summary]
    missed = sum(row.met is False for content in contents for row in content.rows)
    rest = f"{missed} figures miss their goal; they are listed [at the end](#misses). {INTRO}"
    parts = ["# What was measured", NOTE, "\n".join(top), wrapped(rest), devices()]
    return "\n\n".join([*parts, *map(section, contents), misses(contents)]) + "\n"


def main() -> int:
    text = page()
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv:
        print("docs/results.md is stale. Run: python scripts/make_results.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print("wrote docs/results.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
