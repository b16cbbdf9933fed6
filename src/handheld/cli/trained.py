"""What `handheld train` prints before and after the training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from handheld.cli import output
from handheld.cli.prepare import Job
from handheld.data import DataSet, ImageData, TextData
from handheld.plan.fit import fit_text
from handheld.plan.moves import moved_text
from handheld.plan.plan import GraphPlan, Plan
from handheld.run.batch import batch_sizes
from handheld.run.halves import half_text
from handheld.run.history import Epoch, History
from handheld.run.metrics import Arrays
from handheld.run.parts import parts_of
from handheld.run.trainer import LossScale, Trainer
from handheld.step import Step


def device_name(trainer: Trainer) -> str:
    """The device's stable name."""
    return trainer.session.device_name


def _samples(data: object) -> str:
    return f"{data.samples:,}" if hasattr(data, "samples") else "?"


def _train_graph(plan: Plan, batch: int) -> str:
    parts = parts_of(plan)
    if parts is not None:
        return parts.graph
    return batch_sizes(plan.graphs, "train").get(batch, "train")


def _per_step(plan: Plan, batch: int) -> tuple[int, int]:
    """The launches and the ops of a training step, of all its micro-batches."""
    parts, last = parts_of(plan), plan.graphs[_train_graph(plan, batch)]
    launches, ops = last.launches, len(last.graph.nodes)
    if parts is not None:
        other = plan.graphs[f"{parts.graph}.accumulate"]
        launches += (parts.count - 1) * other.launches
        ops += (parts.count - 1) * len(other.graph.nodes)
    return launches, ops


def _work(plan: Plan, batch: int) -> str:
    launches, ops = _per_step(plan, batch)
    return output.count(launches, "launch") if launches else output.count(ops, "op")


def _accumulated(graph: GraphPlan) -> str:
    count = graph.graph.notes.get("accumulate", 1)
    return f", one update per {count} batches" if count > 1 else ""


def _part(step: Step) -> str:
    """How many of the parameters train, if not all of them do, and how the others are stored."""
    count, packed = step.trained_count(), step.packings().values()
    bits = f", frozen weights in {next(iter(packed)).bits} bits" if packed else ""
    return "" if count == step.parameter_count() else f", of which {count:,} train{bits}"


def introduce(job: Job, trainer: Trainer) -> None:
    plan, dataset = trainer.plan, job.dataset
    graph = plan.graphs[_train_graph(plan, job.batch)]
    parameters = output.count(plan.step.parameter_count(), "parameter") + _part(plan.step)
    held = "no test set" if dataset.test is None else f"{_samples(dataset.test)} to test"
    output.out.print(
        output.grid(
            [
                ("model", f"{job.name}, {parameters}, batch {job.batch}{_accumulated(graph)}"),
                ("data", f"{dataset.name}: {_samples(dataset.train)} to train, {held}"),
                (
                    "device",
                    f"{device_name(trainer)} ({plan.caps.kind}, {output.count(plan.caps.compute_units, 'unit')})",
                ),
                (
                    "step",
                    f"{_work(plan, job.batch)}, {output.size(plan.bytes)} on the device"
                    f"{', half precision' if trainer.loss_scale() else ''}; ready after "
                    f"{job.seconds + sum(trainer.session.timings.values()):.1f} s",
                ),
                *([("to fit", text)] if (text := fit_text(plan.options, plan.bytes)) else []),
                *([("half", text)] if (text := half_text(plan)) else []),
                *([("outside", text)] if plan.host_state and (text := moved_text(plan)) else []),
            ]
        )
    )
    output.out.print()


@dataclass(frozen=True)
class Trained:
    """The result of a training run."""

    model: str
    data: str
    batch: int
    device: str
    device_name: str
    precision: str
    loss_scale: LossScale | None
    launches_per_step: int
    ops_per_step: int
    device_bytes: int
    #: What the plan does to fit; "" if it fits as it is.
    fit: str
    steps: int
    test: dict[str, float]
    dropped_per_epoch: int
    stopped: str
    #: The number of the best epoch (0: nobody asked), the metric that says so, and the epoch whose state was kept.
    best_epoch: int
    best_by: str
    kept_epoch: int
    epochs: list[Epoch]
    seconds: float
    classes: tuple[str, ...] = ()
    #: What was done to the data, and what else the user should know.
    notes: tuple[str, ...] = ()
    exported: str = ""
    #: The run file of the training and its page.
    record: str = ""
    page: str = ""

    @staticmethod
    def of(job: Job, trainer: Trainer, history: History, seconds: float) -> Trained:
        plan = trainer.plan
        launches, ops = _per_step(plan, job.batch)
        return Trained(
            model=job.name,
            data=job.dataset.name,
            batch=job.batch,
            device=device_name(trainer),
            device_name=plan.caps.name,
            precision=plan.options["precision"],
            loss_scale=trainer.loss_scale(),
            launches_per_step=launches,
            ops_per_step=ops,
            device_bytes=plan.bytes,
            fit=fit_text(plan.options, plan.bytes),
            steps=history.steps,
            test=dict(history.test),
            dropped_per_epoch=history.last.dropped if history.last else job.dataset.train.dropped,
            stopped=history.stopped,
            best_epoch=history.best_epoch,
            best_by=history.best_by,
            kept_epoch=history.kept_epoch,
            epochs=history.epochs,
            seconds=seconds,
            classes=job.dataset.classes,
            notes=job.notes,
        )

    def to_json(self) -> dict[str, object]:
        data = dataclasses.asdict(self)
        data["epochs"] = [{**dataclasses.asdict(e), "samples_per_second": e.samples_per_second} for e in self.epochs]
        for name in ("exported", "record", "page"):
            if not data[name]:
                del data[name]
        return data


def _labels(dataset: DataSet) -> int:
    """The number of labels that the accuracy counts; negative labels are ignored.

    Returns 0 for a text, because each of its samples has many predictions.
    """
    if isinstance(dataset.test, ImageData):
        return dataset.test.samples if dataset.test.labels is not None else 0
    arrays = getattr(dataset.test, "arrays", ())
    if isinstance(dataset.test, TextData) or not arrays:
        return 0
    names = getattr(dataset.test, "names", ())
    return int((Arrays(dict(zip(names or map(str, range(len(arrays))), arrays, strict=True))).labels >= 0).sum())


def print_result(result: Trained, history: History, dataset: DataSet, checkpoint: Path | None) -> None:
    test, last = result.test, history.last
    rows: list[tuple[str, str]] = []
    if "accuracy" in test:
        count = _labels(dataset)
        of = f"  ({round(test['accuracy'] * count)} of {count})" if count else ""
        rows.append(("test accuracy", f"[bold green]{test['accuracy']:.2%}[/]{of}"))
    rows += [(f"test {name}", output.number(value)) for name, value in test.items() if name != "accuracy"]
    if history.best is not None:
        kept = "; the result is its state" if result.kept_epoch else "; the result is the last state"
        rows.append(("best", f"epoch {result.best_epoch} of {len(result.epochs)} by {result.best_by}{kept}"))
    rows += [
        ("device", f"{result.device}"),
        (
            "launches" if result.launches_per_step else "ops",
            f"{result.launches_per_step or result.ops_per_step} per step, {output.count(result.steps, 'step')}",
        ),
        (
            "time",
            output.duration(result.seconds)
            + (f", {last.samples_per_second:,.0f} samples/s in the last epoch" if last else ""),
        ),
    ]
    scale = result.loss_scale
    if scale:
        skipped = output.count(scale.skipped_steps, "step")
        rows.append(("half", f"{skipped} skipped; loss scale {scale.scale:,g}"))
    if result.dropped_per_epoch:
        rows.append(
            ("dropped", f"{output.count(result.dropped_per_epoch, 'sample')} per epoch: the last batch was incomplete")
        )
    rows += [(word, str(path)) for word, path in _files(result, checkpoint) if path]
    output.out.print()
    output.out.print(output.grid(rows))
    if history.stopped:
        further = checkpoint and not history.early  # Without more patience, a resumed run would stop again.
        output.warn(f"{history.stopped}. {how_to_go_on(checkpoint)}" if further else history.stopped)


def _files(result: Trained, checkpoint: Path | None) -> tuple[tuple[str, object], ...]:
    """What was written, with a word for each."""
    return (
        ("checkpoint", checkpoint),
        ("exported", result.exported),
        ("run file", result.record),
        ("page", result.page),
    )


def how_to_go_on(checkpoint: Path | None, record: str = "") -> str:
    """What was saved of a training that was stopped, and how to continue. `record` is its run file, if there is one."""
    saved = f"The losses are in {record}, but the model was not saved" if record else "Nothing was saved"
    if checkpoint is None:
        return f"{saved}. Try: --checkpoint FILE next time"
    if not checkpoint.exists():
        return f"{saved}: {checkpoint} was not written yet"
    return f"To continue from {checkpoint}, add --resume to the same command"
