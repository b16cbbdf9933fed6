"""The version of each kernel family that has variants, per kind of device.

A tuning record states the versions it was measured with. Raise a number when a change may alter how fast the
variants of that family are on that kind of device: entries measured before it are then ignored, and those of
other families stay. tests/plan/test_kernel_versions.py compares the launches of each family with a golden file
and says when a number must be raised; comments and formatting never matter.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSIONS: Mapping[str, Mapping[str, int]] = {"contract": {"cpu": 1, "gpu": 1}, "attention": {"cpu": 1, "gpu": 1}}


def current(kind: str) -> dict[str, int]:
    """The version of each family on a kind of device."""
    return {family: kinds[kind] for family, kinds in VERSIONS.items() if kind in kinds}
