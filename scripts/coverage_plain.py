"""Families made of torch.nn alone."""

from __future__ import annotations

from coverage_family import Family


def families() -> list[Family]:
    return []
