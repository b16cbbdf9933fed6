"""Program texts for a compiler that knows less of the CPU than there is.

PoCL 3.0 takes a processor that is newer than its LLVM for the newest that it knows, and so leaves
out the vectors of 512 bits which the processor has. A function may ask for them by name, in an
attribute; a kernel may not, since PoCL copies it into a function of its own, which does not ask. So
each kernel becomes a function that asks, and a kernel that only calls it: functions that ask for
more than their caller are never copied into it. What a function could not find out when it is not
copied, its place in the grid, it is given. Nor can it call what takes or gives vectors of 16 and
does not ask, as OpenCL's own functions do: for the one that kernels for CPUs use, the compiler has
an operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from handheld.device import DeviceCaps
from handheld.kernels.base import Float, Int, Launch, Start

_KERNEL = re.compile(r"__kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)\s*\(")
_FUNCTION = r"\1_item"
_ITEM = ", ".join(f"size_t {what}_{d}" for what in ("item", "items") for d in range(3))
_PLACE = ", ".join(f"get_global_{what}({d})" for what in ("id", "size") for d in range(3))


def texts_of(launches: Iterable[Launch], caps: DeviceCaps) -> dict[str, str]:
    """The text of each launch -> the text that the device's compiler is to have for it."""
    sharing: dict[str, list[Launch]] = {}
    for launch in launches:
        sharing.setdefault(launch.text, []).append(launch)
    wide = caps.features and caps.kind == "cpu"  # whose kernels have no local memory
    return {text: widened(launches, caps.features) if wide else text for text, launches in sharing.items()}


def widened(launches: Iterable[Launch], features: str) -> str:
    """The text of launches that all have the same, with these features of the processor."""
    kernels = {launch.kernel: launch for launch in launches}
    text = next(iter(kernels.values())).text
    ends = "\n".join(_kernel(kernels[name]) for name in sorted(kernels))
    return f"""#define get_global_id(d) item_##d
#define get_global_size(d) items_##d
#define convert_uint16(v) __builtin_convertvector(v, uint16)
#pragma clang attribute push(__attribute__((target("{features}"))), apply_to = function)
{_KERNEL.sub(f"static void {_FUNCTION}({_ITEM}, ", text)}
#pragma clang attribute pop
#undef get_global_id
#undef get_global_size
#undef convert_uint16
{ends}
"""


def _kernel(launch: Launch) -> str:
    types = {Int: "int", Start: "int", Float: "float"}
    args = [f"{types.get(type(arg), '__global void *')} a{i}" for i, arg in enumerate(launch.args)]
    names = ", ".join(f"a{i}" for i in range(len(args)))
    return f"__kernel void {launch.kernel}({', '.join(args)}) {{\n  {launch.kernel}_item({_PLACE}, {names});\n}}"
