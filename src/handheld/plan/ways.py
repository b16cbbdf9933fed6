"""Other ways to run an op on a device whose driver computes the usual kernels wrongly.

A way is a change of the device's description: a family then takes the kernels that it has for such a device. What a
driver needs is found by running every family once (drivers/), and stored in the description as `avoid`: one
`op=way` per op, separated by spaces. The way `none` means that the op is right in no way: a plan with it is refused.

    matmul=gpu sort=none     products run with the kernels for GPUs; sort cannot be used
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from handheld.device import DeviceCaps
from handheld.errors import PlanError

NONE = "none"


@dataclass(frozen=True)
class Way:
    """What changes in the description, and what this means, in words."""

    words: str
    change: Callable[[DeviceCaps], DeviceCaps]


#: In the order in which they are tried.
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "narrow": Way("with vectors of 8 floats", lambda c: replace(c, vector_width=8, features="")),
        "wide": Way("with vectors of 16 floats", lambda c: replace(c, vector_width=16, features="")),
        "plain": Way("without textures", lambda c: replace(c, images=False)),
        "gpu": Way("with the kernels for GPUs", lambda c: replace(c, kind="gpu", features="")),
        "units": Way("without matrix units", lambda c: replace(c, features="")),
        "cpu": Way("with the kernels for CPUs", lambda c: replace(c, kind="cpu", features="")),
        "small": Way(
            "with small work-groups and little local memory",
            lambda c: replace(
                c,
                kind="gpu",
                features="",
                images=False,
                max_work_group=min(c.max_work_group, 64),
                local_mem_bytes=min(c.local_mem_bytes, 16 << 10),
            ),
        ),
    }
)


def others(caps: DeviceCaps) -> list[str]:
    """The ways that differ from the usual one on this device, in the order in which to try them."""
    useless = {
        "narrow": caps.kind != "cpu" or (caps.vector_width < 16 and not caps.features),
        "wide": caps.kind != "cpu" or caps.vector_width >= 16,
        "plain": caps.kind != "gpu" or not caps.images,
        "gpu": caps.kind != "cpu",
        "units": caps.kind != "gpu" or not caps.features,
        "cpu": caps.kind != "gpu",
    }
    return [name for name in WAYS if not useless.get(name, False)]


@cache
def parsed(avoid: str) -> Mapping[str, str]:
    """Op -> way. Raises PlanError."""
    ways = {op: way for op, _, way in (part.partition("=") for part in avoid.split())}
    for op, way in ways.items():
        if way != NONE and way not in WAYS:
            raise PlanError(
                f"avoid of a device description says {op}={way}, but the ways are {', '.join(WAYS)} and {NONE}. "
                "Try: handheld doctor --recheck"
            )
    return MappingProxyType(ways)


def written(ways: Mapping[str, str]) -> str:
    """The inverse of `parsed`."""
    return " ".join(f"{op}={way}" for op, way in sorted(ways.items()))


def refused(op: str, caps: DeviceCaps) -> bool:
    """Whether the driver computes an op wrongly in every way."""
    return parsed(caps.avoid).get(op) == NONE


def way_of(op: str, caps: DeviceCaps) -> tuple[DeviceCaps, str]:
    """The description with which to lower an op, and why it is another one; "" if it is not. Raises PlanError."""
    way = parsed(caps.avoid).get(op, "")
    if not way:
        return caps, ""
    if refused(op, caps):
        raise PlanError(
            f"this driver computes {op} wrongly with every kernel that Handheld has for it ({caps.name}; "
            f"{caps.driver}). Try: another version of the driver, another device (handheld doctor lists them), or "
            "--on reference:cpu. HANDHELD_DRIVER_CHECK=off uses the driver unchecked"
        )
    return WAYS[way].change(caps), f"{WAYS[way].words}, because the usual ones are wrong on this driver"


def described(avoid: str) -> list[str]:
    """What a driver's `avoid` means, one line per way."""
    by_way: dict[str, list[str]] = {}
    for op, way in parsed(avoid).items():
        by_way.setdefault(way, []).append(op)
    return [
        f"{', '.join(ops)}: {'wrong in every way, refused' if way == NONE else WAYS[way].words}"
        for way, ops in by_way.items()
    ]
