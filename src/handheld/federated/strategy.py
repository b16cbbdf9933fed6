"""Stands before a strategy of Flower: refuses devices, drops bad updates, and writes down what each round cost.

Every strategy of Flower works behind it, because it changes only what the strategy sees: the devices that may take part
(`Eligible`, a grid with fewer nodes) and the replies that may be averaged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

from flwr.common.logger import log

from handheld.errors import HandheldError
from handheld.federated.client_app import ARRAYS, CONFIG, FACTS, METRICS, VIRTUAL
from handheld.federated.compress import Form, decode
from handheld.federated.flower import (
    KEY_CLIPPING_NORM,
    KEY_NORM_BIT,
    ArrayRecord,
    ConfigRecord,
    Grid,
    Message,
    MetricRecord,
    RecordDict,
    Strategy,
    array_record,
    arrays_in,
    config_in,
    metrics_in,
)
from handheld.federated.model import State, is_number, numbers_in, problem_of
from handheld.federated.nodes import Eligible, Nodes
from handheld.federated.privacy import correct, unclipped
from handheld.federated.rails import divide
from handheld.federated.record import Record, Round, Visit, visit_of
from handheld.federated.select import Select


class Guarded(Strategy):
    """A strategy that sees only good devices and good updates."""

    def __init__(
        self,
        inner: Strategy,
        record: Record,
        arrays: State,
        *,
        select: Select,
        form: Form,
        epochs: int,
        save: Callable[[State], None],
        wait_seconds: float,
    ) -> None:
        self.inner, self.record, self.arrays, self.select = inner, record, arrays, select
        self.form, self.epochs, self._save = form, epochs, save
        correct(inner)
        #: Rounds that an earlier start finished.
        self.done = max((one.number for one in record.rounds), default=0)
        self._before = max((one.seconds for one in record.rounds), default=0.0)
        self._server_before = max((one.server_seconds or 0.0 for one in record.rounds), default=0.0)
        self._begun = time.monotonic()
        self._simulated: float | None = None
        self.nodes = Nodes(record, select, wait_seconds)
        self._now = Round(0, 0.0)
        self._clip: float | None = None  # Differential privacy: the largest norm of an update; devices clip it.

    def seconds(self) -> float:
        """Seconds of training, without the time between two starts; those of virtual devices are simulated."""
        return self._before + time.monotonic() - self._begun if self._simulated is None else self._simulated

    def most_samples(self, node: int) -> int:
        """The most samples that a device may train on in a round."""
        return int(self.nodes.facts.get(node, {}).get("own-samples", 0)) * self.epochs

    def summary(self) -> None:
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        number = server_round + self.done
        self._now = Round(number, 0.0)
        sees = Eligible(grid, self.nodes)
        messages = list(self.inner.configure_train(number, arrays, config, sees))
        self.nodes.sent = [message.metadata.dst_node_id for message in messages]
        self._clip = next((config_in(message.content, CONFIG).get(KEY_CLIPPING_NORM) for message in messages), None)
        self._now.passed_over = self.nodes.passed_over()
        self._now.down_bytes = sum(array.nbytes for array in self.arrays.values()) * len(messages)
        return [self._for_device(message) for message in messages]

    def _for_device(self, message: Message) -> Message:
        """The message with the settings of this device. Flower shares one content among all messages of a round."""
        own: dict[str, Any] = {"local-epochs": self.epochs}
        if self.form.kind:
            own["compress"] = str(self.form)
        steps = self.select.steps(self.nodes.facts.get(message.metadata.dst_node_id, {}), self.epochs)
        if steps is not None:
            own["local-steps"] = steps
        if self.select.round_seconds is not None:
            own["local-seconds"] = float(self.select.round_seconds)
        return self._with(message, own)

    def _with(self, message: Message, own: dict[str, Any]) -> Message:
        """The message with the mark of the model, and with these settings."""
        config = ConfigRecord({**config_in(message.content, CONFIG), "model": self.record.model, **own})
        return Message(
            content=RecordDict({**message.content, CONFIG: config}),
            dst_node_id=message.metadata.dst_node_id,
            message_type=message.metadata.message_type,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        number, good = server_round + self.done, []
        seen: set[int] = set()
        heard: list[tuple[Visit, dict[str, Any]]] = []
        reasons: list[str] = []
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error() and node not in self.nodes.sent:  # The SuperLink speaks for a device that is gone.
                reasons.append(str(reply.error.reason))
                continue
            facts: dict[str, Any] = {} if reply.has_error() else config_in(reply.content, FACTS)
            why = "a second reply of this round" if node in seen else self._problem(reply, facts, number)
            seen.add(node)
            if not why:
                good.append(reply)
            else:
                log(WARNING, "the update of node %s is not averaged: %s", node, why)
            self.nodes.heard(node, facts)
            heard.append((visit_of(str(node), why or "trained", facts), facts))
        if divide(heard):
            self.record.note("devices share a power rail; its joules are divided among those that trained at a time")
        self._now.visits += [visit for visit, _ in heard]
        if heard and all(VIRTUAL in facts for _, facts in heard):
            begun = self._before if self._simulated is None else self._simulated
            self._simulated = begun + max(visit.seconds or 0.0 for visit, _ in heard)
            self.record.note("the devices are virtual; a round takes as long as its slowest device")
        for node in [node for node in self.nodes.sent if node not in seen]:
            why = f"no reply: {reasons.pop()}" if reasons else "no reply"
            log(WARNING, "node %s: %s", node, why)
            self._now.visits.append(
                visit_of(str(node), why, {"device": self.nodes.facts.get(node, {}).get("device", "")})
            )
            self.nodes.facts.pop(node, None)  # It is asked about itself again before it trains.
        # Adaptive clipping of Flower divides by the number of replies.
        found, metrics = self.inner.aggregate_train(number, good) if good else (None, None)
        if found is not None:
            after = {name: array.numpy().astype(self.arrays[name].dtype) for name, array in found.items()}
            broken = problem_of(after, self.arrays)
            if broken:
                raise HandheldError(
                    f"the average of round {number} cannot be used: {broken}. The state before it is kept"
                )
            self.arrays = after
            found = array_record(after)
        self._now.seconds = self.seconds()
        self._now.server_seconds = self._server_before + time.monotonic() - self._begun
        if metrics is not None:
            self._now.metrics |= numbers_in(metrics)
        self.record.rounds.append(self._now)
        self._save(self.arrays)
        return found, metrics

    def _problem(self, reply: Message, facts: dict[str, Any], number: int) -> str:
        """Why a reply must not be averaged, or "". A good reply is made what Flower's strategies expect."""
        if reply.has_error():
            return f"the device failed: {reply.error.reason}"
        if "error" in facts:
            return str(facts["error"])
        if facts.get("round") != number:
            return f"it belongs to round {facts.get('round')}, not {number}"
        metrics = metrics_in(reply.content, METRICS)
        samples, loss = metrics.get("num-examples"), metrics.get("train-loss")
        facts |= {"samples": samples if is_number(samples) else 0, "loss": loss if is_number(loss) else None}
        if samples is None or not is_number(samples) or samples <= 0:
            return f"its number of samples is {samples}"
        if not (is_number(loss) or (loss is None and VIRTUAL in facts)):
            return f"its loss is {loss}"
        try:
            update = arrays_in(reply.content, ARRAYS)
            if self.form.kind:
                change = decode(self.form, update, self.arrays)
                update = {name: array + change[name] for name, array in self.arrays.items()}
        except (HandheldError, KeyError, ValueError, TypeError) as error:
            return f"its arrays cannot be read: {error}"
        why = problem_of(update, self.arrays) or unclipped(self.inner, self._clip, update, self.arrays, metrics)
        if not why:
            arrays = array_record({name: update[name] for name in self.arrays})
            own = MetricRecord({"num-examples": samples, **({} if loss is None else {"train-loss": loss})})
            if KEY_NORM_BIT in metrics and self._clip is not None:
                own[KEY_NORM_BIT] = metrics[KEY_NORM_BIT]
            reply.content = RecordDict({ARRAYS: arrays, METRICS: own})
        return why

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        sees = Eligible(grid, self.nodes, need="test-samples")
        if not sees.connected():
            return []
        messages = self.inner.configure_evaluate(server_round + self.done, arrays, config, sees)
        return [self._with(message, {}) for message in messages]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        good = []
        for reply in replies:
            facts = {} if reply.has_error() else config_in(reply.content, FACTS)
            node = reply.metadata.src_node_id
            if reply.has_error() or "error" in facts:
                why = reply.error.reason if reply.has_error() else facts["error"]
                log(WARNING, "node %s could not evaluate: %s", node, why)
                continue
            if "note" in facts:
                self.record.note(f"evaluation of node {node}: {facts['note']}")
            good.append(reply)
        metrics = self.inner.aggregate_evaluate(server_round + self.done, good)
        if metrics is not None and self.record.rounds:
            own = {f"devices-{name}": value for name, value in numbers_in(metrics).items()}
            self.record.rounds[-1].metrics |= own
            self._save(self.arrays)
        return metrics
