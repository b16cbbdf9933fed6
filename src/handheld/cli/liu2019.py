"""`handheld study liu2019`: what training does to this device, and whether ten findings hold."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from handheld import bench
from handheld.cli import bench_tables, output
from handheld.cli.bench import batches, cooling, shown, split
from handheld.cli.options import Json, On, Seed, out_folder
from handheld.errors import HandheldError, StudyError
from handheld.studies import findings2019, liu2019, page2019

COLOURS = {findings2019.HOLDS: "green", findings2019.FAILS: "red"}

_BATCHES = ",".join(map(str, liu2019.BATCHES))


Workloads = Annotated[
    str,
    typer.Option(
        "--workloads",
        metavar="NAMES",
        help=("trained: the ten that trained on the paper's device; all: its sixteen; or names with commas between."),
    ),
]
Batch = Annotated[str, typer.Option("--batch", metavar="N,N", help=("Batch sizes."))]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help=("small, or paper: the published shapes."))]
Seconds = Annotated[
    float,
    typer.Option("--seconds", min=0.1, metavar="S", help=("Of steps in each run; sensors of power want 4 or more.")),
]
Quick = Annotated[
    bool, typer.Option("--quick", help=("A first look: four workloads, batches 4 and 64, 2 seconds a run."))
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        show_default=False,
        help=("Where runs, result and page go; what is there is not run again. ./liu2019 if not given."),
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="RESULT",
        help=("Measure nothing: draw the page of a result, or of a folder of runs, again, beside it or into --out."),
    ),
]
Cool = Annotated[
    str,
    typer.Option("--cool", metavar="S|auto", help=("Seconds between runs; auto: as sensors say, at most a minute.")),
]
Retry = Annotated[bool, typer.Option("--retry", help=("Also run again what did not train."))]


def study_liu2019(
    on: On = "opencl",
    workloads: Workloads = "trained",
    batch: Batch = _BATCHES,
    size: Size = "small",
    seconds: Seconds = liu2019.SECONDS,
    quick: Quick = False,
    out: Out = None,
    page: Page = None,
    cool: Cool = "auto",
    retry: Retry = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Repeat the 2019 study on this device: utilisation, memory, power and speed over batch sizes.

    Each of its ten findings is answered: holds, does not hold, or cannot be measured here and why,
    with the figure beside the paper's. Writes a page (liu2019.html) and a result (liu2019.json)
    beside the run files. Stopped, it keeps what was measured; the same command goes on.

    \b
    Examples:
    handheld study liu2019 --quick
    handheld study liu2019 --on opencl --workloads resnet50,char_cnn,dqn --batch 4,64
    handheld study liu2019 --page liu2019/liu2019.json
    """
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
            output.out.print(f"{out} holds {output.count(kept, 'run')} already", soft_wrap=True)
        try:
            with contextlib.closing(rows) as rows:  # type: ignore[type-var]
                for count, row in enumerate(rows, 1):
                    if not json:
                        bench_tables.say_row(row, count)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_kept(out, on)) from None
    made = liu2019.result(out, on)
    result = liu2019.save(out, made)
    target = out / liu2019.PAGE
    _write_page(target, made)
    _present(made, result, target, json)


def _again(page: Path, out: Path | None, json: bool) -> None:
    """The page of what was measured: of a result as it is, of a folder read anew."""
    made, result, target = liu2019.load(page), page, page.with_suffix(".html")
    if page.is_dir() or out is not None:
        folder = out_folder(out or page)
        result, target = liu2019.save(folder, made), folder / liu2019.PAGE
    _write_page(target, made)
    _present(made, result, target, json)


def _names(text: str) -> str | list[str]:
    """A set's name as it is, names as a list."""
    if text in ("trained", "all", "quick"):
        return text
    if not split(text):
        raise StudyError("--workloads names none. Try: trained, all, or lenet5,resnet50")
    return list(split(text))


def _kept(out: Path, device: str) -> str:
    """Result and page of what there is so far; what to say about it."""
    try:
        made = liu2019.result(out, device)
    except HandheldError:  # nothing has ended yet
        return f"interrupted before the first run had ended; {out} has nothing yet"
    liu2019.save(out, made)
    _write_page(out / liu2019.PAGE, made)
    return (
        f"interrupted; {len(made['rows'])} of {made['runs']} runs are kept, and "
        f"{out / liu2019.PAGE} shows them. The same command goes on"
    )


def _write_page(path: Path, made: dict[str, Any]) -> None:
    try:
        path.write_text(page2019.draw(made), encoding="utf-8")
    except OSError as error:
        raise StudyError(f"{path} cannot be written: {error.strerror}") from None


def _present(made: dict[str, Any], result: Path, target: Path, json: bool) -> None:
    if json:
        output.print_json(
            {
                "result": str(result),
                "page": str(target),
                "device": made["device"],
                "runs": made["runs"],
                "measured": _measured(made),
                "disturbed": made["disturbed"],
                "answers": made["answers"],
            }
        )
        return
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for one in made["answers"]:
        table.add_row(
            f"{one['number']}",
            Text.assemble(
                f"{one['claim']}: ",
                (one["answer"], f"bold {COLOURS.get(one['answer'], 'yellow')}"),
                f" ({one['extent']})" if one["extent"] else "",
            ),
        )
        if one["here"]:
            table.add_row("", f"here   {one['here']}")
        if one["paper"]:
            table.add_row("", f"paper  {one['paper']}", style="dim")
        if one["why"]:
            table.add_row("", f"why    {one['why']}", style="dim")
    output.out.print()
    output.out.print(table)
    if made["disturbed"]:
        output.warn(made["disturbed"])
    output.out.print(
        output.grid(
            [
                ("runs", f"{_measured(made)} of {made['runs']} measured on {made['device']}"),
                ("result", output.path(result)),
                ("page", output.path(target)),
            ]
        )
    )


def _measured(made: dict[str, Any]) -> int:
    return sum(row["status"] == "measured" for row in made["rows"])
