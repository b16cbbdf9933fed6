"""Prepares what a command was given: loads data that fits the model, captures the step, sets the rates."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handheld.cli import output
from handheld.cli.data_fit import check_fit, misfit, one_class
from handheld.cli.data_options import PLAIN, DataOptions, flat_labels, label_dims, load, own_size
from handheld.data import Data, DataSet, Indexed
from handheld.errors import BatchError, CaptureError, HandheldError, TooFewSamples
from handheld.partial.options import PartialOptions
from handheld.resolve import ModelSpec, StepFile, open_model, resized
from handheld.run.batch import batch_sizes
from handheld.run.rates import Schedule
from handheld.step import Step, frozen_text
from handheld.step import check_frozen as refuse_frozen
from handheld.updates import UpdateOptions


def capture(spec: ModelSpec, size: int, seed: int, dataset: DataSet, given: DataOptions) -> Step:
    if isinstance(spec, StepFile):
        step = spec.step([size], seed)
        dataset.remember(step)
    else:
        step = _capture(spec, [size], seed, dataset, given)[0]
    if "train" not in step.graphs and not batch_sizes(step.graphs, "train"):
        raise HandheldError(
            f"{spec.name} has the graphs {', '.join(step.graphs)} and no single "
            "training step, so only your own code can say in which order they run. "
            "Try: train it from Python, as the GAN in docs/api.md "
            "or DQN in docs/suite.md"
        )
    return step


def capture_example(
    spec: ModelSpec, sizes: list[int], seed: int, data: str | None, given: DataOptions = PLAIN
) -> tuple[Step, list[Any]]:
    """Capture the step from the model's own example or, with `data`, from the first batch of the data.

    Returns the step and the first few batches of the data (none without `data`). Prints the notes about the data.
    """
    if data is None:
        if given != PLAIN:
            raise HandheldError("the options for data need data. Try: --data DATA")
        return spec.step(sizes, seed), []
    dataset = _with_fitting_labels(spec, sizes, seed, load_example(data, max(sizes), seed, spec, given))
    step, batches = _capture(spec, sizes, seed, dataset, given)
    for note in dataset.notes:
        output.warn(note)
    return step, [resized(batch, max(sizes)) for batch in batches]


def load_example(data: str, size: int, seed: int, spec: ModelSpec, given: DataOptions) -> DataSet:
    """Load data of which only example batches are taken. If it has fewer samples than a batch, they are repeated."""
    try:
        return load(data, size, seed, spec, given)
    except TooFewSamples as error:
        dataset = load(data, error.samples, seed, spec, given)
        note = f"{data} has only {error.samples} samples to train: they are repeated to make a batch of {size}"
        return DataSet(dataset.name, dataset.train, dataset.test, dataset.facts, (*dataset.notes, note))


def _capture(
    spec: ModelSpec, sizes: list[int], seed: int, dataset: DataSet, given: DataOptions
) -> tuple[Step, list[Any]]:
    """The step, which remembers the facts about its data, and the first few batches."""
    try:
        batches = examples(dataset, 4)
        step = spec.step(sizes, seed, batches[0], len(dataset.classes) or None)
    except BatchError as error:
        raise misfit(dataset, spec.name, error) from None
    except CaptureError as error:
        raise type(error)(f"{error}{own_size(spec, given)}") from error.__cause__
    dataset.remember(step)
    return step, batches


def _with_fitting_labels(spec: ModelSpec, sizes: list[int], seed: int, dataset: DataSet) -> DataSet:
    """The data with labels [n] if the outputs have that shape: the loss would compare every output with every label."""
    if spec.label() is not None or label_dims(dataset) != 2:
        return dataset
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = spec.step(sizes, seed, examples(dataset, 1)[0])
    except (BatchError, CaptureError):
        return dataset  # The capture reports it.
    return flat_labels(dataset) if _output_dims(trial) == 1 else dataset


def _output_dims(step: Step) -> int:
    """The number of dimensions of the model's first output."""
    graph = next((g for name, g in step.graphs.items() if name.partition("@")[0] == "predict"), None)
    return len(graph.outputs[0].view.shape) if graph is not None and graph.outputs else 0


def examples(dataset: DataSet, count: int) -> list[Any]:
    """The first batches, as PyTorch tensors."""
    import torch

    def tensor(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))

    return [
        {name: tensor(array) for name, array in batch[0].items()}
        if isinstance(batch[0], Mapping)
        else tuple(map(tensor, batch))
        for batch in itertools.islice(dataset.train.epoch(0), count)
    ]


def check_new(path: Path, force: bool) -> None:
    """Raise an error if the step file exists, unless --force was given."""
    if path.exists() and not path.is_dir() and not force:
        raise HandheldError(f"{path} exists. Add --force to replace it, or choose another name")


def check_writable(path: Path) -> None:
    """Raise an error before any work is done if the file cannot be written."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise HandheldError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise HandheldError(f"{path} cannot be written: it is a folder")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise HandheldError(
            f"{path} cannot be written: no file can be created in {path.parent} ({error.strerror})"
        ) from error


def check_frozen(step: Step, spec: ModelSpec, accept: bool) -> str:
    """Refuse a step in which Python code decided something from values, unless that is accepted.

    For a step file, it was accepted when the file was packaged. Returns a note for the user, or "".
    """
    if not step.frozen():
        return ""
    if not accept and not isinstance(spec, StepFile):
        refuse_frozen(step, "--accept-frozen. handheld verify tries other batches")
    return frozen_text(step)


def graphs_for(step: Step, size: int) -> list[str]:
    """The graphs of this batch size, from a step packaged for several."""
    if not batch_sizes(step.graphs, "train"):
        return list(step.graphs)
    return [name for name in step.graphs if name.partition("@")[2].partition(".")[0] == str(size)]


def graphs_for_rest(step: Step, size: int, test: Data | None) -> list[str]:
    """The evaluation graph of the last and smaller batch of the test set, if the code of the step can capture one."""
    rest = test.samples % size if isinstance(test, Indexed) else 0
    if not rest or step.code is None:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They were shown when the step was captured.
            return [step.code.add(step, "evaluate", rest)]
    except CaptureError:
        return []  # The training loop fills up the batch instead.


def check_rates(schedule: str, lr: float | None) -> None:
    if schedule not in ("cosine", "constant"):
        raise HandheldError(f"there is no schedule {schedule!r}. Try: cosine or constant")
    if lr is not None and not 0 <= lr <= float(np.finfo(np.float32).max):
        raise HandheldError(f"--lr {lr:g}: a learning rate must be a finite number, 0 or more")


def schedule_of(name: str, lr: float | None, own: Sequence[float], epochs: int) -> Schedule:
    """Learning rates over the epochs, starting from `lr` or, if it is None, from the optimizer's own rates."""
    base = list(own) if lr is None else [lr] * len(own)

    def rates(epoch: float) -> list[float]:
        part = 0.5 * (1 + math.cos(math.pi * min(epoch / epochs, 1))) if name == "cosine" else 1.0
        return [rate * part for rate in base]

    return rates


@dataclass(frozen=True)
class Job:
    """The captured model and its data."""

    name: str
    batch: int
    dataset: DataSet
    step: Step
    graphs: Sequence[str]
    #: What to tell the user about the data and about frozen values.
    notes: tuple[str, ...]
    #: How long the capture took.
    seconds: float


def prepare(
    what: str,
    size: str | None,
    data: str,
    batch: int | None,
    seed: int,
    accept_frozen: bool,
    given: DataOptions,
    update: UpdateOptions,
    partial: PartialOptions,
) -> Job:
    """Open the model and the data, capture the step and check that they fit together."""
    started = time.perf_counter()
    spec = open_model(what, size, partial)
    spec.update = update
    batch = batch or spec.default_batch
    dataset = _with_fitting_labels(spec, [batch], seed, load(data, batch, seed, spec, given))
    step = capture(spec, batch, seed, dataset, given)
    frozen = check_frozen(step, spec, accept_frozen)
    graphs = graphs_for(step, batch)
    check_fit(step.graphs[batch_sizes(graphs, "train").get(batch, "train")], dataset, spec.name)
    notes = tuple(filter(None, (*dataset.notes, one_class(dataset), _left_out(dataset, spec), frozen)))
    graphs += graphs_for_rest(step, batch, dataset.test)
    return Job(spec.name, batch, dataset, step, graphs, notes, time.perf_counter() - started)


def _left_out(dataset: DataSet, spec: ModelSpec) -> str:
    """A note if each epoch leaves out more than a tenth of the training data, or ""."""
    data = dataset.train
    if not isinstance(data, Indexed) or data.dropped * 10 <= data.samples:
        return ""
    better = range(max(2, data.batch_size // 2), data.batch_size)
    size = min(better, key=lambda n: (data.samples % n, -n), default=1)
    again = "package the model again with " if isinstance(spec, StepFile) else ""
    return (
        f"each epoch leaves out {data.dropped:,} of {data.samples:,} training samples, because they do not fill a "
        f"batch of {data.batch_size:,}. Try: {again}--batch {size}, which leaves out {data.samples % size:,}"
    )
