"""What a workload is: a name, how to make its model, and batches of synthetic data for it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from handheld.errors import HandheldError

if TYPE_CHECKING:
    from handheld.step import Step


@dataclass(frozen=True)
class Workload:
    """A model family of this folder with fixed options. Its module has `make(**options)` and
    `batch(n, seed, **options)`, or, where a step is several updates, `record` instead of `make`."""

    name: str
    family: str
    default_batch: int
    tags: tuple[str, ...]
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, seed: int = 0) -> tuple[Any, Any, Any]:
        """(model, loss, optimizer): `loss(model(*inputs), target)` is a scalar."""
        module = self._module()
        if not hasattr(module, "make"):
            raise HandheldError(f"{self.name} has several updates and no single loss. "
                                f"Try: suite.get({self.name!r}).step()")
        result: tuple[Any, Any, Any] = module.make(seed=seed, **self.options)
        return result

    def batch(self, n: int | None = None, seed: int = 0) -> tuple[Any, ...]:
        """Synthetic tensors, the same for the same seed; what they teach can be learned."""
        size = self.default_batch if n is None else n
        result: tuple[Any, ...] = self._module().batch(size, seed, **self.options)
        return result

    def step(self, batch: int | None = None, seed: int = 0) -> Step:
        """The captured step at a batch size."""
        module, size = self._module(), self.default_batch if batch is None else batch
        if hasattr(module, "record"):
            step: Step = module.record(size, seed, **self.options).step(name=self.name)
            return step
        from handheld.capture.capture import capture

        return capture(*self.make(seed), self.batch(size, seed), seed=seed, name=self.name)

    def with_options(self, **options: Any) -> Workload:
        """The same family at other sizes."""
        if not options:
            return self
        module = self._module()
        known = [name for name, parameter in inspect.signature(module.batch).parameters.items()
                 if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                raise HandheldError(f"{self.name} has no option {name!r}. It has: "
                                    f"{', '.join(known) or 'none'}")
        return replace(self, options={**self.options, **options})

    def _module(self) -> ModuleType:
        try:
            return importlib.import_module(f"handheld.suite.{self.family}")
        except ImportError as error:
            raise HandheldError(f"the workload {self.name} needs PyTorch, which is not installed "
                                f"({error}). Try: pip install 'handheld[capture]'") from error
