"""`handheld bench`: measures what a device can train, how fast, and with how much memory and energy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

import handheld.bench as runner
from handheld.bench import Progress, Results, Settings
from handheld.bench.matrix import DEVICES
from handheld.bench.page import PAGE, bench_page
from handheld.bench.shapes import Line
from handheld.cli import bench_tables, output
from handheld.cli.options import Json, Seed
from handheld.errors import HandheldError
from handheld.report.document import write_document

ON = ",".join(DEVICES)
OUT = Path("bench-results")
SAY_S = 0.25  # Seconds between two updates of the progress line.
UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAMES",
        show_default=False,
        help=(
            "Workloads (lenet5), groups (text, liu2019), file.py:factory or step files. Default: all "
            "workloads. With --compare and --merge: results folders."
        ),
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="DEVICES",
        help=(
            "Devices, separated by commas: opencl, opencl:NAME, reference:cpu, reference:cuda. For comparison, "
            "plain PyTorch is pytorch:cpu, pytorch:cuda or pytorch:cuda:tf32."
        ),
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="N,N",
        show_default=False,
        help=("Batch sizes, separated by commas. Default: each workload's own."),
    ),
]
Size = Annotated[
    str, typer.Option("--size", metavar="SIZE", help=("small, or paper: 224x224 images and published configurations."))
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", metavar="S", help=("How long each run trains after its first step; at least five steps.")
    ),
]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, metavar="N", show_default=False, help="Train N steps instead.")
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help=("Results folder. An existing one is continued."))]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="FOLDER", help=("Continue this folder with its own workloads and settings.")),
]
Retry = Annotated[bool, typer.Option("--retry", help=("Repeat the runs that did not train."))]
LimitMemory = Annotated[
    str | None,
    typer.Option(
        "--limit-memory",
        metavar="SIZE",
        help=(
            "Most memory per run, both planned on the device and held by the process, such as 2GiB. "
            "Default: nearly all free memory."
        ),
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=1, metavar="S", help=("A run that reports nothing for so long counts as hung.")),
]
Cool = Annotated[
    str,
    typer.Option(
        "--cool",
        metavar="S|auto",
        help=(
            "Seconds between runs. auto waits until the temperature is back at its first value, at most "
            "half a minute, or one second without a sensor."
        ),
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help=("Compare two results folders, row by row."))]
Merge = Annotated[bool, typer.Option("--merge", help=("Merge results folders into the folder --out."))]
PageOption = Annotated[bool, typer.Option("--page/--no-page", help=("Write the page of the results: bench.html."))]
Listed = Annotated[bool, typer.Option("--list", help=("List the workloads and run nothing."))]


def bench(
    names: Names = None,
    on: On = ON,
    batch: Batch = None,
    size: Size = "small",
    seconds: Seconds = Settings.seconds,
    steps: Steps = None,
    out: Out = OUT,
    resume: Resume = None,
    retry: Retry = False,
    limit_memory: LimitMemory = None,
    timeout: Timeout = Settings.silence_s,
    cool: Cool = "auto",
    compare: Compare = False,
    merge: Merge = False,
    listed: Listed = False,
    page: PageOption = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train workloads on devices and show what this machine can train.

    Each run is a separate process. A run that fails, hangs or needs too much memory becomes a row
    that says so. Runs are in random order, devices take turns, and the machine cools between runs.
    One folder holds everything: results.jsonl (one line per run), bench.json (the machine), runs/
    (the run files) and bench.html (the page). After Ctrl-C or a kill, the same command continues.

    \b
    Examples:
    handheld bench
    handheld bench --list
    handheld bench lenet5 gpt --on opencl,reference:cpu --batch 1,4,16
    handheld bench mine.py:make --limit-memory 2GiB --out mine
    handheld bench --resume bench-results --retry
    handheld bench --compare before after
    handheld bench --merge phone laptop --out both
    """
    if listed:
        bench_tables.present_workloads(runner.expand(names or ()), json)
        return
    if compare or merge:
        _folders(names or [], compare, merge, out, json)
        return
    settings = Settings(seconds, steps, seed, nbytes(limit_memory, "--limit-memory"), timeout, cooling(cool))
    if resume is not None:
        if names:
            raise HandheldError(
                "--resume continues with the workloads of the folder and takes "
                f"no names. Try: handheld bench {' '.join(names)} --out {resume}"
            )
        matrix, folder = None, resume
        settings = _as_begun(resume, settings)
    else:
        matrix = runner.Matrix(runner.expand(names or ()), split(on), batches(batch), size)
        folder = out
    _run(matrix, folder, settings, retry, page, json)


def _run(matrix: runner.Matrix | None, folder: Path, settings: Settings, retry: bool, page: bool, json: bool) -> None:
    begun = time.monotonic()
    with shown(json) as tell:
        count = 0
        rows = runner.run(matrix, folder, settings, retry=retry, tell=tell)
        before = runner.open_results(folder)
        for note in before.notes:
            output.warn(note)
        if before.rows and not json:
            failed = sum(row["status"] != "trained" for row in before.rows)
            again = f"; --retry repeats the {failed} that did not train" if failed else ""
            output.out.print(
                f"{folder} already holds {output.count(len(before.rows), 'row')}{'' if retry else again}",
                soft_wrap=True,
            )
        with contextlib.closing(rows) as rows, _kept(folder):  # type: ignore[type-var]
            for row in rows:
                count += 1
                if not json:
                    bench_tables.say_row(row, count)
    results = runner.open_results(folder)
    _end(results, count, time.monotonic() - begun, page, json)


def _as_begun(folder: Path, settings: Settings) -> Settings:
    """The settings with which the folder was begun, wherever the command line does not set another value."""
    before = runner.open_results(folder).info["settings"] if folder.exists() else {}
    return replace(
        settings,
        **{
            name: before[name]
            for name in ("seconds", "steps", "seed", "cool_s", "limit_bytes", "silence_s")
            if name in before and getattr(settings, name) == getattr(Settings, name)
        },
    )


def _end(results: Results, count: int, seconds: float, page: bool, json: bool) -> None:
    lines = runner.card(results.rows)
    drawn = _draw(results, lines) if page else None
    if json:
        output.print_json(
            {
                "folder": str(results.folder),
                "ran": count,
                "seconds": seconds,
                "bench": results.info,
                "rows": results.rows,
                "card": lines,
                "notes": results.notes,
                **({"page": str(drawn)} if drawn else {}),
            }
        )
    else:
        bench_tables.present(results, lines, count, seconds)
        if drawn:
            output.out.print(output.grid([("page", output.path(drawn))]))
    if not any(line["trains"] for line in lines):
        raise typer.Exit(1)


def _draw(results: Results, lines: list[Line]) -> Path | None:
    """Write the page of the results. If that fails, a note says why, because the results are safe in their folder."""
    path = results.folder / PAGE
    try:
        write_document(bench_page(results, lines), path)
    except OSError as error:
        output.warn(f"{path} was not written: {error.strerror or error}. Try: free some room, and the same command")
        return None
    return path


def _folders(names: list[str], compare: bool, merge: bool, out: Path, json: bool) -> None:
    if compare and merge:
        raise HandheldError("--compare and --merge cannot be combined. Try: one of them")
    opened = [runner.open_results(name) for name in names]
    if compare:
        if len(opened) != 2:
            raise HandheldError(f"--compare takes two results folders, not {len(opened)}")
        comparison = runner.compare(*opened)
        output.print_json(comparison) if json else bench_tables.present_compared(comparison)
        return
    merged = runner.merge(opened, out)
    if json:
        output.print_json({"folder": str(merged.folder), "rows": merged.rows})
    else:
        output.out.print(
            f"{merged.folder} holds {output.count(len(merged.rows), 'row')} from {len(opened)} folders", soft_wrap=True
        )


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """After Ctrl-C, say what the folder holds and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        done = output.count(len(runner.open_results(folder).rows), "row")
        raise KeyboardInterrupt(f"interrupted; {folder} holds {done}. Run the same command to continue") from None


@contextlib.contextmanager
def shown(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """On a terminal, show the current run and the time that is left."""
    if quiet or not output.err.is_terminal:
        yield None
        return
    last = 0.0
    with Live(Text("preparing", style="bold"), console=output.err, transient=True, auto_refresh=False) as screen:
        screen.refresh()

        def tell(now: Progress) -> None:
            nonlocal last
            clock = time.monotonic()
            if clock - last < SAY_S and now.stage.startswith("step"):
                return
            last = clock
            left = "" if now.left_s is None else f"  about {output.duration(now.left_s)} left"
            case = now.case
            where = f"{case.workload} on {case.device}, {case.batch or 'own'}: {now.stage}"
            room = max(output.err.width - len(left) - 10, 20)
            screen.update(
                Text.assemble((f"{now.done + 1}/{now.count} ", "bold"), output.middle(where, room), (left, "dim")),
                refresh=True,
            )

        yield tell


def split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def batches(text: str | None) -> tuple[int, ...]:
    words = split(text or "")
    wrong = [word for word in words if not word.isdigit() or int(word) < 1]
    if wrong or (text is not None and not words):
        raise HandheldError(
            f"--batch {text!r} must be batch sizes of at least 1, separated by commas. Try: --batch 1,4,16"
        )
    return tuple(int(word) for word in words)


def nbytes(text: str | None, option: str) -> int | None:
    """Bytes from a text such as `512MiB`, `2g` or `1000000`."""
    if text is None:
        return None
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = word[-1:] if word[-1:] in UNITS else ""
    try:
        number = float(word.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        number = 0.0
    if not 1 <= number < 2**63:
        raise HandheldError(f"{option} {text!r} must be a size. Try: 512MiB or 2GiB")
    return int(number)


def cooling(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise HandheldError(f"--cool {text!r} must be a number of seconds, or auto")
    return seconds
