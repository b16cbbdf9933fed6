"""The load of other processes, measured with processes that are really busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from handheld.analyse.busy import Others, others_in
from handheld.measure import load
from handheld.measure.load import Load
from helpers.paths import clean_path

MEASURE = """
import json, time
from handheld.measure.load import Load
load = Load()
time.sleep(0.8)
print(json.dumps(load.lap().to_json()))
"""


@contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_busy_process_is_seen_from_another_one():
    count = os.cpu_count() or 1
    with busy_processes(count):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(clean_path())}
        printed = subprocess.check_output([sys.executable, "-c", MEASURE], text=True, env=environment)
    found = others_in(json.loads(printed))
    assert found is not None and found.count == count and found.busy and found.share > 0.5
    assert f"held {found.share:.0%} of the {count} cores" in found.warning and "Try: " in found.warning


def test_the_own_children_are_not_others():
    with busy_processes(1) as pids:
        before = load._read()
        time.sleep(0.5)
        now = load._read()
    assert before is not None and now is not None
    numbers = {number for number, _ in now.each}
    assert not numbers & {os.getpid(), *pids} and os.getppid() in numbers
    assert now.own_s - before.own_s > 0.05, "the busy child counts as own time"


def test_too_short_or_hidden_is_not_known(monkeypatch):
    assert Load().lap() is None

    def hidden() -> None:
        raise PermissionError(13, "Permission denied", "/proc/stat")

    monkeypatch.setattr(load.psutil, "cpu_times", hidden)
    assert Load().lap() is None


def test_only_a_large_share_is_a_warning():
    assert Others(0.1, 2, 1.0).warning == "" and Others(0.3, 2, 1.0).warning.startswith("other processes held 15%")
    assert "(most: ffmpeg, process 7, 0.9 cores)" in Others(1.0, 2, 1.0, "ffmpeg, process 7", 0.9).warning


def test_two_times_are_joined():
    long, short = Others(0.5, 2, 30.0, "ffmpeg, process 7", 0.4), Others(2.0, 2, 10.0, "make, process 9", 0.9)
    joined = short.joined(long)
    assert (joined.cores, joined.seconds) == (0.875, 40.0) and (joined.top, joined.top_cores) == (long.top, 0.3)
    assert short.joined(None) == short


@pytest.mark.parametrize("data", (None, {}, {"cores": "x"}, [], {"cores": 1.0, "count": 2}))
def test_files_of_older_versions_have_no_load(data):
    assert others_in(data) is None
