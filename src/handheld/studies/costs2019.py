"""Findings 6 to 10 of the 2019 study: power, energy, memory and throughput."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from handheld.studies.checks2019 import (
    BY_EYE,
    GPU_OF_CPU,
    GPU_OF_MEMORY,
    MOST,
    RISES,
    Check,
    Row,
    batches_of,
    ends,
    foretold,
    hits_of,
    largest_batches,
    most,
    no_pair,
    not_for,
    percent,
    span,
)
from handheld.studies.observations import NO_POWER, main_rail
from handheld.units import count


def _watts(row: Row, part: str) -> float | None:
    """Watts of one part of the device alone. Memory that is included in a GPU's rail is subtracted from it."""
    own = [r for r in row["power"] if tuple(r["covers"]) == (part,)]
    if not own:
        return None
    watts = float(sum(r["watts"] for r in own if part == "memory" or not r["part_of"]))
    inside = [r["watts"] for r in row["power"] if tuple(r["covers"]) == ("memory",) and r["part_of"]]
    return watts - sum(inside) if part == "gpu" else watts


def _parts(row: Row) -> dict[str, float]:
    """Watts of the parts whose own power is known."""
    watts = {part: _watts(row, part) for part in ("gpu", "cpu", "memory")}
    return {part: value for part, value in watts.items() if value is not None}


def _power_why(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(r["power_why"] for r in rows if r["power_why"])) or NO_POWER


def power_by_rail(rows: Sequence[Row]) -> list[Check]:
    vision = [r for r in largest_batches(rows) if r["domain"] == "vision"]
    lstm = [r for r in largest_batches(rows) if r["domain"] == "recurrent"]
    powered = [r for r in rows if r["power"]]
    checks = []
    for part, least, paper in (
        ("cpu", GPU_OF_CPU, "vision: GPU draws 4× the CPU"),
        ("memory", GPU_OF_MEMORY, "2× the memory"),
    ):
        ratios = [gpu / other for r in vision for gpu, other in [(_watts(r, "gpu"), _watts(r, part))] if gpu and other]
        checks.append(
            Check(
                f"power of the GPU relative to the {part}, vision",
                paper,
                f"GPU relative to {part} {span(ratios, '{:.1f}', '×')}" if ratios else "",
                bool(np.median(ratios) >= least) if ratios else None,
                "" if ratios else _missing_rail(powered, rows, ("gpu", part)),
            )
        )
    shares = [gpu / whole for r in vision for gpu, whole in [(_watts(r, "gpu"), _watts(r, "system"))] if gpu and whole]
    checks.append(
        Check(
            "share of the GPU in the system's power",
            "up to 57.4% of the system",
            f"GPU up to {max(shares):.1%} of the system" if shares else "",
            bool(max(shares) >= 1 / 3) if shares else None,
            "" if shares else _missing_rail(powered, rows, ("gpu", "system")),
        )
    )
    drawn = [_parts(r) for r in lstm]
    most = [
        max(watts, key=lambda part: watts[part]) == "memory" for watts in drawn if "memory" in watts and len(watts) > 1
    ]
    checks.append(
        Check(
            "the part that draws most power, LSTM",
            "LSTM: memory",
            f"LSTM: memory draws most in {sum(most)} of {len(most)}" if most else "",
            bool(np.mean(most) >= MOST) if most else None,
            "" if most else _missing_rail(powered, rows, ("memory", "gpu")),
        )
    )
    return checks


def _missing_rail(powered: Sequence[Row], rows: Sequence[Row], parts: tuple[str, ...]) -> str:
    if not powered:
        return _power_why(rows)
    known = {tuple(rail["covers"]) for row in powered for rail in row["power"]}
    none = [part for part in parts if (part,) not in known]
    shown = ", ".join(sorted({rail["rail"] for row in powered for rail in row["power"]}))
    if not none:
        return "no such model was measured"
    return f"no rail measures the {' and the '.join(none)} alone (rails here: {shown})"


def power_repeats(rows: Sequence[Row]) -> list[Check]:
    what, paper = "error of the power predicted from earlier steps, held out", BY_EYE
    predictions = [r["prediction"]["power"] for r in rows if r["prediction"]["power"]]
    predictions = [row for row in predictions if row["error"] is not None]
    if not predictions:
        powered = any(r["power"] for r in rows)
        return [
            Check(
                what,
                paper,
                "",
                None,
                "runs are too short for six windows of five sensor readings" if powered else _power_why(rows),
            )
        ]
    errors, naive = ([row[k] for row in predictions] for k in ("error", "naive"))
    each = [row["steps_each"] for row in predictions]
    checks = [
        Check(
            what,
            paper,
            f"error {np.median(errors):.1%}, naive {np.median(naive):.1%} (medians; "
            f"{hits_of(predictions)}; means over {span(each, '{:.0f}')} steps)",
            bool(np.mean([foretold(row) for row in predictions]) >= MOST),
        )
    ]
    inside = [r["prediction"]["power_within"] for r in rows if r["prediction"]["power_within"]]
    if inside:
        checks.append(
            Check(
                "error within a step, held out",
                "",
                f"within a step: error {np.median([o['error'] for o in inside]):.1%}, naive "
                f"{np.median([o['naive'] for o in inside]):.1%}",
                bool(np.mean([foretold(row) for row in inside]) >= MOST),
            )
        )
    return checks


def joules(row: Row) -> float | None:
    """Joules per step, from the main rail."""
    rail = main_rail(row["power"], row["gpu"])
    return (rail["joules_step"] or None) if rail else None


def energy_grows(rows: Sequence[Row]) -> list[Check]:
    what, paper = "energy per step by batch", "16× batch costs 2.2–10.5× energy"

    pairs = ends(rows, joules)
    if not pairs:
        why = no_pair(rows, "energy") if any(r["power"] for r in rows) else _power_why(rows)
        return [Check(what, paper, "", None, why)]
    ratios = {
        name: joules(high) / joules(low)  # type: ignore[operator]
        for name, (low, high) in pairs.items()
    }
    slower = {name: ratios[name] < high["batch"] / low["batch"] for name, (low, high) in pairs.items()}
    rails = {
        main_rail(low["power"], low["gpu"])["rail"]  # type: ignore[index]
        for low, _ in pairs.values()
    }
    return [
        Check(
            what,
            paper,
            f"batch {batches_of(pairs)} costs "
            f"{span(list(ratios.values()), '{:.2g}', '×')} energy, {count(len(pairs), 'workload')} "
            f"({', '.join(sorted(rails))})" + not_for(slower),
            most(slower),
        )
    ]


def intermediate(memory: Row) -> int:
    """Bytes at the peak that are neither state nor input. One gradient per parameter is subtracted, so this is a lower
    bound."""
    at = memory["at_peak"]
    beyond = max(at.get("gradient", 0) - at.get("parameter", 0), 0)
    return int(at.get("activation", 0) + at.get("workspace", 0) + beyond)


def memory_dominated(rows: Sequence[Row]) -> list[Check]:
    largest = [r for r in largest_batches(rows) if r["memory"]]
    if not largest:
        return [
            Check(
                "memory at the peak",
                "intermediate results dominate",
                "",
                None,
                "these runs do not hold the plan's memory",
            )
        ]
    shares = {r["workload"]: intermediate(r["memory"]) / r["memory"]["peak_bytes"] for r in largest}
    over = {name: share > 0.5 for name, share in shares.items()}
    checks = [
        Check(
            "intermediate results at the peak, largest batch",
            "intermediate results dominate",
            f"{percent(list(shares.values()))} of the peak, more than half in "
            f"{sum(over.values())} of {len(over)}" + not_for(over),
            most(over),
        )
    ]
    pairs = ends([r for r in rows if r["memory"]], lambda row: row["memory"]["peak_bytes"])
    growth = {name: high["memory"]["peak_bytes"] / low["memory"]["peak_bytes"] for name, (low, high) in pairs.items()}
    same = {
        name: all(
            low["memory"]["most"].get(k) == high["memory"]["most"].get(k) for k in ("parameter", "optimizer state")
        )
        and growth[name] > 1
        for name, (low, high) in pairs.items()
    }
    checks.append(
        Check(
            "growth of the peak with the batch, compared with parameters",
            "DenseNet-40 2.2→5.9 GB (2.7×), parameters and gradients constant",
            f"peak grows {span(list(growth.values()), '{:.2g}', '×')} for batch {batches_of(pairs)}, "
            "parameters and optimizer state stay the same to the byte" + not_for(same)
            if pairs
            else "",
            most(same),
            "" if pairs else no_pair(rows, "memory"),
        )
    )
    return checks


def throughput(rows: Sequence[Row]) -> list[Check]:
    what = "samples per second by batch"
    paper = "ResNet-50 9→55 (6.1×), DQN 889→13,618 (15.3×), DenseNet 1.7×"
    pairs = ends(rows, lambda row: row["samples_s"])
    if not pairs:
        return [Check(what, paper, "", None, no_pair(rows, "throughput"))]
    ratios = {name: high["samples_s"] / low["samples_s"] for name, (low, high) in pairs.items()}
    rises = {name: ratio >= RISES for name, ratio in ratios.items()}
    known = [
        f"{name} {low['samples_s']:,.0f}→{high['samples_s']:,.0f} ({ratios[name]:.1f}×)"
        for name, (low, high) in pairs.items()
        if name.startswith(("resnet50", "dqn", "densenet40"))
    ]
    text = f"batch {batches_of(pairs)}: {span(list(ratios.values()), '{:.3g}', '×')}, {count(len(pairs), 'workload')}"
    return [Check(what, paper, "; ".join([text, *known]) + not_for(rises), most(rises))]
