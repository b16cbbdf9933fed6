"""Stores frozen weights of a captured step in 8 or 4 bits. They are computed with in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from handheld.errors import HandheldError
from handheld.graph.check import check
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import Graph, Slot
from handheld.packing import BITS, META, Packing, from_meta, pack, scales_of, to_meta, words_of
from handheld.partial.patterns import matching
from handheld.passes.unpack import unpack_weights
from handheld.step import Code, Step

#: Smaller weights are not packed: they would save nothing.
LEAST = 4096


def quantise(step: Step, bits: int = 4, targets: str | Sequence[str] = "*") -> Step:
    """Return a step whose frozen weights are stored in `bits` bits (8 or 4), with one float32 scale per 64 values.

    Frozen are the parameters that no graph of the step changes. Those that `targets` matches and that have two or more
    dimensions and at least 4,096 values are packed; the others stay float32. The given step is left as it was.
    """
    if bits not in BITS:
        raise HandheldError(f"bits={bits!r:.40} is not possible. Try: 8 or 4")
    if step._trainer is not None and not step._trainer.closed:
        raise HandheldError("the step is being trained. Try: close its trainer before quantise")
    packings = _packings(step, bits, targets)
    before = from_meta(step.meta)
    slots, values = dict(step.slots), dict(step.values)
    for name, packing in packings.items():
        words, scales = pack(values.pop(name), packing)
        role = slots.pop(name).role
        values |= {words_of(name): words, scales_of(name): scales}
        slots |= _slots(name, packing, role)
    meta = {**step.meta, META: to_meta({**before, **packings})}
    small = Step(slots, values, _all(step.graphs, packings, slots), meta)
    small.added = _all(step.added, packings, slots)
    small.optimizers = {name: live.copy() for name, live in step.optimizers.items()}
    if step.unfused is not None:
        every = {**step.unfused.slots, **slots}
        small.unfused = Step(every, step.unfused.values, _all(step.unfused.graphs, packings, every))
    if step.code is not None:
        small.code = PackedCode(step.code, packings)
    return small


def _packings(step: Step, bits: int, targets: str | Sequence[str]) -> dict[str, Packing]:
    graphs = (*step.graphs.values(), *step.added.values())
    written = {write.slot for graph in graphs for write in graph.writes}
    frozen = {n: s for n, s in step.slots.items() if s.role == "parameter" and s.dtype == F32 and n not in written}
    if not frozen:
        raise HandheldError(
            "every parameter of the step is trained, so there is nothing to pack. "
            "Try: --lora or --only (handheld.lora or handheld.train_only before capture)"
        )
    large = {name: Packing(bits, s.shape, s.names, s.torch_dtype) for name, s in frozen.items() if len(s.shape) > 1}
    large = {name: packing for name, packing in large.items() if packing.size >= LEAST}
    if not large:
        raise HandheldError(f"no frozen weight has two dimensions and {LEAST:,} values, so there is nothing to pack")
    return {name: large[name] for name in matching(targets, large, "frozen weight")}


def _slots(name: str, packing: Packing, role: str) -> dict[str, Slot]:
    """The slots that replace a packed slot."""
    words, scales = words_of(name), scales_of(name)
    return {
        words: Slot(words, (packing.words,), I32, role, (words,), "int32"),
        scales: Slot(scales, (packing.scales,), F32, role, (scales,)),
    }


def _all(graphs: Mapping[str, Graph], packings: Mapping[str, Packing], slots: Mapping[str, Slot]) -> dict[str, Graph]:
    return {name: check(unpack_weights(graph, packings), slots) for name, graph in graphs.items()}


@dataclass(frozen=True)
class PackedCode:
    """The code of a step whose weights were packed after it was captured."""

    code: Code
    packings: Mapping[str, Packing]

    def add(self, step: Step, kind: str, size: int) -> str:
        """Adds the graph for another batch size, reading the packed weights."""
        return self._packed(step, self.code.add(step, kind, size))

    def add_part(self, step: Step, size: int) -> str:
        """Adds the graphs for a part of a batch, reading the packed weights."""
        return self._packed(step, self.code.add_part(step, size))

    def kind_of_loss(self) -> str:
        return self.code.kind_of_loss()

    def batch_norms(self) -> int:
        return self.code.batch_norms()

    def _packed(self, step: Step, name: str) -> str:
        for slot in self.packings:
            step.slots.pop(slot, None)
            step.values.pop(slot, None)
        step.added = _all(step.added, self.packings, step.slots)
        if step.unfused is not None:
            every = {**step.unfused.slots, **step.slots}
            step.unfused.graphs = _all(step.unfused.graphs, self.packings, every)
        return name
