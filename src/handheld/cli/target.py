"""`handheld target`: what Handheld keeps on a phone or another machine, and how to remove it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from handheld.backends.hints import without_device
from handheld.cli import output
from handheld.cli.options import Json
from handheld.errors import DeviceError
from handheld.targets.base import Contents, Target
from handheld.targets.find import find
from handheld.targets.names import is_target, parse

target = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)

OnTarget = Annotated[
    str, typer.Option("--on", metavar="TARGET", show_default=False, help="adb, adb:SERIAL, ssh:user@host or runner.")
]


@target.callback()
def target_command(context: typer.Context) -> None:
    """Show or remove what Handheld keeps on a phone or board."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@target.command("info")
def info(on: OnTarget, json: Json = False) -> None:
    """Show a target: its system, its OpenCL devices, and the folder that Handheld keeps there.

    The runner is put on the target first, if it is not there yet.

    \b
    Examples:
    handheld target info --on adb
    handheld target info --on ssh:me@box:2222 --json
    """
    reached = _find(on)
    with output.err.status(f"{reached.name} answers …"):
        described = reached.info()
        contents = reached.contents()
    facts = {
        "target": reached.name,
        "platform": reached.platform(),
        "folder": contents.folder,
        "bytes": contents.bytes,
        "files": contents.files,
        **described,
    }
    if json:
        output.print_json(facts)
    else:
        output.out.print(output.grid(_rows(reached, contents, described)))


@target.command("clean")
def clean(on: OnTarget, json: Json = False) -> None:
    """Remove the folder that Handheld keeps on a target.

    Nothing else of Handheld is there. The next command that uses the target puts the runner on it again.

    \b
    Examples:
    handheld target clean --on adb:R5CT10XYZ
    handheld target clean --on ssh:me@box
    """
    reached = _find(on)
    with output.err.status(f"{reached.name} answers …"):
        removed = reached.clean()
    if json:
        output.print_json({"target": reached.name, "folder": removed.folder, "removed": removed.files})
        return
    what = f"{output.count(len(removed.files), 'file')}, {output.size(removed.bytes)}" if removed.files else "was empty"
    output.out.print(output.grid([("target", reached.name), ("removed", f"{removed.folder} ({what})")]))


def _find(on: str) -> Target:
    if not is_target(on):
        raise DeviceError(f"{on!r} is no target. Try: --on adb, --on ssh:user@host, or --on runner (this machine)")
    return find(on)


def _rows(reached: Target, contents: Contents, described: dict[str, Any]) -> list[tuple[str, str]]:
    system = described.get("system", {})
    words = (str(system.get(name, "")) for name in ("system", "release", "machine"))
    rows = [
        ("target", reached.name),
        ("platform", f"{reached.platform()} ({' '.join(word for word in words if word)})"),
        ("runner", f"{described.get('runner', 'not known')}"),
        ("folder", f"{contents.folder}, {output.size(contents.bytes)} in {output.count(len(contents.files), 'file')}"),
    ]
    for device in described.get("devices", []):
        rows.append(("device", f"{device['index']}: {device['name']} ({device['kind']}, {device['driver']})"))
    if not described.get("devices"):
        rows.append(("device", f"none: {without_device(parse(reached.name), str(described.get('problem') or ''))}"))
    return rows
