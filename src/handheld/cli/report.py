"""`handheld report`: the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.analyse.run import Run, open_run
from handheld.cli import output
from handheld.cli.options import Json
from handheld.cli.prepare import check_writable
from handheld.errors import HandheldError
from handheld.report.document import Payload, is_document, write_document
from handheld.report.run_payload import run_payload
from handheld.report.training_page import training_page


def report(
    file: Annotated[Path, typer.Argument(metavar="RUN", help="A run file.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Page to write. Default: next to the run file.")
    ] = None,
    json: Json = False,
) -> None:
    """Write the page of a run: one HTML file that opens offline.

    It shows what limits the step, where time, memory and energy go, a timeline with the sensors, and
    every op. docs/report.md explains the figures.

    \b
    Examples:
    handheld report lenet5-1.run
    handheld report lenet5-1.run --out lenet5.html
    """
    path = out or file.with_suffix(".html")
    if path.absolute() == file.absolute():
        raise HandheldError(f"{path} would replace the run file itself. Try: --out with another name")
    with open_run(file) as run:
        check_page(path)
        write_document(_payload(run), path)
    if json:
        output.print_json({"files": [str(path)], "bytes": path.stat().st_size})
    else:
        output.out.print(output.grid([("wrote", output.path(path)), ("size", output.size(path.stat().st_size))]))


def check_page(path: Path) -> None:
    """Raise an error if the page cannot be written, or if it would replace a file that is no page of Handheld."""
    check_writable(path)
    if path.exists() and not is_document(path):
        raise HandheldError(f"{path} exists and is no page of Handheld. Try: --out with another name")


def _payload(run: Run) -> Payload:
    """The page of a training, or of a profile."""
    return training_page(run) if run.training_steps() else run_payload(run)


def write_beside(run: Run) -> Path | None:
    """Write the page of a run beside its file. If that fails, a note says why, because the run is safe in its file."""
    path = run.path.with_suffix(".html")
    try:
        if path.exists() and not is_document(path):
            raise HandheldError("it exists and is no page of Handheld")
        write_document(_payload(run), path)
    except (HandheldError, OSError) as error:
        output.warn(f"{path} was not written: {error}. Try: handheld report {run.path} --out another.html")
        return None
    return path
