"""Models of plain torch.nn, in the forms that real training code has: one file per kind."""

from __future__ import annotations

from family import Family

from plain import functions, graphs, images, learning, sequences

FAMILIES: list[Family] = [
    *functions.FAMILIES,
    *graphs.FAMILIES,
    *images.FAMILIES,
    *learning.FAMILIES,
    *sequences.FAMILIES,
]
