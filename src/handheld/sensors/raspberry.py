"""The sensor of the Raspberry Pi 5: power per rail from its power chip, through `vcgencmd pmic_read_adc`.

    VDD_CORE_A current(7)=10.87674000A
    VDD_CORE_V volt(15)=0.89745940V        paired by name: the numbers in brackets do not match

The 5 V input and the clock's battery have a voltage but no current, so their power is unknown. Loads that draw from
5 V without passing through the chip (USB, a display) are on no rail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where

_LINE = re.compile(r"^\s*(\S+)_([AV])\s+(?:current|volt)\(\d+\)=(\d+\.?\d*)[AV]\s*$", re.MULTILINE)
_COVERS = {"VDD_CORE": "cpu", "DDR_VDD2": "memory", "DDR_VDDQ": "memory", "3V7_WL_SW": "wifi", "HDMI": "display"}
_TIMEOUT = 2.0


class RaspberryPi(Sensor):
    name = "raspberry-pi"
    about = "Raspberry Pi 5 power by rail (vcgencmd)"
    period_s = 0.1  # Each reading starts a process, and the chip does not measure faster.
    needs = "it is read by a command (vcgencmd)"

    def __init__(self, command: str) -> None:
        self._command = command
        self._rails = list(self._watts())
        self.channels = tuple(Channel(rail, "power", covers=(_COVERS.get(rail, "other"),)) for rail in self._rails)

    @classmethod
    def probe(cls, where: Where) -> RaspberryPi:
        command = shutil.which("vcgencmd") if where.root == Path("/") else str(where.path("/usr/bin/vcgencmd"))
        if command is None or not os.access(command, os.X_OK):
            raise Unavailable(
                "there is no vcgencmd: not a Raspberry Pi, or its tools are missing. Try: sudo apt install raspi-utils"
            )
        try:
            sensor = cls(command)
        except SensorLost as error:
            raise Unavailable(
                f"{error}. Try: sudo usermod -aG video $USER and log in again "
                "(only the Raspberry Pi 5 and later measure rails)"
            ) from None
        return sensor

    def _watts(self) -> dict[str, float]:
        try:
            done = subprocess.run(
                [self._command, "pmic_read_adc"], capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SensorLost(f"vcgencmd pmic_read_adc: {error}") from None
        sides: dict[str, dict[str, float]] = {}
        for rail, side, value in _LINE.findall(done.stdout):
            sides.setdefault(rail, {})[side] = float(value)
        watts = {rail: pair["A"] * pair["V"] for rail, pair in sides.items() if len(pair) == 2}
        if not watts:
            output = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
            raise SensorLost(f"vcgencmd pmic_read_adc printed {output[0]}")
        return watts

    def read(self) -> Sequence[Value]:
        watts = self._watts()
        return [watts.get(rail, f"vcgencmd does not report {rail} any more") for rail in self._rails]
