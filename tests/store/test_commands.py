"""Command records: the bytes in a run file and the array contain the same rows."""

from __future__ import annotations

import numpy as np

from handheld.store.commands import LAUNCH, UPLOAD, CommandKind, commands, from_bytes, to_bytes


def test_commands_keep_their_bytes() -> None:
    """The file stores column after column, little-endian, in the order of schema.sql."""
    rows = [(UPLOAD, -1, 64, *range(10, 16)), (LAUNCH, 7, 0, *range(20, 26))]
    packed = to_bytes(commands(rows))
    assert packed == np.array(rows, "<i8").T.tobytes()
    again = from_bytes(2, packed)
    assert again is not None and again.tolist() == rows
    assert from_bytes(3, packed) is None
    assert [int(kind) for kind in CommandKind] == [0, 1, 2, 3]
