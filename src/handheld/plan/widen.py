"""Rewrites program texts for a compiler that does not know all vectors of the CPU.

If a processor is newer than its LLVM, PoCL 3.0 treats it as the newest processor that it knows, and does not use
the processor's vectors of 512 bits. A function can ask for them with an attribute. A kernel cannot, because PoCL
inlines it into its own function, which does not ask.

Each kernel therefore becomes two parts: a function that asks, and a kernel that only calls it. A compiler never
inlines a function into a caller with fewer features. This has four consequences:

- The function cannot query its position in the grid, so the kernel passes it.
- The function cannot call functions that take or return vectors of 16 without asking for the feature, such as
  OpenCL's own. Kernels for CPUs use only one of those (`convert_uint16`), and the compiler has a builtin for it.
- The function cannot declare local memory. The kernels for CPUs have none; where a file also has kernels for GPUs,
  their branches are inactive.
- OpenCL's own functions are no longer inlined, not even `min`. A call clears all wide registers and prevents vector
  code, so the functions that loops use are written out (`_CALLS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from handheld.device import DeviceCaps
from handheld.kernels.base import Float, Int, Launch, Start
from handheld.plan.quirks import mended

_KERNEL = re.compile(r"__kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)\s*\(")
_FUNCTION = r"\1_item"
_ITEM = ", ".join(f"size_t {what}_{d}" for what in ("item", "items") for d in range(3))
_INLINE = "inline __attribute__((overloadable, always_inline))"
#: OpenCL's functions of integers.
_INTEGER = "".join(
    f"{_INLINE} {kind} own_{name}({kind} a, {kind} b) {{ return a {sign} b ? a : b; }}\n"
    for kind in ("int", "uint", "long", "ulong")
    for name, sign in (("min", "<"), ("max", ">"))
) + "".join(
    f"{_INLINE} {text}\n"
    for text in (
        "int own_clamp(int a, int low, int high) { return a < low ? low : a > high ? high : a; }",
        "uint own_abs(int a) { return (uint)(a < 0 ? -a : a); }",
    )
)
#: OpenCL's function -> what is called instead. Functions of a float become an instruction. Macros could not do this:
#: these names are macros of PoCL, which the texts after this one need.
_CALLS = {
    **{name: f"own_{name}" for name in ("min", "max", "clamp", "abs")},
    **{name: f"__builtin_{name}f" for name in ("sqrt", "floor", "ceil", "trunc", "rint", "copysign", "fmax")},
    "isnan": "__builtin_isnan",
}
_CALL = re.compile(rf"(?<![\w.])({'|'.join(_CALLS)})(?=\()")
_PLACE = ", ".join(f"get_global_{what}({d})" for what in ("id", "size") for d in range(3))


def texts_of(launches: Iterable[Launch], caps: DeviceCaps) -> dict[str, str]:
    """Returns the text of each launch -> the text to compile."""
    sharing: dict[str, list[Launch]] = {}
    for launch in launches:
        sharing.setdefault(launch.text, []).append(launch)
    wide = caps.features and caps.kind == "cpu"
    texts = {text: widened(launches, caps.features) if wide else text for text, launches in sharing.items()}
    return {text: mended(compiled, caps) for text, compiled in texts.items()}


def widened(launches: Iterable[Launch], features: str) -> str:
    """Rewrites a text for these features of the processor. All launches must have this text."""
    kernels = {launch.kernel: launch for launch in launches}
    text = next(iter(kernels.values())).text
    ends = "\n".join(_kernel(kernels[name]) for name in sorted(kernels))
    text = _KERNEL.sub(f"static void {_FUNCTION}({_ITEM}, ", _CALL.sub(lambda call: _CALLS[call[1]], text))
    return f"""#define get_global_id(d) item_##d
#define get_global_size(d) items_##d
#define convert_uint16(v) __builtin_convertvector(v, uint16)
#pragma clang attribute push(__attribute__((target("{features}"))), apply_to = function)
{_INTEGER}{text}
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
