"""Binds the arguments of kernels.

The arguments of a launch name tensors, workspaces and numbers. `bind` translates them to OpenCL buffers, images and
scalars. A `Places` object knows where the tensors are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from handheld.backends.opencl.devices import opencl
from handheld.graph.dtypes import DTYPES, F16, F32
from handheld.kernels.base import Arg, Buffer, Int, Launch, Start, Texture, Workspace

if TYPE_CHECKING:
    import pyopencl as cl

    from handheld.graph.graph import Graph

    Argument: TypeAlias = cl.Buffer | cl.Image | np.int32 | np.float32


class Places(Protocol):
    """The memory of the tensors and workspaces of a node."""

    def buffer(self, tensor: int) -> cl.Buffer: ...

    def workspace(self, index: int) -> cl.Buffer: ...

    def texture(self, tensor: int, floats: int) -> cl.Image:
        """Returns the memory that contains the tensor as a texture, with `floats` elements per texel."""

    def start(self, tensor: int) -> int:
        """Returns the number of elements before the tensor in its texture."""


def bind(kernel: cl.Kernel, launch: Launch, places: Places) -> None:
    """Sets the arguments of a kernel for a launch."""
    kernel.set_args(*(_argument(arg, places) for arg in launch.args))


def _argument(arg: Arg, places: Places) -> Argument:
    if isinstance(arg, Buffer):
        return places.buffer(arg.tensor)
    if isinstance(arg, Texture):
        return places.texture(arg.tensor, arg.floats)
    if isinstance(arg, Start):
        return np.int32(places.start(arg.tensor))
    if isinstance(arg, Workspace):
        return places.workspace(arg.index)
    return np.int32(arg.value) if isinstance(arg, Int) else np.float32(arg.value)


class OwnBuffers:
    """A separate buffer per tensor, for code that runs a single node. It keeps the textures that it creates."""

    def __init__(
        self, context: cl.Context, graph: Graph, buffers: Mapping[int, cl.Buffer], scratch: Sequence[cl.Buffer]
    ) -> None:
        self._context, self._graph, self._buffers, self._scratch = context, graph, buffers, scratch
        self._textures: dict[tuple[int, int], cl.Image] = {}

    def buffer(self, tensor: int) -> cl.Buffer:
        return self._buffers[tensor]

    def workspace(self, index: int) -> cl.Buffer:
        return self._scratch[index]

    def texture(self, tensor: int, floats: int) -> cl.Image:
        key = (tensor, floats)
        if key not in self._textures:
            kind = self._graph.tensors[tensor].dtype
            self._textures[key] = texture(self._context, self._buffers[tensor], floats, kind)
        return self._textures[key]

    def start(self, tensor: int) -> int:
        return 0

    def release(self) -> None:
        """Releases the textures. The caller must release the buffers afterwards."""
        while self._textures:
            self._textures.popitem()[1].release()


def texture(context: cl.Context, buffer: cl.Buffer, floats: int, kind: str = F32) -> cl.Image:
    """Returns a buffer as an image1d_buffer_t. A texel has 1 or 4 floats or halves."""
    api = opencl()
    channel = api.channel_type.HALF_FLOAT if kind == F16 else api.channel_type.FLOAT
    order = api.channel_order.RGBA if floats == 4 else api.channel_order.R
    make = getattr(api, "create_image", api.Image)  # pyopencl before 2024.3 has no create_image.
    image: cl.Image = make(
        context,
        api.mem_flags.READ_ONLY,
        api.ImageFormat(order, channel),
        shape=(buffer.size // (DTYPES[kind].nbytes * floats),),
        buffer=buffer,
    )
    return image
