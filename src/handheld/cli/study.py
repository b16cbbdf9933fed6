"""`handheld study`: repeats two published studies on this device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from handheld.cli import liu2019, output
from handheld.cli.fleet_run import on_fleet
from handheld.cli.liu2019 import NoPage, check_pages, not_on_fleet
from handheld.cli.options import Json, OnOpenCLFleet, out_folder
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.errors import StudyError, TargetLost
from handheld.progress import listener, reporting
from handheld.report.document import write_document
from handheld.report.numbers import number
from handheld.studies import answers2022 as answers
from handheld.studies import das2022 as das
from handheld.studies import derived2022 as derived
from handheld.studies import evidence2022 as evidence
from handheld.studies import page2022, paper2022
from handheld.studies.ways2022 import APART, NAIVE, OPTIMISED, PYTORCH, REFERENCE

study = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)

US = 1e6
MODELS, WIDTHS = ",".join(das.MODELS), ",".join(map(str, das.WIDTHS))
LEAST_WIDTH, MOST_WIDTH = 1, 1 << 15

#: The title, the columns and the rows of a printed table.
Rows = tuple[str, Sequence[Column], Sequence[tuple[str, ...]]]


Steps = Annotated[
    int, typer.Option("--steps", min=1, metavar="N", help=("Most steps per model and variant; slow ones run fewer."))
]
Models = Annotated[str, typer.Option("--models", metavar="M,M,...", help=("Which of the four models."))]
Widths = Annotated[str, typer.Option("--widths", metavar="W,W,...", help=("Layer widths of the sweep."))]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help=("Folder for the result and its page. Default: ./das2022.")),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="RESULT.json",
        help=("Measure nothing; draw the page of this result again, next to it or in --out."),
    ),
]


@study.callback()
def study_command(context: typer.Context) -> None:
    """Repeat a published study on this device."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@study.command("das2022")
@on_fleet("study das2022", lambda own: own, not_on_fleet)
def das2022(
    on: OnOpenCLFleet = "opencl",
    steps: Steps = das.STEPS,
    models: Models = MODELS,
    widths: Widths = WIDTHS,
    out: Out = None,
    page: Page = None,
    no_page: NoPage = False,
    json: Json = False,
) -> None:
    """Find out whether training on this device's GPU pays off (Das et al. 2022).

    Trains four perceptrons on the CPU and through OpenCL: with the plain kernels of a published
    baseline and with Handheld's kernels; with tensors moved between host and device around every op,
    as in the paper, and with all tensors resident on the device. Then sweeps layer widths and
    transfer sizes. Prints the paper's figures next to those of this device, and writes
    FOLDER/das2022.json and FOLDER/das2022.html. After Ctrl-C, a kill or a lost connection, the same
    command continues. Takes some minutes and needs PyTorch. (The paper: PerCom Workshops 2022.)

    \b
    Examples:
    handheld study das2022
    handheld study das2022 --on opencl:nvidia --steps 1000 --out h200
    handheld study das2022 --on adb --out phone
    handheld study das2022 --page das2022/das2022.json
    """
    stopped = False
    check_pages(page, no_page)
    if page is not None:
        page = page / das.RESULT if page.is_dir() else page
        result, folder = das.read(page), out or page.parent
    else:
        settings = das.Settings(on, steps, _widths(widths), _models(models), rounds=min(das.ROUNDS, steps))
        folder = out_folder(out or Path("das2022"))
        result = _begin(settings, folder / das.RESULT, json)
        stopped = _measure(settings, result, folder, no_page, json)
    where = None if no_page else _draw(result, folder)
    drawn = {"page": str(where)} if where else {}
    if json:
        output.print_json({**result, "answers": answers.answers(result), **drawn})
    else:
        present(result)
        pages = [("page", output.path(where))] if where else []
        output.out.print(output.grid([("result", output.path(page or folder / das.RESULT)), *pages]))
    if stopped:
        held = f"the result file{' holds' if no_page else ' and the page hold'} what was measured"
        output.stopped(f"{held}. Run the same command to continue")
        raise typer.Exit(130)


def _begin(settings: das.Settings, path: Path, json: bool) -> dict[str, Any]:
    """A new result, or the one of an earlier run that did not come to its end."""
    with stages(json):
        result = das.begin(settings)
    known = das.unfinished(path, result)
    if known is not None and not json:
        done = output.count(das.parts_done(known), "part")
        output.warn(f"{output.path(path)} is continued: it has {done} of the study")
    return result if known is None else known


def _measure(settings: das.Settings, result: dict[str, Any], folder: Path, no_page: bool, json: bool) -> bool:
    """Measure what the result does not have yet. Returns whether Ctrl-C ended it."""
    try:
        with _bar(json) as tell:
            das.measure(settings, result, folder / das.RESULT, tell)
    except KeyboardInterrupt:
        if not result["transfers"]:
            raise
        return True
    except Exception as error:
        if result["transfers"] and not no_page:  # There are results to show.
            result["notes"].append(f"the study ended with an error: {error}")
            output.warn(f"the page shows the results so far: {output.path(_draw(result, folder))}")
        if isinstance(error, TargetLost):
            raise error.add(_kept(result, folder / das.RESULT)) from error
        raise
    return False


def _kept(result: dict[str, Any], path: Path) -> str:
    """What a study that was cut off has measured, and how to go on."""
    done = das.parts_done(result)
    if not done:
        return "Nothing was measured yet. Run the same command again"
    return f"{path} holds {output.count(done, 'part')}. Run the same command to continue"


def _models(text: str) -> tuple[str, ...]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word not in das.MODELS]
    if wrong:
        raise StudyError(f"--models {text}: there is no model {wrong[0]!r}. Try: {', '.join(das.MODELS)}")
    return tuple(name for name in das.MODELS if name in words)


def _widths(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not word.isdigit() or not LEAST_WIDTH <= int(word) <= MOST_WIDTH]
    if wrong:
        raise StudyError(
            f"--widths {text}: {wrong[0]!r} is not a width from {LEAST_WIDTH} to "
            f"{MOST_WIDTH:,}. Try: --widths 16,256,1024"
        )
    return tuple(sorted({int(word) for word in words}))


def _draw(result: dict[str, Any], folder: Path) -> Path:
    path = out_folder(folder) / das.PAGE
    try:
        write_document(page2022.draw(result), path)
    except (KeyError, TypeError, IndexError, AttributeError):
        raise StudyError(f"the result is damaged, so {das.PAGE} cannot be drawn. Try: measure again") from None
    except OSError as error:
        raise StudyError(f"{path} cannot be written: {error.strerror}") from None
    return path


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """On a terminal, show what is being measured and how much is done."""
    bar = Progress(
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=output.err,
        transient=True,
        disable=quiet or not output.err.is_terminal,
    )
    task, now, outer = bar.add_task("preparing", total=1.0), "", listener()

    def tell(what: str, part: float) -> None:
        nonlocal now
        now = what
        bar.update(task, completed=part, description=what)
        if outer is not None:
            outer(f"{part:.0%} {what}", 0, 0)

    def stage(what: str, done: int, total: int) -> None:
        bar.update(task, description=f"{now}: {what} {done} of {total}" if total else f"{now}: {what}")

    with bar, reporting(stage):
        yield tell


# ── printed output ────────────────────────────────────────────────────────────────────────────


def present(result: dict[str, Any]) -> None:
    """Print the paper's tables next to the measured ones, and the answers."""
    output.caution(evidence.warning(result))
    output.out.print(
        output.grid(
            [
                ("device", f"{result['device']} ({result['caps']['kind']})"),
                ("CPU", f"{result['machine']['processor']}, {output.count(result['machine']['threads'], 'thread')}"),
                ("measured", result["date"]),
            ]
        )
    )
    for make in (_backward, _parts, _shares, _speeds, _sweep):
        title, columns, rows = make(result)
        if rows:
            output.out.print()
            output.out.print(table(columns, rows, title=title))
    for answer in answers.answers(result):
        output.out.print()
        output.out.print(Text.assemble((answer["question"], "bold"), "\n", answer["answer"]))
    for note in result["notes"]:
        output.warn(note)
    output.out.print()


def _backward(result: dict[str, Any]) -> Rows:
    rows: list[tuple[str, ...]] = []
    for name, theirs in paper2022.BACKWARD_US.items():
        if name in result["models"]:
            ways = result["models"][name]["ways"]
            rows.append(
                (
                    name.upper(),
                    *(
                        f"{min(theirs[what])}–{max(theirs[what])}"
                        for what in (paper2022.CPU, paper2022.GPU, paper2022.STOCK)
                    ),
                    *(_us(ways.get(way), "backward") for way in (PYTORCH, APART[1], APART[0], OPTIMISED)),
                )
            )
    columns = (
        Column("model", name_of=True),
        Column("paper CPU", drop=1),
        Column("paper GPU", drop=2),
        Column("paper GPU stock", drop=3),
        Column("CPU"),
        Column("per-op"),
        Column("per-op naive", drop=4),
        Column("resident"),
    )
    return "Backward pass, µs: three phones of the paper, and here", columns, rows


def _us(way: dict[str, Any] | None, what: str) -> str:
    took = derived.seconds(way, what)
    return number(None if took is None else took * US)


def _parts(result: dict[str, Any]) -> Rows:
    rows: list[tuple[str, ...]] = []
    lines = derived.fits(result)
    for name, row in result["models"].items():
        ways = row["ways"]
        apart = derived.parts(ways[APART[1]], lines) if APART[1] in ways else None
        stay = derived.resident_parts(ways[OPTIMISED]) if OPTIMISED in ways else None
        rows.append(
            (
                name.upper(),
                *(
                    number(None if part is None or part[key] is None else part[key] * US)
                    for part, keys in (
                        (apart, ("latency", "bandwidth", "launch", "kernels")),
                        (stay, ("whole", "transfers", "kernels")),
                    )
                    for key in keys
                ),
            )
        )
    columns = (
        Column("model", name_of=True),
        Column("transfer latency"),
        Column("transfer bytes"),
        Column("launch latency", drop=3),
        Column("kernels"),
        Column("resident step"),
        Column("its transfers", drop=1),
        Column("its kernels", drop=2),
    )
    return "Where a step goes, µs: per-op, and resident", columns, rows


def _shares(result: dict[str, Any]) -> Rows:
    rows = [
        (
            name.upper(),
            _percent(row["per_op"]),
            number(row["to_compute"]),
            _percent(row["resident"]),
            _percent(row["omitted"], "less"),
        )
        for name, row in derived.shares(result).items()
    ]
    title = (
        f"Transfers' share of a step (paper: {paper2022.TRANSFER_SHARE:.0%}; goal resident: {paper2022.GOAL_SHARE:.0%})"
    )
    names = ("per-op", "times the kernels", "resident", "if nothing moved")
    return title, [Column("model", name_of=True), *(Column(name) for name in names)], rows


def _percent(share: float | None, word: str = "") -> str:
    return "–" if share is None else f"{share:.1%} {word}".rstrip()


def _speeds(result: dict[str, Any]) -> Rows:
    peaks = derived.peaks(result)
    theirs = {
        way: " / ".join(f"{rates[n]:.0f}" for n in (2, 0, 1))
        for way, rates in ((NAIVE, paper2022.GFLOPS[paper2022.STOCK]), (OPTIMISED, paper2022.GFLOPS[paper2022.GPU]))
    }
    theirs[REFERENCE] = "–".join(f"{rate:.0f}" for rate in paper2022.CPU_GFLOPS)
    rows = [
        (name, theirs[way], number(peaks[way][0]), f"{peaks[way][1]:,}")
        for way, name in ((NAIVE, "naive"), (OPTIMISED, "optimised"), (REFERENCE, "CPU"))
        if way in peaks
    ]
    names = ("paper (Nord / OP 6 / OP 8)", "here", "at width")
    return "Matrix products, GFLOP/s", [Column("", name_of=True), *(Column(name) for name in names)], rows


def _sweep(result: dict[str, Any]) -> Rows:
    rows: list[tuple[str, ...]] = []
    for row in result["sweep"]:
        ways = row["ways"]
        found = derived.against_cpu(result, ways, OPTIMISED)
        mark = "?" if found and found.above(1.0) is None else ""
        rows.append(
            (
                f"{row['width']:,}",
                *(_us(ways.get(way), "step") for way in (PYTORCH, REFERENCE, NAIVE, OPTIMISED, APART[1])),
                f"{found.value:.2f}x{mark}" if found else "–",
            )
        )
    columns = (
        Column("width", name_of=True),
        Column("PyTorch"),
        Column("reference:cpu", drop=1),
        Column("naive", drop=2),
        Column("optimised"),
        Column("per-op"),
        Column("CPU / optimised"),
    )
    return "Step of two layers, µs, by layer width (?: which is faster cannot be told)", columns, rows


study.command("liu2019")(liu2019.study_liu2019)
