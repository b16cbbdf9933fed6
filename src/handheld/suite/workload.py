"""What a workload is: a name, how to build its model, and batches of synthetic data for it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING

from handheld.errors import HandheldError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from handheld.frontend.capture import Capture
    from handheld.step import Step
    from handheld.suite.synthetic import Parts

Modules = dict[str, "nn.Module"]
Batch = tuple["torch.Tensor", ...]
#: Options of a family are keyword arguments of its `make`.
Option = int | float | str | Sequence[int]
Options = Mapping[str, Option]
SIZES = ("small", "paper")


@dataclass(frozen=True)
class Update:
    """One update of a step: its graph, its loss, its optimizer, and its part of a batch."""

    graph: str
    loss: Callable[[Modules, Batch], torch.Tensor]
    optimizer: Callable[[Modules], torch.optim.Optimizer]
    takes: tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """A model family of this folder with fixed options.

    The family's module has `make(**options)` and `batch(n, seed, **options)`. If a step has several updates or
    graphs, it has `modules`, `UPDATES` and `record` instead of `make`.
    """

    name: str
    family: str
    default_batch: int
    tags: tuple[str, ...]
    about: str
    options: Options = field(default_factory=dict)
    #: vision, text, speech, rl or tabular
    domain: str = "vision"
    #: Where it comes from: das2022 or liu2019 (the two studies), or today.
    used_in: tuple[str, ...] = ("today",)
    #: Options of the two sizes that every workload has, with the same names in both.
    small: Options = field(default_factory=dict)
    paper: Options = field(default_factory=dict)
    #: The size that was chosen, or pixels; "" for the defaults of the family.
    size: str = ""

    @property
    def single(self) -> bool:
        """Whether a step is one update of one model."""
        return hasattr(self._module(), "make")

    def make(self, seed: int = 0) -> Parts:
        """(model, loss, optimizer): `loss(model(*inputs), target)` is a scalar."""
        module = self._module()
        if not self.single:
            raise HandheldError(
                f"{self.name} has several updates and no single loss. Try: suite.get({self.name!r}).step()"
            )
        result: Parts = module.make(seed=seed, **self.options)
        return result

    def parts(self, seed: int = 0) -> tuple[Modules, tuple[Update, ...]]:
        """As `make`, for any workload: the modules by name, and the updates of a step in order. A single model has the
        name ''."""
        module = self._module()
        if not self.single:
            return module.modules(seed, **self.options), module.UPDATES
        model, loss, optimizer = self.make(seed)

        def again(modules: Modules) -> torch.optim.Optimizer:
            """The same optimizer for a copy of the model."""
            if modules[""] is model:
                return optimizer
            trained = [p for p in modules[""].parameters() if p.requires_grad]
            takes = inspect.signature(type(optimizer)).parameters
            return type(optimizer)(
                trained, **{name: value for name, value in optimizer.defaults.items() if name in takes}
            )

        update = Update("train", lambda m, b: loss(m[""](b[0]), b[1]), again, (0, 1))
        return {"": model}, (update,)

    def batch(self, n: int | None = None, seed: int = 0) -> Batch:
        """Synthetic tensors that a model can learn from. The same seed gives the same tensors."""
        size = self.default_batch if n is None else n
        result: Batch = self._module().batch(size, seed, **self.options)
        return result

    def runs(self, batch: Batch) -> list[tuple[str, Batch]]:
        """The graphs that one training step runs, in order, each with its part of a batch of this workload."""
        if self.single:
            return [("train", batch)]
        needed = 1 + max(i for update in self._module().UPDATES for i in update.takes)
        if len(batch) < needed:
            raise HandheldError(f"{self.name} takes batches of {needed} arrays; this one has {len(batch)}")
        return [(update.graph, tuple(batch[i] for i in update.takes)) for update in self._module().UPDATES]

    def step(self, batch: int | None = None, seed: int = 0, evaluate: bool = True) -> Step:
        """The captured step at a batch size. With `evaluate`, a single model also gets its evaluation graph."""
        module, size = self._module(), self.default_batch if batch is None else batch
        if not self.single:
            step: Step = module.record(size, seed, **self.options).step(name=self.name)
            return step
        from handheld.frontend.entry import capture

        return capture(*self.make(seed), self.batch(size, seed), seed=seed, name=self.name, evaluate=evaluate)

    def with_options(self, size: str | int | None = None, **options: Option) -> Workload:
        """The same family at a size (small, paper, or pixels) and with other options."""
        named: Options = {}
        if isinstance(size, str) and not size.isdigit():
            if size not in SIZES:
                raise HandheldError(
                    f"{self.name} has no size {size!r}. Try: small, paper, or for images a number of pixels"
                )
            named = self.small if size == "small" else self.paper
        elif size is not None:
            if "size" not in self._options():
                raise HandheldError(f"{self.name} has no images whose size can be chosen. Try: --size small or paper")
            options = {"size": int(size), **options}
        if size is None and not options:
            return self
        if options:
            self._check(options)
        return replace(
            self, options={**self.options, **named, **options}, size=self.size if size is None else str(size)
        )

    def _options(self) -> list[str]:
        """The options of the family."""
        return [
            name
            for name, parameter in inspect.signature(self._module().batch).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]

    def _check(self, options: Options) -> None:
        known = self._options()
        for name in options:
            if name not in known:
                raise HandheldError(f"{self.name} has no option {name!r}. It has: {', '.join(known) or 'none'}")

    def _module(self) -> ModuleType:
        try:
            return importlib.import_module(f"handheld.suite.{self.family}")
        except ImportError as error:
            raise HandheldError(
                f"the workload {self.name} needs PyTorch, which is not installed ({error}). Try: pip install torch"
            ) from error


def record_updates(modules: Modules, updates: tuple[Update, ...], batch: Batch, seed: int) -> Capture:
    """Several updates, captured over one state."""
    from handheld.frontend.capture import Capture

    capture = Capture(modules, seed)
    for update in updates:

        def fn(b: Batch, loss: Callable[[Modules, Batch], torch.Tensor] = update.loss) -> torch.Tensor:
            return loss(modules, b)

        capture.train(fn, update.optimizer(modules), tuple(batch[i] for i in update.takes), update.graph)
    return capture
