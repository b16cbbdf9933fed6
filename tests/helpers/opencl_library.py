"""The OpenCL library that a runner in a test loads."""

from __future__ import annotations

import os
from pathlib import Path


def opencl_library() -> str:
    """The loader in pyopencl's wheel, which finds PoCL beside it; empty if pyopencl uses the system's loader."""
    chosen = os.environ.get("HANDHELD_OPENCL")
    if chosen:
        return chosen
    import pyopencl

    found = sorted((Path(pyopencl.__file__).parent / ".libs").glob("libOpenCL*.so*"))
    return str(found[0]) if found else ""
