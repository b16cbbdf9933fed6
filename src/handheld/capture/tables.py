"""Importing this fills the table of lowerings."""

from __future__ import annotations

from handheld.capture import (
    activations,
    attention,
    complexes,
    contractions,
    creation,
    decomposed,
    indexing,
    joining,
    linalg,
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
    complexes,
    contractions,
    creation,
    decomposed,
    indexing,
    joining,
    linalg,
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
