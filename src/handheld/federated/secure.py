"""Secure aggregation with SecAgg+ of Flower: the server learns the mean of all updates, and no single one.

Flower 1.41 has both halves of the protocol, but the server's half only for its older interface. Here that half runs
behind the grid of the newer one: `SecureGrid` sends the four messages of a round, and gives every reply the mean.

    device   explained → Flower's mod → changes → the app: its changed values, masked
    server   SecureGrid: keys → shares → masked updates → unmask → the mean, as if each device had sent it

What is masked is the change of each value, times the number of samples. Loss, samples and costs are not masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as FlowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow, WorkflowState

from handheld.errors import HandheldError
from handheld.federated.client_app import ARRAYS, CONFIG, FACTS, METRICS, facts_record
from handheld.federated.flower import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Grid,
    Message,
    MessageType,
    RecordDict,
    array_record,
    arrays_in,
    config_in,
    metrics_in,
)
from handheld.federated.model import State

#: Fewer devices could compute each other's updates from the mean.
FEWEST = 3
#: So many devices hold a share of each other's secrets; of a smaller fleet, all do.
SHARES = 17
#: The part of these devices that must answer to the end.
THRESHOLD = 2 / 3
#: More devices would overflow the sum: each has 22 bits of 32.
MOST = 1000
Call = Callable[[Message, Context], Message]


def mods() -> list[Callable[[Message, Context, Call], Message]]:
    """The mods of a client, the outermost first."""
    return [explained, secaggplus_mod, changes]


def explained(message: Message, context: Context, call_next: Call) -> Message:
    """Nothing leaves the device unmasked, and an error is told in words."""
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    try:
        if RECORD_KEY_CONFIGS not in message.content.config_records:
            raise HandheldError(
                "this device masks its updates, but the server does not ask for masked ones. "
                "Try: federated.server(..., secure=True)"
            )
        return call_next(message, context)
    except Exception as error:
        content = facts_record({"error": f"{error}", "kind": type(error).__name__})
        return Message(content=content, reply_to=message)


def changes(message: Message, context: Context, call_next: Call) -> Message:
    """The reply of the app as Flower's mod expects it: how much each value changed. The mod masks it."""
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    before = arrays_in(message.content, ARRAYS)
    reply = call_next(message, context)
    if reply.has_error():
        raise HandheldError(str(reply.error.reason))
    facts, numbers = config_in(reply.content, FACTS), metrics_in(reply.content, METRICS)
    if "error" in facts:
        raise HandheldError(str(facts["error"]))
    after = arrays_in(reply.content, ARRAYS)
    change = [after[name].astype(np.float64) - before[name] for name in before]
    agreed = context.state.config_records[RECORD_KEY_STATE]
    _check_range(dict(zip(before, change, strict=True)), float(agreed[Key.CLIPPING_RANGE]))  # type: ignore[arg-type]
    samples = int(numbers["num-examples"])
    if samples > float(agreed[Key.MAX_WEIGHT]):  # type: ignore[arg-type]
        raise HandheldError(f"it trained on {samples} samples, more than it had said")
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(change), samples, {})
    content = fitres_to_recorddict(result, keep_input=False)
    content[METRICS] = reply.content[METRICS]
    content[FACTS] = reply.content[FACTS]
    return Message(content=content, reply_to=message)


def _check_range(change: State, most: float) -> None:
    """Masking clips what is too large and hides what is not finite, so the device itself must look."""
    for name, array in change.items():
        if not np.isfinite(array).all():
            raise HandheldError(f"{name} has values that are not finite")
        largest = float(np.abs(array).max(initial=0.0))
        if largest > most:
            raise HandheldError(
                f"{name} changed by {largest:.3g}, and masked updates hold changes up to {most:g}. "
                f"Try: federated.server(..., secure={2 ** math.ceil(math.log2(largest))})"
            )


class SecureGrid(Grid):
    """A grid whose rounds of training are aggregated securely. Other messages pass."""

    def __init__(self, grid: Grid, change: float, samples: Callable[[int], int]) -> None:
        self._grid, self._change, self._samples = grid, change, samples

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
            return self._grid.send_and_receive(messages, timeout=timeout)
        if not FEWEST <= len(messages) <= MOST:
            raise HandheldError(
                f"secure aggregation needs {FEWEST} to {MOST} devices in a round, and {len(messages)} take part. "
                "Try: a strategy with other fraction_train and min_train_nodes"
            )
        weight = max(self._samples(message.metadata.dst_node_id) for message in messages)
        return _SecureRound(self._grid, messages, self._change, float(max(weight, 1)), timeout).replies()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)


class _SecureRound:
    """One round of SecAgg+. For Flower's workflow it is also the grid, the strategy and the client manager."""

    def __init__(
        self, grid: Grid, messages: list[Message], change: float, weight: float, timeout: float | None
    ) -> None:
        self._grid, self._timeout = grid, timeout
        self._messages = {message.metadata.dst_node_id: message for message in messages}
        shares: int | float = 1.0 if len(messages) <= SHARES else SHARES
        self._flow = SecAggPlusWorkflow(
            shares, THRESHOLD, max_weight=weight, clipping_range=change, quantization_range=2**22, timeout=timeout
        )
        self._bad: list[Message] = []
        self._good: list[Message] = []
        self._mean: list[np.ndarray] | None = None

    def replies(self) -> list[Message]:
        """The replies of the devices, each with the mean of all. Those without are errors."""
        finished = self._protocol()
        before = arrays_in(next(iter(self._messages.values())).content, ARRAYS)
        for reply in self._good:
            facts = config_in(reply.content, FACTS)
            if not finished or self._mean is None:
                facts["error"] = "too few devices answered to unmask the mean of this round"
                reply.content = RecordDict({FACTS: ConfigRecord(facts)})
                continue
            masked: Any = reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            facts["sent-bytes"] = sum(map(len, masked))
            pairs = zip(before.items(), self._mean, strict=True)
            mean = {name: (array + change).astype(array.dtype) for (name, array), change in pairs}
            reply.content = RecordDict(
                {ARRAYS: array_record(mean), METRICS: reply.content[METRICS], FACTS: ConfigRecord(facts)}
            )
        return [*self._good, *self._bad]

    def _protocol(self) -> bool:
        """Whether all four stages came to an end."""
        round_number = config_in(next(iter(self._messages.values())).content, CONFIG)["server-round"]
        records = RecordDict()
        records[MAIN_CONFIGS_RECORD] = ConfigRecord({FlowKey.CURRENT_ROUND: round_number})
        records[MAIN_PARAMS_RECORD] = ArrayRecord()
        context: Any = SimpleNamespace(state=records, strategy=self, client_manager=self)
        grid, state, flow = self._as_grid(), WorkflowState(), self._flow
        if not flow.setup_stage(grid, context, state):
            return False
        _forget_lost(state)
        state.nid_to_fitins = {node: message.content for node, message in self._messages.items()}
        if not flow.share_keys_stage(grid, context, state):
            return False
        _forget_lost(state)
        self._good = []  # Only these replies are of devices that trained.
        if not flow.collect_masked_vectors_stage(grid, context, state):
            return False
        trained = self._good
        done = flow.unmask_stage(grid, context, state)
        self._good = trained
        return bool(done)

    def _as_grid(self) -> Any:
        """The grid of the workflow: replies with an error are kept away from it, as of devices that are gone."""

        def send_and_receive(messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
            good: list[Message] = []
            for reply in self._grid.send_and_receive(messages, timeout=timeout):
                failed = reply.has_error() or "error" in config_in(reply.content, FACTS)
                (self._bad if failed else good).append(reply)
            self._good = good
            return good

        return SimpleNamespace(send_and_receive=send_and_receive)

    # ── what Flower's workflow asks of a strategy and of a client manager ─────────────────────────

    def num_available(self) -> int:
        return len(self._messages)

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self._messages]

    def aggregate_fit(self, number: int, results: list[tuple[Any, FitRes]], *_: Any) -> tuple[None, dict[str, Any]]:
        self._mean = parameters_to_ndarrays(results[0][1].parameters) if results else None
        return None, {}


def _forget_lost(state: WorkflowState) -> None:
    """Devices that were lost before others masked anything with their keys take no part in what follows. Flower's
    workflow would wait for shares of their secrets, which nobody has."""
    state.sampled_node_ids = set(state.active_node_ids)
    state.nid_to_neighbours = {
        node: state.nid_to_neighbours[node] & state.active_node_ids for node in state.active_node_ids
    }
