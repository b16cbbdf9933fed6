"""`handheld bench`: measures what a device can train, how fast, and with how much memory and energy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

import handheld.bench as runner
from handheld import suite
from handheld.bench import Progress, Results, Settings
from handheld.bench.matrix import DEVICES
from handheld.bench.page import PAGE, bench_page
from handheld.bench.shapes import Line
from handheld.cli import bench_folders, bench_tables, output
from handheld.cli.fleet_run import on_fleet
from handheld.cli.options import FLEET_HELP, Json, MemoryLimit, Seed, batches, nbytes, split
from handheld.cli.placing import AUTO, Wanted, placed
from handheld.errors import HandheldError
from handheld.progress import report
from handheld.report.document import write_document

ON = ",".join(DEVICES)
OUT = Path("bench-results")
SAY_S = 0.25  # Seconds between two updates of the progress line.


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAMES",
        show_default=False,
        help=(
            "Workloads (lenet5), groups (text, liu2019), file.py:factory or step files. Default: all "
            "workloads. With --compare, --merge and --publish: results folders."
        ),
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="DEVICES",
        help=(
            "Devices, separated by commas: opencl, opencl:NAME, auto, adb, adb:SERIAL, ssh:user@host, reference:cpu, "
            "reference:cuda. For comparison, plain PyTorch is pytorch:cpu, pytorch:cuda or pytorch:cuda:tf32. "
            f"{FLEET_HELP}"
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
ProcessMemory = Annotated[
    str | None,
    typer.Option(
        "--process-memory",
        "--limit-memory",
        metavar="SIZE",
        help=(
            "Most memory per run, both planned on the device and held by the process, such as 2GiB. A run that needs "
            "more does not train. Default: nearly all free memory."
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
Merge = Annotated[bool, typer.Option("--merge", help=("Merge results folders into the folder --out, with a page."))]
Publish = Annotated[
    bool,
    typer.Option("--publish", help=("Copy a results folder to --out, to share: without names of people and machines.")),
]
PageOption = Annotated[bool, typer.Option("--page/--no-page", help=("Write the page of the results: bench.html."))]
Listed = Annotated[bool, typer.Option("--list", help=("List the workloads and run nothing."))]


def _not_on_fleet(values: dict[str, Any]) -> str:
    if values["resume"] is not None:
        return f"--resume continues one device. Try: the same command with --on fleet and --out {values['resume']}"
    return ""


@on_fleet("bench", lambda own: own, _not_on_fleet)
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
    memory_limit: MemoryLimit = None,
    process_memory: ProcessMemory = None,
    timeout: Timeout = Settings.silence_s,
    cool: Cool = "auto",
    compare: Compare = False,
    merge: Merge = False,
    publish: Publish = False,
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
    handheld bench lenet5 gpt --on opencl,reference:cpu --batch 1,4,16
    handheld bench mine.py:make --memory-limit 512MiB --out mine
    handheld bench --compare before after
    handheld bench lenet5 --on fleet:phones --out ours
    handheld bench --publish ours --out shared
    """
    if listed:
        bench_tables.present_workloads(runner.expand(names or ()), json)
        return
    if compare or merge or publish:
        bench_folders.use(names or [], bench_folders.choice(compare, merge, publish), None if out == OUT else out, json)
        return
    held = nbytes(process_memory, "--process-memory")
    settings = Settings(seconds, steps, seed, held, timeout, cooling(cool), nbytes(memory_limit))
    if resume is not None:
        if names:
            raise HandheldError(
                "--resume continues with the workloads of the folder and takes "
                f"no names. Try: handheld bench {' '.join(names)} --out {resume}"
            )
        matrix, folder = None, resume
        settings = _as_begun(resume, settings)
    else:
        devices, models, sizes = split(on), runner.expand(names or ()), batches(batch)
        places = _places(models, devices, sizes, size, nbytes(memory_limit), json)
        matrix = runner.Matrix(models, devices, sizes, size, places)
        folder = out
    _run(matrix, folder, settings, retry, page, json)


def _places(
    models: Sequence[str], devices: Sequence[str], sizes: Sequence[int], size: str, limit: int | None, json: bool
) -> dict[str, str]:
    """The device that `auto` stands for, by model; at the largest batch if there are several."""
    if AUTO not in devices:
        return {}
    most = max(sizes, default=None)
    scale = {name: size if name in suite.WORKLOADS else None for name in models}
    return {name: placed(Wanted(name, scale[name], AUTO, most, None, memory_limit=limit), json)[0] for name in models}


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
            for name in ("seconds", "steps", "seed", "cool_s", "limit_bytes", "silence_s", "fit_bytes")
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
        note_lost(results)
    if not any(line["trains"] for line in lines):
        raise typer.Exit(1)


def note_lost(results: Results) -> None:
    """Say how to repeat the runs that ended because their target was lost."""
    lost = sum(row["status"] == "device lost" or row.get("error") == "TargetLost" for row in results.rows)
    if lost:
        ended = "1 run has" if lost == 1 else f"{lost} runs have"
        output.warn(f"{ended} no result, because the device was lost. Try: the same command with --retry")


def _draw(results: Results, lines: list[Line]) -> Path | None:
    """Write the page of the results. If that fails, a note says why, because the results are safe in their folder."""
    path = results.folder / PAGE
    try:
        write_document(bench_page(results, lines), path)
    except OSError as error:
        output.warn(f"{path} was not written: {error.strerror or error}. Try: free some room, and the same command")
        return None
    return path


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """After Ctrl-C, say what the folder holds and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        done = output.count(len(runner.open_results(folder).rows), "row")
        raise KeyboardInterrupt(f"interrupted; {folder} holds {done}. Run the same command to continue") from None


@contextlib.contextmanager
def shown(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """On a terminal, show the current run and the time that is left. Elsewhere, report them to who listens."""
    if quiet or not output.err.is_terminal:
        yield lambda now: report(f"{now.case.workload}, {now.case.batch or 'own'}: {now.stage}", now.done, now.count)
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
