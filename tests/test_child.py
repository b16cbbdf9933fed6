"""Child processes: their messages, how they end, and that they leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from handheld.child import Child, Ending, python_module
from handheld.progress import reporting

COMMAND = python_module("helpers.child_worker")


@pytest.fixture
def child():
    with Child(COMMAND, share_path=True) as child:
        yield child


def test_messages_go_both_ways_and_a_drivers_noise_is_no_message(child):
    for what in ("one", "x" * 300_000):  # The second message is larger than a pipe's buffer.
        child.send({"do": "echo", "what": what})
        assert child.receive(30.0) == {"heard": what}
    child.end_of_messages()
    assert child.receive(30.0) is None and child.receive(30.0) is None
    assert child.ending() == Ending(0, '{"noise": 1}')


def test_how_it_ended_is_said(child):
    child.send({"do": "exit", "code": 3})
    assert child.receive(30.0) is None
    assert child.ending().describe() == "the process ended (code 3): last words"
    child.send({"do": "echo", "what": "to nobody"})
    assert child.receive(30.0) is None


def test_a_crash_is_told_from_an_end_that_someone_asked_for():
    with Child(COMMAND, share_path=True) as child:
        child.send({"do": "abort"})
        assert child.receive(30.0) is None
        assert child.ending().crashed and child.ending().describe().startswith(
            "the process crashed (signal 6, SIGABRT)"
        )
    with Child(COMMAND, share_path=True) as child:
        child.send({"do": "echo", "what": ""})
        child.receive(30.0)
        os.kill(child.pid, signal.SIGTERM)
        assert child.receive(30.0) is None
        assert "was ended (signal 15, SIGTERM)" in child.ending().describe()


def test_a_child_that_hangs_is_late_and_does_not_outlive_close(child):
    child.send({"do": "hang"})
    with pytest.raises(TimeoutError):
        child.receive(0.3)
    assert child.ending(patience=0.1).describe() == "the process does not answer"
    child.close()
    assert child.ending().code == -signal.SIGKILL and not psutil.pid_exists(child.pid)
    assert child.receive(1.0) is None


def test_a_time_limit_is_on_silence_and_stages_reach_the_parent(child):
    child.send({"do": "echo", "what": "started"})
    assert child.receive(30.0) == {"heard": "started"}
    child.send({"do": "work"})  # It takes longer than the limit, and reports what it does.
    heard: list[tuple[str, int, int]] = []
    with reporting(lambda *stage: heard.append(stage)):
        assert child.receive(1.0) == {"done": True}
    assert heard == [("building", n, 8) for n in range(8)]


def test_ctrl_c_is_left_to_the_parent(child):
    child.send({"do": "echo", "what": 1})
    assert child.receive(30.0) == {"heard": 1}
    assert os.getpgid(child.pid) == child.pid  # A terminal sends Ctrl-C to the parent's group.
    os.kill(child.pid, signal.SIGINT)
    child.send({"do": "echo", "what": 2})
    assert child.receive(30.0) == {"heard": 2}


@pytest.mark.parametrize("dies_first", [False, True])
def test_it_is_killed_with_everything_that_it_started(child, dies_first):
    child.send({"do": "start"})
    grandchild = psutil.Process(child.receive(30.0)["pid"])
    if dies_first:
        child.send({"do": "abort"})
        assert child.receive(30.0) is None
    child.close()
    psutil.wait_procs([grandchild], timeout=10)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


PARENT = """
import time
from handheld.child import Child, python_module
child = Child(python_module("helpers.child_worker"), share_path=True)
child.send({"do": "echo", "what": 1})
child.receive(30.0)
child.send({"do": "hang"})
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_parent_even_while_it_hangs():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_command_that_does_not_exist_is_an_error_at_once():
    with pytest.raises(OSError):
        Child(("/nowhere/python",))


def test_time_that_passes_while_this_process_sleeps_does_not_count(child, monkeypatch):
    clock = iter(range(0, 10**6, 1000))
    started = time.monotonic()
    with monkeypatch.context() as patch, pytest.raises(TimeoutError):
        patch.setattr("handheld.child.time.monotonic", lambda: next(clock))
        child.receive(1.0)
    assert time.monotonic() - started > 0.4


@pytest.mark.parametrize(("filters", "code", "shown"), [("error:programs built", 1, True), ("", 0, False)])
def test_a_child_is_silent_about_warnings_unless_the_environment_asks(tmp_path, monkeypatch, filters, code, shown):
    monkeypatch.setenv("PYTHONWARNINGS", filters)
    (tmp_path / "warner.py").write_text("import warnings\nwarnings.warn('programs built separately')\n")
    done = subprocess.run(python_module("warner"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code and ("programs built separately" in done.stderr) == shown
