"""Training on two devices at once: each computes the gradients of its part of the batch.

The first device holds the state. It adds both gradients, weighted by samples and in a fixed order, and updates. The
second device gets the new parameters before its next step. Both are started before either is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.base import Pending
from handheld.errors import HandheldError, PlanError
from handheld.graph.graph import Graph, pack_offsets
from handheld.passes.cut import GRADIENTS, Halves, cut, same_update
from handheld.run.batch import batch_sizes, check_batch, fitting_graph
from handheld.run.sizes import rows
from handheld.run.trainer import Loss, Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from handheld.plan.plan import Plan
    from handheld.step import Step

#: The seed of the random numbers. The second device draws others: its samples are others.
SEED = "handheld.seed"


@dataclass(frozen=True)
class Split:
    """How a batch is split: samples of the first and of the second device, and the graphs that they run."""

    first: int
    second: int
    gradients: tuple[str, str]
    update: str

    @property
    def batch(self) -> int:
        return self.first + self.second


def split_step(step: Step, first: int, second: int) -> Split:
    """Add the graphs of a split batch to the step. Raises PlanError if the step cannot be split."""
    if first < 1 or second < 1:
        raise PlanError(f"a batch cannot be split into {first} and {second} samples: each device needs at least one")
    if any(int(graph.notes.get("accumulate", 1)) > 1 for graph in step.graphs.values()):
        raise PlanError("a step that accumulates gradients cannot be split between two devices. Try: --accumulate 1")
    whole = first + second
    weights = (first / whole, second / whole)
    split = Split(first, second, (f"gradient@{first}", f"gradient@{second}"), f"update@{first}+{second}")
    parts = zip((first, second), split.gradients, strict=True)
    halves = [_halves(step, count, name, split.update, weights) for count, name in parts]
    if not same_update(halves[0].second, halves[1].second):
        raise PlanError(
            f"the gradients of {first} and of {second} samples come in different orders, so they cannot be added. "
            "Try: another batch, or one device"
        )
    step.added |= {name: half.first for name, half in zip(split.gradients, halves, strict=True)}
    step.added[split.update] = halves[0].second
    return split


def _halves(step: Step, count: int, name: str, update: str, weights: tuple[float, float]) -> Halves:
    sizes = {**batch_sizes(step.graphs, "train"), **batch_sizes(step.added, "train")}
    if "train" in step.graphs:
        sizes[rows(step.graphs["train"])] = "train"
    if count not in sizes and step.code is None:
        raise PlanError(
            f"the step has no training graph for {count} samples. Try: handheld package --batch {count},..."
        )
    graph = step.graph(sizes[count] if count in sizes or step.code is None else step.code.add(step, "train", count))
    return cut(graph, name, update, weights)


def _pieces(graph: Graph, sent: Mapping[str, int]) -> list[tuple[int, dict[str, tuple[int, int]]]]:
    """The tensors that hold the new values of the slots, each with the place of every slot in it."""
    slot_of = {tensor: slot for slot, tensor in sent.items()}
    found = [(tensor, {slot: (0, graph.tensors[tensor].size)}) for slot, tensor in sent.items()]
    for pack, members in graph.packs.items():
        if set(members) <= set(slot_of):
            offsets, _ = pack_offsets(graph.tensors, members)
            places = {slot_of[m]: (at, graph.tensors[m].size) for m, at in zip(members, offsets, strict=True)}
            found = [(pack, places), *(piece for piece in found if piece[0] not in members)]
    return found


class _Both:
    """The mean loss of the two parts."""

    def __init__(self, losses: Sequence[Loss], weights: Sequence[float]) -> None:
        self._losses, self._weights = losses, weights

    def read(self) -> np.ndarray:
        values = (float(loss) * weight for loss, weight in zip(self._losses, self._weights, strict=True))
        return np.array(sum(values), np.float32)


class PairTrainer(Trainer):
    """A trainer whose steps run on two devices. Other batches than those of the split, and everything else, run on the
    first device alone."""

    def __init__(self, plan: Plan, second: Plan, split: Split, **options: Any) -> None:
        super().__init__(plan, **options)
        self.split = split
        try:
            self.second = Trainer(second, **options)
        except BaseException:
            self.close_first()
            raise
        own, other = (plan.graphs[name].graph for name in (split.update, split.gradients[0]))
        #: The slots that an update changes and the gradients depend on, with the tensor of their new value.
        self._sent = {write.slot: write.tensor for write in own.writes if write.slot in other.slots}
        #: What is downloaded after an update: packs of new values, and single ones.
        self._pieces = _pieces(own, self._sent)
        self._new: list[Pending] = []
        self._stale = True
        if SEED in other.slots:
            seed = self.second.session.read_slot(SEED)
            self.second.session.write_slot(SEED, np.asarray(seed + 1, seed.dtype))

    @property
    def devices(self) -> tuple[str, str]:
        return self.session.device_name, self.second.session.device_name

    def step(self, *batch: Any) -> Loss:
        """Run one training step. A batch of the split's size runs on both devices."""
        self._open()
        name = fitting_graph(self.plan.graphs, "train", batch)
        if name is None or rows(self.plan.graphs[name].graph) != self.split.batch:
            self.forget()
            return super().step(*batch)
        one, other = self.parts(check_batch(self.plan.graphs[name].graph, batch, own=False))
        if self._stale:
            self._send({slot: self.session.read_slot(slot) for slot in self._sent})
        losses, gradients = self.start_gradients(0, one)
        if not self._stale:
            # These were started with the last update, before the gradients that run now.
            for (_, slots), pending in zip(self._pieces, self._new, strict=True):
                array = pending.read().reshape(-1)
                self._send({slot: array[at : at + size] for slot, (at, size) in slots.items()})
        with_other = self.start_gradients(1, other)
        arrays = [pending.read() for pending in (*gradients, *with_other[1])]
        self.run(self.split.update, *arrays)
        self._new = [self.session.download(self.split.update, tensor) for tensor, _ in self._pieces]
        self._stale, self.last = False, self.split.gradients[0]
        weights = [count / self.split.batch for count in (self.split.first, self.split.second)]
        return Loss(_Both((losses, with_other[0]), weights))

    def parts(self, batch: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The parts of a batch for the two devices. An input without a row per sample goes to both."""
        at, whole = self.split.first, (self.split.batch,)
        pairs = [(array[:at], array[at:]) if array.shape[:1] == whole else (array, array) for array in batch]
        return [one for one, _ in pairs], [other for _, other in pairs]

    def start_gradients(self, which: int, part: Sequence[np.ndarray]) -> tuple[Loss, list[Pending]]:
        """Starts the gradients of the first (0) or the second device (1), and their way to the host."""
        name, trainer = self.split.gradients[which], self.second if which else self
        loss = Trainer.run(trainer, name, *part)
        shown = [o for o in trainer.plan.graphs[name].graph.outputs if o.name == GRADIENTS]
        return loss, [trainer.session.download(name, output.view.tensor) for output in shown]

    def _send(self, values: Mapping[str, np.ndarray]) -> None:
        for slot, value in values.items():
            self.second.session.write_slot(slot, value)

    def forget(self) -> None:
        """The second device has an old state from now on."""
        self._new, self._stale = [], True

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the last run. Those of a step on two devices are joined."""
        if self.last != self.split.gradients[0]:
            return super().outputs()
        one, other = (
            {name: value for name, value in found.items() if name != GRADIENTS}
            for found in (super().outputs(), self.second.outputs())
        )
        for key, value in one.items():
            if value.shape[:1] != (self.split.first,):
                raise HandheldError(f"output {key!r} does not have one row per sample, so it cannot be joined")
        return {key: np.concatenate([one[key], other[key]]) for key in one}

    def load(self, state: Mapping[str, Any], strict: bool = True) -> None:
        self.forget()
        super().load(state, strict)

    def reopen(self, graphs: Sequence[str]) -> None:
        self.forget()
        super().reopen(graphs)

    def close_first(self) -> None:
        super().close()

    def close(self) -> None:
        """Copy the state back into the step and free both devices."""
        if self.closed:
            return
        self.forget()
        try:
            super().close()
        finally:
            self.second.session.close()
            self.second.closed = True
