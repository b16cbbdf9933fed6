"""Devices that are not there: a ClientApp that answers what a round would cost, and runs no kernel.

With it, Flower's simulation shows what a large fleet costs: time, joules and bytes of every round, and the load of the
server. The model does not learn: every device sends back what it received. What a step costs on a kind of device comes
from results of `handheld bench` (`measured_kinds`) or from a prediction (`predicted_kind`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handheld.bench.folder import open_results
from handheld.bench.run import TRAINED
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.federated.client_app import ARRAYS, CONFIG, METRICS, VIRTUAL, facts_record, work_of
from handheld.federated.compress import Form, encode
from handheld.federated.flower import (
    ClientApp,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    array_record,
    arrays_in,
    config_in,
)
from handheld.federated.model import version
from handheld.forecast.model import cost_model
from handheld.forecast.step import predict
from handheld.placement.table import trained
from handheld.step import Step

#: The step times of two devices of a kind differ by this much (the standard deviation of their logarithm).
SPREAD = 0.2


@dataclass(frozen=True)
class Kind:
    """A kind of device: what one step costs on it. None: not known. `share` is its part of the fleet."""

    name: str
    step_seconds: float
    joules_step: float | None = None
    peak_bytes: int | None = None
    share: float = 1.0


def measured_kinds(folder: str | Path, workload: str, batch: int) -> tuple[Kind, ...]:
    """The kinds of device that finished a workload at this batch size in a folder of `handheld bench`."""
    rows = [row for row in open_results(folder).rows if (row["workload"], row["batch"]) == (workload, batch)]
    found = []
    for row in rows:
        step_ms, joules = row.get("step_ms"), row.get("joules_sample")
        if row["status"] == TRAINED and step_ms:
            found.append(
                Kind(row["device"], step_ms * 1e-3, None if joules is None else joules * batch, row.get("peak_bytes"))
            )
    if not found:
        raise HandheldError(f"{folder} has no finished run of {workload} at batch {batch}. Try: handheld bench")
    return tuple(found)


def predicted_kind(step: Step, batch: int, device: str) -> Kind:
    """A kind of device by the name of a shipped description, such as `adreno-740`, with its predicted costs."""
    caps = DeviceCaps.shipped(device)
    plan = step.plan("opencl", caps=caps)
    cost = predict(cost_model(caps, device), plan, trained(plan, batch), batch)
    return Kind(device, cost.seconds, None, cost.bytes)


def virtual_client(
    model: str, kinds: Sequence[Kind], *, batch: int, samples: int = 320, battery: bool = True, seed: int = 0
) -> ClientApp:
    """A ClientApp for Flower's simulation whose devices only cost.

    - `model`: the mark of the step that the server trains (`federated.model.mark(step)`).
    - `samples`: the mean number of samples of a device; a device has between half and one and a half of it.
    - `battery`: devices report a charge between 5 and 100 percent. It does not fall.
    """
    if not kinds:
        raise HandheldError("a fleet needs kinds of device. Try: predicted_kind(step, 16, 'adreno-740')")
    app = ClientApp()
    fleet = _Fleet(model, tuple(kinds), batch, samples, battery, seed)
    app.query()(fleet.query)
    app.train()(fleet.train)
    return app


@dataclass(frozen=True)
class _Device:
    kind: Kind
    step_seconds: float
    samples: int
    battery: float | None


class _Fleet:
    def __init__(self, model: str, kinds: tuple[Kind, ...], batch: int, samples: int, battery: bool, seed: int) -> None:
        self._model, self._kinds, self._batch = model, kinds, batch
        self._samples, self._battery, self._seed = samples, battery, seed

    def device(self, number: int) -> _Device:
        """The device with this number: always the same one."""
        random = np.random.default_rng((self._seed, number))
        shares = np.array([kind.share for kind in self._kinds])
        kind = self._kinds[random.choice(len(shares), p=shares / shares.sum())]
        samples = int(
            random.integers(max(self._samples // 2, self._batch), max(self._samples * 3 // 2, self._batch) + 1)
        )
        seconds = kind.step_seconds * float(np.exp(SPREAD * random.standard_normal()))
        return _Device(kind, seconds, samples, float(random.uniform(5, 100)) if self._battery else None)

    def query(self, message: Message, context: Context) -> Message:
        device = self._of(context)
        about = {"samples": device.samples, "batches": device.samples // self._batch, "test-samples": 0}
        return self._reply(message, {**self._facts(device), **about, "unix-seconds": time.time()}, RecordDict())

    def train(self, message: Message, context: Context) -> Message:
        config, device = config_in(message.content, CONFIG), self._of(context)
        work = work_of(config)
        whole = work.epochs * (device.samples // self._batch)
        steps = whole if work.most_steps is None else min(work.most_steps, whole)
        if work.most_seconds is not None:
            steps = min(steps, max(1, math.ceil(work.most_seconds / device.step_seconds)))
        arrays, form = arrays_in(message.content, ARRAYS), Form.parse(str(config.get("compress", "")))
        if form.kind:
            arrays, _ = encode(form, {name: np.zeros_like(array) for name, array in arrays.items()}, {})
        costs = {
            **self._facts(device),
            "round": work.round,
            "steps": steps,
            "seconds": steps * device.step_seconds,
            "step-seconds": device.step_seconds,
            "sent-bytes": sum(array.nbytes for array in arrays.values()),
        }
        if device.kind.joules_step is not None:
            costs["joules"] = steps * device.kind.joules_step
        content = RecordDict(
            {ARRAYS: array_record(arrays), METRICS: MetricRecord({"num-examples": steps * self._batch})}
        )
        return self._reply(message, costs, content)

    def _of(self, context: Context) -> _Device:
        return self.device(int(context.node_config["partition-id"]))

    def _facts(self, device: _Device) -> dict[str, Any]:
        facts: dict[str, Any] = {"version": version(), "model": self._model, "device": device.kind.name, VIRTUAL: 1}
        if device.kind.peak_bytes is not None:
            facts["peak-bytes"] = device.kind.peak_bytes
        return facts if device.battery is None else {**facts, "battery-percent": device.battery}

    def _reply(self, message: Message, facts: dict[str, Any], content: RecordDict) -> Message:
        return Message(content=RecordDict({**content, **facts_record(facts)}), reply_to=message)
