"""The version of each kernel family that has variants, per kind of device.

A tuning record states the versions that it was measured with. Raise a number when a change may alter the speed of
the variants of that family on that kind of device. Entries that were measured before are then ignored; those of
other families stay valid. tests/plan/test_kernel_versions.py compares the launches of each family with a golden
file and tells when a number must be raised. Comments and formatting never matter.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSIONS: Mapping[str, Mapping[str, int]] = {"contract": {"cpu": 2, "gpu": 2}, "attention": {"cpu": 1, "gpu": 2}}


def current(kind: str) -> dict[str, int]:
    """The version of each family on a kind of device."""
    return {family: kinds[kind] for family, kinds in VERSIONS.items() if kind in kinds}
