"""The records that a kernel family returns to the plan: launches, their arguments and their workspaces.

A family is one `.cl` file (or generated text) and the `.py` file next to it. The `.py` file turns a node into
launches for a device description:

    node, graph, caps  ──►  lower_*()  ──►  Lowered(launches, workspace, why)

A launch is complete: program text, kernel name, arguments and sizes. The backend only builds and enqueues it.

All kernels index with 32-bit integers and need OpenCL 1.2 only. Their pointers have no `restrict`, because an
output may reuse the memory of an input. docs/kernels.md lists all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node

#: A variant of a kernel: the value of each number that may be tuned, by its name in the program text.
Choice = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A kernel argument: a pointer to the start of a tensor of the graph."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Texture:
    """A kernel argument: the segment that holds a tensor, as an `image1d_buffer_t`.

    A texel has `floats` elements (1 or 4), stored as floats or halves. The tensor begins at the element that the
    argument `Start` gives.
    """

    tensor: int
    floats: int


@dataclass(frozen=True, slots=True)
class Start:
    """A kernel argument: the element of its segment at which a tensor begins."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """A kernel argument: a pointer to the i-th scratch buffer of the node. Its contents last until the node's
    last launch."""

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
    """One enqueue of one kernel.

    `text` is the whole program, including its defines. Launches with equal text share one build. `global_size` is
    a multiple of `local_size` in each dimension.
    """

    kernel: str
    text: str
    args: tuple[Arg, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """The launches of one node on one device.

    `workspace` holds the bytes of each scratch buffer. `why` names the chosen variant in a few words;
    `plan.explain()` prints it.
    """

    launches: tuple[Launch, ...]
    workspace: tuple[int, ...] = ()
    why: str = ""


#: A lowering function: node, graph, device -> launches. Raises PlanError if the device cannot run the node.
Lower = Callable[[Node, Graph, DeviceCaps], Lowered]


@cache
def read_cl(name: str) -> str:
    """The text of a `.cl` file in this folder."""
    return (Path(__file__).parent / name).read_text()


def with_defines(defines: dict[str, object], text: str) -> str:
    """`text` with one `#define` line per entry in front of it."""
    return "".join(f"#define {k} {v}\n" for k, v in defines.items()) + text


def round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple
