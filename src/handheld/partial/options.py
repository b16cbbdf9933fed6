"""What a command was told about partial training: applied to a model before its capture, and to the step after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from handheld.errors import HandheldError
from handheld.packing import BITS
from handheld.partial.quantise import quantise
from handheld.step import Step, uncompiled
from handheld.units import parse_size

if TYPE_CHECKING:
    import torch
    from torch import nn

SPARSE = "sparse:"
#: The key of a step's meta that holds the options, and the option that an error message names for each field.
META = "partial"
_OPTIONS = {"only": "--only", "freeze": "--freeze", "lora": "--lora", "lora_on": "--lora-on", "bits": "--frozen-bits"}


@dataclass(frozen=True)
class PartialOptions:
    """`only` and `freeze` are words of select.py, and `only` may have `sparse:BUDGET`; `lora` is a rank, `lora_on` are
    patterns of its layers, `bits` is the width of frozen weights."""

    only: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    lora: int | None = None
    lora_on: tuple[str, ...] = ()
    bits: int | None = None
    #: Where a budget is kept.
    device: str = field(default="opencl", compare=False)

    def at(self, device: str | None) -> PartialOptions:
        """The same options, with budgets that are kept on this device."""
        return self if device is None else replace(self, device=device)

    def check(self) -> PartialOptions:
        """Raise HandheldError if the options contradict each other. Returns the options themselves."""
        if self.lora_on and self.lora is None:
            raise HandheldError("--lora-on says which layers get LoRA. Try: --lora 8 with it")
        if self.bits is not None and self.bits not in BITS:
            raise HandheldError(f"--frozen-bits {self.bits} is not possible. Try: 8 or 4")
        if sum(word.startswith(SPARSE) for word in self.only) > 1:
            raise HandheldError("--only has more than one sparse budget. Try: one of them")
        if self.sparse:
            budget(self.sparse)
        return self

    def refuse(self, why: str, but_bits: bool = False) -> None:
        """Raise HandheldError if an option is set, for a model that cannot be changed any more."""
        set_here = [option for name, option in _OPTIONS.items() if getattr(self, name) not in ((), None)]
        wrong = [option for option in set_here if not (but_bits and option == "--frozen-bits")]
        if wrong:
            raise HandheldError(f"{', '.join(wrong)} cannot be used here: {why}")

    @property
    def sparse(self) -> str:
        """The word of `only` that is a budget, or ""."""
        return next((word for word in self.only if word.startswith(SPARSE)), "")

    def apply(
        self, model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer, batches: Sequence[Any]
    ) -> PartialOptions:
        """Freeze parameters of the model, add LoRA to it, and give the optimizer what trains. Returns the options that
        do the same again: instead of a budget, they name the parameters that were chosen."""
        if self == PartialOptions(bits=self.bits):
            return self
        from handheld.partial.lora import lora
        from handheld.partial.select import freeze, retarget, train_only, trained
        from handheld.partial.sparse import sparse

        module = uncompiled(model)
        words = [word for word in self.only if not word.startswith(SPARSE)]
        if self.lora is not None:
            lora(module, self.lora, targets=self.lora_on or "*")
            words += ["*lora_[ab]"] if words and not any("lora_" in word for word in words) else []
        if words:
            train_only(module, *words)
        if self.freeze:
            freeze(module, *self.freeze)
            if not trained(module):
                raise HandheldError(
                    f"--freeze {','.join(self.freeze)} leaves no parameter, so there is nothing to train. "
                    "Try: fewer patterns, or --lora"
                )
        retarget(optimizer, module)
        if not self.sparse:
            return self
        chosen = sparse(module, loss, optimizer, batches, device=self.device, **budget(self.sparse))
        return replace(self, only=chosen.names, freeze=())

    def finish(self, step: Step) -> Step:
        """The step with its frozen weights packed, if that is wanted. It remembers the options."""
        if self == WHOLE:
            return step
        step = step if self.bits is None else quantise(step, self.bits)
        step.meta[META] = asdict(self)
        return step

    @staticmethod
    def of(meta: Mapping[str, Any]) -> PartialOptions:
        """The options that a step or a checkpoint remembers. A file may hold anything there."""
        found = meta.get(META)
        if not isinstance(found, Mapping):
            return PartialOptions()
        try:
            return PartialOptions(
                tuple(map(str, found["only"])),
                tuple(map(str, found["freeze"])),
                None if found["lora"] is None else int(found["lora"]),
                tuple(map(str, found["lora_on"])),
                None if found["bits"] is None else int(found["bits"]),
            ).check()
        except (KeyError, TypeError, ValueError):
            raise HandheldError("the options of partial training in the file are malformed") from None


#: Everything trains, as the model says.
WHOLE = PartialOptions()


def budget(word: str) -> dict[str, Any]:
    """The budget of `sparse:64MB` (memory) or `sparse:20ms` (time), as an argument of `sparse`."""
    text = word.removeprefix(SPARSE)
    for ending, factor in (("ms", 1.0), ("s", 1e3)):
        if text.endswith(ending):
            try:
                return {"time_ms": float(text.removesuffix(ending)) * factor}
            except ValueError:
                break
    number = parse_size(text)
    if number is None:
        raise HandheldError(f"--only {word}: {text!r} is no budget. Try: {SPARSE}64MiB (memory) or {SPARSE}20ms (time)")
    return {"memory_bytes": number}
