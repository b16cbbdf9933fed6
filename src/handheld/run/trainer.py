"""A running plan: steps, state, predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from handheld.backends.base import Counters, Pending, Session, open_session
from handheld.collector import paused
from handheld.errors import DeviceLost, HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.passes.scale import GOOD, SCALE, SKIPPED, SMALLEST
from handheld.plan.fit import fits_of
from handheld.run.batch import check_batch, fitting_graph
from handheld.run.checkpoint import by_slot
from handheld.run.loop import fit
from handheld.run.parts import parts_of, step_in_parts
from handheld.run.pieces import run_pieces
from handheld.run.sizes import add_sizes, own_graph, sizes_of
from handheld.run.stored import read_state, write_state
from handheld.step import named_state

if TYPE_CHECKING:
    from handheld.plan.plan import Plan


class Loss:
    """The loss of a step. It is read from the device when its value is used."""

    def __init__(self, pending: Pending | None, value: float = float("nan"), note: str = "") -> None:
        self._pending = pending
        self._value = value
        #: Which samples the loss does not cover, and why; "" if it covers all of them.
        self.note = note

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
    """Is told about the steps of a trainer."""

    def watching(self, trainer: Trainer, graph: str) -> AbstractContextManager[None]: ...

    def closing(self) -> None:
        """The session is about to close, and with it the times that it keeps."""


@dataclass(frozen=True)
class LossScale:
    """The state of loss scaling.

    `good_steps` counts steps since the scale last changed; `skipped_steps` counts all steps skipped
    because their gradients overflowed.
    """

    scale: float
    good_steps: int
    skipped_steps: int

    @property
    def useless(self) -> bool:
        """Whether steps are still skipped at the smallest scale, so the scale cannot be the cause."""
        return self.scale <= SMALLEST and self.good_steps == 0


class Trainer:
    """Runs the graphs of a plan on its device, over one state that stays there.

    A step has one trainer at a time: starting another one copies the state of the first back into the
    step, continues from it, and closes the first. To run two at once, use `step.copy()`.
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
        self._options = options
        self.session: Session = open_session(plan, **options)
        #: Number of batches whose gradients are summed but not yet applied (gradient accumulation).
        self.micro = 0
        #: The graph that ran last.
        self.last = ""
        #: The graphs whose samples do not influence each other, as far as that was tried (pieces.py).
        self.by_sample: set[str] = set()
        #: Why a graph cannot be had for a batch size: (kind, size) -> reason.
        self.refused: dict[tuple[str, int], str] = {}
        #: Is told when steps begin and end (profile/profiler.py).
        self.observer: Observer | None = None
        plan.step._trainer = self

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def step(self, *batch: Any) -> Loss:
        """Run one training step. Returns at once; the loss is read from the device when you use it."""
        parts = parts_of(self.plan)
        if parts is not None:
            return step_in_parts(self, parts, batch)
        name = self.next_graph(*batch)
        loss = self.run(name, *batch)
        self.micro = self.micro + 1 if name.endswith(".accumulate") else 0
        return loss

    def next_graph(self, *batch: Any) -> str:
        """The graph that `step` would run on this batch. A batch of another size gets its own graph if the code of
        the step is at hand."""
        name = fitting_graph(self.plan.graphs, "train", batch) or own_graph(self, batch)
        if f"{name}.accumulate" in self.plan.graphs:
            every = self.plan.graphs[name].graph.notes.get("accumulate", 1)
            return name if (self.micro + 1) % every == 0 else f"{name}.accumulate"
        return name

    def add_sizes(self, kind: str, sizes: Iterable[int]) -> str:
        """Add the graphs of a kind (train, evaluate, predict) for other batch sizes, and keep the state.

        They come from the step, or from its code if it was captured in this process. Returns "", or why one of
        the sizes cannot be added.
        """
        self._open()
        return add_sizes(self, {kind: sizes})

    def reopen(self, graphs: Sequence[str]) -> None:
        """Make the plan again with other graphs of the step, and continue from the state of now."""
        self._open()
        before, counters = self.plan, self.session.counters
        plan = before.again(graphs=list(graphs))
        self.sync()
        try:
            self.session = self.session.open_again(plan, self._options)
            self.plan = plan
        except HandheldError:
            self.session = open_session(before, **self._options)
            raise
        finally:
            self.last = ""
            self.session.counters.add(counters)

    def run(self, graph: str, *batch: Any) -> Loss:
        """Run a graph once, by its name: `train`, `evaluate`, a GAN's `d` or `g`."""
        self._open()
        if graph not in self.plan.graphs:
            raise HandheldError(f"the plan has no graph {graph!r}; it has {', '.join(self.plan.graphs)}")
        if self.observer is not None:
            with self.observer.watching(self, graph):
                return self._run(graph, batch)
        return self._run(graph, batch)

    def _run(self, graph: str, batch: tuple[Any, ...]) -> Loss:
        plan = self.plan.graphs[graph].graph
        for live in self.plan.step.optimizers.values():
            if live.step_slot in plan.slots or live.rate_slot in plan.slots:
                self._write(live.changes())
        for given, array in zip(plan.inputs, check_batch(plan, batch, own=False), strict=True):
            self.session.upload(graph, given.tensor, array)
        self.session.run(graph)
        self.last = graph
        if plan.outputs and plan.outputs[0].name == "loss":
            return Loss(self.session.download(graph, plan.outputs[0].view.tensor))
        return Loss(_Nan())

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the last run except the loss, under the names of the model's outputs."""
        self._open()
        if not self.last:
            raise HandheldError(
                "nothing was run yet, so there are no outputs. Try: "
                "trainer.evaluate(*batch), or trainer.run(graph, *batch)"
            )
        graph = self.plan.graphs[self.last].graph
        if ".part" in self.last:
            raise HandheldError(
                "a training step in micro-batches has no outputs of the whole batch. Try: trainer.evaluate(*batch)"
            )
        fit = fits_of(self.plan.options).get(self.last)
        if fit is not None and not fit.outputs:
            raise HandheldError(
                f"the outputs of {self.last!r} are not kept, because the plan would not fit into its memory limit with "
                "them. Try: a larger memory_limit_bytes, a smaller batch, or trainer.evaluate(*batch)"
            )
        outputs = {}
        for shown in graph.outputs:
            if shown.name != "loss":
                value = self.session.read_tensor(self.last, shown.view.tensor).reshape(shown.view.shape)
                # Integers have 32 bits on the device, even if they have 64 in the model.
                outputs[shown.name] = value.astype(shown.torch_dtype) if "int" in shown.torch_dtype else value
        return outputs

    def evaluate(self, *batch: Any) -> tuple[Loss, dict[str, np.ndarray]]:
        """Loss and outputs of any number of samples in eval mode. Changes no state.

        The loss is the mean over the samples. If it cannot cover all of them, its `note` says so; this happens only
        with a step file, whose last and smaller batch is filled up.
        """
        result = run_pieces(self, "evaluate", batch)
        if isinstance(result.loss, Loss):
            return result.loss, result.outputs
        note = f"the loss covers {result.covered} of {result.samples} samples: {result.why}" if result.why else ""
        return Loss(None, result.loss, note), result.outputs

    def predict(self, *inputs: Any) -> Any:
        """The model's outputs for any number of samples in eval mode: one array, or a dict if there are several."""
        if not sizes_of(self.plan.graphs, "predict"):
            why = self.plan.step.meta.get("no_predict") or f"the plan has {', '.join(self.plan.graphs)}"
            raise HandheldError(f"there is no graph for predictions: {why}. Try: trainer.evaluate(*batch)")
        outputs = run_pieces(self, "predict", inputs).outputs
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    fit = fit

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, np.ndarray]:
        """Parameters, buffers, optimizer state and counters under their PyTorch names."""
        self.sync()
        return named_state(self.plan.step.slots, self.plan.step.values)

    def sync(self) -> None:
        """Copy the device's state back into the step."""
        self._open()
        slots = [name for name, slot in self.plan.step.slots.items() if slot.role != "constant"]
        # All are read before one is replaced: a device that is lost in between must not leave a mixture of two states.
        self.plan.step.values.update(read_state(self.session, slots))

    def load(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Write values (from `state()` or a PyTorch state dict) to the device."""
        self._open()
        if not isinstance(state, Mapping):
            raise HandheldError(
                f"load takes a dictionary of values by name, not a "
                f"{type(state).__name__}. Try: handheld.load for files, or "
                "fit(..., checkpoint=, resume=True)"
            )
        arrays = by_slot(state, self.plan.step.slots, strict)
        write_state(self.session, arrays)  # Nothing is written before everything is known to fit.
        for name, array in arrays.items():
            self.plan.step.values[name] = array.astype(DTYPES[self.plan.step.slots[name].dtype].numpy)

    def set_rate(self, rate: float, group: int | None = None, optimizer: str | None = None) -> None:
        """Change a learning rate; the plan stays the same.

        `group` and `optimizer` are needed if there are several. An optimizer is named by the graph that it
        updates in (`"d"`, `"g"`).
        """
        self._open()
        slots = self.rate_slots(optimizer)
        if group is None and len(slots) > 1:
            raise HandheldError(f"the optimizer has {len(slots)} parameter groups. Try: set_rate(rate, group=0)")
        if not 0 <= (group or 0) < len(slots):
            raise HandheldError(f"the optimizer has no group {group}; groups are 0 to {len(slots) - 1}")
        name = slots[group or 0]
        if not isinstance(rate, Real) or not 0 <= rate <= float(np.finfo(np.float32).max):
            raise HandheldError(f"the learning rate {rate!r:.40} must be a finite number, 0 or more")
        self.session.write_slot(name, np.array(rate, np.float32))

    def rates(self, optimizer: str | None = None) -> list[float]:
        """The learning rates of an optimizer, one per parameter group."""
        self._open()
        slots = self.rate_slots(optimizer)
        self.follow(slots[0].rpartition(".lr.")[0])
        return [float(self.session.read_slot(name)) for name in slots]

    def follow(self, optimizer: str) -> dict[str, float]:
        """Copy what a scheduler changed in the PyTorch optimizer to the device; `step` and `run` do it by themselves.

        Returns the slots that changed. A step file has no PyTorch optimizer to follow.
        """
        live = self.plan.step.optimizers.get(optimizer)
        return {} if live is None else self._write(live.changes())

    def _write(self, numbers: dict[str, float]) -> dict[str, float]:
        for slot, value in numbers.items():
            self.session.write_slot(slot, np.array(value, np.float32))
        return numbers

    def rate_slots(self, optimizer: str | None) -> list[str]:
        """The slots of an optimizer's rates, one per group. `optimizer` is its own name or a graph's
        (`train` also stands for `train@16`)."""
        owners: dict[str, list[str]] = {}
        for name in self.plan.step.slots:
            owner, separator, group = name.rpartition(".lr.")
            if separator and group.isdigit():
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
                "this step has several optimizers, and none was named"
                if chosen
                else f"there is no optimizer {optimizer or ''}".rstrip()
            )
            raise HandheldError(f"{wrong}. Try one of: {known or 'none'}")
        return sorted(owners[chosen[0]], key=lambda name: int(name.rpartition(".")[2]))

    def loss_scale(self) -> LossScale | None:
        """The loss scale and the skipped steps of a plan in half precision; else None."""
        self._open()
        if self.plan.options.get("precision", "float32") == "float32" or SCALE not in self.plan.step.slots:
            return None
        scale, good, skipped = (self.session.read_slot(n) for n in (SCALE, GOOD, SKIPPED))
        return LossScale(float(scale), int(good), int(skipped))

    # ── counters and closing ──────────────────────────────────────────────────────────────────

    @property
    def counters(self) -> Counters:
        """Counts so far: launches, uploads, downloads, finishes, allocations."""
        return dataclasses.replace(self.session.counters)

    def close(self) -> None:
        """Copy the state back into the step and free the device."""
        if self.closed:
            return
        try:
            if self.observer is not None:
                self.observer.closing()
            self.sync()
        finally:
            self.session.close()
            self.closed = True

    def _open(self) -> None:
        if self.closed:
            raise HandheldError(
                "this trainer is closed: another one was started for the same step and continued "
                "from its state. Try: step.copy().plan(...) to run two at once"
                if self._replaced
                else "this trainer is closed. Try: plan.start()"
            )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeviceLost:
            if not isinstance(error, DeviceLost):  # The first error says more than that its state cannot be read.
                raise


class _Nan:
    def read(self) -> np.ndarray:
        return np.array(np.nan, np.float32)
