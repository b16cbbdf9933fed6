"""The limits of a device, from readings of its sensors, and what a published text keeps."""

from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from handheld.cli import fleet_tables
from handheld.errors import Unavailable
from handheld.fleet import gauges
from handheld.fleet.file import Device, Limits
from handheld.fleet.gauges import Reading, Watcher, read
from handheld.fleet.page import _rank
from handheld.fleet.publish import cleaner
from handheld.fleet.run import Job, Member
from handheld.sensors.health import Charge, Heat

LIMITS = Limits(battery_floor=30, thermal_limit=45)


class Gauges:
    """The sensors of a machine with these readings."""

    name = "a phone"

    def __init__(self, celsius: float | None, percent: float | None = None, charging: bool = False) -> None:
        self.celsius, self.percent, self.charging = celsius, percent, charging

    def heat(self) -> Heat:
        if self.celsius is None:
            raise Unavailable("no zone")
        return Heat(self.celsius, "zone")

    def charge(self) -> Charge:
        if self.percent is None:
            raise Unavailable("no battery")
        return Charge(self.percent, self.charging)


def test_readings_are_compared_with_limits():
    hot = read(Gauges(46.0, 20.0))
    assert hot.too_hot(LIMITS).startswith("46 °C") and "20%" in hot.too_low(LIMITS) and not hot.unchecked(LIMITS)
    assert not Reading(44.0).too_hot(LIMITS) and Reading(44.0).too_hot(LIMITS, again=True)
    assert not Reading(39.0).too_hot(LIMITS, again=True)
    assert not read(Gauges(20.0, 20.0, charging=True)).too_low(LIMITS)
    assert not hot.too_hot(Limits()) and not hot.too_low(Limits())


def test_what_is_not_known_is_within_no_limit_and_is_said():
    blind = read(Gauges(None))
    assert not blind.too_hot(LIMITS) and not blind.too_low(LIMITS)
    assert blind.unchecked(LIMITS) == {"thermal_limit": "no zone", "battery_floor": "no battery"}
    assert blind.unchecked(Limits(timeout=3.0)) == {}


def worked(monkeypatch, tmp_path, sensors: Gauges, limits: Limits) -> Member:
    """A member with these sensors after its work, which must not begin a process."""
    monkeypatch.setattr(gauges, "gauges_of", lambda target: sensors)
    device = Device("phone", "adb", limits=limits)
    job = Job(device, (), tmp_path / "a", tmp_path / "b", lambda document, code: "")
    member = Member(job, Watcher(device))
    member.watcher.start()
    monkeypatch.setattr(Member, "_attempt", lambda self: pytest.fail("the work began"))
    member.work(threading.Lock())
    member.watcher.end()
    return member


def test_a_device_with_a_low_battery_does_not_begin(monkeypatch, tmp_path):
    member = worked(monkeypatch, tmp_path, Gauges(20.0, 12.0), LIMITS)
    assert member.state == "failed" and "battery is at 12%" in member.reason and "Try: charge it" in member.reason
    assert member.watcher.charges == [12.0] and member.watcher.hottest == 20.0


def test_an_own_limit_needs_its_sensor(monkeypatch, tmp_path):
    limits = Limits(thermal_limit=45, own=frozenset({"thermal_limit"}))
    member = worked(monkeypatch, tmp_path, Gauges(None, 90.0), limits)
    assert member.state == "failed" and "its thermal_limit cannot be checked: no zone" in member.reason


def test_a_live_table_shows_state_heat_and_battery(monkeypatch, tmp_path):
    """On a terminal. The table is drawn again and again, and is gone at the end."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=70, color_system=None)
    monkeypatch.setattr(fleet_tables.output, "err", terminal)
    members = []
    for name, reading in (("pixel", gauges.Reading(38.4, 81.0, True)), ("laptop", gauges.Reading())):
        job = Job(Device(name, "opencl"), (), tmp_path / "a", tmp_path / "b", lambda document, code: "")
        members.append(Member(job, Watcher(job.device), state="working", doing="mlp at 8", done=3, total=12))
        members[-1].watcher.now = reading
    with fleet_tables.shown(False) as tell:
        tell(members)
        members[1].state, members[1].reason = "failed", "device lost"
        tell(members)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", screen.getvalue())
    lines = [line.split() for line in shown.splitlines()]
    assert ["pixel", "working", "3/12", "mlp", "at", "8", "38", "81%+", "0.0", "s"] in lines, shown
    assert ["laptop", "working", "3/12", "mlp", "at", "8", "-", "-", "0.0", "s"] in lines
    assert ["laptop", "failed", "device", "lost", "-", "-", "0.0", "s"] in lines
    assert ["device", "state", "doing", "°C", "battery", "time"] in lines


def test_ranks_are_shared_by_figures_that_look_equal():
    assert [_rank([3.0, 1.001, 1.0, None], n) for n in range(4)] == [3.0, 1.0, 1.0, None]


@pytest.mark.parametrize(
    "text, kept",
    [
        ("ssh:anna@pi-of-anna:2222 is no longer available", "ssh is no longer available"),
        ("cannot open /srv/anna/data/mine.py: gone", "cannot open mine.py: gone"),
        ("no zone of /sys/class/thermal", "no zone of /sys/class/thermal"),
        ("connect to host 10.0.0.7 port 22", "connect to host HOST port 22"),
        ("pi-of-anna: refused", "…: refused"),
        ("write to bob@mail.example", "write to USER@HOST"),
        ("adb:R5CT10XYZ is offline", "adb is offline"),
        ("needs 3/4 of 12 MiB", "needs 3/4 of 12 MiB"),
    ],
)
def test_texts_lose_names(text, kept):
    assert cleaner("ssh:anna@pi-of-anna:2222")(text) == kept
