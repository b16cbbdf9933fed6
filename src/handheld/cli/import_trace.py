"""`handheld import`: makes a run file of a trace that torch.profiler wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handheld.analyse.run import open_run
from handheld.cli.options import Json
from handheld.cli.run_tables import present
from handheld.errors import HandheldError
from handheld.traces.pytorch import import_trace


def import_(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A file of export_chrome_trace: .json or .json.gz.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.run", help="Run file to write. Default: NAME.run here.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a run file of a trace of torch.profiler, and show it.

    Steps are the marks of prof.step(). With CUDA, the run has the kernels and copies of each step,
    with the op that launched them; on a CPU it has the ops. with_stack=True or record_function in
    PyTorch give ops their place in the model, record_shapes=True their shapes.

    \b
    Examples:
    handheld import trace.json
    handheld import trace.json.gz --out resnet.run
    handheld report resnet.run
    """
    path = out or Path(f"{trace.name.partition('.')[0] or 'trace'}.run")
    if path.exists():
        raise HandheldError(f"{path} exists. Try: another --out, or delete it")
    with open_run(import_trace(trace, path)) as run:
        present(run, json)
