"""Sensors read what the machine reports about itself: power, energy, load, clocks, temperature, memory.

    base      Channel, Sensor, Where: the interface of a sensor, and where sensors look
    files     files of /sys and /proc that are read repeatedly
    counters  removes wraps and resets from counters; computes rates
    find      looks for every sensor, plug-ins included; a missing one comes with the reason
    sampler   reads sensors from a separate process while the program runs
    child     the main program of that process
    worker    the thread that reads one source in that process
    track     the readings and gaps of one source, on their way to the file
    sink      the SQLite file that the sampler writes, and its reader
    mirror    the files of a target, so that its sensors are probed and read like those of this machine
    replay    samples the sensors of a target (wire: the bytes)

Each family of sensors has one file: nvidia, rapl, jetson, hwmon, adreno, mali, pixel, battery, amd,
raspberry, cpu, memory, threads, thermal. No file here imports PyTorch or OpenCL.
"""

from handheld.sensors.base import Channel, Sensor, SensorLost, Unavailable, Where
from handheld.sensors.find import ProbedSource, available, find
from handheld.sensors.sampler import Sampler
from handheld.sensors.sink import Samples, Sink, SqliteSink

__all__ = [
    "Channel",
    "ProbedSource",
    "Sampler",
    "Samples",
    "Sensor",
    "SensorLost",
    "Sink",
    "SqliteSink",
    "Unavailable",
    "Where",
    "available",
    "find",
]
