"""Plan files of bare launches, without a step: what measurements send to a runner.

`Buffer(i)` in a launch is the whole of segment i, and so is `Texture(i)`. Each launch is a node of its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

import handheld
from handheld.device import DeviceCaps
from handheld.kernels.base import Arg, Buffer, Float, Int, Launch, Texture
from handheld.plan import file_format as form
from handheld.plan.file_format import ArgKind, Section
from handheld.plan.file_read import content_of
from handheld.plan.file_write import OPTIONS, Strings, joined, table_of
from handheld.plan.widen import texts_of


def bare_file(
    caps: DeviceCaps, segments: Sequence[int], graphs: Mapping[str, Sequence[Launch]], halves: Collection[int] = ()
) -> bytes:
    """Returns a plan file for the device with these segments (bytes of each) and graphs. A texture over a segment in
    `halves` has halves as its elements."""
    strings, rows = Strings(), {section: list[tuple[Any, ...]]() for section in form.RECORDS}
    place, sizes = strings.place, [max(size, 4) for size in segments]
    flags = form.UNIFIED if caps.unified_memory else 0
    texts = place(caps.name), place(caps.vendor), place(caps.driver)
    rows[Section.DEVICE] = [(*texts, int(caps.kind == "gpu"), flags, caps.base_align_bytes, 0)]
    rows[Section.SEGMENTS] = [(size,) for size in sizes]
    compiled = texts_of((launch for launches in graphs.values() for launch in launches), caps)
    numbers = {text: i for i, text in enumerate(compiled)}
    rows[Section.PROGRAMS] = [(place(text), place(OPTIONS)) for text in compiled.values()]
    for name, launches in graphs.items():
        first = len(rows[Section.LAUNCHES])
        for node, launch in enumerate(launches):
            args = [_arg(arg, sizes, halves) for arg in launch.args]
            ones = (1,) * (3 - len(launch.global_size))
            grid = (*launch.global_size, *ones), (*launch.local_size, *ones)
            start = len(rows[Section.ARGS])
            kernel = place(launch.kernel)
            dims = len(launch.global_size)
            rows[Section.LAUNCHES].append((numbers[launch.text], node, kernel, dims, start, len(args), 0, *grid, 0))
            rows[Section.ARGS] += args
        rows[Section.GRAPHS].append((place(name), first, len(launches), *(0,) * 6, len(launches), (0,) * 5))
    tables = {section: table_of(section, listed) for section, listed in rows.items()}
    notes = json.dumps({"handheld": handheld.__version__, "step": "a measurement", "caps": caps.to_json()})
    bodies: dict[Section, list[bytes | memoryview]] = {section: [table.tobytes()] for section, table in tables.items()}
    bodies |= {Section.STRINGS: [strings.joined()], Section.VALUES: [], Section.STATE: []}
    bodies[Section.NOTES] = [notes.encode()]
    data = b"".join(joined(bodies, {section: len(table) for section, table in tables.items()}))
    content_of(np.frombuffer(data, np.uint8))  # The writer reads what it wrote.
    return data


def _arg(arg: Arg, sizes: Sequence[int], halves: Collection[int]) -> tuple[int, int, int, int]:
    if isinstance(arg, Buffer):
        return ArgKind.BUFFER, arg.tensor, 0, sizes[arg.tensor]
    if isinstance(arg, Texture):
        return ArgKind.TEXTURE, arg.tensor, arg.floats, int(arg.tensor in halves)
    if isinstance(arg, Int):
        return ArgKind.INT, arg.value % 2**32, 0, 0
    assert isinstance(arg, Float), arg
    return ArgKind.FLOAT, int(np.float32(arg.value).view(np.uint32)), 0, 0
