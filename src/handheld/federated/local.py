"""Trains and evaluates on one device, and measures what that costs. Knows nothing of Flower.

A `Site` is one device with a started plan. It is kept for the life of the process, because starting takes seconds and
every round begins with the state that the server sends.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handheld.analyse.run import open_run
from handheld.bench.row import main_rail
from handheld.data.batches import Batch, Data, Indexed, rows_in
from handheld.errors import DataError, HandheldError, SensorError
from handheld.federated.model import State, StepSource, anchored, exchanged, mark, step_of, version
from handheld.federated.rails import rail_of
from handheld.profile.training import recorded
from handheld.run.evaluate import evaluate
from handheld.run.guards import gauges_of
from handheld.run.metrics import Metric
from handheld.run.trainer import Trainer
from handheld.targets.names import is_remote

Facts = dict[str, str | int | float]
#: (partition, partitions) -> the training set and the test set of a device. Either may be None: a device without data.
DataSource = Callable[[int, int], tuple[Data | None, Data | None]]


@dataclass(frozen=True)
class Work:
    """What the server asks of a device for one round."""

    round: int
    #: Passes over the data; a limit of steps may end them earlier.
    epochs: int = 1
    most_steps: int | None = None
    #: No step begins after this time; the first one always does.
    most_seconds: float | None = None
    rate: float | None = None
    #: FedProx: the weight of the distance from the state that the server sent.
    proximal: float = 0.0


@dataclass(frozen=True)
class Trained:
    """The result of one round on one device."""

    arrays: State
    samples: int
    steps: int
    loss: float
    costs: Facts


class Site:
    """One device with a started plan."""

    def __init__(self, source: StepSource, device: str, memory_limit_bytes: int | None = None) -> None:
        begun = time.perf_counter()
        self.step = step_of(source)
        self.device = device
        self.names = exchanged(self.step)
        self._first = self.step.state()
        self.trainer: Trainer = self.step.plan(device, memory_limit_bytes=memory_limit_bytes).start()
        self.start_seconds = time.perf_counter() - begun

    @property
    def name(self) -> str:
        """The device by its kind, the same for all devices of a kind: `Adreno 740 over adb`, `reference:cpu`."""
        plan = self.trainer.plan
        if plan.device.startswith("reference"):
            return plan.device
        return f"{plan.caps.name} over {self.device.partition(':')[0]}" if is_remote(self.device) else plan.caps.name

    def facts(self) -> Facts:
        """What the server must know before it asks for work."""
        return {
            "version": version(),
            "model": mark(self.step),
            "device": self.name,
            "peak-bytes": self.trainer.plan.bytes,
            "start-seconds": self.start_seconds,
            **health(self.device),
        }

    def train(self, state: Mapping[str, np.ndarray], data: Data, work: Work, run: Path | None = None) -> Trained:
        """Train from `state` with a fresh optimizer. `run` is the run file that is kept; None keeps none."""
        self._load(state, work)
        losses: list[float] = []
        samples = 0
        with tempfile.TemporaryDirectory(prefix="handheld-federated-") as folder:
            path = run or Path(folder) / "round.run"
            begun, begin = time.perf_counter(), time.time()
            with recorded(path, {"what": "federated", "round": work.round}, trainer=self.trainer) as record:
                record.attach(self.trainer)
                pending: list[Any] = []
                for batch in batches(data, work):
                    pending.append(self.trainer.step(*batch))
                    samples += rows_in(batch)
                    if len(pending) > 2:
                        losses.append(float(pending.pop(0)))
                    if work.most_seconds is not None and time.perf_counter() - begun >= work.most_seconds:
                        break
                losses += map(float, pending)
                after = self.trainer.state()
                seconds = time.perf_counter() - begun
            costs = {"seconds": seconds, **measured(path, self.device, len(losses)), **health(self.device)}
        if "joules" in costs:
            costs |= {"begin-seconds": begin, "end-seconds": begin + seconds}
        if not losses:
            raise DataError("the device has no complete batch to train on. Try: a smaller batch, or more samples")
        costs["peak-bytes"] = self.trainer.plan.bytes
        arrays = {name: np.ascontiguousarray(after[name]) for name in self.names}
        return Trained(arrays, samples, len(losses), float(np.mean(losses)), costs)

    def evaluate(
        self, state: Mapping[str, np.ndarray], data: Data, metrics: Mapping[str, Metric] | None = None
    ) -> Facts:
        """Loss and metrics of a state on the device's test set, with the number of samples. A `note` says what they do
        not cover."""
        self._load(state, Work(0))
        found = evaluate(self.trainer, data, metrics)
        return {"num-examples": samples_in(data), **found, **({"note": found.note} if found.note else {})}

    def _load(self, state: Mapping[str, np.ndarray], work: Work) -> None:
        unknown = [name for name in state if name not in self.names]
        missing = [name for name in self.names if name not in state]
        if unknown or missing:
            named = ", ".join((missing or unknown)[:3])
            raise HandheldError(
                f"the server's model {'lacks' if missing else 'has unknown'} arrays ({named}): it is another model. "
                "Try: the same app on the server and on the devices"
            )
        self.trainer.load({**self._first, **state, **anchored(self._first, state, work.proximal)})
        if work.rate is not None:
            self.trainer.set_rate(work.rate)

    def close(self) -> None:
        self.trainer.close()


def batches(data: Data, work: Work) -> Iterator[Batch]:
    """The batches of a round. The number of the round decides their order, so a round can be repeated."""
    first = (work.round - 1) * work.epochs
    each = itertools.chain.from_iterable(data.epoch(first + number) for number in range(work.epochs))
    return itertools.islice(each, work.most_steps)


def batches_in(data: Data) -> int:
    """The number of batches of an epoch."""
    return len(data) if isinstance(data, Indexed) else sum(1 for _ in data.epoch(0))


def samples_in(data: Data) -> int:
    """The number of samples of a data set."""
    return data.samples if isinstance(data, Indexed) else sum(rows_in(batch) for batch in data.epoch(0))


def measured(path: Path, device: str, steps: int) -> Facts:
    """Seconds per step, joules and their rail of a run file. What no sensor measured is left out. A step of the
    training may be several in the file, its micro-batches."""
    costs: Facts = {}
    with open_run(path) as run:
        begin, end = run.span()
        if steps and end > begin:
            costs["step-seconds"] = (end - begin) * 1e-9 / steps
        rail = main_rail(run, device)
        if rail is not None and rail.watts is not None:
            costs["joules"] = rail.watts * (end - begin) * 1e-9
            costs["rail"] = rail_of(device, rail.rail)
    return costs


def health(device: str) -> Facts:
    """Battery and temperature of the machine of a device. What it does not show is left out."""
    gauges = gauges_of(device)
    found: Facts = {}
    with contextlib.suppress(SensorError):
        charge = gauges.charge()
        found["battery-percent"], found["charging"] = charge.percent, int(charge.charging)
    with contextlib.suppress(SensorError):
        found["celsius"] = gauges.heat().celsius
    return found
