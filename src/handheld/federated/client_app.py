"""The ClientApp of Flower: turns a message into work of a `Site`, and its result into the reply."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from handheld.data.batches import Data, sizes_in
from handheld.errors import DataError, HandheldError
from handheld.federated.compress import Form, encode
from handheld.federated.flower import (
    ClientApp,
    ConfigRecord,
    Context,
    Error,
    ErrorCode,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
    array_record,
    arrays_in,
    config_in,
)
from handheld.federated.local import DataSource, Facts, Site, Work, batches_in, samples_in
from handheld.federated.model import StepSource, difference, mark, problem_of, version
from handheld.federated.shared_step import shared
from handheld.run.metrics import Metric

#: The records of a message. "arrays" and "config" are the names that Flower's strategies use.
ARRAYS, CONFIG, METRICS, FACTS, LEFT = "arrays", "config", "metrics", "handheld", "handheld-left"
#: A fact of devices that only cost (virtual.py): they have no loss.
VIRTUAL = "virtual"
#: Started devices of this process: Flower may keep a process for several messages.
_SITES: dict[tuple[int, int, str, int | None], Site] = {}  # by app, run, device and memory limit


def client(
    step: StepSource,
    data: DataSource | tuple[Data | None, Data | None],
    *,
    device: str = "opencl",
    metrics: Mapping[str, Metric] | None = None,
    memory_limit_bytes: int | None = None,
    runs: str | Path | None = None,
    mods: Sequence[Callable[..., Message]] = (),
    secure: bool = False,
) -> ClientApp:
    """A ClientApp that trains with Handheld.

    - `step`: a step, or a function that makes one. A function is better: every process of Flower makes its own.
    - `data`: a function of (partition, partitions) that returns the training set and the test set of a device, or
      these two. The numbers are `partition-id` and `num-partitions` of the SuperNode's `--node-config`.
    - `device` is used if the node's configuration has no `device`. It may be a target (`adb`, `ssh:user@host`).
    - `runs`: a folder that keeps the run file of every round.
    - `mods` are those of Flower, for example of differential privacy. They see messages of training only.
    - `secure`: the server gets only masked updates, by secure aggregation. It must ask for
      them: `server(secure=True)`.
    """
    masks: list[Callable[..., Message]] = []
    if secure:
        from handheld.federated import secure as aggregation

        masks = aggregation.mods()
    app = ClientApp(mods=masks or None)
    worker = _Worker(step, data, device, metrics, memory_limit_bytes, Path(runs) if runs else None, bool(mods), secure)
    app.query()(worker.query)
    app.train(mods=list(mods) or None)(worker.train)
    app.evaluate()(worker.evaluate)
    return app


class _Worker:
    def __init__(
        self,
        step: StepSource,
        data: DataSource | tuple[Data | None, Data | None],
        device: str,
        metrics: Mapping[str, Metric] | None,
        limit: int | None,
        runs: Path | None,
        mods: bool,
        secure: bool,
    ) -> None:
        self._step, self._data, self._device = step, data, device
        self._metrics, self._limit, self._runs, self._mods, self._secure = metrics, limit, runs, mods, secure

    def query(self, message: Message, context: Context) -> Message:
        """What the server must know of this device before it trains."""

        def facts() -> RecordDict:
            train, test = self._sets(context)
            site = self._site(context)
            counts: Facts = {
                "samples": 0 if train is None else samples_in(train),
                "batches": 0 if train is None else batches_in(train),
                "left-out": 0 if train is None else train.dropped,
                "test-samples": 0 if test is None else samples_in(test),
                "secure": int(self._secure),
            }
            part = {"partition": partition} if (partition := self._partition(context)) is not None else {}
            return facts_record({**site.facts(), **counts, **part, "unix-seconds": time.time()})

        return self._reply(message, facts)

    def train(self, message: Message, context: Context) -> Message:
        """One round of training."""

        def trained() -> RecordDict:
            config = config_in(message.content, CONFIG)
            site = self._site(context)
            _same_model(config, mark(site.step))
            train, _ = self._sets(context)
            if train is None:
                raise DataError("this device has no training data")
            work = work_of(config)
            arrays = arrays_in(message.content, ARRAYS)
            run = None
            if self._runs is not None:
                self._runs.mkdir(parents=True, exist_ok=True)
                run = self._runs / f"node-{context.node_id}-round-{work.round}.run"
                run.unlink(missing_ok=True)
            form = Form.parse(str(config.get("compress", "")))
            if form.kind and self._mods:
                raise HandheldError("updates of a client with mods cannot be compressed. Try: compress=''")
            result = site.train(arrays, train, work, run)
            # In the order in which they came: Flower's mods expect it.
            sent, costs = {name: result.arrays[name] for name in arrays}, result.costs
            bad = problem_of(sent, arrays)
            if bad:  # It would also spoil what error feedback keeps for later rounds.
                steps = {"round": work.round, "steps": result.steps, "samples": result.samples, "device": site.name}
                return facts_record({**costs, **steps, "error": bad, "kind": "BadUpdate"})
            if form.kind:
                left = arrays_in(context.state, LEFT)  # Flower keeps it with the node.
                change = {name: result.arrays[name] - arrays[name] for name in arrays}
                sent, left = encode(form, change, left)
                context.state[LEFT] = array_record(left)
            costs |= {
                "round": work.round,
                "steps": result.steps,
                "sent-bytes": sum(array.nbytes for array in sent.values()),
                "device": site.name,
                "version": version(),
                "model": mark(site.step),
            }
            metrics = MetricRecord({"num-examples": result.samples, "train-loss": result.loss})
            return RecordDict({ARRAYS: array_record(sent), METRICS: metrics, **facts_record(costs)})

        return self._reply(message, trained)

    def evaluate(self, message: Message, context: Context) -> Message:
        """Evaluation on the device's own test set."""

        def evaluated() -> RecordDict:
            site = self._site(context)
            _same_model(config_in(message.content, CONFIG), mark(site.step))
            _, test = self._sets(context)
            if test is None:
                raise DataError("this device has no test data")
            found = site.evaluate(arrays_in(message.content, ARRAYS), test, self._metrics)
            notes = {name: value for name, value in found.items() if isinstance(value, str)}
            numbers = MetricRecord({name: value for name, value in found.items() if not isinstance(value, str)})
            return RecordDict({METRICS: numbers, **facts_record(notes)})

        return self._reply(message, evaluated)

    def _site(self, context: Context) -> Site:
        device = str(context.node_config.get("device", self._device))
        key = (id(self), context.run_id, device, self._limit)
        if key not in _SITES:
            sizes = {size for data in self._sets(context) if data is not None for size in sizes_in(data)}
            # A step file has one batch size. With several, the code of the step is needed for the others.
            step = self._step if len(sizes) != 1 else shared(self._step, context.run_id)
            _SITES[key] = Site(step, device, self._limit)
        return _SITES[key]

    def _partition(self, context: Context) -> int | None:
        """The part of the data that this device was given, if it was given one."""
        given = context.node_config.get("partition-id")
        return int(given) if callable(self._data) and given is not None else None

    def _sets(self, context: Context) -> tuple[Data | None, Data | None]:
        if not callable(self._data):
            return self._data
        partition = int(context.node_config.get("partition-id", 0))
        partitions = int(context.node_config.get("num-partitions", 1))
        if not 0 <= partition < partitions:
            raise DataError(f"partition-id is {partition} of {partitions}. Try: --node-config with one from 0 on")
        return self._data(partition, partitions)

    def _reply(self, message: Message, make: Callable[[], RecordDict]) -> Message:
        """The result, or the error in words: Flower itself tells the server only that a client failed."""
        try:
            content = make()
        except HandheldError as error:
            _SITES.clear()  # A device that was lost is started anew for the next message.
            content = facts_record({"error": f"{error}", "kind": type(error).__name__})
        except Exception as error:
            traceback.print_exc()
            content = facts_record({"error": f"{type(error).__name__}: {error}", "kind": "bug"})
        why = config_in(content, FACTS).get("error")
        if why and self._mods and message.metadata.message_type == MessageType.TRAIN:
            # A mod passes on only an error of Flower.
            return Message(error=Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(why)), reply_to=message)
        return Message(content=content, reply_to=message)


def work_of(config: Mapping[str, Any]) -> Work:
    """What the server asks for in a message."""
    return Work(
        round=int(config["server-round"]),
        epochs=int(config.get("local-epochs", 1)),
        most_steps=int(config["local-steps"]) if "local-steps" in config else None,
        most_seconds=float(config["local-seconds"]) if "local-seconds" in config else None,
        rate=float(config["rate"]) if "rate" in config else None,
        proximal=float(config.get("proximal-mu", 0.0)),
    )


def _same_model(config: Mapping[str, Any], own: str) -> None:
    """Raises HandheldError if the server trains another model than this device has."""
    wanted = str(config.get("model", ""))
    if wanted and (what := difference(own, wanted)):
        raise HandheldError(f"the server trains another model: its {what} differs. Try: the same app on both")


def facts_record(facts: Mapping[str, Any]) -> RecordDict:
    """What a device reports, as a record of a reply."""
    return RecordDict({FACTS: ConfigRecord({**facts, "process": os.getpid()})})
