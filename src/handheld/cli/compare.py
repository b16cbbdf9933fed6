"""`handheld compare`: two runs or more, or results folders of `bench`, beside each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from handheld import bench as results
from handheld.analyse.compare import Pair, compare_files
from handheld.bench.compare_page import compare_page
from handheld.bench.judged import Rows, judge_rows
from handheld.cli import bench_tables, compare_tables, output
from handheld.cli.options import Json
from handheld.cli.report import check_page
from handheld.errors import HandheldError
from handheld.report.compare_payload import compare_payload
from handheld.report.document import write_document

SLOWER_EXIT = 3  # the exit code if something is slower than --fail-above allows

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="A B ...", help="Run files, or results folders of handheld bench. A is the base."),
]
FailAbove = Annotated[
    str | None,
    typer.Option(
        "--fail-above",
        metavar="P%",
        help=f"Exit code {SLOWER_EXIT} if the step, a module or an op is slower by more than P and by more than noise, "
        "or if a row of a results folder cannot be compared.",
    ),
]


Out = Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="Also write a page.")]


def compare(paths: Paths, fail_above: FailAbove = None, out: Out = None, json: Json = False) -> None:
    """Compare runs, op by op and module by module, and say what is more than noise.

    Ops are aligned by their place in the model. Differences are judged against the noise of both
    runs; docs/compare.md says how. A difference that all ops have in common is a difference of the
    whole run, such as a busy machine, and is reported as such.

    \b
    Examples:
    handheld compare before.run after.run
    handheld compare before.run after.run --fail-above 5%
    handheld compare before.run after.run --out compared.html
    handheld compare results-monday results-tuesday
    """
    allowed = None if fail_above is None else _share(fail_above)
    if len(paths) < 2:
        raise HandheldError("a comparison needs two run files or two results folders. Try: handheld compare A B")
    folders = [path.is_dir() for path in paths]
    if any(folders) and not all(folders):
        raise HandheldError(
            f"{paths[folders.index(True)]} is a folder and {paths[folders.index(False)]} is not. "
            "Try: two run files, or two results folders"
        )
    if out is not None:
        check_page(out)
    if all(folders):
        rows = _folders(paths, out, json)
        found = [(each.comparison["b"], *one) for each in rows for one in each.slowdowns(allowed or 0.0)]
        slow = [(f"{folder} {key}", name, ratio) for folder, key, name, ratio in found]
        gaps = [f"{each.comparison['b']} {key} cannot be compared: {why}" for each in rows for key, why in each.gaps()]
    else:
        pairs = _runs(paths, out, json)
        slow = [(where, *one) for where, pair in pairs.items() for one in pair.slowdowns(allowed or 0.0)]
        gaps = []
    if allowed is not None:
        _judge(slow, gaps, allowed)


def _runs(paths: list[Path], out: Path | None, json: bool) -> dict[str, Pair]:
    comparison = compare_files(paths)
    if out is not None:
        write_document(compare_payload(comparison), out)
    if json:
        output.print_json(comparison.to_json())
    else:
        compare_tables.present(comparison)
        if out is not None:
            output.out.print(output.grid([("wrote", output.path(out))]))
    return {pair.b: pair for pair in comparison.pairs}


def _folders(paths: list[Path], out: Path | None, json: bool) -> list[Rows]:
    """Compare each folder with the first: the rows as `bench --compare` does, and their run files."""
    first, *others = [results.open_results(path) for path in paths]
    compared = [judge_rows(first, other, results.compare(first, other)) for other in others]
    if out is not None:
        write_document(compare_page(compared, [first, *others]), out)
    if json:
        output.print_json({"folders": [_document(rows) for rows in compared]})
        return compared
    for number, rows in enumerate(compared):
        if number:
            output.out.print()
        bench_tables.present_compared(rows.comparison)
        compare_tables.present_rows(rows.runs, rows.unread)
    if out is not None:
        output.out.print(output.grid([("wrote", output.path(out))]))
    return compared


def _document(rows: Rows) -> dict[str, object]:
    return {**rows.comparison, "runs": {key: pair.to_json() for key, pair in rows.runs.items()}, "unread": rows.unread}


def _judge(slow: list[tuple[str, str, float]], gaps: list[str], allowed: float) -> None:
    for gap in gaps:
        output.fail(gap)
    if slow:
        where, name, ratio = max(slow, key=lambda item: item[2])
        more = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
        output.fail(f"{where}: {name} is slower by {ratio - 1:.1%}; --fail-above allows {allowed:.1%}{more}")
    if slow or gaps:
        raise typer.Exit(SLOWER_EXIT)


def _share(text: str) -> float:
    """0.05 for `5%`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if not match:
        raise HandheldError(f"--fail-above {text!r:.40} is not a percentage. Try: --fail-above 5%")
    return float(match[1]) / 100
