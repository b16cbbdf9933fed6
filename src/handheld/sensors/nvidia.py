"""Sensors of NVIDIA GPUs through NVML, the driver's library (libnvidia-ml.so.1), called by ctypes.

There are two sensors, because their cost and rate of change differ: power and energy are read every 10 ms; load,
memory, clocks and temperature every 100 ms. The driver updates the energy counter every 20 to 100 ms. On some machines
reading it keeps a core busy for 3 ms (reading the power of an H200 takes 2 µs). There it is read only every DEAR_S,
and keeps its last value in between.

Power has scopes. GPU is the whole board, memory is the share of the board's memory, module is GPU and CPU together
where both are NVIDIA's. Scopes that a card does not support are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Value, Where
from handheld.sensors.files import unless_all_missing

_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/wsl/lib")
_ENERGY, _POWER_AVERAGE, _POWER_INSTANT = 83, 185, 186  # NVML_FI_DEV_…
_SCOPES = {"power": 0, "module power": 1, "memory power": 2}  # NVML_POWER_SCOPE_…
_DEAR = 0.02  # A field is expensive if reading it takes more than this share of DEAR_S.
DEAR_S = 0.025  # time between two readings of an expensive field
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0


class _Union(ctypes.Union):
    _fields_ = (
        ("d", c_double),
        ("ui", c_uint),
        ("ul", ctypes.c_ulong),
        ("ull", c_ulonglong),
        ("sll", c_longlong),
        ("si", c_int),
        ("us", ctypes.c_ushort),
    )


_MEMBERS = ("d", "ui", "ul", "ull", "sll", "si", "us")  # in the order of nvmlValueType_t


class _Field(ctypes.Structure):
    """The C struct nvmlFieldValue_t."""

    _fields_ = (
        ("id", c_uint),
        ("scope", c_uint),
        ("timestamp", c_longlong),
        ("latency", c_longlong),
        ("type", c_int),
        ("status", c_int),
        ("value", _Union),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Nvml:
    """The library, initialised. The library itself counts how often it was initialised and closed."""

    def __init__(self, where: Where) -> None:
        self.library = _load(where)
        self.library.nvmlErrorString.restype = ctypes.c_char_p
        status = self.library.nvmlInit_v2()
        if status:
            raise Unavailable(f"NVML does not start: {self.error(status)}. Try: nvidia-smi, which uses the same driver")
        count = c_uint()
        self._must("nvmlDeviceGetCount_v2", byref(count))
        self.devices = []
        for index in range(count.value):
            device = c_void_p()
            self._must("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device))
            self.devices.append(device)
        if not self.devices:
            self.close()
            raise Unavailable("NVML starts but finds no GPU")

    def _must(self, name: str, *args: Any) -> None:
        status = self.call(name, *args)
        if status:
            self.close()
            raise Unavailable(f"{name}: {self.error(status)}")

    def call(self, name: str, *args: Any) -> int:
        function = getattr(self.library, name, None)
        return 13 if function is None else int(function(*args))  # 13 is NVML_ERROR_FUNCTION_NOT_FOUND: an older driver

    def error(self, status: int) -> str:
        text = self.library.nvmlErrorString(c_int(status))
        return text.decode("utf-8", "replace") if text else f"error {status}"

    def close(self) -> None:
        self.library.nvmlShutdown()


def _load(where: Where) -> Any:
    names = [_LIBRARY] if where.root == Path("/") else [str(where.path(f"{folder}/{_LIBRARY}")) for folder in _FOLDERS]
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise Unavailable(f"there is no {_LIBRARY}: no NVIDIA driver")


@dataclass
class _Request:
    """Fields of one GPU that one call reads, and the positions of their channels."""

    device: c_void_p
    fields: Any
    scales: list[float]
    positions: list[int]
    every_s: float
    next_s: float = 0.0  # when to read them again, by the monotonic clock


@dataclass(frozen=True)
class _Call:
    """One call of the library, and how to take each channel's number from its result."""

    name: str
    args: tuple[Any, ...]
    gives: tuple[tuple[Channel, Callable[[], float]], ...]


class NvidiaPower(Sensor):
    """The energy counter and the power per scope, read with one or two calls per GPU."""

    name = "nvidia-power"
    about = "NVIDIA GPU power and energy (NVML)"
    needs = "it is read through a library (NVML)"
    period_s = 0.01

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._requests: list[_Request] = []
        channels: list[Channel] = []
        for index, device in enumerate(nvml.devices):
            entries = self._fields(index, device)
            waits = [self._every_s(device, field) for _, field, _ in entries]
            for every_s in (0.0, DEAR_S):
                chosen = [i for i, wait in enumerate(waits) if wait == every_s]
                if chosen:
                    fields = (_Field * len(chosen))(*(entries[i][1] for i in chosen))
                    scales, positions = [entries[i][2] for i in chosen], [len(channels) + i for i in chosen]
                    self._requests.append(_Request(device, fields, scales, positions, every_s))
            channels += [channel for channel, _, _ in entries]
        self.channels = tuple(channels)
        self._values: list[Value] = ["not read yet"] * len(channels)

    @classmethod
    def probe(cls, where: Where) -> NvidiaPower:
        nvml = Nvml(where)
        sensor = cls(nvml)
        if not sensor.channels:
            nvml.close()
            raise Unavailable(
                "NVML starts, but its GPU reports neither power nor energy (on a "
                "Jetson the sensor jetson-power reads the rails)"
            )
        return sensor

    def _fields(self, index: int, device: c_void_p) -> list[tuple[Channel, _Field, float]]:
        """The channels that this GPU supports, each with its NVML field and its scale."""
        entries = []
        if self._answers(device, field := _Field(id=_ENERGY)):
            entries.append((Channel(f"gpu{index} energy", "energy", counter=True, covers=("gpu",)), field, 1e-3))
        for name, scope in _SCOPES.items():
            for identity, suffix in ((_POWER_INSTANT, ""), (_POWER_AVERAGE, " (1 s average)")):
                field = _Field(id=identity, scope=scope)
                if self._answers(device, field):
                    covers = {"power": ("gpu",), "memory power": ("memory",), "module power": ("cpu", "gpu")}[name]
                    inside = {"power": "", "memory power": f"gpu{index} power", "module power": ""}[name]
                    entries.append(
                        (Channel(f"gpu{index} {name}{suffix}", "power", covers=covers, part_of=inside), field, 1e-3)
                    )
                    break
        return entries

    def _answers(self, device: c_void_p, field: _Field) -> bool:
        fields = (_Field * 1)(field)
        status = self._nvml.call("nvmlDeviceGetFieldValues", device, c_int(1), fields)
        # For an unsupported scope a card may report success and 0, so 0 counts as unsupported.
        return not status and not fields[0].status and bool(_number(fields[0]))

    def _every_s(self, device: c_void_p, field: _Field) -> float:
        """The least time between two readings of a field, from its fastest of three readings."""
        times = []
        for _ in range(3):
            begun = time.monotonic()
            self._answers(device, field)
            times.append(time.monotonic() - begun)
        return DEAR_S if min(times) > _DEAR * DEAR_S else 0.0

    def read(self) -> Sequence[Value]:
        for request in self._requests:
            now = time.monotonic()
            if now < request.next_s:
                continue
            fields = request.fields
            status = self._nvml.call("nvmlDeviceGetFieldValues", request.device, c_int(len(fields)), fields)
            if status:
                raise SensorLost(f"nvmlDeviceGetFieldValues: {self._nvml.error(status)}")
            request.next_s = now + request.every_s
            for position, field, scale in zip(request.positions, fields, request.scales, strict=True):
                self._values[position] = self._nvml.error(field.status) if field.status else _number(field) * scale
        return list(self._values)

    def close(self) -> None:
        self._nvml.close()


def _number(field: _Field) -> float:
    if not 0 <= field.type < len(_MEMBERS):
        return 0.0
    return float(getattr(field.value, _MEMBERS[field.type]))


class NvidiaState(Sensor):
    """Load, memory, clocks and temperature."""

    name = "nvidia"
    about = "NVIDIA GPU load, memory, clocks and temperature (NVML)"
    needs = "it is read through a library (NVML)"
    period_s = 0.1

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._calls = [
            call
            for index, device in enumerate(nvml.devices)
            for call in _calls(index, device)
            if not nvml.call(call.name, *call.args)
        ]
        self.channels = tuple(channel for call in self._calls for channel, _ in call.gives)

    @classmethod
    def probe(cls, where: Where) -> NvidiaState:
        nvml = Nvml(where)
        sensor = cls(nvml)
        if not sensor.channels:
            nvml.close()
            raise Unavailable("NVML starts, but its GPU reports nothing (on a Jetson use the sensor jetson-gpu)")
        return sensor

    def read(self) -> Sequence[Value]:
        values: list[Value] = []
        for call in self._calls:
            status = self._nvml.call(call.name, *call.args)
            values += [self._nvml.error(status) if status else take() for _, take in call.gives]
        return unless_all_missing(values)

    def close(self) -> None:
        self._nvml.close()


def _calls(index: int, device: c_void_p) -> list[_Call]:
    def channel(what: str, quantity: str, covers: str) -> Channel:
        return Channel(f"gpu{index} {what}", quantity, covers=(covers,))

    busy, memory = _Utilization(), _Memory()
    clock, memory_clock, heat = c_uint(), c_uint(), c_uint()
    return [
        _Call(
            "nvmlDeviceGetUtilizationRates",
            (device, byref(busy)),
            (
                (channel("load", "utilisation", "gpu"), lambda: float(busy.gpu)),
                # This is the share of time with any memory access, not the share of the bandwidth.
                (channel("memory load", "utilisation", "memory"), lambda: float(busy.memory)),
            ),
        ),
        _Call(
            "nvmlDeviceGetMemoryInfo",
            (device, byref(memory)),
            ((channel("memory used", "memory", "memory"), lambda: float(memory.used)),),
        ),
        _Call(
            "nvmlDeviceGetClockInfo",
            (device, c_int(_CLOCK_SM), byref(clock)),
            ((channel("clock", "frequency", "gpu"), lambda: clock.value * 1e6),),
        ),
        _Call(
            "nvmlDeviceGetClockInfo",
            (device, c_int(_CLOCK_MEMORY), byref(memory_clock)),
            ((channel("memory clock", "frequency", "memory"), lambda: memory_clock.value * 1e6),),
        ),
        _Call(
            "nvmlDeviceGetTemperature",
            (device, c_int(_TEMPERATURE_GPU), byref(heat)),
            ((channel("temperature", "temperature", "gpu"), lambda: float(heat.value)),),
        ),
    ]
