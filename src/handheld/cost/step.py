"""Predicts the time of a training step: its ops, the gaps between them, its transfers, and the host that launches them.

The device needs the sum of its commands and a short gap after each. The host needs a fixed time per step, some time
per launch, and time to copy the batch for its upload. They work at the same time, so the slower of the two decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from handheld.cost.rates import Rates
from handheld.cost.samples import Moved, Samples, StepSample
from handheld.store.record import Record

#: How sharply the slower of device and host decides: a large number is their maximum.
SHARP = 12.0
#: A step that takes this much longer than the device needs waits for the host.
HOST_BOUND = 1.08
#: An error counts at most this much in the fit.
WORST = 0.5
#: Seconds per byte of the host's copies that are tried.
_SLOWNESS = 1 / np.geomspace(1e9, 1e11, 14)


@dataclass(frozen=True)
class Overheads(Record):
    """What a step costs besides its ops, in seconds. Transfers take `latency_s` and their bytes at `bytes_s`."""

    gap_s: float
    enqueue_s: float
    fixed_s: float
    staging_bytes_s: float
    latency_s: float
    bytes_s: float
    copy_bytes_s: float
    source: str = "measured"

    def moved_s(self, moved: Sequence[Moved]) -> float:
        """The seconds of all transfers and copies of a step."""
        return sum(m.count * self._one(m) for m in moved)

    def _one(self, moved: Moved) -> float:
        rate = self.copy_bytes_s if moved.kind == "copy" else self.bytes_s
        return self.latency_s + moved.bytes / rate

    def device_s(self, ops_s: float, launches: int, moved: Sequence[Moved]) -> float:
        return ops_s + launches * self.gap_s + self.moved_s(moved)

    def host_s(self, launches: int, moved: Sequence[Moved]) -> float:
        return self.fixed_s + launches * self.enqueue_s + uploaded(moved) / self.staging_bytes_s

    def step_s(self, ops_s: float, launches: int, moved: Sequence[Moved]) -> float:
        """The time of a step whose ops take `ops_s`."""
        device, host = self.device_s(ops_s, launches, moved), self.host_s(launches, moved)
        return float((device**SHARP + host**SHARP) ** (1 / SHARP))


def uploaded(moved: Sequence[Moved]) -> float:
    """The bytes that a step uploads."""
    return sum(m.count * m.bytes for m in moved if m.kind == "upload")


def from_rates(rates: Rates) -> Overheads:
    """The overheads that follow from ceilings alone."""
    rate = rates.transfer_bytes_s or rates.bandwidth / 4
    return Overheads(
        gap_s=0.1 * rates.launch_s,
        enqueue_s=rates.enqueue_s,
        fixed_s=10 * rates.enqueue_s,
        staging_bytes_s=rate,
        latency_s=min(rates.latency_s, rates.launch_s),
        bytes_s=rate,
        copy_bytes_s=rates.bandwidth,
        source="ceilings",
    )


def fit(samples: Samples, rates: Rates) -> Overheads:
    """The overheads of a device from its measured steps; from the ceilings where nothing was measured."""
    start = from_rates(rates)
    steps = [s for s in samples.steps if s.seconds > 0 and s.launches]
    quiet = [s for s in steps if not s.disturbed] or steps
    if not quiet:
        return start
    latency, rate = _transfers(quiet, ("upload", "download"), start.latency_s, start.bytes_s)
    _, copies = _transfers(quiet, ("copy",), latency, start.copy_bytes_s)
    moved = Overheads(0.0, 0.0, 0.0, rate, latency, rate, copies)
    device = np.array([s.ops_s + moved.moved_s(s.moved) for s in quiet])
    launches = np.array([s.launches for s in quiet], np.float64)
    seconds = np.array([s.seconds for s in quiet])
    gap = _gap(seconds, device, launches)
    host = _host(seconds, device + gap * launches, launches, np.array([uploaded(s.moved) for s in quiet]), start)
    return Overheads(gap, *host, latency, rate, copies)


def _transfers(steps: Sequence[StepSample], kinds: tuple[str, ...], latency: float, rate: float) -> tuple[float, float]:
    """Latency and bytes per second: the median of the small transfers, and of what the large ones need besides."""
    rows = [m for s in steps for m in s.moved if m.kind in kinds and m.seconds > 0]
    small = [m.seconds for m in rows if m.bytes <= 4096]
    latency = float(np.median(small)) if small else latency
    rates = [m.bytes / (m.seconds - latency) for m in rows if m.bytes >= 65536 and m.seconds > 1.5 * latency]
    return latency, float(np.median(rates)) if rates else rate


def _gap(seconds: np.ndarray, device: np.ndarray, launches: np.ndarray) -> float:
    """The time between two launches of steps that do not wait for the host."""
    rest = (seconds - device) / launches
    bound = rest[(seconds < HOST_BOUND * device) & (rest > 0)]
    return float(np.median(bound)) if len(bound) else max(float(np.min(rest)), 0.0)


def _host(
    seconds: np.ndarray, device: np.ndarray, launches: np.ndarray, uploads: np.ndarray, start: Overheads
) -> tuple[float, float, float]:
    """Host time per launch and per step, and the bytes per second of copying: of many that are tried, those with the
    smallest error over all steps. One bad measurement counts little."""
    waits = seconds > HOST_BOUND * device
    if waits.sum() < 3:
        # Nothing waits for the host, so it needs no more than the shortest step per launch.
        return min(start.enqueue_s, float(np.min(seconds / launches))), 0.0, start.staging_bytes_s
    usual = float(np.median(seconds[waits] / launches[waits]))
    each, fixed, slow = (
        axis.ravel()
        for axis in np.meshgrid(
            np.geomspace(usual / 8, usual * 2, 40), np.linspace(0.0, float(np.min(seconds)), 12), _SLOWNESS
        )
    )
    host = fixed + each * launches[:, None] + slow * uploads[:, None]
    errors = np.abs(np.log((device[:, None] ** SHARP + host**SHARP) ** (1 / SHARP) / seconds[:, None]))
    best = int(np.argmin(np.minimum(errors, WORST).mean(0)))
    return float(each[best]), float(fixed[best]), float(1 / slow[best])


#: Measured steps correct a prediction by at most this factor.
MOST = 1.3


def correction(known: Sequence[StepSample], batch: int, extra: Overheads) -> float:
    """The factor by which a prediction for a batch is multiplied, from steps of the same model at other batches: how
    much longer they took than their measured ops and the overheads say. Between two batches it changes steadily."""
    if not known or not batch:
        return 1.0
    rows = sorted((s.batch, s.seconds / extra.step_s(s.ops_s, s.launches, s.moved)) for s in known if s.batch)
    at, ratios = np.log([b for b, _ in rows]), np.log([ratio for _, ratio in rows])
    return float(np.clip(np.exp(np.interp(np.log(batch), at, ratios)), 1 / MOST, MOST))
