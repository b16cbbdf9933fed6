"""Plan files of bare launches."""

from __future__ import annotations

import numpy as np

from handheld.device import DeviceCaps
from handheld.kernels.base import Buffer, Float, Int, Launch, Texture
from handheld.plan.file_bare import bare_file
from handheld.plan.file_format import ArgKind, Section
from handheld.plan.file_read import content_of

CAPS = DeviceCaps("Tiny", "Nobody", "gpu", "1.0", 1, 64, 1024, 1 << 20, 1 << 20, 64, True, images=True)


def test_launches_segments_and_arguments_are_as_given():
    a = Launch("one", "__kernel void one() {}", (Buffer(1), Int(-1), Float(0.5)), (8, 2), (4, 1))
    b = Launch("two", "__kernel void two() {}", (Texture(2, 4), Buffer(0)), (16,), (16,))
    data = bare_file(CAPS, [0, 640, 64], {"first": [a, b], "second": [b]}, halves={2})
    tables = content_of(np.frombuffer(data, np.uint8)).tables
    assert tables[Section.SEGMENTS]["bytes"].tolist() == [4, 640, 64]
    assert len(tables[Section.PROGRAMS]) == 2
    assert tables[Section.GRAPHS]["launches"].tolist() == [2, 1]
    assert tables[Section.LAUNCHES]["node"].tolist() == [0, 1, 0]
    assert tables[Section.LAUNCHES]["global"].tolist() == [[8, 2, 1], [16, 1, 1], [16, 1, 1]]
    half = int(np.float32(0.5).view(np.uint32))
    assert tables[Section.ARGS].tolist()[:5] == [
        (ArgKind.BUFFER, 1, 0, 640),
        (ArgKind.INT, 0xFFFFFFFF, 0, 0),
        (ArgKind.FLOAT, half, 0, 0),
        (ArgKind.TEXTURE, 2, 4, 1),
        (ArgKind.BUFFER, 0, 0, 4),
    ]
