"""A small federated training in one process: real ClientApps and a real strategy, with a grid that calls them directly.

Flower's transport is tested with real processes in tests/federated/test_deployed.py.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import handheld
from handheld.data import ArrayData

BATCH = 4
#: Every grid is a run of its own: clients keep the step of a run.
_runs = itertools.count(1)


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def make_step() -> handheld.Step:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = (torch.zeros(BATCH, 6), torch.zeros(BATCH, dtype=torch.long))
    return handheld.capture(model, torch.nn.CrossEntropyLoss(), optimizer, batch)


def arrays(partition: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(partition)
    x = random.standard_normal((count, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)


def make_data(partition: int, partitions: int) -> tuple[ArrayData, ArrayData]:
    """Device 0 has 8 samples, device 1 has 12, and so on."""
    train = ArrayData(*arrays(partition, 8 + 4 * partition), batch_size=BATCH)
    return train, ArrayData(*arrays(100 + partition, 8), batch_size=BATCH, shuffle=False)


class LoopGrid(Grid):
    """Devices that answer in this process. `change` may replace the reply of a node; None loses it."""

    def __init__(self, *apps: ClientApp, devices: Iterable[str] = ()) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        run_id = next(_runs)
        names = list(devices) or ["reference:cpu"] * len(apps)
        self.apps = dict(enumerate(apps, 11))
        self.contexts = {
            node: Context(
                run_id=run_id,
                node_id=node,
                node_config={"partition-id": number, "num-partitions": len(apps), "device": names[number]},
                state=RecordDict(),
                run_config={},
            )
            for number, node in enumerate(self.apps)
        }
        self.change: Callable[[int, Message], Message | None] = lambda node, reply: reply
        self.asked: list[tuple[str, int]] = []
        self._run: Any = None

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def get_nodes(self) -> Any:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append((message.metadata.message_type, node))
            reply = self.change(node, self.apps[node](copy.deepcopy(message), self.contexts[node]))
            if reply is not None:
                replies.append(reply)
        return replies
