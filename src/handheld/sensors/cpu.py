"""Sensors of processor cores: busy time, clock and idle time.

Busy time is a counter of seconds per core, from /proc/stat (in ticks of 10 ms on most kernels). Its rise over a window
divided by the window is the utilisation. Time that a hypervisor took away (steal) is not busy time. Clocks and idle
times need at least one file per core, so they are read less often.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where
from handheld.sensors.files import File, opened, unless_all_missing

_HINT = "Android hides it from apps. Try: adb shell (as the shell user)"
_CPU = "/sys/devices/system/cpu"


class CpuBusy(Sensor):
    name = "cpu"
    about = "busy time of each core (/proc/stat)"
    period_s = 0.01
    files = ("/proc/stat",)

    def __init__(self, stat: File) -> None:
        self._stat = stat
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._cores = list(self._busy())
        self.channels = tuple(Channel(f"{core} busy", "time", counter=True, covers=("cpu",)) for core in self._cores)

    @classmethod
    def probe(cls, where: Where) -> CpuBusy:
        sensor = cls(opened(where, "/proc/stat", _HINT, until="\nintr"))
        if not sensor.channels:
            raise Unavailable("/proc/stat names no core: this system hides them")
        return sensor

    def _busy(self) -> dict[str, float]:
        """Seconds of user, nice, system, irq and softirq time per core. User time includes guests."""
        seconds = {}
        for line in self._stat.text().splitlines():
            words = line.split()
            if words[0] != "cpu":
                user, nice, system, _, _, irq, softirq = (int(word) for word in words[1:8])
                seconds[words[0]] = (user + nice + system + irq + softirq) * self._tick
        return seconds

    def read(self) -> Sequence[Value]:
        try:
            busy = self._busy()
        except (OSError, ValueError, IndexError) as error:
            raise SensorLost(f"{self._stat.path}: {error}") from None
        if not busy:
            raise SensorLost(f"{self._stat.path} names no core any more")
        return [busy.get(core, f"{core} is offline") for core in self._cores]


class CpuClock(Sensor):
    name = "cpu-clock"
    about = "clock of each core (cpufreq)"
    period_s = 0.1
    files = (f"{_CPU}/cpu*/cpufreq/scaling_cur_freq",)

    def __init__(self, files: dict[str, File]) -> None:
        self._files = list(files.values())
        self.channels = tuple(Channel(f"{core} clock", "frequency", covers=("cpu",)) for core in files)

    @classmethod
    def probe(cls, where: Where) -> CpuClock:
        paths = where.glob(f"{_CPU}/cpu[0-9]*/cpufreq/scaling_cur_freq")
        if not paths:
            raise Unavailable(f"there is no {_CPU}/cpu*/cpufreq: a fixed clock, or a virtual machine")
        return cls({path.parts[-3]: opened(where, path, "Try: sudo") for path in paths})

    def read(self) -> Sequence[Value]:
        return unless_all_missing([file.value(1e3) for file in self._files])


class CpuIdle(Sensor):
    """The time that each core spent in its idle states, summed over the states."""

    name = "cpu-idle"
    about = "idle time of each core (cpuidle)"
    period_s = 0.25
    files = (f"{_CPU}/cpu*/cpuidle/state*/time",)

    def __init__(self, files: dict[str, list[File]]) -> None:
        self._files = list(files.values())
        self.channels = tuple(Channel(f"{core} idle", "time", counter=True, covers=("cpu",)) for core in files)

    @classmethod
    def probe(cls, where: Where) -> CpuIdle:
        cores: dict[str, list[File]] = {}
        for path in where.glob(f"{_CPU}/cpu[0-9]*/cpuidle/state*/time"):
            cores.setdefault(path.parts[-4], []).append(File(path, keep=False, contents=where.contents))
        if not cores:
            raise Unavailable(f"there is no {_CPU}/cpu*/cpuidle/state*/time")
        opened(where, next(iter(cores.values()))[0].path, "Try: sudo")
        return cls(cores)

    def read(self) -> Sequence[Value]:
        return unless_all_missing([_sum(files) for files in self._files])


def _sum(files: list[File]) -> Value:
    total = 0.0
    for file in files:
        value = file.value(1e-6)
        if isinstance(value, str):
            return value
        total += value
    return total


#: Names of Arm cores by (implementer, part), for the cores that phones and boards combine.
_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd09"): "Cortex-A73",
    ("0x41", "0xd0a"): "Cortex-A75",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0d"): "Cortex-A77",
    ("0x41", "0xd41"): "Cortex-A78",
    ("0x41", "0xd44"): "Cortex-X1",
    ("0x41", "0xd46"): "Cortex-A510",
    ("0x41", "0xd47"): "Cortex-A710",
    ("0x41", "0xd48"): "Cortex-X2",
    ("0x4e", "0x003"): "Denver 2",
}


def core_kinds(where: Where | None = None) -> dict[str, str]:
    """The kind of each core, as far as the machine reports it: equal cores have equal texts. Empty if nothing is known.

    Clocks are not used, because equal cores may run at different clocks.
    """
    where = where or Where()
    kinds = {}
    try:
        text = where.path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    for block in text.split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
        if "processor" not in facts:
            continue
        key = (facts.get("CPU implementer", ""), facts.get("CPU part", ""))
        kind = _PARTS.get(key) or facts.get("model name") or " ".join(filter(None, key))
        if kind:
            kinds[f"cpu{facts['processor']}"] = kind
    for name in ("core", "atom"):  # Intel's two kinds of cores have the same model name.
        for core in _listed(where.path(f"/sys/devices/cpu_{name}/cpus")) & kinds.keys():
            kinds[core] += f" ({name})"
    capacity = {core: _line(where.path(f"{_CPU}/{core}/cpu_capacity")) for core in kinds}
    if len({(kinds[core], capacity[core]) for core in kinds}) > len(set(kinds.values())):
        return {core: f"{kind} (capacity {capacity[core]})" for core, kind in kinds.items()}
    return kinds


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _listed(path: Path) -> set[str]:
    """The cores of a list such as `0-3,8`."""
    cores = set()
    for part in filter(None, _line(path).split(",")):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            cores |= {f"cpu{n}" for n in range(int(low), int(high or low) + 1)}
    return cores
