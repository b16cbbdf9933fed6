"""What devices exchange: the arrays that training changes, and the mark that tells two models apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import handheld
from handheld.errors import HandheldError
from handheld.graph.graph import Node
from handheld.step import Step

State = dict[str, np.ndarray]
#: A step, or a function that makes one.
StepSource = Step | Callable[[], Step]


def step_of(source: StepSource) -> Step:
    """The step itself. A function is called, so that every process makes its own."""
    step = source() if callable(source) and not isinstance(source, Step) else source
    if not isinstance(step, Step):
        raise HandheldError(
            f"a federated app needs a Step, or a function that returns one, not a {type(step).__name__}. "
            "Try: lambda: handheld.capture(model, loss, optimizer, batch)"
        )
    return step


def exchanged(step: Step) -> dict[str, str]:
    """The names of the arrays that are sent, each with its slot: trained parameters, and the float buffers that
    training changes (the statistics of batch norm). Frozen weights and counters stay where they are."""
    written = {write.slot for graph in step.graphs.values() for write in graph.writes}
    names: dict[str, str] = {}
    for name, slot in step.model_names().items():
        if slot in written and slot not in names.values() and step.slots[slot].torch_dtype.startswith("float"):
            names[name] = slot
    if not names:
        raise HandheldError("no parameter of this step is trained, so there is nothing to exchange")
    return names


def arrays_of(step: Step) -> State:
    """The exchanged arrays with their current values."""
    state = step.state()
    return {name: np.ascontiguousarray(state[name]) for name in exchanged(step)}


#: The parts of a mark, and what their difference is called. The last one counts only if the shapes of the batch agree:
#: the mean over a batch is a constant.
PARTS = ("exchanged arrays", "layers", "loss", "optimizer", "frozen values", "batch", "constants")


def mark(step: Step) -> str:
    """A short text that is equal for equal models: a digest of each of `PARTS`. Models that differ only in their batch
    size are equal. Learning rates, seeds and counters are not part of it."""
    training = [graph for name, graph in step.graphs.items() if name not in ("predict", "evaluate")]
    layers = step.graphs.get("predict") or next(iter(step.graphs.values()))
    nodes = [node for graph in training for node in graph.nodes]
    learns = [node for node in nodes if node.origin.phase != "update"]
    parts = (
        [[name, list(step.slots[slot].shape), step.slots[slot].torch_dtype] for name, slot in exchanged(step).items()],
        [_described(node, numbers=True) for node in layers.nodes],
        [_described(node, numbers=False) for node in learns],
        [_described(node, numbers=True) for node in nodes if node.origin.phase == "update"],
        _frozen(step),
        [[list(graph.tensors[given.tensor].shape) for given in graph.inputs] for graph in training],
        [[_described(node, numbers=True), _numbers(node)] for node in learns],
    )
    return ".".join(hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:8] for part in parts)


def difference(mark: str, other: str) -> str:
    """What differs between the models of two marks, or ""."""
    pairs = dict(zip(PARTS, zip(mark.split("."), other.split("."), strict=False), strict=False))
    if len(pairs) < len(PARTS):
        return "" if mark == other else "mark"
    differs = [part for part, (one, two) in pairs.items() if one != two]
    return next((part for part in differs if part != "batch" and (part != "constants" or "batch" not in differs)), "")


def _described(node: Node, *, numbers: bool) -> list[Any]:
    """A node without what depends on the size of the batch. `numbers`: with attributes and constants."""
    program = node.attrs.get("program", ())
    facts: list[Any] = [node.op, node.origin.path, node.origin.torch_op]
    facts.append([[one.op, one.dtype, list(one.args)] for one in program])
    if numbers:
        facts.append({name: repr(value) for name, value in node.attrs.items() if name not in ("shape", "program")})
        over_batch = node.op == "reduce" and 0 in node.attrs["axes"]
        facts.append([] if over_batch else _constants(node))
    return facts


def _constants(node: Node) -> list[str]:
    return [_text(one.params[0]) for one in node.attrs.get("program", ()) if one.op == "const"]


def _numbers(node: Node) -> list[Any]:
    """All constants of a node, and how it reads its inputs."""
    return [_constants(node), [[view.tensor, view.shape, view.strides, view.offset] for view in node.inputs]]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _frozen(step: Step) -> list[list[str]]:
    """The weights and buffers that training does not change, with digests of their values."""
    written = {write.slot for graph in step.graphs.values() for write in graph.writes}
    return [
        [name, hashlib.sha256(np.ascontiguousarray(step.values[name]).reshape(-1).view(np.uint8).data).hexdigest()]
        for name, slot in step.slots.items()
        if slot.role in ("parameter", "buffer")
        and name in step.values
        and name not in written
        and not _is_proximal(slot.names or (name,))
    ]


def _is_proximal(names: Sequence[str]) -> bool:
    """Whether a slot belongs to FedProx: the server sets its value."""
    return any(name.startswith((WEIGHT, ANCHOR)) for name in names)


#: FedProx: the weight of the distance, and the arrays that it is measured from (proximal_term.py).
WEIGHT, ANCHOR = "proximal_weight", "proximal_anchor_"


def anchored(first: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray], weight: float) -> State:
    """The buffers of FedProx for a round that begins with `state`. None if the model has none and needs none."""
    if WEIGHT not in first:
        if weight:
            raise HandheldError(
                "the strategy is FedProx, but this model has no proximal term. Try: "
                "model, loss = handheld.federated.proximal(model, loss) before capture"
            )
        return {}
    anchors = {name: name.removeprefix(ANCHOR).replace("/", ".") for name in first if name.startswith(ANCHOR)}
    return {WEIGHT: np.array(weight, np.float32)} | {name: state[f"model.{own}"] for name, own in anchors.items()}


def version() -> str:
    return handheld.__version__


def problem_of(update: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> str:
    """Why an update must not be averaged, or ""."""
    missing = [name for name in wanted if name not in update]
    extra = [name for name in update if name not in wanted]
    if missing or extra:
        named = ", ".join((missing or extra)[:3])
        return f"it {'lacks' if missing else 'has unknown'} arrays: {named}"
    for name, array in update.items():
        if array.shape != wanted[name].shape:
            return f"{name} has shape {array.shape} instead of {wanted[name].shape}"
        if array.dtype != wanted[name].dtype:
            return f"{name} is {array.dtype} instead of {wanted[name].dtype}"
        if not np.isfinite(array).all():
            return f"{name} has values that are not finite"
    return ""


def numbers_in(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among some values."""
    return {name: float(value) for name, value in values.items() if is_number(value)}


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and bool(np.isfinite(value))
