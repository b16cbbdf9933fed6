"""A kernel family for the tests of the tuner: matrix products with variants that misbehave.

VARIANT 0 is the default choice and does its work eight times. Variant 1 does it once and is the fastest.
`COMMAND` starts the tuner's worker with this family instead of the real one.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from handheld.errors import PlanError
from handheld.kernels import contract
from handheld.kernels.base import Lowered
from handheld.measure import worker
from handheld.plan import lowering

OWN, FAST, EMPTY, PARTIAL, RAISES, HANGS, DIES, UNBUILT, TWIN = range(9)
NAMES = {
    "own": OWN,
    "fast": FAST,
    "empty": EMPTY,
    "partial": PARTIAL,
    "raises": RAISES,
    "hangs": HANGS,
    "dies": DIES,
    "unbuilt": UNBUILT,
    "twin": TWIN,
}


def offered() -> list[int]:
    """The variants that the environment names, so that parent and child offer the same."""
    return [NAMES[n] for n in os.environ.get("FAKE_VARIANTS", "own fast").split()]


def candidates(node, graph, caps) -> tuple[Mapping[str, int], ...]:
    return tuple({"VARIANT": v} for v in offered())


def lower_matmul(node, graph, caps, choice: Mapping[str, int] | None = None) -> Lowered:
    right = contract.lower_matmul(node, graph, caps)
    variant = offered()[0] if choice is None else choice["VARIANT"]
    if variant in (OWN, TWIN):
        return dataclasses.replace(right, launches=right.launches * 8)
    if variant == EMPTY:  # writes no output
        return Lowered(())
    if variant == PARTIAL:  # writes half of the rows
        launch = dataclasses.replace(right.launches[0], global_size=_half(right.launches[0]))
        return dataclasses.replace(right, launches=(launch,))
    if variant == RAISES:
        raise PlanError("not on this device")
    if variant == UNBUILT:
        launch = dataclasses.replace(right.launches[0], text="__kernel void contract( {")
        return dataclasses.replace(right, launches=(launch,))
    if variant == HANGS:
        time.sleep(1000)
    if variant == DIES:
        os.abort()
    return right


def _half(launch) -> tuple[int, ...]:
    sizes = list(launch.global_size)
    axis = max(range(len(sizes)), key=lambda i: sizes[i] // launch.local_size[i])
    sizes[axis] = max(sizes[axis] // launch.local_size[axis] // 2, 1) * launch.local_size[axis]
    return tuple(sizes)


def install() -> None:
    lowering.FAMILIES = {**lowering.FAMILIES, "matmul": lower_matmul}


def main() -> None:
    install()
    worker.main()


#: The tuner's worker. The module is imported under its own name, where lowering looks for `candidates`.
COMMAND = (
    sys.executable,
    "-W",
    "ignore",
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    "from helpers import fake_family; fake_family.main()",
)
