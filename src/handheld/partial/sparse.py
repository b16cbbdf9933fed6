"""Chooses which parameters train under a budget of memory or time, by the gradients of some batches.

worth.py says what each parameter is worth and about what it costs, and makes the best choice for a budget of these
rough bytes. What a choice really needs is found by capturing and planning the step with it. So the budget is kept by
the plan itself, or by the measured time of its steps, and not by an estimate:

    rough bytes    0 ────────────────────────────────────────────────── everything
    trial 1                                                              too large
    trial 2                              fits
    trial 3                                            too large
    trial 4                                     fits, and 97% of the budget are in use: chosen
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.frontend.closures import closure, plain_batch
from handheld.frontend.entry import capture
from handheld.partial.select import hold_statistics, retarget
from handheld.partial.worth import Candidates, measure
from handheld.plan.plan import Plan
from handheld.progress import report
from handheld.step import uncompiled
from handheld.units import size as size_text

#: Steps that are timed, after some to warm up.
WARM, TIMED = 2, 5
#: Each trial is a capture. So the search ends after this many, or when this share of the budget is in use.
TRIALS, FULL = 10, 0.97


@dataclass(frozen=True)
class SparseChoice:
    """The parameters that train, and what the step with them needs: bytes, or milliseconds."""

    names: tuple[str, ...]
    candidates: int
    needs: float
    budget: float
    unit: str

    def __str__(self) -> str:
        return (
            f"{len(self.names)} of {self.candidates} parameters train; the step needs "
            f"{_shown(self.needs, self.unit)} of {_shown(self.budget, self.unit)}"
        )


def sparse(
    model: nn.Module,
    loss: Callable[..., torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    *,
    memory_bytes: int | None = None,
    time_ms: float | None = None,
    device: str = "opencl",
    inputs: int = 1,
) -> SparseChoice:
    """Freeze the parameters that are worth least, until a training step keeps the budget, and take them from the
    optimizer. The model, loss and inputs are those of `capture`. The first batch gives the shapes; the gradients are
    measured on all of them, in PyTorch. Only parameters with requires_grad are candidates.

    `memory_bytes` limits what the plan of the training step allocates on the device, which may be the name of a
    description. `time_ms` limits the median time of a step there, which is measured.
    """
    if (memory_bytes is None) == (time_ms is None):
        raise HandheldError("sparse needs one budget. Try: memory_bytes=64 << 20, or time_ms=20")
    budget, unit = (float(memory_bytes), "bytes") if memory_bytes is not None else (float(time_ms or 0), "ms")
    if not budget > 0:
        raise HandheldError(f"the budget of sparse is {budget:g}; it should be a number above 0")
    if time_ms is not None and device in DeviceCaps.names():
        raise HandheldError(f"time is measured, and {device} is only described. Try: a budget of memory")
    module = uncompiled(model)
    given = [plain_batch(module, batch) for batch in batches]
    names = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not given or not names:
        raise HandheldError("sparse needs batches, and a model with parameters that train")
    report("measuring gradients")
    found = measure(module, closure(module, loss, inputs), given, names, optimizer)
    if not found.ordered:
        raise HandheldError("no gradient reaches any parameter, so none is worth training")
    trials = _Trials(module, loss, optimizer, given[0], device, inputs, unit, names)
    chosen = _search(found, trials.needs, budget, unit)
    trials.select(chosen.names)
    retarget(optimizer, module)
    return SparseChoice(tuple(n for n in names if n in chosen.names), len(names), chosen.needs, budget, unit)


class _Choice(NamedTuple):
    """A choice, the rough bytes that it was made for, and what it needs."""

    names: tuple[str, ...]
    rough: float
    needs: float


def _search(found: Candidates, needs: Callable[[Sequence[str]], float], budget: float, unit: str) -> _Choice:
    """The choice for the most rough bytes that keeps the budget."""
    most = float(found.bytes)
    everything = tuple(c.name for c in found.ordered)
    over = _Choice(everything, most, needs(everything))
    if over.needs <= budget:
        return over
    least = (found.cheapest(),)
    fits = _Choice(least, 0.0, needs(least))
    if fits.needs > budget:
        raise HandheldError(
            f"no parameter can be trained within {_shown(budget, unit)}: a step with {least[0]} alone needs "
            f"{_shown(fits.needs, unit)}. Try: a larger budget, or a smaller batch"
        )
    for number in range(TRIALS - 2):
        # Needs grow about with the rough bytes; every other trial halves, in case they do not.
        share = (budget - fits.needs) / max(over.needs - fits.needs, 1e-9) if number % 2 == 0 else 0.5
        rough = fits.rough + min(max(share, 0.02), 0.98) * (over.rough - fits.rough)
        names = found.best(rough) or fits.names
        known = {frozenset(choice.names): choice.needs for choice in (fits, over)}.get(frozenset(names))
        value = needs(names) if known is None else known
        if value <= budget:
            fits = _Choice(names, rough, value)
        else:
            over = _Choice(names, rough, value)
        if fits.needs >= FULL * budget:
            break
    return fits


class _Trials:
    """Captures the step with some of the parameters and says what it needs."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        optimizer: torch.optim.Optimizer,
        batch: Any,
        device: str,
        inputs: int,
        unit: str,
        names: Mapping[str, nn.Parameter],
    ) -> None:
        self.model, self.loss, self.optimizer, self.batch = model, loss, optimizer, batch
        self.device, self.inputs, self.unit, self.names = device, inputs, unit, names
        self.modes = {part: part.training for part in model.modules()}

    def select(self, chosen: Iterable[str]) -> None:
        """Lets these parameters train and freezes the other candidates."""
        wanted = set(chosen)
        for part, training in self.modes.items():
            part.training = training
        for name, parameter in self.names.items():
            parameter.requires_grad_(name in wanted)
        hold_statistics(self.model)

    def needs(self, chosen: Sequence[str]) -> float:
        """Bytes on the device, or milliseconds per step."""
        report(f"trying {len(chosen)} of {len(self.names)} parameters")
        self.select(chosen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The capture of the result shows them.
            step = capture(
                self.model, self.loss, self.optimizer, self.batch, inputs=self.inputs, evaluate=False, frozen="accept"
            )
        caps = DeviceCaps.shipped(self.device) if self.device in DeviceCaps.names() else None
        plan = step.plan("opencl" if caps else self.device, caps=caps, graphs=["train"], micro_batches=1)
        return float(plan.bytes) if self.unit == "bytes" else _step_ms(plan, self.batch)


def _step_ms(plan: Plan, batch: Any) -> float:
    """The median time of a training step."""
    times = []
    with plan.start() as trainer:
        for _ in range(WARM + TIMED):
            begun = time.perf_counter()
            float(trainer.step(*((batch,) if isinstance(batch, (Mapping, torch.Tensor)) else batch)))
            times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[WARM:])


def _shown(value: float, unit: str) -> str:
    return size_text(value) if unit == "bytes" else f"{value:.3g} ms"
