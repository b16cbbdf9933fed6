"""Figures derived from a result of the 2022 study: fitted transfers, parts of a step, crossovers, peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from handheld.studies.evidence2022 import Ratio, ratio
from handheld.studies.ways2022 import APART, CPU, OPTIMISED

Row = dict[str, Any]

STUDIED_BYTES = 4 << 20  # The largest tensor of M1 to M4 has 0.8 MB; larger transfers behave differently.
POOR_FIT = 0.3  # A line with a larger relative error is not a useful description.
DIRECTIONS = {"to_device": "to the device", "to_host": "to the host"}


def fit(rows: Sequence[Mapping[str, Any]], most_bytes: int | None = None) -> Row | None:
    """Fit time = latency + bytes / bandwidth to transfers of at most `most_bytes` bytes. Returns None for fewer than
    three sizes, or if more bytes do not take longer."""
    used = [row for row in rows if most_bytes is None or row["bytes"] <= most_bytes]
    if len(used) < 3:
        return None
    size = np.array([row["bytes"] for row in used], np.float64)
    took = np.array([row["median"] for row in used])
    table = np.stack([1 / took, size / took], axis=1)
    (latency, each), *_ = np.linalg.lstsq(table, np.ones(len(used)), rcond=None)
    off = table @ [latency, each] - 1
    if each <= 0 or latency <= 0:
        return None
    noise = float(off @ off) / (len(used) - 2)
    errors = np.sqrt(noise * np.diag(np.linalg.inv(table.T @ table)))
    return {
        "latency_s": float(latency),
        "latency_error_s": float(errors[0]),
        "bytes_s": 1 / float(each),
        "bytes_s_error": float(errors[1] / each) / float(each),
        "rms_error": math.sqrt(float(off @ off) / len(used)),
        "sizes": len(used),
        "from_bytes": int(size.min()),
        "to_bytes": int(size.max()),
    }


def fits(result: Row) -> dict[str, Row | None]:
    """For each direction, the line through the sizes that the study's models use."""
    return {name: fit(result["transfers"].get(name, ()), STUDIED_BYTES) for name in DIRECTIONS}


def whole_fits(result: Row) -> dict[str, Row | None]:
    """For each direction, the line through all measured sizes."""
    return {name: fit(result["transfers"].get(name, ())) for name in DIRECTIONS}


def seconds(way: Row | None, name: str) -> float | None:
    """The median of one figure of a way, or None if it was not measured."""
    if way is None or name not in way["times"]:
        return None
    return float(way["times"][name]["median"])


def best_cpu(ways: Mapping[str, Row], name: str = "step") -> tuple[str, float] | None:
    """The faster of the two ways to train on the CPU, and its seconds."""
    times = {way: s for way in CPU if (s := seconds(ways.get(way), name)) is not None}
    return min(times.items(), key=lambda item: item[1]) if times else None


def gflops(way: Row | None) -> float | None:
    """GFLOP/s of the matrix products of a step, from the time of the kernels alone."""
    took = seconds(way, "products")
    return way["facts"]["product_flops"] / took * 1e-9 if way and took else None


def parts(way: Row, lines: Mapping[str, Row | None]) -> Row | None:
    """Where the time of a per-op step goes, in seconds: transfers (split into latency and bandwidth by the fit),
    launches and kernels. `predicted` over `transfers` shows how well the fit of single transfers explains those of a
    step."""
    up, down, launch, kernels = (seconds(way, name) for name in ("uploads", "downloads", "launches", "kernels"))
    if up is None or down is None or launch is None:
        return None
    kernels = min(kernels or 0.0, launch)
    seconds_of: Row = {
        "transfers": up + down,
        "launch": launch - kernels,
        "kernels": kernels,
        "whole": up + down + launch,
        "latency": None,
        "bandwidth": None,
        "predicted": None,
    }
    to, back = lines.get("to_device"), lines.get("to_host")
    if to and back:
        facts = way["facts"]
        latency = facts["uploads"] * to["latency_s"] + facts["downloads"] * back["latency_s"]
        bandwidth = facts["upload_bytes"] / to["bytes_s"] + facts["download_bytes"] / back["bytes_s"]
        predicted = latency + bandwidth
        seconds_of |= {
            "predicted": predicted,
            "latency": (up + down) * latency / predicted,
            "bandwidth": (up + down) * bandwidth / predicted,
        }
    return seconds_of


def resident_parts(way: Row) -> Row | None:
    """The parts of a step that stays on the device: kernels and transfers by the device's clock; the rest is launches
    and the host. `omitted` is what the step gains if nothing is moved at all."""
    step, kernels, transfers = (seconds(way, n) for n in ("step", "kernels", "transfers"))
    if step is None or kernels is None or transfers is None:
        return None
    without = seconds(way, "without transfers")
    return {
        "whole": step,
        "kernels": kernels,
        "transfers": transfers,
        "launch": max(step - kernels - transfers, 0.0),
        "share": transfers / step,
        "omitted": None if without is None else 1 - without / step,
    }


def against_cpu(result: Row, ways: Mapping[str, Row], way: str) -> Ratio | None:
    """The time of a step on the CPU, the faster of its two ways, over that of another way; None if not measured."""
    cpu, own = best_cpu(ways), ways.get(way)
    if cpu is None or seconds(own, "step") is None:
        return None
    assert own is not None
    return ratio(result, ways[cpu[0]]["times"]["step"], own["times"]["step"])


def crossover(result: Row, way: str) -> Row:
    """The smallest width from which a way is faster than the CPU, at it and at all larger measured widths.

    `widths` holds every ratio of the CPU's time to the time of this way, and `ratios` the same with intervals. A ratio
    that could be noise does not count as faster.
    """
    ratios = {row["width"]: found for row in result["sweep"] if (found := against_cpu(result, row["ways"], way))}
    first = None
    for width in sorted(ratios, reverse=True):
        if not ratios[width].above(1.0):
            break
        first = width
    return {
        "way": way,
        "from_width": first,
        "widths": {width: found.value for width, found in ratios.items()},
        "ratios": ratios,
    }


def peaks(result: Row) -> dict[str, tuple[float, int]]:
    """For each way, its best GFLOP/s in the sweep, and the width where it was reached."""
    best: dict[str, tuple[float, int]] = {}
    for row in result["sweep"]:
        for name, way in row["ways"].items():
            rate = gflops(way)
            if rate is not None and rate > best.get(name, (0.0, 0))[0]:
                best[name] = (rate, row["width"])
    return best


def on_cpu(result: Row) -> bool:
    return str(result["caps"].get("kind")) == "cpu"


def shares(result: Row) -> dict[str, Row]:
    """For each model, the share of transfers in a step, in both placements."""
    lines, by_model = fits(result), {}
    for name, row in result["models"].items():
        apart = row["ways"].get(APART[1])
        own = row["ways"].get(OPTIMISED)
        cut = parts(apart, lines) if apart else None
        stay = resident_parts(own) if own else None
        by_model[name] = {
            "per_op": cut and cut["transfers"] / cut["whole"],
            "to_compute": cut and cut["kernels"] and cut["transfers"] / cut["kernels"],
            "resident": stay and stay["share"],
            "omitted": stay and stay["omitted"],
        }
    return by_model
