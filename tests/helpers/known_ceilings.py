"""Ceilings of this machine's device that no test has to wait for."""

from __future__ import annotations

from handheld import cache
from handheld.backends.base import describe
from handheld.errors import HandheldError
from handheld.measure.ceilings import Ceilings, Memory, path_of
from handheld.measure.timing import Measured

LEVELS = ((16 << 10, 1e11), (1 << 20, 5e10), (1 << 28, 1e10))  # working set in bytes, B/s


def made_up(device: str, driver: str) -> Ceilings:
    """Round numbers of a small CPU."""

    def one(value: float) -> Measured:
        return Measured(value, 0.01)

    return Ceilings(
        device,
        driver,
        "2026-01-01",
        1.0,
        one(5e10),
        "float16",
        None,
        tuple(Memory(size, one(rate), one(rate)) for size, rate in LEVELS),
        one(1e10),
        one(1e-5),
        one(1e10),
        one(1e-5),
        one(1e-6),
        one(2e-6),
        one(2e-5),
        0.0,
    )


def store_ceilings() -> None:
    """Store them in the cache of the tests, so that `handheld profile` need not measure them."""
    try:
        caps = describe("opencl")
    except HandheldError:
        return  # Without a device, nothing is profiled.
    cache.write_json(path_of(caps), made_up(caps.name, caps.driver).to_json())
