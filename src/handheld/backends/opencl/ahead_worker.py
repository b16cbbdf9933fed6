"""A process of ahead.py: builds programs and launches each of their kernels once, on memory of zeros.

It reads one message, {"device", "programs": [{"text", "kernels": [{"name", "args", "global", "local"}]}]}, and answers
with one per program: {"kernels": how many ran, "complete": whether all did}.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld.backends.opencl.devices import find, opencl
from handheld.backends.opencl.programs import build
from handheld.child import Message, Parent

if TYPE_CHECKING:
    import pyopencl as cl


def compile_program(queue: cl.CommandQueue, program: Message) -> Message:
    """Builds a program and runs its kernels."""
    ran = 0
    with contextlib.suppress(opencl().Error):  # The process that needs the program reports what is wrong.
        built = build(queue.context, program["text"])
        for kernel in program["kernels"]:
            _run_once(queue, built, kernel)
            ran += 1
    return {"kernels": ran, "complete": ran == len(program["kernels"])}


def _run_once(queue: cl.CommandQueue, built: cl.Program, kernel: Message) -> None:
    api = opencl()
    flags = api.mem_flags.READ_WRITE | api.mem_flags.COPY_HOST_PTR
    buffers = []

    def argument(kind: str, value: float) -> Any:
        if kind == "buffer":
            buffers.append(api.Buffer(queue.context, flags, hostbuf=np.zeros(int(value), np.uint8)))
            return buffers[-1]
        return np.int32(value) if kind == "int" else np.float32(value)

    known: cl.Kernel = api.Kernel(built, kernel["name"])
    known.set_args(*(argument(kind, value) for kind, value in kernel["args"]))
    api.enqueue_nd_range_kernel(queue, known, tuple(kernel["global"]), tuple(kernel["local"]))
    queue.finish()
    for buffer in buffers:
        buffer.release()


def main() -> None:
    parent = Parent()
    request = parent.receive()
    if request is None:
        return
    api = opencl()
    context = api.Context([find(request["device"]).device])
    queue = api.CommandQueue(context)
    for program in request["programs"]:
        parent.send(compile_program(queue, program))


if __name__ == "__main__":
    main()
