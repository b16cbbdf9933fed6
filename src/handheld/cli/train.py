"""`handheld train`: trains a model on data, on one device."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.cli import output
from handheld.cli.options import AcceptFrozen, Force, Json, On, Precision, Seed, Size, Spec
from handheld.cli.prepare import (
    capture,
    check_fit,
    check_frozen,
    check_new,
    check_rates,
    check_writable,
    graphs_for,
    load,
    schedule_of,
)
from handheld.cli.progress import Bar
from handheld.errors import CheckpointError, StepFileError
from handheld.plan.plan import GraphPlan, Plan
from handheld.resolve import open_model
from handheld.run.batch import batch_sizes
from handheld.run.checkpoint import read_checkpoint
from handheld.run.data import DataSet, TextData
from handheld.run.guards import Guards
from handheld.run.history import History
from handheld.run.interrupt import Interrupted
from handheld.run.loop import fit
from handheld.run.trainer import Trainer
from handheld.step import Step

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        show_default=False,
        help=(
            "digits, pydoc (the text of Python's manual), a .npz file, a folder of images (one "
            "sub-folder per class), or a .txt file; see above."
        ),
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, metavar="N")]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help=("Samples per step. Default: the model's own."))
]
Lr = Annotated[
    float | None, typer.Option("--lr", metavar="RATE", help=("Learning rate. Default: the optimizer's own."))
]
Schedule = Annotated[
    str, typer.Option("--schedule", metavar="NAME", help=("cosine (falls to zero at the end) or constant."))
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="FILE", help=("Write the state here after every epoch and on Ctrl-C or SIGTERM.")
    ),
]
Every = Annotated[
    int | None, typer.Option("--every", min=1, metavar="N", help=("Also write the checkpoint every N steps."))
]
Resume = Annotated[
    bool, typer.Option("--resume", help=("Continue from the checkpoint; the result is the same bit for bit."))
]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE.step", help=("Write the trained model as a step file."))
]
BatteryFloor = Annotated[
    float | None,
    typer.Option("--battery-floor", metavar="PERCENT", help=("Stop cleanly when the battery charge is lower.")),
]
ThermalLimit = Annotated[
    float | None, typer.Option("--thermal-limit", metavar="CELSIUS", help=("Pause while the device is hotter."))
]
FindNan = Annotated[
    bool, typer.Option("--find-nan", help=("If the loss becomes NaN, name the op that caused it (slower)."))
]


def train(
    what: Spec,
    data: Data,
    size: Size = None,
    on: On = "opencl",
    precision: Precision = "float32",
    epochs: Epochs = 20,
    batch: Batch = None,
    lr: Lr = None,
    schedule: Schedule = "cosine",
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    every: Every = None,
    resume: Resume = False,
    export: Export = None,
    force: Force = False,
    battery_floor: BatteryFloor = None,
    thermal_limit: ThermalLimit = None,
    find_nan: FindNan = False,
    accept_frozen: AcceptFrozen = False,
    json: Json = False,
) -> None:
    """Train a model and print its test accuracy.

    On Ctrl-C or SIGTERM the current step is finished, the checkpoint is written (with --checkpoint),
    and the command says how to continue. A second Ctrl-C stops at once. A step file trains without
    PyTorch. A factory returns (model, loss, optimizer), or these three and an example batch.

    \b
    Data (one row per sample; shuffled by the seed; a fifth is held out to test):
    file.npz   arrays x and y; or x_train, y_train, x_test, y_test; or all of
               its arrays in order, labels last. Floats become float32,
               integers int64; image bytes are scaled to [0, 1]
    folder/    class/picture.png, or train/class/… and test/class/…; resized
    file.txt   bytes are the tokens; the last fifth of the text is the test set

    \b
    Examples:
    handheld train lenet5 --data digits
    handheld train mine.py:make --data photos/ --epochs 5 --lr 0.01
    handheld train model.step --data photos/ --checkpoint run.checkpoint
    handheld train resnet18 --data photos/ --precision half
    """
    started = time.perf_counter()
    _check_paths(checkpoint, every, resume, export, force)
    check_rates(schedule, lr)
    Guards(battery_floor, thermal_limit)  # A missing sensor is reported before the capture.
    spec = open_model(what, size)
    batch_size = batch or spec.default_batch
    dataset = load(data, batch_size, seed, spec)
    step = capture(spec, batch_size, seed, dataset)
    frozen = check_frozen(step, spec, accept_frozen)
    graphs = graphs_for(step, batch_size)
    check_fit(step.graphs[batch_sizes(graphs, "train").get(batch_size, "train")], dataset, spec.name)
    if resume and checkpoint is not None:
        done = read_checkpoint(checkpoint, dataset.train, step.slots).epoch
        if done >= epochs:
            output.warn(f"{checkpoint} already has {output.count(done, 'epoch')}; --epochs {epochs} adds none")
    captured = time.perf_counter() - started
    with step.plan(on, graphs=graphs, precision=precision).start() as trainer:
        own = trainer.rates("train")
        rates = schedule_of(schedule, lr, own, epochs)
        for note in filter(None, (dataset.note, frozen)):
            output.warn(note)
        if not json:
            _introduce(spec.name, dataset, trainer, batch_size, captured)
        with Bar(dataset.train, epochs, quiet=json) as bar, _rescue(trainer, checkpoint):
            history = fit(
                trainer,
                dataset.train,
                epochs=epochs,
                test=dataset.test,
                callbacks=[bar],
                checkpoint=checkpoint,
                every=every,
                resume=resume,
                battery_floor=battery_floor,
                thermal_limit=thermal_limit,
                stop_on_nan=on != "null",
                find_nan=find_nan,
                rate=rates,
            )
        result = _result(spec.name, dataset, trainer, batch_size, history)
        for group, rate in enumerate(own):  # The next training must start from the optimizer's own rates.
            trainer.set_rate(rate, group, "train")
    result["seconds"] = time.perf_counter() - started
    if export is not None:
        try:
            result["exported"] = str(step.save(export))
        except StepFileError as error:
            raise StepFileError(f"{error}. {_keep(step)}") from error
    if json:
        output.print_json(result)
    else:
        _conclude(result, history, dataset, checkpoint)


@contextmanager
def _rescue(trainer: Trainer, checkpoint: Path | None) -> Iterator[None]:
    """Say how to continue after Ctrl-C or SIGTERM.

    If a checkpoint cannot be written, try to save the trained model to the folder for temporary files.
    """
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(f"{stop.history.stopped}. {_how_to_go_on(checkpoint)}", stop.history, stop.signal) from None
    except CheckpointError as error:
        if not isinstance(error.__cause__, CheckpointError):
            raise  # No step was trained yet, so there is nothing to save.
        raise CheckpointError(f"{error.__cause__}. {_keep(trainer.plan.step)}") from error


def _keep(step: Step) -> str:
    """Save the trained model to the folder for temporary files. Returns a sentence that says where it is."""
    try:
        kept = step.save(Path(tempfile.gettempdir()) / f"handheld-{os.getpid()}.step")
    except StepFileError as error:
        return f"The trained model could not be saved either: {error}"
    return f"The trained model is in {kept}; training from it counts epochs from 1"


def _how_to_go_on(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "Nothing was saved. Try: --checkpoint FILE next time"
    if not checkpoint.exists():
        return f"Nothing was saved: {checkpoint} was not written yet"
    return f"To continue from {checkpoint}, add --resume to the same command"


def _check_paths(checkpoint: Path | None, every: int | None, resume: bool, export: Path | None, force: bool) -> None:
    """Check before the first step that the paths can be written."""
    if every is not None and checkpoint is None:
        raise CheckpointError("--every needs a checkpoint to write. Try: --checkpoint FILE")
    if resume and (checkpoint is None or not checkpoint.exists()):
        missing = f"there is no file {checkpoint}" if checkpoint else "add --checkpoint FILE"
        raise CheckpointError(f"--resume needs a checkpoint to continue from: {missing}")
    if export is not None:
        check_new(export, force)
    for path in (checkpoint, export):
        if path is not None:
            check_writable(path)
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise CheckpointError(f"{checkpoint} exists. Add --resume to continue from it, or remove it")


# ── printed output ────────────────────────────────────────────────────────────────────────────


def device_name(trainer: Trainer) -> str:
    """The device's stable name."""
    return trainer.session.device_name


def _samples(data: Any) -> str:
    return f"{data.samples:,}" if hasattr(data, "samples") else "?"


def _train_graph(plan: Plan) -> str:
    return next(iter(batch_sizes(plan.graphs, "train").values()), "train")


def _work(graph: GraphPlan) -> str:
    return output.count(graph.launches, "launch") if graph.launches else output.count(len(graph.graph.nodes), "op")


def _introduce(name: str, dataset: DataSet, trainer: Trainer, batch_size: int, captured: float) -> None:
    plan = trainer.plan
    graph = plan.graphs[_train_graph(plan)]
    parameters = sum(math.prod(s.shape) for s in plan.step.slots.values() if s.role == "parameter")
    held = "no test set" if dataset.test is None else f"{_samples(dataset.test)} to test"
    output.out.print(
        output.grid(
            [
                ("model", f"{name}, {parameters:,} parameters, batch {batch_size}"),
                ("data", f"{dataset.name}: {_samples(dataset.train)} to train, {held}"),
                ("device", f"{device_name(trainer)} ({plan.caps.kind}, {plan.caps.compute_units} units)"),
                (
                    "step",
                    f"{_work(graph)}, {output.size(plan.bytes)} on the device"
                    f"{', half precision' if trainer.loss_scale() else ''}; ready after "
                    f"{captured + sum(trainer.session.timings.values()):.1f} s",
                ),
            ]
        )
    )
    output.out.print()


def _result(name: str, dataset: DataSet, trainer: Trainer, batch_size: int, history: History) -> dict[str, Any]:
    plan = trainer.plan
    graph = plan.graphs[_train_graph(plan)]
    scale = trainer.loss_scale()
    rows = [{**dataclasses.asdict(e), "samples_per_second": e.samples_per_second} for e in history.epochs]
    return {
        "model": name,
        "data": dataset.name,
        "batch": batch_size,
        "device": device_name(trainer),
        "device_name": plan.caps.name,
        "precision": plan.options["precision"],
        "loss_scale": scale and dataclasses.asdict(scale),
        "launches_per_step": graph.launches,
        "ops_per_step": len(graph.graph.nodes),
        "device_bytes": plan.bytes,
        "steps": history.steps,
        "test": dict(history.test),
        "dropped_per_epoch": dataset.train.dropped,
        "stopped": history.stopped,
        "epochs": rows,
    }


def _labels(dataset: DataSet) -> int:
    """The number of labels that the accuracy counts; negative labels are ignored.

    Returns 0 for a text, because each of its samples has many predictions.
    """
    arrays = getattr(dataset.test, "arrays", ())
    if isinstance(dataset.test, TextData) or not arrays:
        return 0
    return int((arrays[-1] >= 0).sum())


def _conclude(result: Mapping[str, Any], history: History, dataset: DataSet, checkpoint: Path | None) -> None:
    test, last = result["test"], history.last
    rows: list[tuple[str, str]] = []
    if "accuracy" in test:
        count = _labels(dataset)
        of = f"  ({round(test['accuracy'] * count)} of {count})" if count else ""
        rows.append(("test accuracy", f"[bold green]{test['accuracy']:.2%}[/]{of}"))
    rows += [(f"test {name}", output.number(value)) for name, value in test.items() if name != "accuracy"]
    rows += [
        ("device", f"{result['device']}"),
        (
            "launches" if result["launches_per_step"] else "ops",
            f"{result['launches_per_step'] or result['ops_per_step']} per step, "
            f"{output.count(result['steps'], 'step')}",
        ),
        (
            "time",
            output.duration(result["seconds"])
            + (f", {last.samples_per_second:,.0f} samples/s in the last epoch" if last else ""),
        ),
    ]
    scale = result["loss_scale"]
    if scale:
        skipped = output.count(scale["skipped_steps"], "step")
        rows.append(("half", f"{skipped} skipped; loss scale  {scale['scale']:,g}"))
    if result["dropped_per_epoch"]:
        rows.append(
            (
                "dropped",
                f"{output.count(result['dropped_per_epoch'], 'sample')} per epoch: the last batch was incomplete",
            )
        )
    rows += [
        (word, str(path)) for word, path in (("checkpoint", checkpoint), ("exported", result.get("exported"))) if path
    ]
    output.out.print()
    output.out.print(output.grid(rows))
    if history.stopped:
        output.warn(f"{history.stopped}. {_how_to_go_on(checkpoint)}" if checkpoint else history.stopped)
