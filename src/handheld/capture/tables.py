"""Importing this fills the table of lowerings."""

from __future__ import annotations

from handheld.capture import (
    activations,
    contractions,
    creation,
    decomposed,
    indexing,
    joining,
    losses,
    norms,
    ordering,
    pointwise,
    pooling,
    randomness,
    recurrent,
    reductions,
    resizing,
    volumes,
)
from handheld.capture.registry import LOWERINGS

MODULES = (activations, contractions, creation, decomposed, indexing, joining, losses, norms, ordering, pointwise, pooling,
           randomness, recurrent, reductions, resizing, volumes)

__all__ = ["LOWERINGS", "MODULES"]
