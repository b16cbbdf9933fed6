"""What the server knows of each device, and which may take part: asks new ones, and remembers what they answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.common.logger import log

from handheld.errors import HandheldError
from handheld.federated.client_app import CONFIG, FACTS
from handheld.federated.flower import ConfigRecord, Grid, Message, MessageType, RecordDict, config_in
from handheld.federated.model import difference
from handheld.federated.record import Record
from handheld.federated.select import Select

#: Seconds before a device that cannot take part is asked again; seconds that answers may take, and more per device.
AGAIN_S, ANSWER_S, EACH_S = 10.0, 300.0, 0.3
#: A strategy that asks for the devices more often than this in a round is waiting for more of them.
ENOUGH = 3
#: Clocks that differ by more seconds are reported. Results use the server's clock only.
CLOCK_S = 5.0


class Nodes:
    """What the server knows of each device."""

    def __init__(self, record: Record, select: Select, wait_seconds: float) -> None:
        self.facts: dict[int, dict[str, Any]] = {}
        self._record, self._select, self.wait_seconds = record, select, wait_seconds
        self._against: dict[int, str] = {}  # by the limits of Select, for now
        self._silent: dict[int, str] = {}  # could not answer, for now
        self._never: dict[int, str] = {}
        self._asked: dict[int, float] = {}
        self.sent: list[int] = []  # those that were asked to train in this round

    def passed_over(self) -> dict[str, str]:
        return {str(node): why for node, why in {**self._against, **self._silent, **self._never}.items()}

    def heard(self, node: int, facts: Mapping[str, Any]) -> None:
        """Renew what is known of a device by its last reply."""
        kept = {name: value for name, value in facts.items() if name not in ("error", "kind", "round")}
        self.facts.setdefault(node, {}).update(kept)

    def eligible(self, grid: Grid, need: str = "batches") -> list[int]:
        """The connected devices that may take part now. New ones are asked about themselves."""
        connected = list(grid.get_node_ids())
        now, here = time.monotonic(), set(connected)
        for gone in (self._never, self._silent):
            for node in [node for node in gone if node not in here]:
                del gone[node]  # It may come back with another app.
        ask = [
            node
            for node in connected
            if node not in self._never
            and (node not in self.facts or node in self._against)
            and (node not in self._asked or now - self._asked[node] > AGAIN_S)
        ]
        if ask:
            self._ask(grid, ask, here)
        self._against = {}
        for node in connected:
            why = self._select.reason_against(self.facts.get(node, {})) if node not in self._never else ""
            if why:
                self._against[node] = why
        return [
            node
            for node in connected
            if node in self.facts
            and node not in self._never
            and node not in self._against
            and self.facts[node].get(need, 1)
        ]

    def _ask(self, grid: Grid, nodes: list[int], connected: set[int]) -> None:
        questions = [
            Message(content=RecordDict({CONFIG: ConfigRecord()}), dst_node_id=node, message_type=MessageType.QUERY)
            for node in nodes
        ]
        begun = time.time()
        for node in nodes:
            self._asked[node] = time.monotonic()
        for reply in grid.send_and_receive(questions, timeout=ANSWER_S + EACH_S * len(nodes)):
            node = reply.metadata.src_node_id
            facts = {} if reply.has_error() else config_in(reply.content, FACTS)
            why = str(reply.error.reason) if reply.has_error() else self._refusal(facts)
            if reply.has_error() or facts.get("kind") in ("TargetLost", "DeviceError"):
                log(WARNING, "node %s cannot take part now: %s", node, why)
                self._silent[node] = why
                continue
            self._silent.pop(node, None)
            if why:
                self._never[node] = why
                self._record.refused[str(node)] = why
                log(WARNING, "node %s is refused: %s", node, why)
                continue
            if why := self._taken(node, facts.get("partition"), connected):
                self._silent[node] = why  # The other one may be what a SuperNode was before it was started again.
                self._record.note(f"node {node}: {why}")
                log(WARNING, "node %s cannot take part now: %s", node, why)
                continue
            late = max(begun - facts["unix-seconds"], facts["unix-seconds"] - time.time(), 0.0)
            if late > CLOCK_S:
                note = f"the clock of node {node} differs by {late:.0f} s from the server's"
                log(WARNING, "%s; results use the server's", note)
                self._record.note(note)
            if facts.get("left-out"):
                self._record.note(f"node {node} leaves out {facts['left-out']} samples per epoch: they fill no batch")
            self.heard(node, {**facts, "own-samples": facts.get("samples", 0)})
            log(INFO, "node %s: %s, %s samples", node, facts.get("device"), facts.get("samples"))

    def _taken(self, node: int, partition: int | None, connected: set[int]) -> str:
        """Why a device must not have this part of the data, or ""."""
        if partition is None:
            return ""
        for other, facts in self.facts.items():
            if other != node and facts.get("partition") == partition and other in connected:
                return (
                    f"it has part {partition} of the data, as node {other} has, so that data would count twice. "
                    "Try: another --part for one of them"
                )
        return ""

    def _refusal(self, facts: Mapping[str, Any]) -> str:
        if "error" in facts:
            return str(facts["error"])
        if not facts:
            return "it did not answer as a client of Handheld"
        if facts.get("version") != self._record.version:
            return (
                f"it has Handheld {facts.get('version')}, the server has {self._record.version}. Try: the same release"
            )
        if what := difference(str(facts.get("model")), self._record.model):
            return f"it has another model than the server: its {what} differs. Try: the same app on both"
        if self._record.settings.get("secure") and not facts.get("secure"):
            return "it does not mask its updates. Try: federated.client(..., secure=True)"
        return "" if facts.get("batches") else "it has no training data"


class Eligible(Grid):
    """The grid as a strategy may see it: only devices that may take part. It is not asked for ever."""

    def __init__(self, grid: Grid, nodes: Nodes, need: str = "batches") -> None:
        self._grid, self._nodes, self._need = grid, nodes, need
        self._begun = time.monotonic()
        self._calls = 0

    def connected(self) -> list[int]:
        return self._nodes.eligible(self._grid, self._need)

    def get_node_ids(self) -> Iterable[int]:
        found = self.connected()
        self._calls += 1
        # A strategy that has enough asks once or twice; one that waits asks every second.
        if self._calls > ENOUGH and time.monotonic() - self._begun > self._nodes.wait_seconds:
            reasons = "; ".join(f"node {node}: {why}" for node, why in self._nodes.passed_over().items())
            raise HandheldError(
                f"only {len(found)} devices can take part after {self._nodes.wait_seconds:.0f} s, fewer than the "
                f"strategy needs{': ' + reasons if reasons else ''}. "
                "Try: start more SuperNodes, or lower min_available_nodes"
            )
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)
