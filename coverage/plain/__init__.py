"""Models of torch.nn alone, with the shapes that training code really has: one file per kind."""

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
