"""`handheld show`: prints the tables of a run file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.analyse.run import open_run
from handheld.cli.options import Json
from handheld.cli.run_tables import present


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE.run", help=("A run file; it may still be in progress."))],
    json: Json = False,
) -> None:
    """Print the tables of a run file.

    They are the tables that `handheld profile` prints at its end.

    \b
    Examples:
    handheld show lenet5-1.run
    handheld show lenet5-1.run --json
    """
    with open_run(file) as run:
        present(run, json)
