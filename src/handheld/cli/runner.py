"""`handheld runner`: builds the program that runs plans on a phone or a board, and lists the ones that there are."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from handheld.cli import output
from handheld.cli.options import Json
from handheld.cli.tables import Column, table
from handheld.errors import DeviceError, HandheldError
from handheld.runners import find, sources
from handheld.runners.build import build as build_runner
from handheld.runners.compilers import COMPILERS
from handheld.runners.platforms import PLATFORMS, this_machine

runner = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)

For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="PLATFORM", show_default=False, help=f"{', '.join(PLATFORMS)}. Default: this machine."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="File to write. Default: the cache folder, where commands find it."),
]
With = Annotated[
    str | None,
    typer.Option(
        "--with", metavar="COMPILER", show_default=False, help=f"{', '.join(COMPILERS)}. Default: the first one found."
    ),
]


@runner.callback()
def runner_command(context: typer.Context) -> None:
    """Build the program that runs plans on phones and boards."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@runner.command("build")
def build(target: For = None, out: Out = None, compiler: With = None, json: Json = False) -> None:
    """Build the runner for a platform from its C sources.

    Runners for all platforms are part of the package, so this is only needed after a change of the
    sources. No Android NDK is necessary: zig (pip install ziglang) builds for every platform, and so
    do the cross compilers of Debian. An NDK is used where ANDROID_NDK_HOME names one.

    \b
    Examples:
    handheld runner build --for android-arm64
    handheld runner build --for linux-arm64 --with gcc --out handheld-runner
    """
    platform = target or this_machine()
    path = out or (find.built(platform) if platform in PLATFORMS else Path())
    _check_kept(path)
    used = build_runner(platform, path, compiler)
    content = path.read_bytes()
    facts = {
        "platform": platform,
        "path": str(path),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "source": sources.source_hash(),
        "compiler": used.name,
    }
    if json:
        output.print_json(facts)
        return
    output.out.print(
        output.grid(
            [
                ("runner", output.path(path)),
                ("platform", platform),
                ("compiler", used.name),
                ("size", output.size(len(content))),
                ("sources", sources.source_hash()),
            ]
        )
    )


def _check_kept(path: Path) -> None:
    """Raise an error if the file exists and is no program, such as a source file of the user."""
    if path.is_file() and path.read_bytes()[:4] != b"\x7fELF":
        raise HandheldError(f"{path} exists and is no program. Try: --out with another name")


@runner.command("list")
def list_(json: Json = False) -> None:
    """List the platforms and the runners for them.

    \b
    Examples:
    handheld runner list
    """
    have = find.runners()
    if json:
        rows = [
            {
                "platform": one.platform,
                "origin": one.origin,
                "path": str(one.path),
                "bytes": one.bytes,
                "sha256": _sha256(one.path),
                "current": one.current,
            }
            for one in have
        ]
        output.print_json({"source": sources.source_hash(), "platforms": list(PLATFORMS), "runners": rows})
        return
    columns = [
        Column("platform", name_of=True),
        Column("runner"),
        Column("size"),
        Column("sha256"),
        Column("made from"),
    ]
    lines = []
    for platform in PLATFORMS.values():
        own = [one for one in have if one.platform == platform.name]
        for one in own:
            state = "these sources" if one.current else "older sources"
            lines.append((platform.name, one.origin, output.size(one.bytes), _sha256(one.path)[:16], state))
        if not own:
            lines.append((platform.name, "none yet", "", "", ""))
    output.out.print(table(columns, lines))
    output.out.print(output.grid([("sources", sources.source_hash())]))
    stale = [platform for platform in PLATFORMS if not any(one.platform == platform and one.current for one in have)]
    if stale:
        output.warn(f"no current runner for {', '.join(stale)}. Try: handheld runner build --for {stale[0]}")


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DeviceError(f"{path} could not be read: {error.strerror}. Try: handheld runner build") from error
