"""`--on fleet:GROUP`: the same command on every device of a group, side by side, and what it prints.

A command takes part by the decorator `on_fleet`. Its words are those of the command line, with --on and --out of each
device. Its results go to one folder (fleet/folder.py).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.analyse.run import open_run
from handheld.cli import fleet_tables, output
from handheld.cli.report import write_beside
from handheld.cli.stopping import terminated
from handheld.errors import FleetError, HandheldError, RunFileError
from handheld.fleet import figures
from handheld.fleet.file import Device, find_file, is_fleet, read
from handheld.fleet.folder import OWN, PAGE, FleetFolder, Summary
from handheld.fleet.page import fleet_page
from handheld.fleet.run import DONE, Job, run
from handheld.report.document import write_document

FleetFile = Annotated[
    Path | None,
    typer.Option("--fleet", metavar="FILE", show_default=False, help="The fleet file. Default: ./fleet.toml."),
]
#: Options of the command line that a device's command gets with its own values, or not at all.
OWN_OPTIONS = ("on", "out", "fleet_file", "json", "live")


def on_fleet(
    what: str, out: Callable[[Path], Path] | None, refuse: Callable[[dict[str, Any]], str] = lambda values: ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that lets a command take `--on fleet:GROUP`.

    `what` is the name of the command. `out` makes the value of its --out from the folder of a device; None: the command
    has none of its own. `refuse` says why these options cannot be combined with a fleet, or "".
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def either(context: typer.Context, fleet_file: Path | None, **values: Any) -> None:
            if is_fleet(values["on"]) and not values.get("listed"):
                if why := refuse(values):
                    raise HandheldError(why)
                _run_on(what, out, context, fleet_file, values)
                return
            if fleet_file is not None:
                raise FleetError("--fleet names a fleet file, and --on no fleet. Try: --on fleet:all")
            if out is None and values.pop("out") is not None:
                raise HandheldError("--out is the folder of a fleet. Try: --on fleet:all, or without --out")
            command(**values)

        shown = [p.replace(kind=p.KEYWORD_ONLY) for p in own.values()]
        after = next((n for n, p in enumerate(shown) if p.name == "json"), len(shown))
        added = [inspect.Parameter("fleet_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=FleetFile)]
        if out is None:
            added.append(inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=FleetOut))
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [context, *shown[:after], *added, *shown[after:]]
        either.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        either.__annotations__ = {p.name: p.annotation for p in parameters}
        del either.__wrapped__  # typer would read its parameters instead
        return either

    return decorate


FleetOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", show_default=False, help="With --on fleet: the folder for all results."),
]


def typed(context: typer.Context) -> tuple[list[str], list[str]]:
    """The options and the arguments of the command line, without those of OWN_OPTIONS."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in OWN_OPTIONS or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        values = list(value) if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            arguments += [str(each) for each in values]
        elif isinstance(value, bool):
            options.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            options += [f"{parameter.opts[0]}={each}" for each in values]
    return options, arguments


def _run_on(
    what: str, out: Callable[[Path], Path] | None, context: typer.Context, file: Path | None, values: dict[str, Any]
) -> None:
    on = values["on"].strip()
    if "," in on:
        raise FleetError(f"--on {on}: a fleet stands alone. Try: --on fleet:GROUP, with all devices in that group")
    fleet = read(find_file(file))
    devices = fleet.chosen(on)
    given = context.get_parameter_source("out")
    folder = Path(values["out"]) if given is not None and given.name == "COMMANDLINE" else Path(f"fleet-{_short(what)}")
    options, arguments = typed(context)
    command = [*what.split(), *options, *arguments]
    made = FleetFolder(folder)
    retry = "--retry" in options
    todo = made.begin(what, [word for word in command if word != "--retry"], devices, retry)
    jobs = [_job(what, out, folder, device, options, arguments) for device in todo]
    quiet = values["json"]
    if not quiet:
        fleet_tables.begin(fleet, devices, todo, folder)
    try:
        with terminated(), fleet_tables.shown(quiet) as tell:
            run(jobs, tell, made.update)
    except KeyboardInterrupt:
        _draw(made.folder, made.summary)
        raise KeyboardInterrupt(
            f"interrupted; {folder} holds what was measured. Run the same command to continue; what is finished is "
            "not repeated"
        ) from None
    _end(made, devices, quiet)


def _short(what: str) -> str:
    return "conformance" if what == "doctor" else what.rpartition(" ")[2]


def _job(
    what: str,
    out: Callable[[Path], Path] | None,
    folder: Path,
    device: Device,
    options: Sequence[str],
    arguments: Sequence[str],
) -> Job:
    own = folder / device.name
    words = [*what.split(), *options, "--json", f"--on={device.target}"]
    place = own if out is None else out(own)
    if out is not None:
        words.append(f"--out={place}")
    if what in ("bench", "study liu2019") and "--retry" not in options and figures.lost_rows(own):
        words.append("--retry")
    private = folder / OWN
    document, log = private / f"{device.name}.json", private / f"{device.name}.log"
    job = Job(device, (*words, "--", *arguments), document, log, figures.judge(what, own))
    return job if place == own else replace(job, begin=functools.partial(_to_measure, place))


def _to_measure(path: Path) -> bool:
    """Whether a run file is still to be measured. A whole one is kept; what a cut-off attempt left is removed."""
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        with contextlib.suppress(RunFileError), open_run(path) as run:
            if run.complete:
                if not path.with_suffix(".html").exists():
                    write_beside(run)
                return False
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    return True


def _draw(folder: Path, summary: Summary) -> Path | None:
    """Write the page. If that fails, a note says why, because the results are safe in their folder."""
    path = folder / PAGE
    try:
        write_document(fleet_page(summary, figures.parts(folder)), path)
    except OSError as error:
        output.warn(f"{path} was not written: {error.strerror or error}. Try: free some room, and the same command")
        return None
    return path


def _end(made: FleetFolder, devices: Sequence[Device], quiet: bool) -> None:
    page = _draw(made.folder, made.summary)
    names = {device.name for device in devices}
    parts = [part for part in figures.parts(made.folder) if part.name in names]
    if quiet:
        rows = {part.name: {**part.record, "rows": part.rows, "facts": part.facts} for part in parts}
        drawn = {"page": str(page)} if page else {}
        output.print_json({"folder": str(made.folder), **made.summary, "devices": rows, **drawn})
    else:
        fleet_tables.present(parts, made.folder, page)
    if any(part.state != DONE for part in parts):
        raise typer.Exit(1)
