"""What a kernel family hands to the plan: launches, with everything about them decided.

A family is one `.cl` file (or generated text) and the `.py` beside it, which turns a node into
launches for a device description. Kernels index with 32-bit integers, read and write through plain
pointers (no `restrict`: outputs may reuse the memory of inputs), and need nothing beyond
OpenCL 1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Buffer:
    """A kernel argument: a pointer to the start of a tensor of the graph."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Texture:
    """A kernel argument: the memory that a tensor lies in, as an image1d_buffer_t of texels of so
    many elements, 1 or 4, floats or halves. The tensor begins at element `Start` of it."""

    tensor: int
    floats: int


@dataclass(frozen=True, slots=True)
class Start:
    """A kernel argument: the element of its segment at which a tensor begins."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """A kernel argument: a pointer to the node's i-th scratch buffer, alive in the node only."""

    index: int


@dataclass(frozen=True, slots=True)
class Int:
    value: int


@dataclass(frozen=True, slots=True)
class Float:
    value: float


Arg = Buffer | Texture | Start | Workspace | Int | Float


@dataclass(frozen=True, slots=True)
class Launch:
    """One enqueue. `text` is the whole program text, defines included; the same text is built
    once. `global_size` is a multiple of `local_size` in each dimension."""

    kernel: str
    text: str
    args: tuple[Arg, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A node on a device. `workspace` holds the bytes of each scratch buffer; `why` says in a few
    words which variant was chosen and why, for `plan.explain()`."""

    launches: tuple[Launch, ...]
    workspace: tuple[int, ...] = ()
    why: str = ""


#: node, graph, device -> launches; raises PlanError if the device cannot run the node
Lower = Callable[[Node, Graph, DeviceCaps], Lowered]


@cache
def read_cl(name: str) -> str:
    """The text of a .cl file of this folder."""
    return (Path(__file__).parent / name).read_text()


def with_defines(defines: dict[str, object], text: str) -> str:
    return "".join(f"#define {k} {v}\n" for k, v in defines.items()) + text


def round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple
