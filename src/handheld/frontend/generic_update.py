"""The update of any optimizer whose step() is made of supported tensor ops.

The optimizer's own step() runs under a recorder, with stand-ins for gradients and state and with `Number`s (numbers.py)
for learning rates and counters. It runs twice, with other values of the numbers. Both recordings must be equal once
their constants are replaced by expressions; then nothing of the first values is left in them. The result is a
`Template` that is added to the graph of a training step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from handheld.errors import CaptureError, HandheldError, ValueRead
from handheld.frontend.first_step import Start, kept
from handheld.frontend.numbers import Expr, Number, Numbers, followed_math
from handheld.frontend.reading import raised_at, tensor_methods, watched
from handheld.frontend.record import Recorder
from handheld.frontend.state import StateBuilder
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32, I32
from handheld.graph.graph import Node, Tensor, View
from handheld.graph.program import Instr

#: The seed of the keys of random ops. It differs from that of the model (capture.py).
_KEYS = 0x0971

#: Groups choose implementations with these. The plain one is recorded.
_PLAIN = {"foreach": False, "fused": False, "capturable": False}


@dataclass(frozen=True)
class Slots:
    """The names of the slots of an optimizer."""

    #: The slot of each state tensor and state number of a parameter.
    state: Mapping[tuple[int, str], str]
    #: For each group, the slot of its learning rate (`lr`) and of the numbers that steps change.
    groups: list[dict[str, str]]
    #: The slot of each parameter.
    parameters: Mapping[int, str]


@dataclass(frozen=True)
class Template:
    """A recorded update. Tensors have numbers of their own."""

    tensors: Mapping[int, Tensor]
    nodes: list[Node]
    #: For each node, the expression of each constant that is one: position in the program -> expression.
    constants: list[dict[int, Expr]]
    slots: Mapping[str, int]
    gradients: Mapping[int, int]
    parameters: Mapping[int, str]
    #: The new value of each slot: a tensor, or an expression.
    writes: Mapping[str, View | Expr]
    #: Numbers that code reads from tensors.
    read: Mapping[str, View] = field(default_factory=dict)


def record(
    optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], state: StateBuilder, start: Start, slots: Slots
) -> Template:
    """Records a step of the optimizer as a template. Raises CaptureError if not all of it can be followed."""
    what = f"optimizer {type(optimizer).__name__}"
    for seed in (0, 2, 4):  # Two expressions may have one value by chance.
        first, second = (
            _Recording(optimizer, parameters, state, start, slots, number).template for number in (seed, seed + 1)
        )
        if first == second:
            return first
    raise CaptureError(
        f"{what} cannot be captured: it uses the learning rate or another number that changes from step to step in a "
        "way that cannot be followed, such as NumPy or torch.tensor(lr). Try: tensor ops, or plain arithmetic and math "
        "functions of Python numbers"
    )


class _Recording:
    """One recording. `template` is its result."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[torch.Tensor],
        state: StateBuilder,
        start: Start,
        slots: Slots,
        seed: int,
    ) -> None:
        self.optimizer, self.parameters, self.start, self.slots = optimizer, parameters, start, slots
        self.what = f"optimizer {type(optimizer).__name__}"
        self.numbers = Numbers(self.what, seed)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.rec = Recorder(state, self.mode)
        self.rec.phase, self.rec.path = "update", ["optimizer"]
        self.read: dict[str, View] = {}
        self.gradients: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        with torch.utils._python_dispatch._disable_current_modes(), kept(optimizer), torch.random.fork_rng(devices=[]):
            torch.manual_seed(_KEYS)
            stand_ins = self._prepare()
            self._step()
            writes = self._writes(stand_ins)
        nodes, constants = [], []
        for node in self.rec.nodes:
            known = self._expressions(node)
            nodes.append(_without_values(node, known))
            constants.append(known)
        self.template = Template(
            self.rec.tensors, nodes, constants, self.rec.slots, self.gradients, self.slots.parameters, writes, self.read
        )

    def _prepare(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Gives the optimizer stand-ins for gradients, state and numbers. Returns those of the state."""
        optimizer, rec = self.optimizer, self.rec
        for group, names, numbers in zip(optimizer.param_groups, self.slots.groups, self.start.groups, strict=True):
            rate = float(group["lr"])
            group.update({key: value for key, value in _PLAIN.items() if key in group})
            group.update({key: self.numbers.leaf(names[key]) for key in numbers})
            group["lr"] = self.numbers.leaf(names["lr"], rate or 0.01)
            for p in group["params"]:
                p.grad = None
        for p in self.parameters:
            if p.device.type != "cpu":  # Stand-ins are on the CPU.
                p.data = p.data.cpu()
                rec.stand_for(self.slots.parameters[id(p)], p.data)
            self.storages[id(p)] = p.untyped_storage()._cdata
            with self.mode:
                p.grad = torch.empty(p.shape, dtype=p.dtype)
            self.gradients[id(p)] = rec.new_tensor(
                tuple(p.shape), F32, "gradient", f"gradient {self.slots.parameters[id(p)]}"
            )
            rec.bind_tensor(p.grad, self.gradients[id(p)])
        given: dict[torch.Tensor, dict[str, Any]] = {}
        for p in self.parameters:
            given[p] = {key: self._stand_in(p, key, value) for key, value in self.start.state[p].items()}
        optimizer.state = defaultdict(dict, {p: dict(fields) for p, fields in given.items()})
        return given

    def _stand_in(self, p: torch.Tensor, key: str, value: Any) -> Any:
        slot = self.slots.state.get((id(p), key))
        if slot is None:
            return value
        if isinstance(value, torch.Tensor):
            return self.rec.stand_in_of(slot, value)
        return self.numbers.leaf(slot)

    def _step(self) -> None:
        def item(tensor: torch.Tensor) -> Number:
            return self._item(tensor)

        reads = {"item": item, "__float__": lambda tensor: float(self._item(tensor))}
        with self.mode, watched(self.rec), tensor_methods(reads), followed_math(), self.rec:
            try:
                self.optimizer.step()
            except ValueRead as error:
                raise CaptureError(
                    f"{self.what} cannot be captured: it decides by the value of a tensor ({raised_at(error)}). "
                    "Try: torch.where instead of if"
                ) from error
            except HandheldError as error:
                if self.what in str(error):
                    raise
                raise CaptureError(f"{self.what} cannot be captured: {error}") from error
            except Exception as error:
                raise CaptureError(
                    f"{self.what} cannot be captured: its step() raised {type(error).__name__}: "
                    f"{str(error).strip().partition(chr(10))[0]}. Try: updates in place, such as p.add_(...) or "
                    "p.data.copy_(...), made of tensor ops"
                ) from error

    def _item(self, tensor: torch.Tensor) -> Number:
        """Returns the number that code reads from a tensor of the recording."""
        name = f"read {len(self.read)}"
        with self.rec:
            whole = torch.ops.aten.reshape.default(tensor, [])
        self.read[name] = self.rec.read(whole)
        return self.numbers.leaf(name, 1.0)

    def _writes(self, given: Mapping[torch.Tensor, Mapping[str, Any]]) -> dict[str, View | Expr]:
        """Returns the new value of each slot that the step writes."""
        rec, writes = self.rec, dict[str, View | Expr]()
        for p in self.parameters:
            slot = self.slots.parameters[id(p)]
            if p.untyped_storage()._cdata != self.storages[id(p)]:  # p.data = new
                writes[slot] = rec.map(tuple(p.shape), [rec.read(p)], lambda a: a)
            elif slot in rec.slot_storage and rec.slot_storage[slot].tensor != rec.slots[slot]:
                writes[slot] = rec.slot_view(slot)
            now = self.optimizer.state[p]
            strange = [key for key in now if key not in given[p]]
            if strange:
                raise CaptureError(
                    f"{self.what} cannot be captured: a later step creates new state ({strange[0]}). "
                    "Try: create all state in the first step"
                )
            for key, before in given[p].items():
                self._written(writes, self.slots.state.get((id(p), key)), key, before, now.get(key))
        known = {*self.slots.parameters.values(), *self.slots.state.values()}
        lost = [s for s, held in rec.slot_storage.items() if s not in known and held.tensor != rec.slots[s]]
        if lost:
            raise CaptureError(
                f"{self.what} cannot be captured: it changes a tensor that is neither a parameter with a gradient nor "
                f"in its state ({lost[0]}). Try: keep it in self.state[p]"
            )
        for group, names in zip(self.optimizer.param_groups, self.slots.groups, strict=True):
            for key, slot in names.items():
                self._written(writes, slot, key, None, group[key])
        return writes

    def _written(self, writes: dict[str, View | Expr], slot: str | None, key: str, before: Any, now: Any) -> None:
        rec = self.rec
        if slot is None or (isinstance(now, Number) and now.expr == Expr("leaf", leaf=slot)):
            same = now is before or (slot is None and not isinstance(now, torch.Tensor) and bool(now == before))
            if slot is None and not same:
                raise CaptureError(
                    f"{self.what} cannot be captured: it changes {key} of its state. Try: a tensor instead"
                )
            return
        if isinstance(now, Number):
            writes[slot] = now.expr
        elif isinstance(now, torch.Tensor) and now is before:
            if rec.slot_storage[slot].tensor != rec.slots[slot]:
                writes[slot] = rec.slot_view(slot)
        elif isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor) and now.shape == before.shape:
            kind = rec.state.slots[slot].dtype
            writes[slot] = rec.map(tuple(now.shape), [rec.read(now)], lambda a: a.to(kind))
        else:
            raise CaptureError(
                f"{self.what} cannot be captured: it replaces {key} of its state by a {type(now).__name__} "
                "that does not follow from the old value. Try: update it in place"
            )

    def _expressions(self, node: Node) -> dict[int, Expr]:
        """Returns the constants of a node that are numbers of the optimizer."""
        if node.op not in ("map", "reduce"):
            return {}
        found = {
            n: self.numbers.find(float(instr.params[0]))
            for n, instr in enumerate(node.program)
            if instr.op == "const" and instr.dtype == F32
        }
        return {n: expr for n, expr in found.items() if expr is not None}


def _without_values(node: Node, known: Mapping[int, Expr]) -> Node:
    """Returns the node with loads of new operands instead of constants that are expressions."""
    if not known:
        return node
    operands = list(dict.fromkeys(known.values()))
    program = tuple(
        Instr("load", F32, (), (len(node.inputs) + operands.index(known[n]), (), 0)) if n in known else instr
        for n, instr in enumerate(node.program)
    )
    return replace(node, attrs={**node.attrs, "program": program})


class Inserted:
    """Adds a template to the recording of a training step."""

    def __init__(self, rec: Recorder, template: Template, gradients: Mapping[int, View]) -> None:
        self.rec, self.template = rec, template
        self.where: dict[int, int] = {}
        for slot, number in template.slots.items():
            self.where[number] = rec.slot_view(slot).tensor
        for key, number in template.gradients.items():
            self.where[number] = rec.contiguous(gradients[key]).tensor
        self._numbers: dict[Expr, View] = {}
        #: The module that each tensor of the template belongs to.
        self._owners = {
            number: rec.state.path_of(slot)
            for slot, number in template.slots.items()
            if rec.state.slots[slot].role == "parameter"
        }
        for key, number in template.gradients.items():
            self._owners[number] = rec.state.path_of(template.parameters[key])

    def writes(self) -> dict[str, int]:
        """Adds the nodes. Returns the new tensor of each slot."""
        for node, constants in zip(self.template.nodes, self.template.constants, strict=True):
            self._add(node, list(dict.fromkeys(constants.values())))
        result = {}
        for slot, value in self.template.writes.items():
            if isinstance(value, View):
                result[slot] = self.where[value.tensor]
            else:
                result[slot] = self._counted(slot, value) or self._number(value).tensor
        return result

    def _add(self, node: Node, numbers: list[Expr]) -> None:
        rec = self.rec
        views = [self._view(view) for view in node.inputs]
        if numbers:
            shape = tuple(node.attrs["shape"])
            views += [View(self._number(expr).tensor, shape, (0,) * len(shape), 0) for expr in numbers]
        owner = next((self._owners[v.tensor] for v in node.inputs if v.tensor in self._owners), rec.path[-1])
        self._owners.update(dict.fromkeys(node.outputs, owner))
        rec.torch_op = node.origin.torch_op
        rec.path.append(owner)
        tensors = [self.template.tensors[out] for out in node.outputs]
        for out, number in zip(
            node.outputs, rec.emit(node.op, views, [(t.shape, t.dtype) for t in tensors], node.attrs), strict=True
        ):
            self.where[out] = number
        rec.path.pop()

    def _view(self, view: View) -> View:
        if view.tensor not in self.where:
            tensor = self.template.tensors[view.tensor]
            self.where[view.tensor] = self.rec.slot_tensor(tensor.name)  # A constant.
        return replace(view, tensor=self.where[view.tensor])

    def _number(self, expr: Expr) -> View:
        if expr not in self._numbers:
            names = expr.leaves()
            views = [
                self._view(self.template.read[name]) if name in self.template.read else self.rec.slot_view(name)
                for name in names
            ]

            def build(*vals: Val) -> Val:
                return expr.build(dict(zip(names, vals, strict=True)))

            self.rec.torch_op = "number"
            self._numbers[expr] = self.rec.map((), views, build)
        return self._numbers[expr]

    def _counted(self, slot: str, expr: Expr) -> int | None:
        """Returns the new value of a counter: a slot of integers plus a whole number. None for other slots."""
        if self.rec.state.slots[slot].dtype != I32:
            return None
        amount = expr.args[1] if expr.op == "add" and expr.args[0] == Expr("leaf", leaf=slot) else None
        if not isinstance(amount, float) or amount != int(amount):
            raise CaptureError(
                f"the optimizer changes the integer {slot} other than by adding a whole number. Try: a float instead"
            )
        return self.rec.map((), [self.rec.slot_view(slot)], lambda t: t + int(amount)).tensor
