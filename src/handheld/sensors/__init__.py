"""What the machine reports about itself: power, energy, load, clocks, temperature, memory.

    base      Channel, Sensor, Where: what a source of readings is, and how it is looked for
    files     files of /sys and /proc that are read again and again
    counters  counters that wrap or start again, made into one rising line; rates
    find      every source there is, plug-ins included: here, or not here and why
    sampler   reads sensors from another process while something else runs
    child     that process
    worker    one source in it
    sink      where it writes: one SQLite file; and how that is read

One file a family of sources: nvidia, rapl, jetson, hwmon, adreno, mali, pixel, battery, amd,
raspberry, cpu, memory, thermal. None imports PyTorch or OpenCL.
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
