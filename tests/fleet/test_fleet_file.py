"""The fleet file: what it may say, and the line and remedy of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from handheld.backends.table import unknown
from handheld.errors import FleetError
from handheld.fleet.file import find_file, is_fleet, read
from handheld.fleet.lines import line_of
from handheld.fleet.reach import example
from helpers.commands import fails

GOOD = """\
[limits]               # defaults for all devices
battery_floor = 30     # percent
thermal_limit = 45     # degrees C
timeout = "2h"         # per device

[devices.pixel]
target = "adb:SERIAL"
[devices.pi]
target = "ssh:pi@raspberry"
groups = ["boards"]
[devices.laptop]
target = "opencl:pocl"
limits = { thermal_limit = 80 }
slot = "desk"
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HANDHELD_FLEET", raising=False)

    def write(text: str | bytes) -> Path:
        path = Path("fleet.toml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_example_of_the_docs_is_read(written):
    fleet = read(written(GOOD))
    pixel, pi, laptop = fleet.devices.values()
    assert (pixel.target, pixel.groups, pixel.slot) == ("adb:SERIAL", (), "pixel")
    assert (pixel.limits.battery_floor, pixel.limits.thermal_limit, pixel.limits.timeout) == (30, 45, 7200)
    assert pi.groups == ("boards",) and not pi.limits.own
    assert laptop.limits.thermal_limit == 80 and laptop.limits.battery_floor == 30
    assert laptop.limits.own == {"thermal_limit"} and laptop.slot == "desk"


def test_names_of_groups_and_devices_are_chosen(written):
    fleet = read(written(GOOD))
    for on, names in (
        ("fleet", ["pixel", "pi", "laptop"]),
        ("fleet:all", ["pixel", "pi", "laptop"]),
        ("fleet:boards", ["pi"]),
        ("fleet:laptop", ["laptop"]),
    ):
        assert is_fleet(on) and [device.name for device in fleet.chosen(on)] == names
    with pytest.raises(FleetError, match=r"no group or device 'board'; it has all, boards, pixel.*Try: boards"):
        fleet.chosen("fleet:board")
    assert not is_fleet("opencl") and not is_fleet("opencl:fleet") and not is_fleet(None)
    assert is_fleet("opencl,fleet:all")


def device(text: str) -> str:
    return f'[devices.pi]\ntarget = "adb"\n{text}\n'


MISTAKES = {
    "no toml": ("[devices.pi]\ntarget = adb\n", 2, "not TOML"),
    "no end": ('[devices.pi]\ntarget = "adb\n', 2, "not TOML"),
    "a table twice": (device('[devices.pi]\ntarget = "adb"'), 3, "not TOML"),
    "empty": ("", 1, "there is no device"),
    "no devices": ("[limits]\n\n[devices]\n", 3, "there is no device"),
    "unknown table": ('[device.pi]\ntarget = "adb"\n', 1, "unknown key 'device' of the file", "Try: devices"),
    "unknown key": ('[devices.pi]\n\ntargett = "adb"\n', 3, "unknown key 'targett' of device 'pi'", "Try: target"),
    "unknown inline key": ('[devices]\npi = { targt = "adb" }\n', 2, "unknown key 'targt'", "Try: target"),
    "unknown key, nothing near": (device("zzz = 1"), 3, "unknown key 'zzz'", "one of: target, groups, limits, slot"),
    "unknown limit": (device("limits = { thermal = 40 }"), 3, "unknown key 'thermal'", "Try: thermal_limit"),
    "unknown default limit": (f"[limits]\nbatery_floor = 3\n{device('')}", 2, "Try: battery_floor"),
    "no target": ('[devices.pi]\ngroups = ["a"]\n', 1, "pi has no target", 'target = "adb:SERIAL"'),
    "target of another type": ("[devices.pi]\ntarget = 3\n", 2, "target of pi is a number", 'target = "adb"'),
    "empty target": ('[devices.pi]\ntarget = ""\n', 2, "target of pi is empty"),
    "unknown target": ('[devices.pi]\ntarget = "shh:pi@box"\n', 2, "unknown target 'shh:pi@box'", "ssh"),
    "serial alone": ('[devices.pi]\ntarget = "R5CT10XYZ"\n', 2, "unknown target 'R5CT10XYZ'", "adb[:SERIAL]"),
    "ssh without host": ('[devices.pi]\ntarget = "ssh:"\n', 2, "names no machine", "Try: ssh:user@host"),
    "ssh port": ('[devices.pi]\ntarget = "ssh:me@box:x"\n', 2, "the port 'x'", "Try: ssh:user@host"),
    "adb without serial": ('[devices.pi]\ntarget = "adb:"\n', 2, "names no phone", "Try: adb"),
    "two targets": ('[devices.pi]\ntarget = "opencl,adb"\n', 2, "one target", "a device for each"),
    "a fleet": ('[devices.pi]\ntarget = "fleet:all"\n', 2, "unknown target"),
    "reference": ('[devices.pi]\ntarget = "reference:gpu"\n', 2, "Try: reference:cpu or reference:cuda"),
    "duplicate": (device('[devices.b]\ntarget = "adb"'), 4, "b has the same target as pi: adb", "remove one"),
    "duplicate alias": (
        '[devices.a]\ntarget = "torch:cpu"\n[devices.b]\ntarget = "reference:cpu"\n',
        4,
        "same target as a",
    ),
    "groups as text": (device('groups = "boards"'), 3, "must be a list, not a text", 'Try: groups = ["boards"]'),
    "no group": (device("groups = []"), 3, "groups of pi is empty", "remove the line"),
    "an empty group": (device('groups = ["a", ""]'), 3, "a group of pi is empty"),
    "a group of another type": (device("groups = [1]"), 3, "a group of pi is a number"),
    "a group named all": (device('groups = ["all"]'), 3, "'all', which cannot be a name of a group"),
    "a group named like a device": (device('groups = ["pi"]'), 3, "'pi' is the name of a device and of a group"),
    "a device named all": ('[devices.all]\ntarget = "adb"\n', 1, "'all' is a reserved name"),
    "a device named fleet": ('[devices.fleet]\ntarget = "adb"\n', 1, "reserved"),
    "a name with a slash": ('[devices."../x"]\ntarget = "adb"\n', 1, "'../x' cannot be a name", "letters, digits"),
    "names alike": (device('[devices.PI]\ntarget = "runner"'), 3, "differ only in case"),
    "floor as text": (device('limits = { battery_floor = "30" }'), 3, "battery_floor of device 'pi' is '30'", "= 30"),
    "floor above 100": (f"[limits]\nbattery_floor = 130\n{device('')}", 2, "battery_floor of [limits] is 130"),
    "floor is true": (f"[limits]\nbattery_floor = true\n{device('')}", 2, "is True"),
    "limit as a list": (f"[limits]\nthermal_limit = [45]\n{device('')}", 2, "is a list", "thermal_limit = 45"),
    "fraction of a degree": (f"[limits]\nthermal_limit = 0.4\n{device('')}", 2, "is 0.4"),
    "timeout in words": (device('[devices.pi.limits]\ntimeout = "two hours"'), 4, "'two hours'", 'timeout = "2h"'),
    "timeout of nothing": (device("limits = { timeout = 0 }"), 3, "is 0", '"2h"'),
    "limits as a number": (device("limits = 45"), 3, "must be a table, not a number", "limits = {"),
    "a device as text": ('[devices]\npi = "adb"\n', 2, "devices.pi must be a table, not a text"),
    "slot of another type": (device("slot = 1"), 3, "slot of pi is a number"),
    "a date": (device("limits = { timeout = 2020-01-01 }"), 3, "is a date"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_the_line_and_a_remedy(written, name):
    text, line, *words = MISTAKES[name]
    with pytest.raises(FleetError) as error:
        read(written(text))
    said = str(error.value)
    assert said.startswith(f"fleet.toml:{line}: "), said
    assert "Try: " in said
    for word in words:
        assert word in said, said


def test_timeouts_have_units(written):
    for text, seconds in (('"90s"', 90), ('"1.5h"', 5400), ('"2 min"', 120), ('"3m"', 180), ("45", 45), ('"45"', 45)):
        fleet = read(written(device(f"limits = {{ timeout = {text} }}")))
        assert fleet.devices["pi"].limits.timeout == seconds


def test_lines_are_found_in_all_forms_of_toml():
    text = 'a = 1\n[devices."my pi"] # here\n\'target\' = "x"\n[devices]\nb.target = "y"\nc = { target = "z" }\n'
    assert line_of(text, "devices", "my pi", "target") == 3
    assert line_of(text, "devices", "my pi", "groups") == 2
    assert line_of(text, "devices", "b", "target") == 5
    assert line_of(text, "devices", "b") == 5
    assert line_of(text, "devices", "c", "target") == 6
    assert line_of(text, "nothing") == 1


def test_files_that_are_no_files(written, tmp_path):
    with pytest.raises(FleetError, match="not UTF-8"):
        read(written(b"[devices.\xff]"))
    assert read(written("\ufeff" + GOOD)).devices
    with pytest.raises(FleetError, match="cannot be read"):
        read(tmp_path)


def test_where_the_file_is_looked_for(written, monkeypatch, tmp_path):
    with pytest.raises(FleetError) as error:
        find_file(None)
    for word in ("fleet.toml", str(tmp_path), "--fleet FILE", "HANDHELD_FLEET", "Try: handheld fleet init"):
        assert word in str(error.value)
    path = written(GOOD)
    assert find_file(None) == path
    monkeypatch.setenv("HANDHELD_FLEET", "other.toml")
    with pytest.raises(FleetError, match=r"other.toml of HANDHELD_FLEET does not exist"):
        find_file(None)
    assert find_file(path) == path
    with pytest.raises(FleetError, match="of --fleet is a folder"):
        find_file(tmp_path)


def test_a_written_example_is_read_again(written):
    devices = list(read(written(GOOD)).devices.values())
    again = read(written(example(devices))).devices
    assert [(d.name, d.target, d.groups) for d in again.values()] == [(d.name, d.target, d.groups) for d in devices]


def test_commands_refuse_what_does_not_belong_to_a_fleet(run, written):
    fails(run("bench", "mlp", "--on", "fleet:all"), "there is no fleet file", "handheld fleet init")
    written(GOOD)
    fails(run("bench", "mlp", "--on", "opencl,fleet:all"), "a fleet stands alone")
    fails(run("bench", "mlp", "--on", "fleet:boats"), "no group or device 'boats'", "Try: boards")
    fails(run("bench", "mlp", "--fleet", "fleet.toml"), "--on no fleet")
    fails(run("bench", "--resume", "x", "--on", "fleet"), "--resume continues one device", "--out x")
    fails(run("doctor", "--on", "fleet"), "only with --conformance", "handheld fleet")
    fails(run("tune", "mlp", "--out", "x"), "--out is the folder of a fleet")
    fails(run("study", "liu2019", "--on", "fleet", "--page", "x"), "--page draws")
    assert "Try: one device of it (handheld fleet)" in str(unknown("fleet:all"))
    assert not [path for path in Path().iterdir() if path.name != "fleet.toml"]
