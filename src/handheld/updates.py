"""How the gradients of batches become one update of the parameters, as far as a command was told so."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from handheld.errors import HandheldError


@dataclass(frozen=True)
class UpdateOptions:
    """Options of `capture` that a command can pass on."""

    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None

    def refuse(self, why: str) -> None:
        """Raise HandheldError if an option is set, for a model whose updates are fixed already."""
        plain = asdict(UpdateOptions())
        given = [f"--{name.replace('_', '-')}" for name, value in asdict(self).items() if value != plain[name]]
        if given:
            raise HandheldError(f"{', '.join(given)} cannot be used here: {why}")
