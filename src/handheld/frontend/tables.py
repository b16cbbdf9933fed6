"""Imports every module with lowerings, which fills the table LOWERINGS."""

from __future__ import annotations

from importlib import import_module

from handheld.frontend.registry import LOWERINGS

NAMES = (
    "activations",
    "attention",
    "complexes",
    "contractions",
    "creation",
    "decomposed",
    "indexing",
    "joining",
    "linalg",
    "losses",
    "norms",
    "ordering",
    "pointwise",
    "pooling",
    "randomness",
    "recurrent",
    "reductions",
    "resizing",
    "scattering",
    "volumes",
)
for _name in NAMES:
    import_module(f"handheld.frontend.{_name}")

__all__ = ["LOWERINGS"]
