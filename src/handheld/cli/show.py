"""`handheld show`: what a run file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.analyse.run import open_run
from handheld.cli.options import Json
from handheld.cli.run_tables import present


def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.run", help=("A run file, also one that is still being written."))
    ],
    json: Json = False,
) -> None:
    """Print what a run file holds, as `handheld profile` does when it ends.

    \b
    Examples:
    handheld show lenet5-1.run
    handheld show lenet5-1.run --json
    """
    with open_run(file) as run:
        present(run, json)
