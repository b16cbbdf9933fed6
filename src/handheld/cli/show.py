"""`handheld show`: prints the tables of a run file, or the facts of a step file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.analyse.run import open_run
from handheld.cli.options import Json
from handheld.cli.run_tables import present
from handheld.cli.step_facts import print_facts


def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help=("A run file, which may still be in progress, or a step file."))
    ],
    full: Annotated[
        bool, typer.Option("--full", help=("All rows of the tables, and memory by category with the largest tensors."))
    ] = False,
    json: Json = False,
) -> None:
    """Print what limits a run and its tables, or what a step file says about itself.

    The output is that of `handheld profile` at its end. A step file tells its inputs, the
    classes and form of its data, and the versions that made it.

    \b
    Examples:
    handheld show lenet5-1.run
    handheld show lenet5-1.run --full
    handheld show lenet5-1.run --json
    handheld show model.step
    """
    if file.suffix == ".step":
        print_facts(file, json)
        return
    with open_run(file) as run:
        present(run, json, full)
