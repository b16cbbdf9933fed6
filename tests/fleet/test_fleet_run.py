"""A fleet of real devices: one is killed, one fails, all is interrupted, and the same command finishes it.

The devices are PoCL, the native runner on this machine, and one that does not exist.
"""

from __future__ import annotations

import getpass
import json
import platform
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from handheld.bench import open_results
from handheld.cli.fleet_run import _to_measure
from handheld.errors import Unavailable
from handheld.fleet import figures, gauges
from handheld.fleet.figures import parts
from handheld.fleet.file import Device, Limits
from handheld.fleet.folder import open_fleet
from handheld.fleet.run import Job, Member
from handheld.fleet.run import run as run_fleet
from handheld.sensors.health import Charge, Heat
from helpers.commands import fails
from helpers.opencl_library import opencl_library

FLEET = """\
[limits]
battery_floor = 0
timeout = "10min"

[devices.pocl]
target = "opencl"
groups = ["good"]
[devices.native]
target = "runner"
groups = ["good"]
[devices.nothing]
target = "opencl:none-such"
"""
WORDS = ("bench", "tiny.step", "--steps=5", "--cool=0", "--out=ours")


def until(true: Callable[[], bool], process: subprocess.Popen, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end and process.poll() is None, "it did not happen"
        time.sleep(0.05)


def member(process: subprocess.Popen, name: str) -> int:
    """The process of a device, once it has begun to work; 0 before."""
    for child in psutil.Process(process.pid).children():
        try:
            if any(file.path.endswith(f"fleet/{name}.json") for file in child.open_files()):
                return child.pid
        except psutil.Error:
            continue
    return 0


@pytest.fixture(scope="module", autouse=True)
def real(work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANDHELD_OPENCL", opencl_library())
        (work / "fleet.toml").write_text(FLEET)
        yield


def test_a_fleet_survives_a_kill_continues_and_is_shared(start, work, run, monkeypatch):
    _killed_and_continued(start, work)
    monkeypatch.chdir(work)
    _published(run, work)
    _merged(run)


def _killed_and_continued(start, work):
    ours = work / "ours"
    process = start(*WORDS, "--on", "fleet:all")
    until(lambda: member(process, "pocl") > 0, process)
    psutil.Process(member(process, "pocl")).kill()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, err
    assert "pocl failed: its process was ended (signal 9, SIGKILL)" in out and "run the same command" in out
    assert "nothing failed: " in out and "none-such" in out
    assert "native: done" in err and "nothing: failed" in err  # plain lines: this is no terminal
    states = {name: row["state"] for name, row in open_fleet(ours)["devices"].items()}
    assert states == {"pocl": "failed", "native": "done", "nothing": "failed"}
    native = open_fleet(ours)["devices"]["native"]

    process = start(*WORDS, "--on", "fleet:good")  # Ctrl-C
    until(lambda: member(process, "pocl") > 0, process)
    assert member(process, "native") == 0, "finished work is not repeated"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "already done: native" in out
    assert "Run the same command to continue" in err
    assert open_fleet(ours)["devices"]["pocl"]["state"] == "stopped"

    process = start(*WORDS, "--on", "fleet:good", "--json")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert {name: row["state"] for name, row in document["devices"].items()} == {"pocl": "done", "native": "done"}
    assert open_fleet(ours)["devices"]["native"] == native
    (row,) = open_results(ours / "pocl").rows
    assert row["status"] == "trained" and row["loss"] is not None
    found = {part.name: part for part in parts(ours)}
    assert found["pocl"].rows[0]["loss"] == pytest.approx(found["native"].rows[0]["loss"])
    assert (ours / "index.html").stat().st_size > 10_000


def _published(run, work):
    """A published folder names no machine and no person."""
    result = run("bench", "--publish", "ours", "--out", "shared", "--json")
    assert result.exit_code == 0, result.output
    texts = [path.read_text() for path in Path("shared").rglob("*.json*")]
    page = Path("shared/index.html").read_text()
    texts.append(page[page.index('id="data"') : page.index("</script>", page.index('id="data"'))])
    for text in texts:
        for secret in (str(work), str(Path.home()) + "/", platform.node(), f"{getpass.getuser()}@"):
            assert secret not in text
        assert "others_top" not in text and ".run" not in text
    assert [part.state for part in parts(Path("shared"))] == ["done", "done", "failed"]
    assert {row["device"] for part in parts(Path("shared")) for row in part.rows} == {"pocl", "native"}
    fails(run("bench", "--publish", "ours", "--out", "shared"), "shared exists already")
    fails(run("bench", "--publish", "ours", "--out", "ours/x"), "ours/x is inside ours")
    fails(run("bench", "mlp", "--on", "fleet", "--out", "shared"), "was published", "another --out")
    fails(run("profile", "mlp", "--on", "fleet", "--out", "ours"), "results of another command: handheld bench --st")


def _merged(run):
    """Folders of others are merged into one page."""
    result = run("bench", "--merge", "shared", "ours", "ours/pocl", "--out", "all")
    assert result.exit_code == 0, result.output
    names = [part.name for part in parts(Path("all"))]
    assert names[:6] == ["pocl", "native", "nothing", "pocl-2", "native-2", "nothing-2"] and len(names) == 7
    assert "pocl-2" in Path("all/index.html").read_text()
    fails(run("bench", "--merge", "shared", "--out", "one"), "two results folders")
    fails(run("bench", "--merge", "shared", "nowhere", "--out", "one"), "no such folder")


def test_the_list_says_who_answers(run, work, monkeypatch):
    monkeypatch.chdir(work)
    Path("some.toml").write_text('[devices.a]\ntarget = "null"\n[devices.b]\ntarget = "opencl:none-such"\n')
    result = run("fleet", "--fleet", "some.toml", "--json")
    rows = json.loads(result.stdout)["devices"]
    assert result.exit_code == 1
    assert [row["reachable"] for row in rows] == [True, False] and "none-such" in rows[1]["problem"]


def test_a_profile_is_kept_when_whole_and_repeated_when_cut_off(start, run, work, monkeypatch):
    """What a device has finished is not measured again, whatever became of its process; other files are removed."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("HANDHELD_DRIVER_CHECK", "off")
    words = ("profile", "tiny.step", "--steps=5", "--no-ceilings", "--on=fleet:pocl", "--out=profiles")
    process = start(*words)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    path = Path("profiles/pocl/profile.run")
    measured, summary = path.read_bytes(), json.loads(Path("profiles/fleet.json").read_text())
    summary["devices"]["pocl"]["state"] = "working"  # Its process was killed after the last step.
    Path("profiles/fleet.json").write_text(json.dumps(summary))
    path.with_suffix(".html").unlink()
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    assert path.read_bytes() == measured and path.with_suffix(".html").exists()
    assert json.loads(result.stdout)["devices"]["pocl"]["rows"][0]["status"] == "trained"
    path.write_bytes(measured[: len(measured) // 2])
    assert _to_measure(path) and not path.exists()


class Rising:
    """Sensors of a device that becomes too hot when its work begins, and cools once when it rests."""

    name = "a phone"
    celsius = 30.0

    def follow(self, states: list[str]) -> None:
        self.celsius = 50.0 if "working" in states and "cooling" not in states else 30.0

    def heat(self) -> Heat:
        return Heat(self.celsius, "zone")

    def charge(self) -> Charge:
        raise Unavailable("no battery")


def test_a_device_that_is_too_hot_rests_and_one_that_is_late_stops(work, monkeypatch):
    """Only the sensors are artificial: the two processes are real."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("HANDHELD_DRIVER_CHECK", "off")
    sensors = Rising()
    monkeypatch.setattr(gauges, "gauges_of", lambda target: sensors)
    monkeypatch.setattr(gauges, "PERIOD_S", 0.1)

    def job(name: str, limits: Limits) -> Job:
        words = (*WORDS[:-1], f"--out={name}", "--json", "--on=opencl")
        files = (work / f"{name}.document", work / f"{name}.log")
        return Job(Device(name, "opencl", limits=limits, slot=name), words, *files, figures.judge("bench", work / name))

    states: list[str] = []

    def changed(members: list[Member]) -> None:
        states.append(members[0].state)
        sensors.follow(states)

    hot, late = run_fleet(
        [job("hot", Limits(thermal_limit=45)), job("late", Limits(timeout=0.3))], lambda members: None, changed
    )
    seen = [state for state in dict.fromkeys(states) if state != "waiting"]
    assert seen == ["working", "stopping", "cooling", "done"], states
    assert hot.state == "done" and hot.watcher.hottest == 50.0
    assert [row["status"] for row in open_results(work / "hot").rows] == ["trained"]
    assert late.state == "stopped" and "its timeout of 0.3 s is over" in late.reason
