"""The ServerApp of Flower: rounds with a checkpoint after each, and a record of what they cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common.logger import log

from handheld import container
from handheld.bench.folder import locked
from handheld.data.batches import Data
from handheld.errors import CheckpointError, HandheldError
from handheld.federated.compress import Form
from handheld.federated.flower import (
    ArrayRecord,
    ConfigRecord,
    Context,
    FedAvg,
    Grid,
    MetricRecord,
    ServerApp,
    Strategy,
    array_record,
)
from handheld.federated.local import Site
from handheld.federated.memory import PREFIX, remembered, remind
from handheld.federated.model import State, StepSource, arrays_of, is_number, mark, problem_of, step_of, version
from handheld.federated.page import write_page
from handheld.federated.protocols import as_data
from handheld.federated.record import COMPLETE, Record, Round, newest, read_record, record_of
from handheld.federated.select import Select
from handheld.federated.settings import checked
from handheld.federated.strategy import Guarded
from handheld.run.metrics import Metric

CHECKPOINT = "state.checkpoint"
#: The most that a value may change in a round on one device, if updates are masked.
LARGEST_CHANGE = 8.0


def server(
    step: StepSource,
    *,
    strategy: Callable[[], Strategy] | Strategy | None = None,
    rounds: int = 3,
    test: Data | Callable[[], Data] | None = None,
    device: str = "opencl",
    metrics: Mapping[str, Metric] | None = None,
    local_epochs: int = 1,
    rate: float | None = None,
    select: Select | None = None,
    compress: str = "",
    secure: bool | float = False,
    out: str | Path = "federated",
    timeout: float = 3600.0,
    wait_seconds: float = 600.0,
) -> ServerApp:
    """A ServerApp that trains the model of `step` on all connected devices.

    - `strategy`: one of Flower's, or a function that makes it. Default: FedAvg over at least two devices.
    - `test`: the server evaluates the averaged model on it after every round, on `device`.
    - `local_epochs`: passes of each device over its data per round. `rate`: its learning rate.
    - `select`: limits on the devices of a round (battery, heat, memory, time).
    - `compress`: "int8" or "topk:0.01" for smaller updates.
    - `secure`: the server learns the mean of all updates, and no single one (secure aggregation). A number is the most
      that a value may change in a round on one device; True is 8.
    - `out`: a folder with one sub-folder per training: record, page and checkpoint. A training that was killed is
      continued by the next start.
    - `timeout`: seconds for the replies of a round; a device trains for at most half of them, or for the
      `round_seconds` of `select`. `wait_seconds`: how long to wait for enough devices.

    `rounds`, `local-epochs`, `rate`, `compress` and `out` of Flower's run config win over these.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        own = step_of(step)
        settings = checked(config, rounds=rounds, epochs=local_epochs, rate=rate, compress=compress)
        form = Form.parse(settings["compress"])
        settings["secure"] = _largest_change(secure, form)
        made = strategy() if callable(strategy) and not isinstance(strategy, Strategy) else strategy
        inner = made or FedAvg(fraction_evaluate=0.0)
        settings["strategy"] = type(inner).__name__
        with Folder(Path(str(config.get("out", out))), mark(own), settings, arrays_of(own), inner) as folder:
            limits = select or Select()
            if limits.round_seconds is None:  # Fewer steps instead of a reply that comes too late.
                limits = replace(limits, round_seconds=timeout / 2)
            _train(grid, folder, limits, form, _evaluation(own, test, device, metrics), timeout, wait_seconds)

    return app


def _largest_change(secure: bool | float, form: Form) -> float | None:
    """The most that a value may change in a round of secure aggregation; None: updates are not masked."""
    if secure is False:
        return None
    if form.kind:
        raise HandheldError(f"masked updates cannot be compressed as {form}. Try: compress = 'none', or secure=False")
    largest = LARGEST_CHANGE if secure is True else secure
    if not is_number(largest) or largest <= 0:
        raise HandheldError(f"secure is {secure!r}. Try: True, or the most that a value may change, such as 8")
    return float(largest)


def _train(
    grid: Grid,
    folder: Folder,
    select: Select,
    form: Form,
    evaluate: Callable[[State], dict[str, float]] | None,
    timeout: float,
    wait_seconds: float,
) -> None:
    record, settings = folder.record, folder.record.settings
    epochs = settings["local_epochs"]
    guarded = Guarded(
        folder.strategy,
        record,
        folder.arrays,
        select=select,
        form=form,
        epochs=epochs,
        save=folder.save,
        wait_seconds=wait_seconds,
    )
    left = settings["rounds"] - guarded.done

    def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if evaluate is None or (number == 0 and guarded.done):
            return None
        found = evaluate({name: array.numpy() for name, array in arrays.items()})
        if number == 0:
            record.rounds[:] = [Round(0, guarded.seconds())]
        record.rounds[-1].metrics |= found
        record.rounds[-1].seconds = guarded.seconds()
        folder.save(guarded.arrays)
        return MetricRecord(dict(found))

    config = ConfigRecord({} if settings["rate"] is None else {"rate": settings["rate"]})
    if left > 0:
        first = array_record(folder.arrays)
        if settings["secure"]:
            from handheld.federated.secure import SecureGrid

            grid = SecureGrid(grid, settings["secure"], guarded.most_samples)
        guarded.start(grid, first, num_rounds=left, timeout=timeout, train_config=config, evaluate_fn=evaluated)
    record.status = COMPLETE
    folder.write()
    log(INFO, "the training is in %s", folder.path)


def _evaluation(
    step: Any, test: Data | Callable[[], Data] | None, device: str, metrics: Mapping[str, Metric] | None
) -> Callable[[State], dict[str, float]] | None:
    if test is None:
        return None
    data = test() if callable(test) and not isinstance(test, Data) else test
    site = Site(step, device)

    def evaluate(state: State) -> dict[str, float]:
        found = site.evaluate(state, data, metrics)
        return {name: float(value) for name, value in found.items() if name != "num-examples"}

    return evaluate


class Folder:
    """The folder of one training: the newest of `base` if that was not finished, else a new one."""

    def __init__(self, base: Path, model: str, settings: dict[str, Any], arrays: State, strategy: Strategy) -> None:
        self.base, self.arrays, self.strategy = base, arrays, strategy
        self.record = Record(model, version(), settings, time.strftime("%Y-%m-%d %H:%M"))
        base.mkdir(parents=True, exist_ok=True)
        self._lock = locked(base)
        number = newest(base)
        self.path = base / str(number or 1)
        if number and not self._continues():
            self.path = base / str(number + 1)
        self.path.mkdir(exist_ok=True)
        self.write()

    def _continues(self) -> bool:
        """Whether the newest training is this one, and not finished. Its record and state are taken over."""
        before = read_record(self.path)
        same = {**before.settings, "rounds": 0} == {**self.record.settings, "rounds": 0}
        if before.status == COMPLETE:
            return False
        if before.model != self.record.model or not same:
            log(INFO, "the unfinished training in %s has another model or other settings; a new one begins", self.path)
            return False
        if (self.path / CHECKPOINT).exists():
            before, self.arrays = self._read()
        before.settings["rounds"] = self.record.settings["rounds"]
        self.record = before
        note = f"continued after round {max((one.number for one in before.rounds), default=0)}"
        log(INFO, "the training in %s is %s", self.path, note)
        before.notes.append(note)
        return True

    def _read(self) -> tuple[Record, State]:
        path = self.path / CHECKPOINT
        arrays, record = container.read(path, lambda metadata: record_of(metadata.get("federated", ""), path))
        state = {name: np.array(array) for name, array in arrays.items() if not name.startswith(PREFIX)}
        why = problem_of(state, self.arrays)
        if why:
            raise CheckpointError(f"{path} does not fit the model: {why}")
        remind(self.strategy, arrays)
        return record, state

    def save(self, arrays: State) -> None:
        """Keep the state after a round, what the strategy remembers, and the record: one file, so that a kill leaves
        all of one round."""
        whole = {**arrays, **remembered(self.strategy)}
        container.write(self.path / CHECKPOINT, whole, {"federated": self.record.text()}, failure=CheckpointError)
        self.arrays = arrays
        self.write()

    def write(self) -> None:
        self.record.write(self.path, as_data(self.record))
        write_page(self.record, self.path / "index.html")

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
