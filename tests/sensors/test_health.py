"""The charge and the temperature of a machine by its files: trees of real devices, and the oddities of phones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handheld.errors import Unavailable
from handheld.sensors.health import BATTERY_FILES, HEAT_FILES, Charge, Heat, charge_of, degrees, heat_of
from handheld.sensors.mirror import Found
from helpers.native_files import NativeMachine, compiled
from helpers.sensor_trees import grow, put


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("native"))


@pytest.fixture
def machine(library, tmp_path: Path) -> Iterator[NativeMachine]:
    """A machine whose files lie in `tmp_path`, read by the runner's own code."""
    machine = NativeMachine(library, tmp_path)
    yield machine
    machine.close()


def supply(root: Path, name: str, **files: str) -> None:
    for file, content in files.items():
        put(root, f"sys/class/power_supply/{name}/{file}", content)


def zone(root: Path, number: int, kind: str, content: str) -> None:
    for file, text in (("type", kind), ("temp", content)):
        put(root, f"sys/class/thermal/thermal_zone{number}/{file}", text)


def charge(machine: NativeMachine) -> Charge:
    return charge_of(machine.files(BATTERY_FILES))


def heat(machine: NativeMachine) -> Heat:
    return heat_of(machine.files(HEAT_FILES))


# ── battery ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("battery-laptop", Charge(98.0, False)),
        ("battery-charging", Charge(73.0, True)),
        ("battery-pixel-3a", Charge(44.0, True)),  # `Not charging`, with the charger plugged in
    ],
)
def test_the_battery_of_a_tree(machine, tmp_path, tree, expected):
    grow(tree, tmp_path)
    assert charge(machine) == expected


def test_a_battery_without_a_level_is_none(machine, tmp_path):
    grow("battery-phone", tmp_path)
    with pytest.raises(Unavailable, match="no battery tells its level in /sys/class/power_supply"):
        charge(machine)
    supply(tmp_path, "battery", charge_now="1000000", charge_full="4000000")
    assert charge(machine) == Charge(25.0, False)


def test_several_batteries_count_by_their_size(machine, tmp_path):
    supply(tmp_path, "BAT0", type="Battery", status="Unknown", capacity="0", energy_full="10000000")
    supply(tmp_path, "BAT1", type="Battery", status="Discharging", capacity="80", energy_full="30000000")
    supply(tmp_path, "BAT2", type="Battery", status="Unknown", capacity="5", energy_full="10000000", present="0")
    supply(tmp_path, "mouse", type="Battery", scope="Device", status="Charging", capacity="3", online="1")
    assert charge(machine) == Charge(60.0, False)
    supply(tmp_path, "BAT1", energy_full="        ")  # Now they count as equal.
    assert charge(machine) == Charge(40.0, False)
    supply(tmp_path, "battery", type="Battery", status="Full", capacity="55")  # Android's name for all of them
    assert charge(machine) == Charge(55.0, True)


@pytest.mark.parametrize(("online", "charging"), [("1", True), ("0", False)])
def test_a_state_that_is_not_known_follows_the_charger(machine, tmp_path, online, charging):
    supply(tmp_path, "BAT0", type="Battery", status="Unknown", capacity="50")
    supply(tmp_path, "AC", type="Mains", online=online)
    supply(tmp_path, "mouse", type="Battery", scope="Device", online="1")
    assert charge(machine) == Charge(50.0, charging)


def test_why_there_is_no_battery(machine, tmp_path):
    with pytest.raises(Unavailable, match="there is no battery in /sys/class/power_supply"):
        charge(machine)
    denied = [Found("/sys/class/power_supply", b"13 Permission denied", readable=False)]
    with pytest.raises(Unavailable, match=r"^/sys/class/power_supply cannot be read: Permission denied$"):
        charge_of(denied)


def test_a_battery_whose_folder_cannot_be_listed_is_asked_for_by_name(machine, tmp_path):
    supply(tmp_path, "battery", type="Battery", status="Charging", capacity="61")
    by_name = [pattern for pattern in BATTERY_FILES if "*" not in pattern]
    assert charge_of(machine.files(by_name)) == Charge(61.0, True)


# ── temperature ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("tree", "expected"), [("jetson-tx2", Heat(41.5, "GPU-therm")), ("adreno", Heat(52.3, "gpu"))])
def test_the_temperature_of_a_tree(machine, tmp_path, tree, expected):
    grow(tree, tmp_path)
    assert heat(machine) == expected


@pytest.mark.parametrize(
    ("text", "celsius"),
    [("41500", 41.5), ("38", 38.0), ("126999", 126.999), ("1000", 1.0)]
    + [(text, None) for text in ("0", "-40000", "-256000", "127000", "128", "151000", "309", "", "N/A")],
)
def test_what_can_be_a_temperature(text, celsius):
    assert degrees(text) == celsius


def test_zones_that_hold_something_else_are_left_out(machine, tmp_path):
    for number, (kind, content) in enumerate(
        [("soc", "85"), ("vbat-lvl0", "3900"), ("pm8350b-ibat-lvl0", "4200"), ("PMIC-Die", "100000"), ("modem", "0")]
    ):
        zone(tmp_path, number, kind, content)
    with pytest.raises(Unavailable, match="tells a temperature"):
        heat(machine)
    zone(tmp_path, 7, "cpu-1-3", "36100")
    zone(tmp_path, 8, "soc-thermal", "47000")
    assert heat(machine) == Heat(47.0, "soc-thermal")
    for file, content in (("name", "k10temp"), ("temp1_input", "61250"), ("temp2_input", "127500")):
        put(tmp_path, f"sys/class/hwmon/hwmon0/{file}", content)
    assert heat(machine) == Heat(61.25, "k10temp temp1")


def test_zones_that_may_not_be_read_are_the_reason():
    denied = [Found("/sys/class/thermal/thermal_zone0/temp", b"13 Permission denied", readable=False)]
    with pytest.raises(Unavailable, match=r"thermal_zone0/temp cannot be read: Permission denied"):
        heat_of(denied)
