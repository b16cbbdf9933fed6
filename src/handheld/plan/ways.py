"""Other ways to run an op on a device whose driver computes the usual kernels wrongly.

A way is a change of the device's description: a family then takes the kernels that it has for such a device. What a
driver needs is found by running every family once (drivers/), and stored in the description as `avoid`: one
`op=way` per op, separated by spaces. The way `none` means that the op is right in no way: a plan with it is refused.

    matmul=gpu sort=none     products run with the kernels for GPUs; sort cannot be used
    conv:half=plain          convolutions with tensors in halves run without textures

An op with `:half` stands for nodes with tensors in halves, one with `:half-compute` for those that compute in halves.
Where there is no such entry, the entry of the more exact precision counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.dtypes import F16
from handheld.graph.graph import Graph, Node

NONE = "none"
#: What stands behind an op in `avoid`, by precision.
SUFFIXES: Mapping[str, str] = MappingProxyType({"float32": "", "half": ":half", "half-compute": ":half-compute"})


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


def precision_of(node: Node, graph: Graph) -> str:
    """The precision of a node: what it computes in, or whether a tensor of it is stored in halves."""
    if node.attrs.get("arithmetic") == "half":
        return "half-compute"
    tensors = (*(view.tensor for view in node.inputs), *node.outputs)
    return "half" if any(graph.tensors[tensor].dtype == F16 for tensor in tensors) else "float32"


def _way(op: str, caps: DeviceCaps, precision: str) -> str:
    """The way of an op; "" is the usual one."""
    ways, names = parsed(caps.avoid), list(SUFFIXES)
    chain = names[: names.index(precision) + 1]
    return next((ways[op + SUFFIXES[name]] for name in reversed(chain) if op + SUFFIXES[name] in ways), "")


def refused(op: str, caps: DeviceCaps, precision: str = "float32") -> bool:
    """Whether the driver computes an op wrongly in every way."""
    return _way(op, caps, precision) == NONE


def way_of(op: str, caps: DeviceCaps, precision: str = "float32") -> tuple[DeviceCaps, str]:
    """The description with which to lower an op, and why it is another one; "" if it is not. Raises PlanError."""
    way = _way(op, caps, precision)
    if not way:
        return caps, ""
    if way == NONE:
        halves = not refused(op, caps)
        what, first = (f"{op} in halves", "--precision float32, ") if halves else (op, "")
        raise PlanError(
            f"this driver computes {what} wrongly with every kernel that Handheld has for it ({caps.name}; "
            f"{caps.driver}). Try: {first}another version of the driver, another device (handheld doctor lists them), "
            "or --on reference:cpu. HANDHELD_DRIVER_CHECK=off uses the driver unchecked"
        )
    return WAYS[way].change(caps), f"{WAYS[way].words}, because the usual ones are wrong on this driver"


_IN_WORDS = {"": "", "half": " with halves", "half-compute": " in halves"}


def described(avoid: str) -> list[str]:
    """What a driver's `avoid` means, one line per way."""
    by_way: dict[str, list[str]] = {}
    for op, way in parsed(avoid).items():
        name, _, kind = op.partition(":")
        by_way.setdefault(way, []).append(name + _IN_WORDS.get(kind, ""))
    return [
        f"{', '.join(ops)}: {'wrong in every way, refused' if way == NONE else WAYS[way].words}"
        for way, ops in by_way.items()
    ]
