"""Importing this fills the table of lowerings."""

from __future__ import annotations

from handheld.capture import (
    activations,
    attention,
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
    scattering,
    volumes,
)
from handheld.capture.registry import LOWERINGS

MODULES = (
    activations,
    attention,
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
    scattering,
    volumes,
)

__all__ = ["LOWERINGS", "MODULES"]
