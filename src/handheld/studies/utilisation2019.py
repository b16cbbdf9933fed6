"""Findings 1 to 5 of the 2019 study: how busy the processors are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from handheld.studies.checks2019 import (
    AGAINST,
    BY_EYE,
    CORE_MOST,
    CORES_DIFFER,
    CPU_CHANGE,
    GROWS,
    MOST,
    NEAR_FULL,
    RECURRENT_SHARE,
    Check,
    Row,
    batches_of,
    ends,
    foretold,
    hits_of,
    is_gpu,
    largest_batches,
    mean_cpu,
    most,
    no_gpu,
    no_pair,
    not_for,
    percent,
)
from handheld.units import count


def utilisation(rows: Sequence[Row]) -> list[Check]:
    what = "device busy, vision models at their largest batch"
    paper = "GPU near 100%"
    vision = [r for r in largest_batches(rows) if r["domain"] == "vision" and r["device_busy"] is not None]
    here = f"device busy {percent([r['device_busy'] for r in vision])}" if vision else ""
    if not is_gpu(rows):
        return [
            no_gpu(
                what,
                f"{paper}, each core 0–60%, and the two move against each other",
                rows,
                here and f"{here} (it is the CPU)",
            )
        ]
    full = {r["workload"]: r["device_busy"] >= NEAR_FULL for r in vision}
    checks = [Check(what, paper, here + not_for(full), most(full), "" if vision else "no vision model has op times")]
    cores = [core["busy"] for r in rows for core in r["cores"] if core["busy"] is not None]
    checks.append(
        Check(
            "busy share of each core",
            "each core 0–60%",
            f"cores busy {percent(cores)}" if cores else "",
            bool(np.percentile(cores, 95) <= CORE_MOST) if cores else None,
            "" if cores else "the load of the cores is not measured, or runs are too short",
        )
    )
    against = [r["against"] for r in rows]
    r_values = [a["r"] for a in against if a["r"] is not None]
    checks.append(
        Check(
            "correlation of device and cores over time",
            "they move against each other",
            f"correlation {np.median(r_values):+.2f} (median of {count(len(r_values), 'run')})" if r_values else "",
            bool(np.median(r_values) <= AGAINST) if r_values else None,
            "" if r_values else "; ".join(dict.fromkeys(a["why"] for a in against)),
        )
    )
    return checks


def utilisation_repeats(rows: Sequence[Row]) -> list[Check]:
    checks = []
    for key, what, few in (
        ("ops", "times of ops", "too few steps were recorded op by op"),
        ("within", "load within a step", "too few steps were recorded op by op"),
        ("cores", "load of cores", "not measured, or the run is too short"),
    ):
        predictions = [r["prediction"][key] for r in rows if r["prediction"][key]]
        predictions = [row for row in predictions if row["error"] is not None]
        errors, naive = ([row[k] for row in predictions] for k in ("error", "naive"))
        checks.append(
            Check(
                f"error of predictions from earlier steps: {what}",
                BY_EYE if key == "ops" else "",
                f"{what}: error {np.median(errors):.1%}, naive {np.median(naive):.1%} (medians, held "
                f"out; {hits_of(predictions)})"
                if predictions
                else "",
                bool(np.mean([foretold(row) for row in predictions]) >= MOST) if predictions else None,
                "" if predictions else f"{what}: {few}",
            )
        )
    return checks


def utilisation_grows(rows: Sequence[Row]) -> list[Check]:
    what, paper = ("device busy from batch 4 to 64", "DenseNet 81.6→96.4%, SqueezeNet 71.4→84.5%, ResNet-50 85.6→95.6%")
    pairs = ends(rows, lambda row: row["device_busy"])
    lows, highs = ([p[n]["device_busy"] for p in pairs.values()] for n in (0, 1))
    here = (
        f"mean {np.mean(lows):.1%}→{np.mean(highs):.1%} over {count(len(pairs), 'workload')}, batch {batches_of(pairs)}"
        if pairs
        else ""
    )
    if not is_gpu(rows):
        return [no_gpu(what, f"{paper}; CPU changes by 2.1%", rows, here and f"{here} (it is the CPU)")]
    grows = {
        name: high["device_busy"] - low["device_busy"] >= GROWS
        or min(low["device_busy"], high["device_busy"]) >= 1 - GROWS
        for name, (low, high) in pairs.items()
    }
    checks = [
        Check(what, paper, here + not_for(grows), most(grows), "" if pairs else no_pair(rows, "the device's load"))
    ]
    pairs = ends(rows, mean_cpu)
    changes = [abs(mean_cpu(high) - mean_cpu(low)) for low, high in pairs.values()]  # type: ignore[operator]
    checks.append(
        Check(
            "change of the cores' mean load",
            "CPU changes by 2.1%",
            f"cores change by {np.mean(changes):.1%} on average" if changes else "",
            bool(np.mean(changes) <= CPU_CHANGE) if changes else None,
            "" if changes else no_pair(rows, "the cores' load"),
        )
    )
    return checks


def cores_differ(rows: Sequence[Row]) -> list[Check]:
    what, paper = "idle ratio by kind of core", "the Denver2 cores idle up to 65%"
    cores = [core for row in rows for core in row["cores"]]
    kinds: dict[str, list[float]] = {}
    for core in cores:
        if core["kind"] and core["idle"] is not None:
            kinds.setdefault(core["kind"], []).append(core["idle"])
    idle = [core["idle"] for core in cores if core["idle"] is not None]
    here = f"cores idle {percent(idle)} of intervals" if idle else ""
    if len({core["kind"] for core in cores}) < 2:
        why = (
            "the cores' load is not measured"
            if not cores
            else "this machine does not report whether its cores differ"
            if cores[0]["kind"] is None
            else f"all cores are alike ({cores[0]['kind']})"
        )
        return [Check(what, paper, here, None, why)]
    if len(kinds) < 2:
        return [Check(what, paper, here, None, "runs are too short for the cores' clock")]
    means = {kind: float(np.mean(values)) for kind, values in kinds.items()}
    apart = max(means.values()) - min(means.values())
    text = ", ".join(f"{kind} {share:.0%} (up to {max(kinds[kind]):.0%})" for kind, share in means.items())
    return [Check(what, paper, f"idle: {text}", apart >= CORES_DIFFER)]


def recurrent(rows: Sequence[Row]) -> list[Check]:
    what = "device busy, LSTM and vision, largest batch"
    paper = "LSTM about 25%, vision about 95%"
    known = [r for r in largest_batches(rows) if r["device_busy"] is not None]
    slow, fast = ([r["device_busy"] for r in known if r["domain"] == domain] for domain in ("recurrent", "vision"))
    if not slow or not fast:
        which = "recurrent" if not slow else "vision"
        return [Check(what, paper, "", None, f"no {which} model was measured")]
    here = f"LSTM {np.mean(slow):.0%}, vision {np.mean(fast):.0%}"
    if not is_gpu(rows):
        return [no_gpu(what, paper, rows, f"{here} (it is the CPU)")]
    return [Check(what, paper, here, bool(np.mean(slow) <= RECURRENT_SHARE * np.mean(fast)))]
