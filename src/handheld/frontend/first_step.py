"""Learns the state of an optimizer by running its first steps on random gradients.

Most optimizers create their state in their first step. A captured update needs the state before that: each value at
which the ordinary update gives what the first step gives. This module finds such values and proves them: it runs the
first step both ways and compares the results. The parameters and the optimizer are put back afterwards.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from handheld.errors import CaptureError
from handheld.frontend.reading import raised_at
from handheld.frontend.state import HALF

#: The attributes of an optimizer that hold functions to call around its step(). A captured step does not call them.
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")

State = dict[torch.Tensor, dict[str, Any]]


@dataclass(frozen=True)
class Start:
    """What an optimizer has before its first step: the state of each parameter, and numbers of each group."""

    state: State
    #: For each group, the numbers that steps change. The learning rate is not among them.
    groups: list[dict[str, float]]


class _Noted(dict[str, Any]):
    """The state of one parameter. It notes the first value of each key, before updates in place change it."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}
        self.times: dict[str, int] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.first.setdefault(key, value.clone() if isinstance(value, torch.Tensor) else value)
        self.times[key] = self.times.get(key, 0) + 1
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **values: Any) -> None:
        for key, value in dict(*args, **values).items():
            self[key] = value


@contextmanager
def kept(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """While active, steps of the optimizer may change it and its parameters. Both are put back at the end."""
    attributes = dict(vars(optimizer))
    groups = [dict(group) for group in optimizer.param_groups]
    parameters = [p for group in groups for p in group["params"]]
    values = [(p, p.data, p.data.clone(), p.grad) for p in parameters]
    vars(optimizer).update({name: OrderedDict() for name in HOOKS})
    for place in (vars(optimizer), *optimizer.param_groups):  # Steps may change these tensors in place.
        place.update({key: value.clone() for key, value in place.items() if isinstance(value, torch.Tensor)})
    try:
        yield
    finally:
        for p, data, value, grad in values:
            p.grad = None
            p.data = data
            p.data.copy_(value)
            p.grad = grad
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
        vars(optimizer).clear()
        vars(optimizer).update(attributes)


def learn(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> Start:
    """Returns what the optimizer has before its first step, or now if it has made steps already."""
    kind = f"optimizer {type(optimizer).__name__}"
    existing = {p: dict(optimizer.state[p]) for p in parameters if optimizer.state.get(p)}
    first, other = _run(optimizer, parameters, existing, 2, 1), _run(optimizer, parameters, existing, 1, 2)
    for guess in (_by_difference, _by_ratio):
        groups = [
            _group_start(kind, group, [run.groups[n] for run in first], guess)
            for n, group in enumerate(optimizer.param_groups)
        ]
        state = {p: existing[p] if p in existing else _state_start(p, first, other[0], guess) for p in parameters}
        start = Start(state, groups)
        if _proven(optimizer, parameters, start, first):
            return Start({p: _single(fields) if p not in existing else fields for p, fields in state.items()}, groups)
    raise CaptureError(
        f"{kind} cannot be captured: its first step differs from the later ones. "
        "Try: make one step in PyTorch before capture, so that its state exists, or start its state with zeros"
    )


Guess = Callable[[float, float], float]


def _by_difference(first: float, second: float) -> float:
    """Returns what a number was before its first step, if steps add to it."""
    return 2 * first - second


def _by_ratio(first: float, second: float) -> float:
    """Returns what a number was before its first step, if steps multiply it."""
    return first * first / second if second else 0.0


@dataclass(frozen=True)
class _Made:
    """What a step made."""

    #: The change of each parameter since the first step.
    values: list[torch.Tensor]
    state: State
    groups: list[dict[str, Any]]
    noted: dict[torch.Tensor, _Noted]


def _run(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    state: Mapping[torch.Tensor, Mapping[str, Any]],
    steps: int,
    seed: int,
    groups: list[dict[str, float]] | None = None,
) -> list[_Made]:
    """Runs steps on random gradients from a state, in float64, so that even the changes of a small learning rate can be
    compared. Returns what each step made."""
    made = []
    kind = f"optimizer {type(optimizer).__name__}"
    random = torch.Generator().manual_seed(seed)
    with kept(optimizer), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        noted: defaultdict[torch.Tensor, Any] = defaultdict(_Noted)
        for p, fields in state.items():
            noted[p].update(_double(_copy(fields)))
        optimizer.state = noted
        for group, numbers in zip(optimizer.param_groups, groups or [{}] * len(optimizer.param_groups), strict=True):
            group.update(numbers)
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = None
            p.data = p.data.cpu().double()
        values = [p.detach().clone() for p in parameters]
        before = _numbers_of(optimizer)
        for _ in range(steps):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=random, dtype=torch.float64)
            try:
                optimizer.step()
            except Exception as error:
                raise CaptureError(
                    f"{kind} cannot be captured: its step() on random gradients raised {type(error).__name__}: "
                    f"{str(error).strip().partition(chr(10))[0]} ({raised_at(error)}). "
                    "Try: an optimizer whose step() needs nothing but gradients"
                ) from error
            _check_state(kind, optimizer, noted, parameters)
            changed = [k for k, v in _numbers_of(optimizer).items() if k not in before or not _same(before[k], v)]
            if changed:
                raise CaptureError(
                    f"{kind} cannot be captured: its step() changes the attribute {changed[0]}, which a captured step "
                    "would not see. Try: keep it in self.state[p] or in the parameter group"
                )
            made.append(
                _Made(
                    [p.detach() - value for p, value in zip(parameters, values, strict=True)],
                    {p: _copy(noted[p]) for p in parameters},
                    [dict(group) for group in optimizer.param_groups],
                    dict(noted),
                )
            )
    return made


def _check_state(
    kind: str, optimizer: torch.optim.Optimizer, state: Mapping[Any, Any], parameters: list[torch.Tensor]
) -> None:
    """Raises CaptureError if the optimizer keeps values where a captured step would lose them."""
    own = set(map(id, parameters))
    other = [key for key, fields in state.items() if id(key) not in own and fields]
    if other:
        raise CaptureError(
            f"{kind} cannot be captured: it keeps state for {type(other[0]).__name__} {str(other[0])[:40]!r}, which "
            "is no parameter with a gradient. Try: state per parameter, self.state[p]"
        )
    for fields in state.values():
        for key, value in fields.items():
            if not isinstance(value, (torch.Tensor, int, float, str, type(None))):
                raise CaptureError(
                    f"{kind} cannot be captured: {key} of its state is a {type(value).__name__}. "
                    "Try: tensors and numbers, one per key"
                )
            if isinstance(value, torch.Tensor) and (value.dtype in HALF or value.is_complex() or value.is_sparse):
                raise CaptureError(
                    f"{kind} cannot be captured: {key} of its state is {str(value.dtype).removeprefix('torch.')}"
                    f"{', sparse' if value.is_sparse else ''}. Try: dense float32 state"
                )


def _numbers_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the numbers and tensors among the attributes of the optimizer itself."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in vars(optimizer).items()
        if key != "_step_count" and (is_number(value) or isinstance(value, torch.Tensor))
    }


def _copy(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in fields.items()}


def _double(fields: Mapping[str, Any]) -> dict[str, Any]:
    here = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in fields.items()}
    return {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in here.items()}


def _single(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in fields.items()}


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _group_start(kind: str, group: Mapping[str, Any], steps: list[dict[str, Any]], guess: Guess) -> dict[str, float]:
    """Returns the numbers of a group that steps change or create, as they are before the first step."""
    numbers = {}
    for key, value in steps[1].items():
        if key in ("lr", "params") or (key in group and _same(group[key], value)):
            continue
        if not is_number(value) or key not in steps[0]:
            raise CaptureError(
                f"{kind} cannot be captured: its step() changes {key!r} of a parameter group, which is no number. "
                "Try: keep it in self.state[p]"
            )
        numbers[key] = group[key] if key in group else guess(steps[0][key], value)
    return numbers


def _state_start(p: torch.Tensor, steps: list[_Made], other: _Made, guess: Guess) -> dict[str, Any]:
    """Returns the state of a parameter before its first step. `other` is a first step with other gradients."""
    start: dict[str, Any] = {}
    for key, later in steps[1].state[p].items():
        value, often = steps[0].noted[p].first[key], other.noted[p].times.get(key, 0)
        if isinstance(later, torch.Tensor) and not isinstance(value, torch.Tensor):
            start[key] = torch.full_like(later, value or 0)  # A number, or None, that steps replace by a tensor.
        elif isinstance(value, torch.Tensor):
            same = key in other.noted[p].first and torch.equal(value, other.noted[p].first[key])
            start[key] = value if same else torch.zeros_like(value)  # It was made from a gradient.
        elif is_number(value) and often == 1 and key in steps[0].state[p]:
            start[key] = guess(steps[0].state[p][key], later)  # The first step sets it, the second changes it.
        else:
            start[key] = value
    return start


def _proven(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], start: Start, own: list[_Made]) -> bool:
    """Says whether steps from `start` give the same results as the optimizer's own first steps."""
    again = _run(optimizer, parameters, start.state, 2, 1, start.groups)
    return all(
        all(_close(a, b) for a, b in zip(first.values, second.values, strict=True))
        and all(_close(value, second.state[p].get(key)) for p in parameters for key, value in first.state[p].items())
        for first, second in zip(own, again, strict=True)
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return a is b or bool(a == b)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and bool((a.double() - b.double()).norm() <= 1e-6 * a.double().norm())
    if is_number(a) and is_number(b):
        return math.isclose(a, b, rel_tol=1e-9)
    return _same(a, b)
