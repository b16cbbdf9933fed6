"""`handheld study liu2019`: measures what training does to this device, and tests ten published findings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from handheld import bench
from handheld.cli import bench_tables, output
from handheld.cli.bench import cooling, note_lost, shown
from handheld.cli.fleet_run import on_fleet
from handheld.cli.options import Json, OnFleet, Seed, batches, out_folder, split
from handheld.errors import HandheldError, StudyError
from handheld.report.document import write_document
from handheld.studies import findings2019, liu2019, page2019

COLOURS = {findings2019.HOLDS: "green", findings2019.FAILS: "red"}

_BATCHES = ",".join(map(str, liu2019.BATCHES))


Workloads = Annotated[
    str,
    typer.Option(
        "--workloads",
        metavar="NAMES",
        help=("trained: the ten that trained on the paper's device; all: its sixteen; or names, separated by commas."),
    ),
]
Batch = Annotated[str, typer.Option("--batch", metavar="N,N", help=("Batch sizes, separated by commas."))]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help=("small, or paper: the published shapes."))]
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=0.1, metavar="S", help=("How long each run trains. Power sensors need 4 or more.")),
]
Quick = Annotated[
    bool, typer.Option("--quick", help=("A first look: four workloads, batches 4 and 64, 2 seconds per run."))
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        show_default=False,
        help=("Folder for runs, result and page. Existing runs are not repeated. Default: ./liu2019."),
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="RESULT",
        help=("Measure nothing; draw the page of a result or of a folder of runs again, next to it or in --out."),
    ),
]
Cool = Annotated[
    str,
    typer.Option(
        "--cool",
        metavar="S|auto",
        help=("Seconds between runs. auto waits until the device has cooled, at most a minute."),
    ),
]
Retry = Annotated[bool, typer.Option("--retry", help=("Also repeat the runs that did not train."))]

NoPage = Annotated[bool, typer.Option("--no-page", help=("Write only the result, not its page."))]


def check_pages(page: Path | None, no_page: bool) -> None:
    """Raise an error if a page is asked for and not wanted."""
    if page is not None and no_page:
        raise StudyError("--page draws a page, and --no-page asks for none. Try: one of the two")


def not_on_fleet(values: dict[str, Any]) -> str:
    """Why these options of a study cannot be combined with a fleet, or ""."""
    return "--page draws the page of one result. Try: without --on fleet" if values["page"] is not None else ""


@on_fleet("study liu2019", lambda own: own, not_on_fleet)
def study_liu2019(
    on: OnFleet = "opencl",
    workloads: Workloads = "trained",
    batch: Batch = _BATCHES,
    size: Size = "small",
    seconds: Seconds = liu2019.SECONDS,
    quick: Quick = False,
    out: Out = None,
    page: Page = None,
    no_page: NoPage = False,
    cool: Cool = "auto",
    retry: Retry = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Repeat the 2019 study by Liu et al.: load, memory, power and speed by batch size.

    Each of its ten findings gets an answer (holds, does not hold, or cannot be measured here and why)
    and a figure next to the paper's. Writes a page (liu2019.html) and a result (liu2019.json) next to
    the run files. After Ctrl-C the results so far are kept, and the same command continues.

    \b
    Examples:
    handheld study liu2019 --quick
    handheld study liu2019 --workloads resnet50,char_cnn,dqn --batch 4,64
    handheld study liu2019 --page liu2019/liu2019.json
    """
    check_pages(page, no_page)
    if page is not None:
        _again(page, out, json)
        return
    out = out or Path("liu2019")
    names = liu2019.workloads("quick" if quick and workloads == "trained" else _names(workloads))
    sizes = liu2019.QUICK_BATCHES if quick and batch == _BATCHES else batches(batch)
    spent = liu2019.QUICK_SECONDS if quick and seconds == liu2019.SECONDS else seconds
    settings = bench.Settings(seconds=spent, seed=seed, cool_s=cooling(cool))
    with shown(json) as tell:
        rows = liu2019.study(names, on, sizes, out, size=size, settings=settings, retry=retry, tell=tell)
        kept = len(bench.open_results(out).rows)
        if kept and not json:
            output.out.print(f"{out} already holds {output.count(kept, 'run')}", soft_wrap=True)
        try:
            with contextlib.closing(rows) as rows:  # type: ignore[type-var]
                for count, row in enumerate(rows, 1):
                    if not json:
                        bench_tables.say_row(row, count)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_kept(out, on, no_page)) from None
    study = liu2019.result(out, on)
    result = liu2019.save(out, study)
    target = None if no_page else out / liu2019.PAGE
    if target:
        _write_page(target, study)
    _present(study, result, target, json)
    if not json:
        note_lost(bench.open_results(out))


def _again(page: Path, out: Path | None, json: bool) -> None:
    """Draw the page of a saved result, or of a folder, whose runs are read again."""
    study, result, target = liu2019.load(page), page, page.with_suffix(".html")
    if page.is_dir() or out is not None:
        folder = out_folder(out or page)
        result, target = liu2019.save(folder, study), folder / liu2019.PAGE
    _write_page(target, study)
    _present(study, result, target, json)


def _names(text: str) -> str | list[str]:
    """The name of a set as text, several workload names as a list."""
    if text in ("trained", "all", "quick"):
        return text
    if not split(text):
        raise StudyError("--workloads names none. Try: trained, all, or lenet5,resnet50")
    return list(split(text))


def _kept(out: Path, device: str, no_page: bool) -> str:
    """Write the result and the page of the finished runs. Returns what to tell the user."""
    try:
        study = liu2019.result(out, device)
    except HandheldError:  # No run has ended yet.
        return f"interrupted before the first run ended; {out} is still empty"
    liu2019.save(out, study)
    seen = ""
    if not no_page:
        _write_page(out / liu2019.PAGE, study)
        seen = f", and {out / liu2019.PAGE} shows them"
    kept = f"{len(study['rows'])} of {output.count(study['runs'], 'run')} kept{seen}"
    return f"interrupted; {kept}. Run the same command to continue"


def _write_page(path: Path, study: dict[str, Any]) -> None:
    try:
        write_document(page2019.draw(study), path)
    except OSError as error:
        raise StudyError(f"{path} cannot be written: {error.strerror}") from None


def _present(study: dict[str, Any], result: Path, target: Path | None, json: bool) -> None:
    if json:
        output.print_json(
            {
                "result": str(result),
                **({"page": str(target)} if target else {}),
                "device": study["device"],
                "runs": study["runs"],
                "measured": _measured(study),
                "disturbed": study["disturbed"],
                "answers": study["answers"],
            }
        )
        return
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for answer in study["answers"]:
        table.add_row(
            f"{answer['number']}",
            Text.assemble(
                f"{answer['claim']}: ",
                (answer["answer"], f"bold {COLOURS.get(answer['answer'], 'yellow')}"),
                f" ({answer['extent']})" if answer["extent"] else "",
            ),
        )
        if answer["here"]:
            table.add_row("", f"here   {answer['here']}")
        if answer["paper"]:
            table.add_row("", f"paper  {answer['paper']}", style="dim")
        if answer["why"]:
            table.add_row("", f"why    {answer['why']}", style="dim")
    output.out.print()
    output.caution(study["disturbed"])
    output.out.print(table)
    output.out.print(
        output.grid(
            [
                ("runs", f"{_measured(study)} of {study['runs']} measured on {study['device']}"),
                ("result", output.path(result)),
                *([("page", output.path(target))] if target else []),
            ]
        )
    )


def _measured(study: dict[str, Any]) -> int:
    return sum(row["status"] == "measured" for row in study["rows"])
