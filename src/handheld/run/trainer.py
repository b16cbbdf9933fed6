"""A plan that is running: steps, state, predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from handheld.backends.base import Counters, Pending, Session, open_session
from handheld.collector import paused
from handheld.errors import HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.passes.scale import GOOD, SCALE, SKIPPED, SMALLEST
from handheld.run.batch import check_batch, choose_graph
from handheld.run.checkpoint import by_slot
from handheld.run.loop import fit
from handheld.step import named_state

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


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


class Observer(Protocol):
    """Sees the steps of a trainer."""

    def watching(self, trainer: Trainer, graph: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class LossScale:
    """Where loss scaling stands: the scale, good steps since it last changed, and steps that were
    skipped so far because their gradients overflowed."""

    scale: float
    good_steps: int
    skipped_steps: int

    @property
    def useless(self) -> bool:
        """Steps are skipped although the scale cannot be smaller: it is not the scale."""
        return self.scale <= SMALLEST and self.good_steps == 0


class Trainer:
    """Runs a plan's graphs on its device, over one state that stays there.

    A step has one trainer at a time: starting another brings the state of the one before back into
    the step, goes on from it, and closes that one. Two side by side need `step.copy()`.
    """

    @paused()
    def __init__(self, plan: Plan, **options: Any) -> None:
        self.plan = plan
        self.closed = False
        self._replaced = False
        before = plan.step._trainer
        if before is not None and not before.closed:
            before.close()
            before._replaced = True
        self.session: Session = open_session(plan, **options)
        #: batches whose gradients are summed and not yet applied (gradient accumulation)
        self.micro = 0
        self._last = ""
        #: who wants to see steps begin and end (profile/profiler.py)
        self.observer: Observer | None = None
        plan.step._trainer = self

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def step(self, *batch: Any) -> Loss:
        """One training step. Returns at once; the loss is read when you look at it."""
        name = self.next_graph(*batch)
        loss = self.run(name, *batch)
        self.micro = self.micro + 1 if name.endswith(".accumulate") else 0
        return loss

    def next_graph(self, *batch: Any) -> str:
        """The graph that `step` would run on this batch."""
        name = choose_graph(self.plan.graphs, "train", batch)
        if f"{name}.accumulate" in self.plan.graphs:
            every = self.plan.graphs[name].graph.notes.get("accumulate", 1)
            return name if (self.micro + 1) % every == 0 else f"{name}.accumulate"
        return name

    def run(self, graph: str, *batch: Any) -> Loss:
        """One run of a graph by its name: `train`, `evaluate`, a GAN's `d` or `g`."""
        self._open()
        if graph not in self.plan.graphs:
            raise HandheldError(f"the plan has no graph {graph!r}; it has {', '.join(self.plan.graphs)}")
        if self.observer is not None:
            with self.observer.watching(self, graph):
                return self._run(graph, batch)
        return self._run(graph, batch)

    def _run(self, graph: str, batch: tuple[Any, ...]) -> Loss:
        plan = self.plan.graphs[graph].graph
        for given, array in zip(plan.inputs, check_batch(plan, batch, own=False), strict=True):
            self.session.upload(graph, given.tensor, array)
        self.session.run(graph)
        self._last = graph
        if plan.outputs and plan.outputs[0].name == "loss":
            return Loss(self.session.download(graph, plan.outputs[0].view.tensor))
        return Loss(_Nan())

    def outputs(self) -> dict[str, np.ndarray]:
        """What the last run gave out besides its loss, under the names of the model's outputs."""
        self._open()
        if not self._last:
            raise HandheldError(
                "nothing was run yet, so that there are no outputs. Try: "
                "trainer.evaluate(*batch), or trainer.run(graph, *batch)"
            )
        graph = self.plan.graphs[self._last].graph
        found = {}
        for shown in graph.outputs:
            if shown.name != "loss":
                value = self.session.read_tensor(self._last, shown.view.tensor).reshape(shown.view.shape)
                # integers have 32 bits on the device, whatever they have in the model
                found[shown.name] = value.astype(shown.torch_dtype) if "int" in shown.torch_dtype else value
        return found

    def evaluate(self, *batch: Any) -> tuple[Loss, dict[str, np.ndarray]]:
        """Loss and outputs in eval mode; changes no state."""
        name = choose_graph(self.plan.graphs, "evaluate", batch)
        return self.run(name, *batch), self.outputs()

    def predict(self, *inputs: Any) -> Any:
        """The model's outputs in eval mode: an array, or a dict of them if there are several."""
        self.run(choose_graph(self.plan.graphs, "predict", inputs), *inputs)
        found = self.outputs()
        return next(iter(found.values())) if len(found) == 1 else found

    fit = fit

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
        if not isinstance(state, Mapping):
            raise HandheldError(
                f"load takes a dictionary of values by name, not a "
                f"{type(state).__name__}. Files: handheld.load, or "
                "fit(..., checkpoint=, resume=True)"
            )
        arrays = by_slot(state, self.plan.step.slots, strict)
        for name, array in arrays.items():  # only once everything is known to fit
            self.session.write_slot(name, array)
            self.plan.step.values[name] = array.astype(DTYPES[self.plan.step.slots[name].dtype].numpy)

    def set_rate(self, rate: float, group: int | None = None, optimizer: str | None = None) -> None:
        """Changes a learning rate; the plan stays. `group` and `optimizer` must be said where there
        are several; an optimizer is called by the graph that it updates in (`"d"`, `"g"`)."""
        self._open()
        slots = self._rate_slots(optimizer)
        if group is None and len(slots) > 1:
            raise HandheldError(
                f"the optimizer has {len(slots)} parameter groups: say which one, for example set_rate(rate, group=0)"
            )
        if not 0 <= (group or 0) < len(slots):
            raise HandheldError(f"the optimizer has no group {group}: they are counted from 0 to {len(slots) - 1}")
        name = slots[group or 0]
        if not isinstance(rate, Real) or not 0 <= rate <= float(np.finfo(np.float32).max):
            raise HandheldError(
                f"a learning rate of {rate!r:.40} makes no sense: it should be a finite number, 0 or more"
            )
        self.session.write_slot(name, np.array(rate, np.float32))

    def rates(self, optimizer: str | None = None) -> list[float]:
        """The learning rates of an optimizer, one for each of its parameter groups."""
        self._open()
        return [float(self.session.read_slot(name)) for name in self._rate_slots(optimizer)]

    def _rate_slots(self, optimizer: str | None) -> list[str]:
        """The slots of an optimizer's rates, by group. It is called by its own name, or by a graph
        (`train` also where that is `train@16`)."""
        owners: dict[str, list[str]] = {}
        for name in self.plan.step.slots:
            owner, found, group = name.rpartition(".lr.")
            if found and group.isdigit():
                owners.setdefault(owner, []).append(name)
        used = {
            owner: [name for name, graph in self.plan.step.graphs.items() if any(slot in graph.slots for slot in slots)]
            for owner, slots in owners.items()
        }
        chosen = [
            owner
            for owner, graphs in used.items()
            if optimizer in (None, owner) or any(optimizer in (name, name.partition("@")[0]) for name in graphs)
        ]
        if len(chosen) != 1:
            known = ", ".join(f"{owner} (of {', '.join(graphs)})" for owner, graphs in used.items())
            wrong = (
                "this step has several optimizers: say which one"
                if chosen
                else f"there is no optimizer {optimizer or ''}".rstrip()
            )
            raise HandheldError(f"{wrong}; there are: {known or 'none'}")
        return sorted(owners[chosen[0]], key=lambda name: int(name.rpartition(".")[2]))

    def loss_scale(self) -> LossScale | None:
        """The scale of the loss and the steps it made skip, in a plan in halves; else nothing."""
        self._open()
        if self.plan.options.get("precision") != "half" or SCALE not in self.plan.step.slots:
            return None
        scale, good, skipped = (self.session.read_slot(n) for n in (SCALE, GOOD, SKIPPED))
        return LossScale(float(scale), int(good), int(skipped))

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
            raise HandheldError(
                "this trainer is closed: another one was started over the same step and went on "
                "from its state. For two side by side: step.copy().plan(...)"
                if self._replaced
                else "this trainer is closed. Start another: plan.start()"
            )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Nan:
    def read(self) -> np.ndarray:
        return np.array(np.nan, np.float32)
