"""A plan that is running: steps, state, predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.base import Counters, Pending, Session, open_session
from handheld.errors import BatchError, CheckpointError, HandheldError
from handheld.graph.graph import Graph
from handheld.step import named_state

if TYPE_CHECKING:
    from handheld.plan.plan import Plan

NUMPY = {"f32": np.float32, "i32": np.int32, "bool": np.bool_}


class Loss:
    """A step's loss, read from the device when it is looked at."""

    def __init__(self, pending: Pending) -> None:
        self._pending: Pending | None = pending
        self._value = float("nan")

    def __float__(self) -> float:
        if self._pending is not None:
            self._value = float(self._pending.read().reshape(()))
            self._pending = None
        return self._value

    def item(self) -> float:
        return float(self)

    def __repr__(self) -> str:
        return f"Loss({float(self):.6g})"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)


class Trainer:
    """Runs a plan's graphs on its device, over one state that stays there."""

    def __init__(self, plan: Plan, **options: Any) -> None:
        self.plan = plan
        self.closed = False
        self.session: Session = open_session(plan, **options)
        self._micro = 0
        self._last = ""
        plan.step._trainer = self

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def step(self, *batch: Any) -> Loss:
        """One training step. Returns at once; the loss is read when you look at it."""
        name = "train"
        if f"{name}.accumulate" in self.plan.graphs:
            every = self.plan.step.meta.get("accumulate", 1)
            self._micro += 1
            name = name if self._micro % every == 0 else f"{name}.accumulate"
        return self.run(name, *batch)

    def run(self, graph: str, *batch: Any) -> Loss:
        """One run of a graph by its name: `train`, `evaluate`, a GAN's `d` or `g`."""
        self._open()
        if graph not in self.plan.graphs:
            raise HandheldError(f"the plan has no graph {graph!r}; it has {', '.join(self.plan.graphs)}")
        plan = self.plan.graphs[graph].graph
        for (_, tensor, _), array in zip(plan.inputs, check_batch(plan, batch)):
            self.session.upload(graph, tensor, array)
        self.session.run(graph)
        self._last = graph
        if plan.outputs and plan.outputs[0][0] == "loss":
            return Loss(self.session.download(graph, plan.outputs[0][1].tensor))
        return Loss(_Nan())

    def outputs(self) -> dict[str, np.ndarray]:
        """What the last run gave out besides its loss, under the names of the model's outputs."""
        self._open()
        graph = self.plan.graphs[self._last].graph
        return {name: self.session.read_tensor(self._last, view.tensor).reshape(view.shape)
                for name, view, _ in graph.outputs if name != "loss"}

    def evaluate(self, *batch: Any) -> tuple[Loss, dict[str, np.ndarray]]:
        """Loss and outputs in eval mode; changes no state."""
        return self.run("evaluate", *batch), self.outputs()

    def predict(self, *inputs: Any) -> Any:
        """The model's outputs in eval mode: an array, or a dict of them if there are several."""
        self.run("predict", *inputs)
        found = self.outputs()
        return next(iter(found.values())) if len(found) == 1 else found

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, np.ndarray]:
        """Parameters, buffers, optimizer state and counters under their PyTorch names."""
        self.sync()
        return named_state(self.plan.step.slots, self.plan.step.values)

    def sync(self) -> None:
        """Brings the device's state back into the step."""
        self._open()
        for name, slot in self.plan.step.slots.items():
            if slot.role != "constant":
                self.plan.step.values[name] = self.session.read_slot(name)

    def load(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Puts values (of `state()`, or of a PyTorch state dict) onto the device."""
        self._open()
        owner = {alias: slot for slot in self.plan.step.slots.values() for alias in slot.names}
        unknown = [n for n in state if n not in owner]
        missing = [s.name for s in self.plan.step.slots.values()
                   if s.role in ("parameter", "buffer") and not set(s.names) & set(state)]
        if strict and (unknown or missing):
            raise CheckpointError(f"the state does not fit: unknown {unknown[:3]}, missing {missing[:3]}")
        arrays = {}
        for name, value in state.items():
            if name in owner:
                slot, array = owner[name], np.asarray(value)
                if array.shape != slot.shape:
                    raise CheckpointError(f"{name} has shape {array.shape}; this step needs {slot.shape}")
                arrays[slot.name] = array
        for name, array in arrays.items():  # only once everything is known to fit
            self.session.write_slot(name, array)
            self.plan.step.values[name] = array.astype(NUMPY[self.plan.step.slots[name].dtype])

    def set_rate(self, rate: float, group: int = 0, optimizer: str = "optimizer") -> None:
        """Changes a learning rate; the plan stays."""
        name = f"{optimizer}.lr.{group}"
        if name not in self.plan.step.slots:
            raise HandheldError(f"there is no learning rate {name!r}")
        self.session.write_slot(name, np.array(rate, np.float32))

    def rates(self, optimizer: str = "optimizer") -> list[float]:
        names = [n for n in self.plan.step.slots if n.startswith(f"{optimizer}.lr.")]
        return [float(self.session.read_slot(n)) for n in sorted(names)]

    # ── the rest ──────────────────────────────────────────────────────────────────────────────

    @property
    def counters(self) -> Counters:
        """What was done so far: launches, uploads, downloads, finishes, allocations."""
        return dataclasses.replace(self.session.counters)

    def close(self) -> None:
        """Brings the state back into the step and frees the device."""
        if not self.closed:
            self.sync()
            self.session.close()
            self.closed = True

    def _open(self) -> None:
        if self.closed:
            raise HandheldError("this trainer is closed. Start another: plan.start()")

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


class _Nan:
    def read(self) -> np.ndarray:
        return np.array(np.nan, np.float32)


def check_batch(graph: Graph, batch: tuple[Any, ...]) -> list[np.ndarray]:
    """The batch in the graph's order and types, or an error that says what does not fit."""
    names = [name for name, _, _ in graph.inputs]
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        missing = [n for n in names if n not in batch[0]]
        if missing:
            raise BatchError(f"the batch has no {missing[0]!r}; graph {graph.name!r} takes {', '.join(names)}")
        batch = tuple(batch[0][n] for n in names)
    if len(batch) != len(names):
        raise BatchError(f"graph {graph.name!r} takes {len(names)} tensors ({', '.join(names)}), not {len(batch)}")
    ranges = {name: (low, high, ignore) for name, low, high, ignore in graph.notes.get("ranges", ())}
    arrays = []
    for (name, tensor, torch_dtype), value in zip(graph.inputs, batch):
        wanted = graph.tensors[tensor]
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
        if array.shape != wanted.shape:
            raise BatchError(f"input {name!r} of graph {graph.name!r} has shape {array.shape}; "
                             f"the plan is made for {wanted.shape}")
        arrays.append(_convert(array, wanted.dtype, name, torch_dtype))
        if name in ranges and array.size:
            _check_range(arrays[-1], name, *ranges[name])
    return arrays


def _check_range(array: np.ndarray, name: str, low: int, high: int, ignore: int | None) -> None:
    bad = (array < low) | (array >= high)
    if ignore is not None:
        bad &= array != ignore
    if bad.any():
        raise BatchError(f"input {name!r} holds {int(array[bad][0])}; indices must be from {low} to {high - 1}")


def _convert(array: np.ndarray, dtype: str, name: str, torch_dtype: str) -> np.ndarray:
    kinds = {"f32": "f", "i32": "iu", "bool": "b"}[dtype]
    if array.dtype.kind not in kinds:
        raise BatchError(f"input {name!r} is {array.dtype}; the model was captured with {torch_dtype}")
    if dtype == "i32" and array.dtype.itemsize > 4 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -(2**31) or high > 2**31 - 1:
            raise BatchError(f"input {name!r} holds {low if low < 0 else high}, which does not fit 32 bits")
    # a copy of our own: the caller may change the array while the device still reads it
    return np.array(array, dtype=NUMPY[dtype], order="C", copy=True)
