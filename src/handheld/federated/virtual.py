"""Devices that are not there: a ClientApp that answers what a round would cost, and runs no kernel.

With it, Flower's simulation shows what a large fleet costs: time, joules and bytes of every round, and the load of the
server. The clock of the record is simulated: a round takes as long as its slowest device. The model does not learn:
every device sends back what it received. What a step costs on a kind of device comes
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
    metrics_in,
)
from handheld.federated.model import version
from handheld.fleet.figures import parts
from handheld.fleet.folder import is_fleet_folder
from handheld.forecast.model import cost_model
from handheld.forecast.step import predict
from handheld.placement.table import trained
from handheld.step import Step

#: The step times of two devices of a kind differ by this much (the standard deviation of their logarithm).
SPREAD = 0.2
SPENT = "handheld-spent"


@dataclass(frozen=True)
class Kind:
    """A kind of device: what one step costs on it. None: not known. `share` is its part of the fleet."""

    name: str
    step_seconds: float
    joules_step: float | None = None
    peak_bytes: int | None = None
    share: float = 1.0
    #: What its full battery holds; training then lowers its charge. None: the charge stays as it was drawn.
    battery_joules: float | None = None


def measured_kinds(
    folder: str | Path, workload: str, batch: int, size: str | None = None, battery_joules: float | None = None
) -> tuple[Kind, ...]:
    """The kinds of device that finished a workload at this batch size in a folder of `handheld bench`, or in that of a
    fleet, whose devices keep their names. `size` is needed if the folder has several."""
    folder = Path(folder)
    if is_fleet_folder(folder):
        rows = [(part.name, row) for part in parts(folder) for row in part.rows]
    else:
        rows = [(row["device"], row) for row in open_results(folder).rows]
    done = [
        (name, row)
        for name, row in rows
        if (row["workload"], row["batch"], row["status"]) == (workload, batch, TRAINED) and row.get("step_ms")
    ]
    sizes = sorted({str(row["size"]) for _, row in done})
    if size is None and len(sizes) > 1:
        raise HandheldError(f"{folder} has {workload} in the sizes {', '.join(sizes)}. Try: size={sizes[0]!r}")
    found = []
    for name, row in done:
        if size in (None, str(row["size"])):
            joules = row.get("joules_sample")
            per_step = None if joules is None else joules * batch
            found.append(
                Kind(name, (row["step_ms"] or 0.0) * 1e-3, per_step, row.get("peak_bytes"), 1.0, battery_joules)
            )
    if not found:
        named = workload if size is None else f"{workload} of size {size}"
        raise HandheldError(f"{folder} has no finished run of {named} at batch {batch}. Try: handheld bench")
    return tuple(found)


def predicted_kind(
    step: Step, batch: int, device: str, watts: float | None = None, battery_joules: float | None = None
) -> Kind:
    """A kind of device by the name of a shipped description, such as `adreno-740`, with its predicted costs. Its joules
    are its predicted time at this power; without `watts`, they are not known."""
    caps = DeviceCaps.shipped(device)
    plan = step.plan("opencl", caps=caps)
    cost = predict(cost_model(caps, device), plan, trained(plan, batch), batch)
    joules = None if watts is None else watts * cost.seconds
    return Kind(device, cost.seconds, joules, cost.bytes, 1.0, battery_joules)


def virtual_client(
    model: str, kinds: Sequence[Kind], *, batch: int, samples: int = 320, battery: bool = True, seed: int = 0
) -> ClientApp:
    """A ClientApp for Flower's simulation whose devices only cost.

    - `model`: the mark of the step that the server trains (`federated.model.mark(step)`).
    - `samples`: the mean number of samples of a device; a device has between half and one and a half of it.
    - `battery`: devices report a charge, at first between 5 and 100 percent. It falls with the joules of their steps if
      the kind has `battery_joules`, and is never charged; an empty device does not train.
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
        return self._reply(
            message, {**self._facts(device, context), **about, "unix-seconds": time.time()}, RecordDict()
        )

    def train(self, message: Message, context: Context) -> Message:
        config, device = config_in(message.content, CONFIG), self._of(context)
        work = work_of(config)
        whole = work.epochs * (device.samples // self._batch)
        steps = whole if work.most_steps is None else min(work.most_steps, whole)
        if work.most_seconds is not None:
            steps = min(steps, max(1, math.ceil(work.most_seconds / device.step_seconds)))
        joules = device.kind.joules_step
        if (left := self._left(device, context)) is not None and joules:
            steps = min(steps, math.floor(left / joules))
            if steps < 1:
                error = {"error": "its battery is empty", "kind": "Empty", "round": work.round}
                return self._reply(message, {**self._facts(device, context), **error}, RecordDict())
        if joules is not None:
            spent = _spent(context) + steps * joules
            context.state[SPENT] = MetricRecord({"joules": spent})
        arrays, form = arrays_in(message.content, ARRAYS), Form.parse(str(config.get("compress", "")))
        if form.kind:
            arrays, _ = encode(form, {name: np.zeros_like(array) for name, array in arrays.items()}, {})
        costs = {
            **self._facts(device, context),
            "round": work.round,
            "steps": steps,
            "seconds": steps * device.step_seconds,
            "step-seconds": device.step_seconds,
            "sent-bytes": sum(array.nbytes for array in arrays.values()),
        }
        if joules is not None:
            costs["joules"] = steps * joules
        content = RecordDict(
            {ARRAYS: array_record(arrays), METRICS: MetricRecord({"num-examples": steps * self._batch})}
        )
        return self._reply(message, costs, content)

    def _of(self, context: Context) -> _Device:
        return self.device(int(context.node_config["partition-id"]))

    def _left(self, device: _Device, context: Context) -> float | None:
        """The joules that are left in the battery of a device; None: it does not run empty."""
        if device.battery is None or device.kind.battery_joules is None:
            return None
        return max(0.0, device.kind.battery_joules * device.battery / 100 - _spent(context))

    def _facts(self, device: _Device, context: Context) -> dict[str, Any]:
        facts: dict[str, Any] = {"version": version(), "model": self._model, "device": device.kind.name, VIRTUAL: 1}
        if device.kind.peak_bytes is not None:
            facts["peak-bytes"] = device.kind.peak_bytes
        left = self._left(device, context)
        charge = device.battery if left is None else 100 * left / (device.kind.battery_joules or 1.0)
        return facts if charge is None else {**facts, "battery-percent": charge}

    def _reply(self, message: Message, facts: dict[str, Any], content: RecordDict) -> Message:
        return Message(content=RecordDict({**content, **facts_record(facts)}), reply_to=message)


def _spent(context: Context) -> float:
    """The joules of a device in this training. Flower keeps them with its node."""
    return float(metrics_in(context.state, SPENT).get("joules", 0.0))
