"""The sampler: its readings, the failures it survives, and that it ends with its parent."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from handheld.errors import HandheldError
from handheld.sensors import Sampler, Samples, Where, available
from handheld.sensors.battery import Battery
from handheld.sensors.child import Pace
from handheld.sensors.cpu import CpuBusy
from handheld.sensors.memory import ProcessUse
from handheld.sensors.rapl import Rapl
from helpers.sensor_plugins import Dear, Lines, Refusing, Steered
from helpers.sensor_trees import grow, put


def until(true, patience=30.0):
    """Waits until another process has done something, however long that takes."""
    end = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


def count(path, source):
    with Samples(path) as samples:
        return len(samples.table(source)[0])


def last(path, source, channel):
    with Samples(path) as samples:
        values = samples.series(source, channel)[1]
    return values[-1] if len(values) else None


def gaps(path, stopped=False):
    """The gaps in the samples. Those of a machine that stood still are returned only with `stopped`."""
    with Samples(path) as samples:
        return [gap for gap in samples.gaps() if ("did not run" in gap["reason"]) == stopped]


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "run.samples"


@pytest.fixture
def steered(tmp_path) -> Where:
    put(tmp_path, "value", "42")
    return Where(tmp_path)


# ── what it reads ─────────────────────────────────────────────────────────────────────────────


def test_live_readings_on_the_monotonic_clock(file):
    before = time.monotonic()
    with Sampler([CpuBusy, ProcessUse], file, periods_s={"cpu": 0.02}) as sampler:
        until(lambda: count(file, "cpu") >= 10 and count(file, "process") >= 10)
        assert sampler.summary().sources[0].readings >= 10
    after, summary = time.monotonic(), sampler.summary()
    with Samples(file) as samples:
        t_s, resident = samples.series("process", "resident")
        assert before < t_s[0] and t_s[-1] < after and np.all(np.diff(t_s) > 0)
        assert resident.min() > 5e6  # the memory of this process, not of the sampler
        _, busy = samples.series("cpu", "cpu0 busy")
        assert np.all(np.diff(busy) >= 0)
        rows = {row["name"]: row for row in samples.sources()}
    for one in summary.sources:
        assert one.readings == rows[one.name]["readings"] == count(file, one.name)
        assert 0 < one.mean_s <= one.max_s and 0 < one.cpu_share < 1
    assert [one.period_s for one in summary.sources] == [0.02, 0.01]
    assert not summary.problem and not summary.lost


def test_all_sensors_of_this_machine(file):
    with Sampler(available(), file) as sampler:
        until(lambda: count(file, "memory") >= 3)
    assert {one.name for one in sampler.summary().sources} >= {"cpu", "memory", "process"}


def test_it_reads_a_last_time_when_it_is_told_to_end(steered, file, tmp_path):
    """The sampled time ends with a reading, even if a source is read rarely."""
    with Sampler([Steered], file, periods_s={"steered": 60.0}, where=steered):
        until(lambda: count(file, "steered") == 1)
        put(tmp_path, "value", "43")
        end = time.monotonic()
    with Samples(file) as samples:
        t_s, values = samples.series("steered", samples.channels()[0]["name"])
    assert len(t_s) == 2 and t_s[-1] >= end and values.tolist() == [42, 43]


def test_a_wrap_does_not_show(tmp_path, file):
    where = grow("rapl-laptop", tmp_path)
    with Sampler([Rapl], file, where=where):
        until(lambda: count(file, "rapl") >= 2)
        put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "1000000\n")
        until(lambda: last(file, "rapl", "package-0") > 262144)
    _, joules = Samples(file).series("rapl", "package-0")
    assert joules[0] == 262143.0 and joules[-1] == pytest.approx(262143.32885 + 1.0)
    assert not gaps(file)


def test_how_often_a_channel_changes_is_found(steered, file):
    with Sampler([Steered], file, where=steered):
        for number in range(100, 120, 2):
            put(steered.root, "value", str(number))
            until(lambda n=number: last(file, "steered", "number") == n)
    update = {row["name"]: row["update_s"] for row in Samples(file).channels()}
    t_s, number = Samples(file).series("steered", "number")
    changes = t_s[1:][np.diff(number) != 0]
    assert update["number"] == update["half"] == pytest.approx(np.median(np.diff(changes)))


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────


def test_a_sensor_that_goes_and_comes_back_is_a_gap(steered, file):
    value = steered.root / "value"
    with Sampler([Steered], file, where=steered) as sampler:
        until(lambda: count(file, "steered") >= 3)
        value.unlink()
        (gap,) = until(lambda: gaps(file))
        assert gap["to_ns"] is None and "No such file" in gap["reason"]
        value.with_name("new").write_text("44")
        value.with_name("new").rename(value)
        until(lambda: last(file, "steered", "number") == 44)
    (gap,) = gaps(file)
    t_s, _ = Samples(file).series("steered", "number")
    assert gap["source"] == "steered" and gap["channel"] is None
    inside = (t_s > gap["from_ns"] * 1e-9 + 1e-9) & (t_s < gap["to_ns"] * 1e-9 - 1e-9)
    assert gap["from_ns"] < gap["to_ns"] and not inside.any()
    assert sampler.summary().gaps >= 1 and not sampler.summary().problem


def test_a_channel_without_a_value_is_a_gap_and_not_a_number(steered, file):
    with Sampler([Steered], file, where=steered):
        until(lambda: count(file, "steered") >= 3)
        put(steered.root, "value", "43")
        until(lambda: gaps(file))
        put(steered.root, "value", "44")
        until(lambda: gaps(file)[0]["to_ns"])
    (gap,) = gaps(file)
    assert (gap["channel"], gap["reason"]) == ("half", "it is odd")
    _, data = Samples(file).table("steered")
    assert np.isnan(data[data[:, 0] == 43.0, 1]).all() and (data[:, 0] == 43.0).any()
    assert set(Samples(file).series("steered", "half")[1]) == {21.0, 22.0}


def test_a_battery_that_is_plugged_in_is_a_gap_with_its_reason(tmp_path, file):
    where = grow("battery-phone", tmp_path)
    with Sampler([Battery], file, periods_s={"battery": 0.01}, where=where):
        until(lambda: count(file, "battery") >= 2)
        put(tmp_path, "sys/class/power_supply/battery/status", "Charging\n")
        (gap,) = until(lambda: gaps(file))
    assert gap["channel"] == "battery power" and "unplug" in gap["reason"]


def test_a_counter_that_starts_again_is_a_gap(tmp_path, file):
    where = grow("rapl-two-packages", tmp_path)
    with Sampler([Rapl], file, where=where):
        until(lambda: count(file, "rapl") >= 2)
        put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "5000\n")
        (gap,) = until(lambda: gaps(file))
    assert gap["channel"] == "package-0" and "was reset" in gap["reason"] and gap["to_ns"]
    assert Samples(file).series("rapl", "package-0")[1] == pytest.approx(240422.366267)


def test_missed_deadlines_are_counted(steered, file):
    with Sampler([Steered], file, where=steered) as sampler:
        put(steered.root, "delay", "0.05")
        until(lambda: sampler.summary().sources[0].missed > 5)
    assert sampler.summary().sources[0].max_s > 0.05


def test_a_source_that_hangs_is_a_gap_and_holds_up_no_other(steered, file):
    grow("linux-arm", steered.root)
    with Sampler([Steered, CpuBusy], file, where=steered) as sampler:
        put(steered.root, "delay", "600")
        (gap,) = until(lambda: gaps(file))
        assert gap["source"] == "steered" and gap["reason"] == "it does not answer"
        now = count(file, "cpu")
        until(lambda: count(file, "cpu") > now)
    assert not sampler.summary().problem


def test_a_disk_that_is_full_for_a_while_loses_nothing(steered, tmp_path, file):
    full = put(tmp_path, "full", "")
    with Sampler([Steered], Refusing(str(file)), where=steered) as sampler:
        until(lambda: "No space left" in sampler.summary().problem)
        full.unlink()
        until(lambda: count(file, "steered") > 5)
    summary = sampler.summary()
    assert summary.lost == 0 and count(file, "steered") == summary.sources[0].readings


def test_any_sink(steered, tmp_path):
    with Sampler([Steered], Lines(str(tmp_path / "lines")), where=steered) as sampler:
        until(lambda: sampler.summary().sources[0].readings > 3)
    first, *rest = (tmp_path / "lines").read_text().splitlines()
    assert first == "0 is steered 2" and len(rest) == sampler.summary().sources[0].readings


def test_what_cannot_start_says_why(steered, tmp_path, file):
    class Here(Steered):
        """A sensor that another process cannot import."""

    with pytest.raises(HandheldError, match="at the top level of a module"), Sampler([Here], file):
        pass
    with (
        pytest.raises(HandheldError, match="there is no value"),
        Sampler([Steered], file, where=Where(tmp_path / "nowhere")),
    ):
        pass
    file.write_text("mine")
    with pytest.raises(HandheldError, match=r"exists\. Try: another name"), Sampler([Steered], file, where=steered):
        pass
    assert file.read_text() == "mine"
    with (
        pytest.raises(HandheldError, match="could not be created"),
        Sampler([Steered], tmp_path / "no" / "such" / "folder", where=steered),
    ):
        pass
    with pytest.raises(HandheldError, match="nvidia, which is not among the sensors"):
        Sampler([Steered], file, periods_s={"nvidia": 1.0})
    with pytest.raises(HandheldError, match="above 0"):
        Sampler([Steered], file, periods_s={"steered": 0.0})


# ── how it ends ───────────────────────────────────────────────────────────────────────────────

PARENT = """
import os, sys, time
from pathlib import Path
from handheld.sensors import Sampler, Where
from helpers.sensor_plugins import Steered
sampler = Sampler([Steered], sys.argv[1], where=Where(Path(sys.argv[2]))).__enter__()
while sampler.summary().sources[0].readings < 5:
    time.sleep(0.02)
twin = os.fork() if sys.argv[3] == "fork" else 0
if sys.argv[3] == "fork" and not twin:
    time.sleep(600)  # holds the pipe to the sampler open
print(sampler.pid, twin, flush=True)
time.sleep(600)
"""


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("how", ["plain", "fork"])
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_parent_and_what_it_read_is_there(steered, file, how, death):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, file, steered.root, how], stdout=subprocess.PIPE, text=True, env=env
    )
    child, twin = (int(word) for word in parent.stdout.readline().split())
    try:
        assert alive(child)
        parent.send_signal(death)
        parent.wait()
        until(lambda: not alive(child))
    finally:
        if twin:
            os.kill(twin, signal.SIGKILL)
        parent.stdout.close()
    t_s, number = Samples(file).series("steered", "number")
    assert len(t_s) >= 5 and set(number) == {42.0}
    assert Samples(file).sources()[0]["readings"] == len(t_s)  # everything that it had read


def test_it_outlives_the_thread_that_started_it(steered, file):
    sampler = Sampler([Steered], file, where=steered)
    starter = threading.Thread(target=sampler.__enter__)
    starter.start()
    starter.join()
    try:
        now = sampler.summary().sources[0].readings
        until(lambda: sampler.summary().sources[0].readings > now + 50)
    finally:
        sampler.__exit__()


def test_ctrl_c_in_the_terminal_is_for_the_parent(steered, file):
    with Sampler([Steered], file, where=steered) as sampler:
        os.kill(sampler.pid, signal.SIGINT)
        now = sampler.summary().sources[0].readings
        until(lambda: sampler.summary().sources[0].readings > now)


def test_a_sampler_that_is_killed_leaves_what_it_wrote(steered, file):
    with Sampler([Steered], file, where=steered) as sampler:
        until(lambda: count(file, "steered") >= 5)
        os.kill(sampler.pid, signal.SIGKILL)
        until(lambda: "signal 9" in sampler.summary().problem)
    assert "signal 9" in sampler.summary().problem
    assert count(file, "steered") >= 5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) > 12, reason="1% of so many cores is enough")
def test_sources_that_take_much_are_read_less_often(file):
    """Readings of 3 ms every 10 ms would take a third of a core. A requested period is kept."""
    with Sampler([Dear], file) as sampler:
        until(lambda: sampler.summary().elapsed_s > 3)
        found = sampler.summary()
    assert found.stretch > 1.5 and found.sources[0].period_s == 0.01
    assert found.sources[0].readings < 0.7 * found.elapsed_s / 0.01
    assert found.sources[0].cpu_share < 0.2
    with Sampler([Dear], file.with_name("asked"), {"dear": 0.02}) as sampler:
        until(lambda: sampler.summary().sources[0].readings > 20)
    assert sampler.summary().sources[0].cpu_share > 0.1


def test_time_asleep_does_not_count(monkeypatch):
    now, cpu = [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: cpu[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    worker = SimpleNamespace(takes_s=0.0001, period_s=0.01, stretch=1.0)
    pace = Pace([worker])
    for _ in range(30):  # 4% of a core on a machine with two: twice the limit
        for _ in range(4):
            now[0] += 0.25
            cpu[0] += 0.25 * 0.04 / worker.stretch
            pace.keep()
        now[0] += 3.0  # The process was stopped.
        pace.keep()
    assert worker.stretch == pytest.approx(2.0, rel=0.01)


def test_a_sampler_that_was_stopped_says_when(steered, file):
    with Sampler([Steered], file, {"steered": 0.01}, steered) as sampler:
        until(lambda: count(file, "steered") >= 5)
        os.kill(sampler.pid, signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(sampler.pid, signal.SIGCONT)
        gap = until(lambda: gaps(file, stopped=True))[0]
    t_s, _ = Samples(file).series("steered", "number")
    assert sampler.summary().sources[0].missed > 100
    assert not ((t_s > gap["from_ns"] * 1e-9 + 1e-6) & (t_s < gap["to_ns"] * 1e-9 - 1e-6)).any()


# ── the file ──────────────────────────────────────────────────────────────────────────────────


def test_files_that_are_no_samples(tmp_path):
    with pytest.raises(HandheldError, match="there is no file"):
        Samples(tmp_path / "none")
    put(tmp_path, "text", "not a database, and long enough to be looked at\n" * 50)
    with pytest.raises(HandheldError, match="holds no samples"):
        Samples(tmp_path / "text")
    with sqlite3.connect(tmp_path / "newer") as db:
        db.execute("CREATE TABLE meta (key, value)")
        db.execute("INSERT INTO meta VALUES ('version', 99)")
    with pytest.raises(HandheldError, match="version 99"):
        Samples(tmp_path / "newer")


def test_what_is_not_in_a_file_is_named(steered, file):
    with Sampler([Steered], file, where=steered):
        pass
    with pytest.raises(HandheldError, match=r"no source nvidia\. It has steered"):
        Samples(file).table("nvidia")
    with pytest.raises(HandheldError, match=r"no channel watts\. It has number, half"):
        Samples(file).series("steered", "watts")
