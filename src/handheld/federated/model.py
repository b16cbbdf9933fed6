"""What devices exchange: the arrays that training changes, and the mark that tells two models apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
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


def mark(step: Step) -> str:
    """A short text that is equal for equal models: names, shapes and types of what is exchanged, and the ops of the
    model. The batch size is not part of it."""
    graph = step.graphs.get("predict") or next(iter(step.graphs.values()))
    facts = {
        "arrays": [
            [name, list(step.slots[slot].shape), step.slots[slot].torch_dtype] for name, slot in exchanged(step).items()
        ],
        "ops": [[node.op, node.origin.path, node.origin.torch_op, _scalar_ops(node)] for node in graph.nodes],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _scalar_ops(node: Node) -> list[str]:
    return [instruction.op for instruction in node.attrs.get("program", ())]


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
