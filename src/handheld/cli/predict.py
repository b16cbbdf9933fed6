"""`handheld predict`: what a trained model says about data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from handheld.cli import output
from handheld.cli.data_options import PLAIN, SkipBad
from handheld.cli.options import Json, Last, On, Size
from handheld.cli.prepare import check_writable, examples, load_example
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.data.dataset import DataFacts
from handheld.data.image_files import SUFFIXES
from handheld.data.samples import load_samples
from handheld.data.tables import input_names
from handheld.errors import BatchError, CaptureError, CheckpointError, DataError, HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.partial.options import PartialOptions
from handheld.resolve import ModelSpec, StepFile, open_model, resized
from handheld.run.batch import batch_sizes, check_batch
from handheld.run.checkpoint import by_slot, read_result
from handheld.run.predictions import Predictions, check_out
from handheld.run.predictions import predict as run_model
from handheld.run.sizes import rows
from handheld.step import Step

#: Rows that the terminal shows.
SHOWN = 12

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A trained step file; or a workload or file.py:factory, with --checkpoint.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        show_default=False,
        help="A folder of images, one image, a .npz, .csv or .txt file, digits or pydoc; with or without labels.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write all predictions to FILE.csv or .json, or raw outputs to .npz."),
]
Top = Annotated[int, typer.Option("--top", min=1, metavar="K", help="Show the K best classes of each sample.")]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help="Samples per run, one of the model's batch sizes.")
]
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", metavar="FILE", help="Take the trained state from this checkpoint.")
]


def predict(
    what: Model,
    data: Data,
    out: Out = None,
    on: On = "opencl",
    top: Top = 1,
    batch: Batch = None,
    checkpoint: Checkpoint = None,
    last: Last = False,
    size: Size = None,
    skip_bad: SkipBad = False,
    json: Json = False,
) -> None:
    """Print the classes and scores that a trained model gives to data.

    Data is prepared as for the training: the step file knows the image size, the normalisation, the
    columns and the names of the classes. Images may lie in folders of their classes or in any folder.
    If there are labels, the accuracy is printed too. Scores are probabilities; a model that gives
    numbers instead of classes has its values printed. From a checkpoint of train
    --keep-best, the best epoch is taken.

    \b
    Examples:
    handheld predict model.step --data photos/ --out predictions.csv
    handheld predict model.step --data cat.jpg --top 3
    handheld predict mine.py:make --checkpoint run.checkpoint --data table.csv --json
    """
    started = time.perf_counter()
    check_out(out)
    if out is not None:
        check_writable(out)
        _check_kept(out, data)
    spec = open_model(what, size)
    step, facts, state = _trained(what, spec, batch, data, checkpoint, last)
    names = _graphs(step, spec.name, batch)
    graph = step.graphs[names[-1]]
    samples = load_samples(data, graph, facts, rows(graph) or 1, skip_bad)
    _check_fit(step, names[-1], data, spec.name, samples.data.take)
    notes = [*_unknown(spec, facts), *samples.notes]
    train = next((g for n, g in step.graphs.items() if n.partition("@")[0] in ("train", "evaluate")), None)
    with stages(json):
        started_trainer = step.plan(on, graphs=names).start()
    with started_trainer as trainer:
        device = trainer.session.device_name
        predictions = run_model(trainer, samples, facts, train)
    for note in (*notes, *predictions.notes):
        output.warn(note)
    if predictions.scores is None and predictions.values is None and (out is None or out.suffix != ".npz"):
        shape = next(iter(predictions.outputs.values())).shape
        raise DataError(f"the outputs have the shape {list(shape)}, which no table holds. Try: --out FILE.npz")
    if out is not None:
        predictions.write(out, top)
    facts_of_run: dict[str, str | float] = {"model": spec.name, **({"state": state} if state else {})}
    facts_of_run |= {"data": data, "device": device, "samples": len(predictions.names)}
    facts_of_run |= {**predictions.metrics, "seconds": time.perf_counter() - started}
    if json:
        written = {} if out is None else {"out": str(out)}
        output.print_json({**facts_of_run, **written, "notes": notes, "predictions": predictions.rows(top)})
    else:
        _print(predictions, facts_of_run, top, out)


def _check_kept(out: Path, data: str) -> None:
    """Raise an error if the predictions would replace the data themselves."""
    if out.resolve() == Path(data).resolve():
        raise HandheldError(f"--out {out} would replace the data itself. Try: another name")


def _trained(
    what: str, spec: ModelSpec, batch: int | None, data: str, checkpoint: Path | None, last: bool
) -> tuple[Step, DataFacts | None, str]:
    """The step with its trained state, the facts about its data, and which state of a checkpoint it is."""
    if last and checkpoint is None:
        raise HandheldError("--last chooses a state of a checkpoint. Try: --checkpoint FILE, or without --last")
    if isinstance(spec, StepFile):
        step = spec.loaded
        facts = DataFacts.of(step.meta)
        if checkpoint is None:
            return step, facts, ""
    elif checkpoint is None:
        raise HandheldError(
            f"{what} is a model without a trained state. Try: --checkpoint FILE, or a step file of "
            f"handheld train {what} --export model.step"
        )
    assert checkpoint is not None
    if not checkpoint.exists():
        raise CheckpointError(f"there is no checkpoint {checkpoint}. Try: the file of train --checkpoint")
    result = read_result(checkpoint, last)
    facts = DataFacts.of(result.origin) if result.origin else None
    if not isinstance(spec, StepFile):
        spec.partial = PartialOptions.of(result.origin)
        step = _capture(spec, batch, data, facts)
    _take_state(step, result.state, checkpoint)
    return step, facts, result.words


def _capture(spec: ModelSpec, batch: int | None, data: str, facts: DataFacts | None) -> Step:
    size = batch or spec.default_batch
    example = spec.example(size)
    if example is None:
        example = _example(spec, size, data, facts)
    return spec.step([size], 0, example, len(facts.classes) or None if facts else None)


def _example(spec: ModelSpec, size: int, data: str, facts: DataFacts | None) -> Any:
    """A batch for a factory without an example: of the shapes that the checkpoint remembers, else from the data."""
    import torch

    labels = torch.zeros(size, dtype=torch.int64) if facts and facts.classes else torch.zeros(size, 1)
    if facts and facts.image_size:
        return torch.zeros(size, 1 if facts.gray else 3, *facts.image_size), labels
    if facts and facts.features:
        return torch.zeros(size, len(input_names(facts.features, facts.one_hot))), labels
    if facts and facts.length:
        return (torch.zeros(size, facts.length, dtype=torch.int64),) * 2
    if Path(data).is_dir() or Path(data).suffix.lower() in SUFFIXES:
        raise CaptureError(
            f"{spec.name} returns no example batch, and the checkpoint does not know the size of its images. "
            "Try: let the factory return (model, loss, optimizer, batch), or train with --export and predict with "
            "the step file"
        )
    return resized(examples(load_example(data, size, 0, spec, PLAIN), 1)[0], size)


def _take_state(step: Step, state: Mapping[str, Any], checkpoint: Path) -> None:
    try:
        arrays = by_slot(state, step.slots)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint} belongs to another model: {error}") from None
    for name, array in arrays.items():
        step.values[name] = array.astype(DTYPES[step.slots[name].dtype].numpy)


def _graphs(step: Step, name: str, batch: int | None) -> list[str]:
    """The predict graphs, the one that data is read for last."""
    sizes = {**({rows(step.graphs["predict"]): "predict"} if "predict" in step.graphs else {})}
    sizes |= batch_sizes(step.graphs, "predict")
    if not sizes:
        raise HandheldError(
            f"{name} has the graphs {', '.join(step.graphs)} and none that predicts without labels. "
            "Try: train and export it again with this version"
        )
    if batch is not None and batch not in sizes:
        raise BatchError(f"{name} predicts batches of {', '.join(map(str, sizes))}, not {batch}. Try: without --batch")
    return list(sizes.values()) if batch is None else [sizes[batch]]


def _check_fit(step: Step, graph: str, data: str, model: str, take: Any) -> None:
    """Report data that does not fit the model before a device is opened."""
    plan = step.graphs[graph]
    first = take(np.zeros(rows(plan) or 1, np.int64), np.random.default_rng(0))
    try:
        check_batch(plan, first)
    except BatchError as error:
        raise DataError(f"{data} does not fit {model}: {error}") from None


def _unknown(spec: ModelSpec, facts: DataFacts | None) -> list[str]:
    """What the file does not say, and what is done instead."""
    if facts is None:
        return [
            f"{spec.name} does not say which data it was trained on: classes have numbers instead of names, and "
            "nothing is normalised"
        ]
    return []


def _print(predictions: Predictions, facts: Mapping[str, Any], top: int, out: Path | None) -> None:
    rows_shown = predictions.rows(top)[:SHOWN]
    columns = [Column("sample", name_of=True)]
    cells: list[list[str | Text]] = [[Text(row["sample"])] for row in rows_shown]  # Names may hold brackets.
    if predictions.scores is not None:
        for k in range(min(top, predictions.scores.shape[1])):
            columns += [Column("class" if not k else f"{k + 1}.", name_of=True), Column("score", drop=k)]
            for line, row in zip(cells, rows_shown, strict=True):
                best = row["top"][k] if top > 1 else row
                line += [Text(best["class"]), f"{best['score']:.4f}"]
    elif predictions.values is not None:
        count = min(predictions.values.shape[1], 6)
        columns += [Column("value" if count == 1 else f"value {k}", drop=k) for k in range(count)]
        for line, row in zip(cells, rows_shown, strict=True):
            line += [output.number(value) for value in row["values"][:count]]
    if rows_shown and "label" in rows_shown[0]:
        columns.append(Column("label", name_of=predictions.scores is not None))
        for line, row in zip(cells, rows_shown, strict=True):
            label = row["label"]
            line.append(Text("" if label is None else output.number(label) if isinstance(label, float) else label))
    if len(columns) > 1:
        output.out.print(table(columns, cells))
    rest = len(predictions.names) - len(rows_shown)
    if rest > 0:
        output.out.print(f" … and {rest:,} more" + ("" if out else ". Try: --out FILE.csv for all of them"))
    output.out.print()
    output.out.print(output.grid(_summary(facts, out)))


def _summary(facts: Mapping[str, Any], out: Path | None) -> list[tuple[str, str]]:
    lines = []
    if "accuracy" in facts:
        known = int(facts["labelled"])
        right = round(facts["accuracy"] * known)
        lines.append(("accuracy", f"[bold green]{facts['accuracy']:.2%}[/]  ({right} of {known})"))
    if "mean_squared_error" in facts:
        lines.append(("mean squared error", output.number(facts["mean_squared_error"])))
    lines += [("state", str(facts["state"]))] if "state" in facts else []
    lines += [
        ("samples", f"{facts['samples']:,}"),
        ("device", str(facts["device"])),
        ("time", output.duration(facts["seconds"])),
    ]
    return lines + ([("wrote", output.path(out))] if out is not None else [])
