"""The cost of a launch, from the times of commands."""

from __future__ import annotations

import numpy as np

from handheld.store.commands import LAUNCH
from helpers.run_files import MS, START, MadeRun


def test_a_device_that_starts_before_the_call_returns_takes_no_time(tmp_path):
    made = MadeRun(tmp_path / "one.run", offset=0)
    for n in range(4):
        t = START + n * 10 * MS
        u = t + 2 * MS
        rows = [
            (LAUNCH, 0, 0, t, t + 9000, 0, 0, t + 1000, t + 1 * MS),
            (LAUNCH, 1, 0, u, u + 9000, 0, 0, u + 1000, u + 1 * MS),
        ]
        made.writer.put("step", n, "train", 8, t - 1000, t + 6 * MS, 1, None)
        made.writer.put("command", n, 2, np.array(rows, "<i8").T.tobytes())
    with made.open() as run:
        assert run.launches().start_us == 0
