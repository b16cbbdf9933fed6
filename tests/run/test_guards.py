"""Battery floor and thermal limit: when they pause and stop, here and on a stand-in phone with the real runner."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld.backends.runner import connect
from handheld.errors import DeviceError, Unavailable
from handheld.run import guards
from handheld.run.guards import Guards
from handheld.run.loop import fit
from handheld.sensors.health import Charge, Heat
from helpers.furnished_phone import furnished_phone
from helpers.phones import Phone, phones
from helpers.sensor_trees import put

__all__ = ["furnished_phone", "phones"]
NAME = "adb:R5CT10XYZ"


class Readings:
    """Gauges that tell one reading after the other."""

    name = "this machine"

    def __init__(self, *charges: Charge | str) -> None:
        self.charges = list(charges)

    def charge(self) -> Charge:
        now = self.charges[0] if len(self.charges) == 1 else self.charges.pop(0)
        if isinstance(now, str):
            raise Unavailable(now)
        return now

    def heat(self) -> Heat:
        return Heat(40.0, "cpu")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "PERIOD", 0.0)
    monkeypatch.setattr(guards, "RETRY_S", 0.0)


def floor(monkeypatch: pytest.MonkeyPatch, *charges: Charge | str, percent: float = 20) -> Callable[[], str]:
    """A check of a floor after these readings; the first is that of the start."""
    readings = Readings(*charges)
    monkeypatch.setattr(guards, "gauges_of", lambda device: readings)
    watched = Guards(percent, None, "opencl")
    return lambda: watched.check(lambda: False, lambda text: None)


def test_a_battery_that_is_charged_may_be_low_until_it_falls(monkeypatch):
    check = floor(monkeypatch, Charge(50, False), *(Charge(percent, True) for percent in (12, 13, 13, 12, 11)))
    assert [check() for _ in range(4)] == [""] * 4
    assert check() == (
        "the battery of this machine is at 11%, below the floor of 20%, and falls although it is being charged"
    )


def test_a_sensor_that_fails_once_is_asked_again_and_one_that_is_gone_ends_the_training(monkeypatch):
    full = Charge(90, False)
    check = floor(monkeypatch, full, "busy", "busy", full, "busy", full, "gone")
    assert check() == check() == ""
    assert check() == "the battery of this machine can no longer be read (gone)"


def test_a_floor_is_a_percentage():
    with pytest.raises(DeviceError, match="must be a percentage, not 101"):
        Guards(101, None, "opencl")


# ── a target ──────────────────────────────────────────────────────────────────────────────────


def set_file(phone: Phone, path: str, content: str) -> None:
    put(phone.folder / "root", path, content)


def test_without_limits_a_target_is_not_asked(phones):
    assert Guards(None, None, "adb").check(lambda: False, lambda text: None) == ""  # No phone is attached.


def test_a_target_without_the_sensor_is_an_error_that_names_it(furnished_phone):
    Guards(20, 60, "adb")
    shutil.rmtree(furnished_phone.folder / "root" / "sys" / "class")
    reason = r"there is no battery in /sys/class/power_supply\. Try: train without it"
    with pytest.raises(
        DeviceError, match=rf"a battery floor of 20% was requested, but {NAME} reports no battery: {reason}"
    ):
        Guards(20, None, "adb")
    with pytest.raises(
        DeviceError, match=rf"a thermal limit of 60 °C was requested, but {NAME} reports no temperature: "
    ):
        Guards(None, 60, "adb")


@pytest.fixture
def trainer(furnished_phone):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batch = torch.randn(8, 4), torch.randint(0, 3, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = handheld.capture(model, nn.functional.cross_entropy, optimizer, batch, evaluate=False)
    with step.plan("adb").start() as trainer:
        yield trainer


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.zeros((8, 4), np.float32), np.zeros(8, np.int64))] * 4


class Told:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def test_a_training_on_a_phone_pauses_and_stops_by_the_phone(furnished_phone, trainer, tmp_path):
    """The sensors of this machine are not asked: it may have none."""
    heat = "sys/class/thermal/thermal_zone0/temp"
    set_file(furnished_phone, heat, "91000")
    cooling = threading.Timer(0.5, set_file, (furnished_phone, heat, "52000"))
    cooling.start()
    told = Told()
    history = fit(trainer, batches(), epochs=1, thermal_limit=60, battery_floor=20, callbacks=[told])
    cooling.join()
    assert history.steps == 4 and history.stopped == "" and history.paused_seconds > 0.2
    assert told.messages == ["paused: 91 °C (gpu); the limit is 60 °C", ""]
    set_file(furnished_phone, "sys/class/power_supply/battery/capacity", "15")
    path = tmp_path / "phone.checkpoint"
    history = fit(trainer, batches(), epochs=1, battery_floor=20, checkpoint=path)
    assert f"the battery of {NAME} is at 15%, below the floor of 20%" in history.stopped and path.exists()


def test_a_runner_that_read_the_sensors_and_was_killed_is_replaced(furnished_phone):
    watched = Guards(20, None, "adb")
    (links,) = connect._free.values()
    os.killpg(links[0].pid, signal.SIGKILL)
    while links[0].lost is None:
        time.sleep(0.01)
    assert watched.check(lambda: False, lambda text: None) == ""
