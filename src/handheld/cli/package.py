"""`handheld package`: captures a model to a step file, for devices without PyTorch."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, with_data_options
from handheld.cli.options import AcceptFrozen, Data, Force, Json, Seed, Size, Spec, batches
from handheld.cli.partial_options import with_partial_options
from handheld.cli.prepare import capture_example, check_frozen, check_new, check_writable
from handheld.cli.stages import stages
from handheld.errors import HandheldError
from handheld.partial.options import WHOLE, PartialOptions
from handheld.resolve import StepFile, open_model
from handheld.step import Step

Batch = Annotated[
    str | None, typer.Option("--batch", metavar="N,N,...", help=("Batch sizes to package. Default: the model's own."))
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE.step", help=("File to write. Default: NAME.step."))]


@with_partial_options
@functools.partial(with_data_options, without=("augment",))
def package(
    what: Spec,
    size: Size = None,
    batch: Batch = None,
    out: Out = None,
    data: Data = None,
    force: Force = False,
    seed: Seed = 0,
    accept_frozen: AcceptFrozen = False,
    json: Json = False,
    given: DataOptions = PLAIN,
    partial: PartialOptions = WHOLE,
) -> None:
    """Capture a model to a step file.

    The file holds the model's state and one set of graphs per batch size. With --data, it remembers
    the classes, the form of images or columns, and the normalisation. It contains data only, no code,
    and trains where PyTorch is not installed: handheld train FILE.step

    \b
    Examples:
    handheld package lenet5 --batch 1,4,16,64 --out lenet5.step
    handheld package mine.py:make --data photos/ --out mine.step
    handheld package gpt --lora 8 --frozen-bits 4 --out gpt.step
    """
    started = time.perf_counter()
    with stages(json) as stage:
        spec = open_model(what, size, partial)
        if isinstance(spec, StepFile):
            raise HandheldError(f"{what} is already a step file")
        path = out or Path(f"{spec.name}.step")
        check_new(path, force)
        check_writable(path)
        sizes = sorted(set(batches(batch))) if batch else [spec.default_batch]
        step, _ = capture_example(spec, sizes, seed, data, given)
        frozen = check_frozen(step, spec, accept_frozen)
        if frozen:
            output.warn(frozen)
        stage(f"writing {path}")
        step.save(path)
    result: dict[str, Any] = {
        "path": str(path),
        "bytes": path.stat().st_size,
        "model": spec.name,
        "batch": sizes,
        "graphs": {name: len(graph.nodes) for name, graph in step.graphs.items()},
        "parameters": sum(s.role == "parameter" for s in step.slots.values()),
        "seconds": time.perf_counter() - started,
    }
    if json:
        output.print_json(result)
    else:
        _say(path, step, result)


def _say(path: Path, step: Step, result: dict[str, Any]) -> None:
    output.out.print(
        output.grid(
            [
                ("wrote", f"[bold]{path}[/], {output.size(result['bytes'])}"),
                (
                    "graphs",
                    ", ".join(
                        f"{name} ({output.count(len(graph.nodes), 'op')})" for name, graph in step.graphs.items()
                    ),
                ),
                (
                    "state",
                    f"{output.count(len(step.slots), 'slot')}, "
                    f"of which {output.count(result['parameters'], 'parameter')}",
                ),
                ("time", output.duration(result["seconds"])),
            ]
        )
    )
