"""`handheld train`: a model, data, a device."""

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
            "digits, pydoc (the text of Python's manual), a .npz file, a folder of images (a "
            "sub-folder a class), or a .txt file; see above."
        ),
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, metavar="N")]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help=("Samples a step; the model's own if not given."))
]
Lr = Annotated[
    float | None, typer.Option("--lr", metavar="RATE", help=("Learning rate; the optimizer's own if not given."))
]
Schedule = Annotated[
    str, typer.Option("--schedule", metavar="NAME", help=("cosine (down to zero at the end) or constant."))
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="FILE", help=("Written after every epoch, and on Ctrl-C or SIGTERM.")),
]
Every = Annotated[
    int | None, typer.Option("--every", min=1, metavar="N", help=("Also write the checkpoint every N steps."))
]
Resume = Annotated[bool, typer.Option("--resume", help=("Go on from the checkpoint, to the same bits."))]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE.step", help=("Write the trained model as a step file."))
]
BatteryFloor = Annotated[
    float | None,
    typer.Option("--battery-floor", metavar="PERCENT", help=("End in good order when the battery is lower.")),
]
ThermalLimit = Annotated[
    float | None, typer.Option("--thermal-limit", metavar="CELSIUS", help=("Wait when the device is hotter."))
]
FindNan = Annotated[bool, typer.Option("--find-nan", help=("Name the op that makes a NaN loss (slower)."))]


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
    """Train a model and print what it learned.

    Ctrl-C and SIGTERM finish the step under way, write the checkpoint if there is one, and say how
    to go on; a second one stops at once. From a step file no PyTorch is needed. A factory returns
    (model, loss, optimizer), or these and an example batch.

    \b
    Data, one row a sample, batches shuffled by the seed, a fifth held out:
    file.npz   arrays x and y; or x_train, y_train, x_test, y_test; or all of
               its arrays in their order, the labels last. Floats become
               float32, integers int64, bytes of images [0, 1]
    folder/    class/picture.png, or train/class/… and test/class/…; resized
    file.txt   bytes as tokens; the last fifth of the text is for testing

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
    Guards(battery_floor, thermal_limit)  # a sensor that is not there is known before the capture
    spec = open_model(what, size)
    batch_size = batch or spec.default_batch
    found = load(data, batch_size, seed, spec)
    step = capture(spec, batch_size, seed, found)
    frozen = check_frozen(step, spec, accept_frozen)
    graphs = graphs_for(step, batch_size)
    check_fit(step.graphs[batch_sizes(graphs, "train").get(batch_size, "train")], found, spec.name)
    if resume and checkpoint is not None:
        done = read_checkpoint(checkpoint, found.train, step.slots).epoch
        if done >= epochs:
            output.warn(f"{checkpoint} is of {output.count(done, 'epoch')}, and --epochs {epochs} asks for no more")
    captured = time.perf_counter() - started
    with step.plan(on, graphs=graphs, precision=precision).start() as trainer:
        own = trainer.rates("train")
        rates = schedule_of(schedule, lr, own, epochs)
        for note in filter(None, (found.note, frozen)):
            output.warn(note)
        if not json:
            _introduce(spec.name, found, trainer, batch_size, captured)
        with Bar(found.train, epochs, quiet=json) as bar, _rescue(trainer, checkpoint):
            history = fit(
                trainer,
                found.train,
                epochs=epochs,
                test=found.test,
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
        result = _result(spec.name, found, trainer, batch_size, history)
        for group, rate in enumerate(own):  # the next training starts from the optimizer's rate
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
        _conclude(result, history, found, checkpoint)


@contextmanager
def _rescue(trainer: Trainer, checkpoint: Path | None) -> Iterator[None]:
    """Says how to go on after Ctrl-C or SIGTERM. What a checkpoint could not keep goes to the
    folder for temporary files, if that has room."""
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(f"{stop.history.stopped}. {_how_to_go_on(checkpoint)}", stop.history, stop.signal) from None
    except CheckpointError as error:
        if not isinstance(error.__cause__, CheckpointError):
            raise  # nothing was trained yet
        raise CheckpointError(f"{error.__cause__}. {_keep(trainer.plan.step)}") from error


def _keep(step: Step) -> str:
    """Saves what was trained where there may be room, and says where."""
    try:
        kept = step.save(Path(tempfile.gettempdir()) / f"handheld-{os.getpid()}.step")
    except StepFileError as error:
        return f"Nor could the trained model: {error}"
    return f"The trained model is in {kept}; its epochs start again"


def _how_to_go_on(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "Nothing was kept; --checkpoint FILE keeps it the next time"
    if not checkpoint.exists():
        return f"Nothing was kept: {checkpoint} was not written yet"
    return f"To go on from {checkpoint}: the same command with --resume"


def _check_paths(checkpoint: Path | None, every: int | None, resume: bool, export: Path | None, force: bool) -> None:
    """Paths that cannot be written are known before the first step, not after the last."""
    if every is not None and checkpoint is None:
        raise CheckpointError("--every needs a checkpoint to write: --checkpoint FILE")
    if resume and (checkpoint is None or not checkpoint.exists()):
        missing = f"there is no {checkpoint}" if checkpoint else "--checkpoint FILE"
        raise CheckpointError(f"--resume needs a checkpoint to go on from: {missing}")
    if export is not None:
        check_new(export, force)
    for path in (checkpoint, export):
        if path is not None:
            check_writable(path)
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise CheckpointError(f"{checkpoint} exists. Add --resume to go on from it, or remove it")


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def device_name(trainer: Trainer) -> str:
    """The device under its stable name."""
    return trainer.session.device_name


def _samples(data: Any) -> str:
    return f"{data.samples:,}" if hasattr(data, "samples") else "?"


def _train_graph(plan: Plan) -> str:
    return next(iter(batch_sizes(plan.graphs, "train").values()), "train")


def _work(graph: GraphPlan) -> str:
    return output.count(graph.launches, "launch") if graph.launches else output.count(len(graph.graph.nodes), "op")


def _introduce(name: str, found: DataSet, trainer: Trainer, batch_size: int, captured: float) -> None:
    plan = trainer.plan
    graph = plan.graphs[_train_graph(plan)]
    parameters = sum(math.prod(s.shape) for s in plan.step.slots.values() if s.role == "parameter")
    held = "no test set" if found.test is None else f"{_samples(found.test)} to test"
    output.out.print(
        output.grid(
            [
                ("model", f"{name}, {parameters:,} parameters, batch {batch_size}"),
                ("data", f"{found.name}: {_samples(found.train)} to train, {held}"),
                ("device", f"{device_name(trainer)} ({plan.caps.kind}, {plan.caps.compute_units} units)"),
                (
                    "step",
                    f"{_work(graph)}, {output.size(plan.bytes)} on the device"
                    f"{', in halves' if trainer.loss_scale() else ''}; ready after "
                    f"{captured + sum(trainer.session.timings.values()):.1f} s",
                ),
            ]
        )
    )
    output.out.print()


def _result(name: str, found: DataSet, trainer: Trainer, batch_size: int, history: History) -> dict[str, Any]:
    plan = trainer.plan
    graph = plan.graphs[_train_graph(plan)]
    scale = trainer.loss_scale()
    rows = [{**dataclasses.asdict(e), "samples_per_second": e.samples_per_second} for e in history.epochs]
    return {
        "model": name,
        "data": found.name,
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
        "dropped_per_epoch": found.train.dropped,
        "stopped": history.stopped,
        "epochs": rows,
    }


def _labels(found: DataSet) -> int:
    """How many labels the accuracy is a share of: negative ones are left out. A text has many
    predictions in a sample, and gives none."""
    arrays = getattr(found.test, "arrays", ())
    if isinstance(found.test, TextData) or not arrays:
        return 0
    return int((arrays[-1] >= 0).sum())


def _conclude(result: Mapping[str, Any], history: History, found: DataSet, checkpoint: Path | None) -> None:
    test, last = result["test"], history.last
    rows: list[tuple[str, str]] = []
    if "accuracy" in test:
        count = _labels(found)
        of = f"  ({round(test['accuracy'] * count)} of {count})" if count else ""
        rows.append(("test accuracy", f"[bold green]{test['accuracy']:.2%}[/]{of}"))
    rows += [(f"test {name}", output.number(value)) for name, value in test.items() if name != "accuracy"]
    rows += [
        ("device", f"{result['device']}"),
        (
            "launches" if result["launches_per_step"] else "ops",
            f"{result['launches_per_step'] or result['ops_per_step']} a step, {output.count(result['steps'], 'step')}",
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
        rows.append(("halves", f"{skipped} skipped; the loss is scaled by {scale['scale']:,g}"))
    if result["dropped_per_epoch"]:
        rows.append(
            ("dropped", f"{output.count(result['dropped_per_epoch'], 'sample')} an epoch: the last batch was short")
        )
    rows += [
        (word, str(path)) for word, path in (("checkpoint", checkpoint), ("exported", result.get("exported"))) if path
    ]
    output.out.print()
    output.out.print(output.grid(rows))
    if history.stopped:
        output.warn(f"{history.stopped}. {_how_to_go_on(checkpoint)}" if checkpoint else history.stopped)
