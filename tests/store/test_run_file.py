"""The run file: written during the run, readable after a crash, refused if it is another kind of file."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import handheld
from handheld.errors import RunFileError
from handheld.sensors.base import Channel
from handheld.sensors.sink import Reading, RunSink
from handheld.store import writer as writing
from handheld.store.reader import RunFile
from handheld.store.writer import VERSION, RunWriter, statements
from helpers.run_files import MadeRun


def test_what_is_put_comes_back(tmp_path):
    path = tmp_path / "one.run"
    writer = RunWriter(path)
    writer.meta(status="complete", nested={"a": [1, None, "é"]})
    writer.put("step", 0, "train", 8, 1, 2, None, 0.5)
    writer.put_all("step", [(n, "train", 8, 10 * n, 10 * n + 5, n // 4, None) for n in (1, 2)])
    writer.note("sampler", "a sensor went")
    writer.close()
    with handheld.open_run(path) as run:
        assert run.meta == {"status": "complete", "nested": {"a": [1, None, "é"]}}
        assert [s.begin_ns for s in run.steps()] == [1, 10, 20]
        assert [s.recorded for s in run.steps()] == [False, True, True]
        assert run.steps()[0].loss == 0.5 and run.steps()[1].loss is None
        assert [n.text for n in run.notes()] == ["a sensor went"] and run.complete
    assert not list(tmp_path.glob("one.run-*")), "a finished run is one file"


def test_commands_come_back_as_columns(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(1)
    with made.open() as run:
        found = run.file.commands(0)
        assert found["kind"].tolist() == [1, 0, 0, 2] and found["op"].tolist() == [-1, 0, 1, -1]
        assert (found["ended"] - found["started"]).tolist() == [100_000, 6_000_000, 3_000_000, 50_000]
        assert run.file.commands(99) is None


def test_a_run_is_readable_while_it_is_written(tmp_path):
    path = tmp_path / "one.run"
    writer = RunWriter(path)
    writer.meta(status="running")
    writer.put("step", 0, "train", 8, 1, 2, None, None)
    writer.commit()
    with handheld.open_run(path) as run:
        assert len(run.steps()) == 1 and not run.complete
        writer.put("step", 1, "train", 8, 3, 4, None, None)
        writer.commit()
    with handheld.open_run(path) as run:
        assert len(run.steps()) == 2
    writer.close()


def test_rows_are_committed_without_being_asked(tmp_path):
    path = tmp_path / "one.run"
    writer = RunWriter(path)
    writer.put("step", 0, "train", 8, 1, 2, None, None)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with handheld.open_run(path) as run:
            if run.steps():
                break
        time.sleep(0.05)
    else:
        pytest.fail("nothing was committed")
    writer.close()


def test_missing(tmp_path):
    with pytest.raises(RunFileError, match=r"there is no run file .*nothing\.run"):
        handheld.open_run(tmp_path / "nothing.run")
    with pytest.raises(RunFileError, match=r"is a folder, not a run file.*Try"):
        handheld.open_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04pickle", bytes(5000)])
def test_not_ours(tmp_path, content):
    path = tmp_path / "other.run"
    path.write_bytes(content)
    with pytest.raises(RunFileError, match="is not a run file of Handheld"):
        handheld.open_run(path)


def test_another_database(tmp_path):
    path = tmp_path / "other.run"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE step (id INTEGER)")
    db.close()
    with pytest.raises(RunFileError, match="is an SQLite database, but not a run file of Handheld"):
        handheld.open_run(path)


def test_newer(whole):
    db = sqlite3.connect(whole)
    db.execute(f"PRAGMA user_version={VERSION + 1}")
    db.close()
    with pytest.raises(RunFileError, match=f"newer Handheld .version {VERSION + 1}.*Try: install that version"):
        handheld.open_run(whole)


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.6, 0.95])
def test_truncated(whole, keep):
    """A truncated file opens with what it still contains or raises a clear error, never another exception."""
    size = whole.stat().st_size
    with whole.open("r+b") as file:
        file.truncate(int(size * keep))
    with pytest.raises(RunFileError, match="is damaged"), handheld.open_run(whole) as run:
        run.summary()
        run.findings()


def test_damaged_in_the_middle(whole):
    data = bytearray(whole.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    whole.write_bytes(data)
    with pytest.raises(RunFileError, match="is damaged"), handheld.open_run(whole) as run:
        run.summary()


def test_commands_of_the_wrong_length(tmp_path):
    made = MadeRun(tmp_path / "one.run")
    made.steps(4)
    made.writer.put("command", 1, 4, b"12345")
    with made.open() as run, pytest.raises(RunFileError, match="the commands of step 1 are 5"):
        run.ops()


def test_a_name_that_is_taken(whole):
    with pytest.raises(RunFileError, match=r"whole\.run exists\. Try: another name"):
        RunWriter(whole)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RunFileError, match="cannot be created"):
        RunWriter(tmp_path / "no" / "one.run")


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root writes it all")
def test_a_folder_that_cannot_be_written_to(whole, tmp_path):
    """A file on a read-only medium opens. Here, a user without write permission opens it."""
    folder = tmp_path / "locked"
    folder.mkdir()
    shutil.copy(whole, folder / "one.run")
    os.chmod(folder, 0o555)
    parent = folder
    while parent != parent.parent and os.geteuid() == 0:  # Other users cannot enter pytest's folders.
        os.chmod(parent, parent.stat().st_mode | 0o055)
        parent = parent.parent
        if parent == Path("/tmp"):
            break
    code = "import handheld, sys; run = handheld.open_run(sys.argv[1]); print(len(run.steps()), run.summary().steps)"
    words = [sys.executable, "-c", code, str(folder / "one.run")]
    if os.geteuid() == 0:
        words = ["setpriv", "--reuid=65534", "--clear-groups", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": "/tmp"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("another user cannot read this installation")
    assert done.stdout == "200 200\n", done.stderr


# ── writing when things go wrong ──────────────────────────────────────────────────────────────


def test_a_disk_that_fills_is_said_and_the_rest_opens(tmp_path):
    """For SQLite, a limit on the size of files is the same as a full disk."""
    path = tmp_path / "one.run"
    code = """
import resource, signal, sys
from handheld.errors import RunFileError
from handheld.store.writer import RunWriter
writer = RunWriter(sys.argv[1])
writer.put_all("step", [(n, "train", 8, n, n + 1, None, None) for n in range(100)])
writer.commit()
assert not writer.problem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
for n in range(100, 400):
    writer.put("note", n, "big", "x" * 10_000)
writer.commit()
assert "could not be written" in writer.problem, writer.problem
try:
    writer.close()
except RunFileError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=env, check=False)
    assert "300 rows lost; rows committed before can still be read" in done.stdout, done.stderr
    with handheld.open_run(path) as run:
        assert len(run.steps()) == 100


def test_a_disk_that_has_room_again_gets_what_was_kept(tmp_path):
    path = tmp_path / "one.run"
    writer = RunWriter(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        writer.put_all("note", [(n, "big", "x" * 10_000) for n in range(30)])
        writer.commit()
        assert writer.problem
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    writer.commit()
    assert not writer.problem
    writer.close()
    with handheld.open_run(path) as run:
        assert len(run.notes()) == 30


def test_what_is_kept_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MOST_ROWS", 10)
    writer = RunWriter(tmp_path / "one.run")
    for n in range(25):
        writer.put("nowhere", n)  # The table does not exist, so no write succeeds.
    writer.commit()
    assert writer.lost == 15
    with pytest.raises(RunFileError, match="25 rows lost"):
        writer.close()


def test_two_processes_write_at_once(tmp_path):
    """The sampler's sink and the writer share the file, and neither loses a row."""
    path = tmp_path / "one.run"
    writer = RunWriter(path)
    sink = RunSink(str(path))
    sink.open()
    sink.source(0, "cpu", "cores", 0.01, (Channel("cpu0 busy", "time", counter=True),))
    stop = threading.Event()
    count = 0

    def steps() -> None:
        nonlocal count
        while not stop.is_set():
            writer.put("step", count, "train", 8, count, count + 1, None, None)
            count += 1
            writer.commit()

    thread = threading.Thread(target=steps)
    thread.start()
    for n in range(300):
        sink.write([Reading(0, n, bytes(8))], [], [])
    stop.set()
    thread.join()
    sink.close()
    writer.close()
    with handheld.open_run(path) as run:
        assert len(run.steps()) == count > 0 and len(run.channels[0].t_ns) == 300


def test_the_schema_is_as_it_is_documented():
    text = "\n".join(statements())
    for table in (
        "meta",
        "op",
        "step",
        "command",
        "clock",
        "energy_window",
        "note",
        "source",
        "channel",
        "reading",
        "gap",
        "cost",
    ):
        assert f"CREATE TABLE {table} " in text


def test_old_versions_open(tmp_path):
    """A file of version 1, written by the first release, still opens."""
    path = tmp_path / "old.run"
    shutil.copy(Path(__file__).parent / "version-1.run", path)
    file = RunFile(path)
    assert file.rows("SELECT count(*) FROM step") == [(60,)]
    file.close()
    with handheld.open_run(path) as run:
        assert run.summary().steps == 60 and run.parts().ms == pytest.approx(9.17, abs=0.05)
        assert run.channels and run.complete
