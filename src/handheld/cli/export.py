"""`handheld export`: writes a run file in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld import export as exporters
from handheld.analyse.run import open_run
from handheld.cli import output
from handheld.cli.options import Json


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.run", help="A run file.")],
    format_name: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help=f"One of: {', '.join(exporters.FORMATS)}.")
    ] = "csv",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", help="File or folder to write. Default: next to the run file."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a run file in another format.

    csv makes a folder with one file per table: ops, steps, samples and energy.

    \b
    Examples:
    handheld export lenet5-1.run
    handheld export lenet5-1.run --format csv --out tables
    """
    with open_run(file) as run:
        written = exporters.export(run, format_name, out or file.with_name(f"{file.stem}-{format_name}"))
    if json:
        output.print_json({"files": [str(path) for path in written]})
    else:
        output.out.print(output.grid([("wrote" if i == 0 else "", output.path(p)) for i, p in enumerate(written)]))
