"""`handheld fleet`: lists the devices of the fleet file, and writes a first one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from handheld.cli import output
from handheld.cli.fleet_run import FleetFile
from handheld.cli.options import Json
from handheld.cli.tables import Column, table
from handheld.errors import FleetError
from handheld.fleet.file import FILE, find_file, read
from handheld.fleet.reach import example, found, reach
from handheld.units import count

fleet = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


@fleet.callback()
def fleet_command(context: typer.Context, fleet_file: FleetFile = None, json: Json = False) -> None:
    """List the devices of the fleet file, and whether each answers.

    bench, study, profile, tune and doctor --conformance run on all of them with --on fleet:all, and on
    a group with --on fleet:GROUP. The file is --fleet FILE, that of HANDHELD_FLEET, or ./fleet.toml.
    The exit code is 1 if a device does not answer.

    \b
    Examples:
    handheld fleet
    handheld fleet init
    handheld bench lenet5 --on fleet:all --out ours
    """
    if context.invoked_subcommand is not None:
        return
    described = read(find_file(fleet_file))
    devices = list(described.devices.values())
    with output.err.status(f"asking {count(len(devices), 'device')} …"):
        answers = reach(devices)
    if json:
        rows = [
            {"name": d.name, "target": d.target, "groups": list(d.groups), "slot": d.slot, "reachable": not a.problem}
            | {"processor": a.processor or None, "problem": a.problem or None}
            for d, a in zip(devices, answers, strict=True)
        ]
        output.print_json({"file": str(described.path), "devices": rows})
    else:
        columns = (
            Column("device", name_of=True, least=8),
            Column("target", name_of=True, least=12),
            Column("groups", name_of=True, least=6),
            Column("answers", name_of=True, least=12),
        )
        cells = [
            (d.name, d.target, ", ".join(d.groups) or "-", a.processor if not a.problem else Text("no", "bold red"))
            for d, a in zip(devices, answers, strict=True)
        ]
        output.out.print(table(columns, cells))
        for device, answer in zip(devices, answers, strict=True):
            if answer.problem:
                output.out.print(Text.assemble((f"{device.name}: ", "bold"), answer.problem), soft_wrap=True)
    if any(answer.problem for answer in answers):
        raise typer.Exit(1)


@fleet.command("init")
def init(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path(FILE),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Write a fleet file with the devices that are found now.

    These are the OpenCL devices of this machine, phones that adb lists, and PyTorch's CPU. Machines
    behind ssh cannot be found; the file shows how to add them.

    \b
    Examples:
    handheld fleet init
    handheld fleet init --out drawer.toml
    """
    if out.exists() and not force:
        raise FleetError(f"{out} exists already. Try: handheld fleet init --force, or another --out")
    devices = found()
    if not devices:
        raise FleetError("no device was found. Try: handheld doctor, which says what is missing")
    try:
        out.write_text(example(devices), encoding="utf-8")
    except OSError as error:
        raise FleetError(f"{out} cannot be written: {error.strerror}. Try: another --out") from None
    if json:
        output.print_json({"file": str(out), "devices": {device.name: device.target for device in devices}})
        return
    rows = [("wrote", output.path(out)), *((device.name, device.target) for device in devices)]
    output.out.print(output.grid(rows))
