"""The ten findings of the 2019 study, tested on what was observed here.

    answers(rows) -> ten Answers, from the rows that observations.py makes of run files

A finding is one or several checks; each has the paper's figure beside the one measured here. It
holds if all its checks do that could be measured, does not hold if one of them fails, and cannot be
measured here if none of them could be. What is said of many workloads holds if it does for MOST of
them; those for which it does not are named. All thresholds are here, in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from handheld.analyse.stats import others
from handheld.studies.observations import NO_POWER, main_rail

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be measured here"

MOST = 0.75  # of the workloads
LOW, HIGH = 4, 64  # the paper's batches; else the smallest and the largest, at least LEAST_SPAN×
LEAST_SPAN = 4
NEAR_FULL = 0.9  # a device that is busy "near 100%"
CORE_MOST = 0.6  # of a core's time
AGAINST = -0.2  # a correlation below it is a movement against each other
FORETOLD = 0.1  # error of a prediction, as a share, that makes it one
GROWS = 0.01  # of a share, at least, for growth
CPU_CHANGE = 0.05  # of a share: more is a change
CORES_DIFFER = 0.1  # of a share between kinds of cores
RECURRENT_SHARE = 0.5  # of the vision models' load, at most
GPU_OF_CPU, GPU_OF_MEMORY = 2.0, 1.2  # the paper has 4× and 2×; what is above these is "far more"
RISES = 1.1  # throughput
BY_EYE = "shown by eye, no figure"
IS_CPU = "the OpenCL device is the CPU"

Row = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One thing that a finding says. `holds` is None where it could not be measured: `why`."""

    what: str
    paper: str
    here: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class Answer:
    """A finding of the paper, and what became of it here."""

    number: int
    claim: str
    answer: str
    checks: tuple[Check, ...]

    @property
    def figure(self) -> str:
        """What was measured, in a line."""
        return "; ".join(c.here for c in self.checks if c.here)

    @property
    def paper(self) -> str:
        return "; ".join(c.paper for c in self.checks if c.paper)

    @property
    def extent(self) -> str:
        """How much of it the answer rests on, where that is not all."""
        known = sum(check.holds is not None for check in self.checks)
        return f"{known} of {len(self.checks)} checks" if 0 < known < len(self.checks) else ""

    @property
    def why(self) -> str:
        """Why something of it could not be measured."""
        return "; ".join(dict.fromkeys(c.why for c in self.checks if c.why))

    def to_json(self) -> Row:
        return {
            "number": self.number,
            "claim": self.claim,
            "answer": self.answer,
            "extent": self.extent,
            "paper": self.paper,
            "here": self.figure,
            "why": self.why,
            "checks": [asdict(check) for check in self.checks],
        }


def answers(rows: Sequence[Row]) -> list[Answer]:
    """All ten, from the rows of one device that were measured; others are left out."""
    measured = [row for row in rows if row["status"] == "measured"]
    return [_answer(n, claim, check(measured)) for n, (claim, check) in enumerate(FINDINGS, 1)]


def disturbed(rows: Sequence[Row]) -> str:
    """What other processes took of the machine, if that is worth saying; else nothing."""
    found = [
        (row["others_cores"], len(row["cores"]))
        for row in rows
        if row["status"] == "measured" and row["others_cores"] is not None
    ]
    return others([cores for cores, _ in found], found[0][1]) if found else ""


def _answer(number: int, claim: str, checks: list[Check]) -> Answer:
    known = [check.holds for check in checks if check.holds is not None]
    word = UNKNOWN if not known else HOLDS if all(known) else FAILS
    return Answer(number, claim, word, tuple(checks))


# ── what findings share ───────────────────────────────────────────────────────────────────────


def _by_workload(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda one: one["batch"]):
        found.setdefault(row["workload"], []).append(row)
    return found


def _ends(rows: Sequence[Row], has: Callable[[Row], Any]) -> dict[str, tuple[Row, Row]]:
    """Of each workload the runs at the paper's two batches, or at the smallest and the largest
    that are at least LEAST_SPAN times apart."""
    found = {}
    for name, mine in _by_workload(row for row in rows if has(row) is not None).items():
        by = {row["batch"]: row for row in mine}
        low, high = (LOW, HIGH) if {LOW, HIGH} <= by.keys() else (min(by), max(by))
        if high >= LEAST_SPAN * low:
            found[name] = (by[low], by[high])
    return found


def _largest(rows: Sequence[Row]) -> list[Row]:
    """Of each workload the run at the largest batch."""
    return [mine[-1] for mine in _by_workload(rows).values()]


def _most(hits: dict[str, bool]) -> bool | None:
    return sum(hits.values()) >= MOST * len(hits) if hits else None


def _not(hits: dict[str, bool]) -> str:
    """Those for which it does not hold."""
    wrong = [name for name, hit in hits.items() if not hit]
    if not wrong:
        return ""
    return f" (not: {', '.join(wrong[:6])}{', …' if len(wrong) > 6 else ''})"


def _range(values: Sequence[float], form: str = "{:.3g}", unit: str = "") -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return f"{low}{unit}" if low == high else f"{low}–{high}{unit}"


def _percent(values: Sequence[float]) -> str:
    return _range([100 * v for v in values], "{:.0f}", "%")


def _batches(pairs: dict[str, tuple[Row, Row]]) -> str:
    spans = sorted({(low["batch"], high["batch"]) for low, high in pairs.values()})
    return ", ".join(f"{low}→{high}" for low, high in spans)


def _no_pair(rows: Sequence[Row], what: str) -> str:
    return f"{what} at two batches {LEAST_SPAN}× apart, of at least one workload, is not there"


def _is_gpu(rows: Sequence[Row]) -> bool:
    return any(row["gpu"] for row in rows)


def _no_gpu(what: str, paper: str, rows: Sequence[Row], here: str = "") -> Check:
    return Check(what, paper, here, None, IS_CPU if rows else "nothing was measured")


def _mean_cpu(row: Row) -> float | None:
    busy = [core["busy"] for core in row["cores"] if core["busy"] is not None]
    return float(np.mean(busy)) if busy else None


# ── the findings, in the paper's order ────────────────────────────────────────────────────────


def utilisation(rows: Sequence[Row]) -> list[Check]:
    what = "device busy, vision models at their largest batch"
    paper = "GPU near 100%"
    vision = [r for r in _largest(rows) if r["domain"] == "vision" and r["device_busy"] is not None]
    here = f"device busy {_percent([r['device_busy'] for r in vision])}" if vision else ""
    if not _is_gpu(rows):
        return [
            _no_gpu(
                what,
                f"{paper}, each core 0–60%, and the two against each other",
                rows,
                here and f"{here} (it is the CPU)",
            )
        ]
    full = {r["workload"]: r["device_busy"] >= NEAR_FULL for r in vision}
    checks = [Check(what, paper, here + _not(full), _most(full), "" if vision else "no vision model has op times")]
    cores = [core["busy"] for r in rows for core in r["cores"] if core["busy"] is not None]
    checks.append(
        Check(
            "busy share of each core",
            "each core 0–60%",
            f"cores busy {_percent(cores)}" if cores else "",
            bool(np.percentile(cores, 95) <= CORE_MOST) if cores else None,
            "" if cores else "the cores' load is not measured, or runs are too short for it",
        )
    )
    against = [r["against"] for r in rows]
    r_values = [a["r"] for a in against if a["r"] is not None]
    checks.append(
        Check(
            "correlation of device and cores over time",
            "they move against each other",
            f"correlation {np.median(r_values):+.2f} (median of {len(r_values)} runs)" if r_values else "",
            bool(np.median(r_values) <= AGAINST) if r_values else None,
            "" if r_values else "; ".join(dict.fromkeys(a["why"] for a in against)),
        )
    )
    return checks


def _foretold(one: Row) -> bool:
    """Within reach; and where a pattern is claimed no worse than without looking for one."""
    better = "steps_each" in one or one["error"] <= one["naive"] + GROWS
    return bool(one["error"] <= FORETOLD and better)


def _hits(found: Sequence[Row]) -> str:
    return f"foretold in {sum(map(_foretold, found))} of {len(found)} runs"


def utilisation_repeats(rows: Sequence[Row]) -> list[Check]:
    checks = []
    for key, what, few in (
        ("ops", "times of ops", "too few steps were recorded op by op"),
        ("within", "load within a step", "too few steps were recorded op by op"),
        ("cores", "load of cores", "not measured, or the run is too short for it"),
    ):
        found = [r["prediction"][key] for r in rows if r["prediction"][key]]
        found = [one for one in found if one["error"] is not None]
        errors, naive = ([one[k] for one in found] for k in ("error", "naive"))
        checks.append(
            Check(
                f"error of what earlier steps say about later ones: {what}",
                BY_EYE if key == "ops" else "",
                f"{what}: error {np.median(errors):.1%}, naive {np.median(naive):.1%} (medians, held "
                f"out; {_hits(found)})"
                if found
                else "",
                bool(np.mean([_foretold(one) for one in found]) >= MOST) if found else None,
                "" if found else f"{what}: {few}",
            )
        )
    return checks


def utilisation_grows(rows: Sequence[Row]) -> list[Check]:
    what, paper = ("device busy from batch 4 to 64", "DenseNet 81.6→96.4%, SqueezeNet 71.4→84.5%, ResNet-50 85.6→95.6%")
    pairs = _ends(rows, lambda row: row["device_busy"])
    lows, highs = ([p[n]["device_busy"] for p in pairs.values()] for n in (0, 1))
    here = (
        f"mean {np.mean(lows):.1%}→{np.mean(highs):.1%} over {len(pairs)} workloads, batch {_batches(pairs)}"
        if pairs
        else ""
    )
    if not _is_gpu(rows):
        return [_no_gpu(what, f"{paper}; CPU changes by 2.1%", rows, here and f"{here} (it is the CPU)")]
    grows = {
        name: high["device_busy"] - low["device_busy"] >= GROWS
        or min(low["device_busy"], high["device_busy"]) >= 1 - GROWS
        for name, (low, high) in pairs.items()
    }
    checks = [
        Check(what, paper, here + _not(grows), _most(grows), "" if pairs else _no_pair(rows, "the device's load"))
    ]
    pairs = _ends(rows, _mean_cpu)
    changes = [abs(_mean_cpu(high) - _mean_cpu(low)) for low, high in pairs.values()]  # type: ignore[operator]
    checks.append(
        Check(
            "change of the cores' mean load",
            "CPU changes by 2.1%",
            f"cores change by {np.mean(changes):.1%} on average" if changes else "",
            bool(np.mean(changes) <= CPU_CHANGE) if changes else None,
            "" if changes else _no_pair(rows, "the cores' load"),
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
    here = f"cores idle {_percent(idle)} of intervals" if idle else ""
    if len({core["kind"] for core in cores}) < 2:
        why = (
            "the cores' load is not measured"
            if not cores
            else "this machine does not say whether its cores differ"
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
    what = "device busy, LSTM beside vision, largest batch"
    paper = "LSTM about 25%, vision about 95%"
    found = [r for r in _largest(rows) if r["device_busy"] is not None]
    slow, fast = ([r["device_busy"] for r in found if r["domain"] == domain] for domain in ("recurrent", "vision"))
    if not slow or not fast:
        which = "recurrent" if not slow else "vision"
        return [Check(what, paper, "", None, f"no {which} model was measured")]
    here = f"LSTM {np.mean(slow):.0%}, vision {np.mean(fast):.0%}"
    if not _is_gpu(rows):
        return [_no_gpu(what, paper, rows, f"{here} (it is the CPU)")]
    return [Check(what, paper, here, bool(np.mean(slow) <= RECURRENT_SHARE * np.mean(fast)))]


def _watts(row: Row, part: str) -> float | None:
    """Of a part of the device alone; memory that is inside of a GPU's rail is taken off it."""
    own = [r for r in row["power"] if tuple(r["covers"]) == (part,)]
    if not own:
        return None
    watts = float(sum(r["watts"] for r in own if part == "memory" or not r["part_of"]))
    inside = [r["watts"] for r in row["power"] if tuple(r["covers"]) == ("memory",) and r["part_of"]]
    return watts - sum(inside) if part == "gpu" else watts


def _parts(row: Row) -> dict[str, float]:
    """Watts of the parts whose power is known alone."""
    watts = {part: _watts(row, part) for part in ("gpu", "cpu", "memory")}
    return {part: value for part, value in watts.items() if value is not None}


def _power_why(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(r["power_why"] for r in rows if r["power_why"])) or NO_POWER


def power_by_rail(rows: Sequence[Row]) -> list[Check]:
    vision = [r for r in _largest(rows) if r["domain"] == "vision"]
    lstm = [r for r in _largest(rows) if r["domain"] == "recurrent"]
    powered = [r for r in rows if r["power"]]
    checks = []
    for part, least, paper in (
        ("cpu", GPU_OF_CPU, "vision: GPU draws 4× the CPU"),
        ("memory", GPU_OF_MEMORY, "2× the memory"),
    ):
        ratios = [gpu / other for r in vision for gpu, other in [(_watts(r, "gpu"), _watts(r, part))] if gpu and other]
        checks.append(
            Check(
                f"GPU's power over the {part}'s, vision",
                paper,
                f"GPU over {part} {_range(ratios, '{:.1f}', '×')}" if ratios else "",
                bool(np.median(ratios) >= least) if ratios else None,
                "" if ratios else _missing_rail(powered, rows, ("gpu", part)),
            )
        )
    shares = [gpu / whole for r in vision for gpu, whole in [(_watts(r, "gpu"), _watts(r, "system"))] if gpu and whole]
    checks.append(
        Check(
            "GPU's share of the system's power",
            "up to 57.4% of the system",
            f"GPU up to {max(shares):.1%} of the system" if shares else "",
            bool(max(shares) >= 1 / 3) if shares else None,
            "" if shares else _missing_rail(powered, rows, ("gpu", "system")),
        )
    )
    drawn = [_parts(r) for r in lstm]
    most = [max(one, key=lambda part: one[part]) == "memory" for one in drawn if "memory" in one and len(one) > 1]
    checks.append(
        Check(
            "what draws most for the LSTM",
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
    return f"no rail of the {' and the '.join(none)} alone (rails here: {shown})"


def power_repeats(rows: Sequence[Row]) -> list[Check]:
    what, paper = "error of the power that earlier steps foretell, held out", BY_EYE
    found = [r["prediction"]["power"] for r in rows if r["prediction"]["power"]]
    found = [one for one in found if one["error"] is not None]
    if not found:
        powered = any(r["power"] for r in rows)
        return [
            Check(
                what,
                paper,
                "",
                None,
                "runs are too short for six stretches of five ticks of the sensor" if powered else _power_why(rows),
            )
        ]
    errors, naive = ([one[k] for one in found] for k in ("error", "naive"))
    each = [one["steps_each"] for one in found]
    checks = [
        Check(
            what,
            paper,
            f"error {np.median(errors):.1%}, naive {np.median(naive):.1%} (medians; "
            f"{_hits(found)}; means over {_range(each, '{:.0f}')} steps)",
            bool(np.mean([_foretold(one) for one in found]) >= MOST),
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
                bool(np.mean([_foretold(one) for one in inside]) >= MOST),
            )
        )
    return checks


def joules(row: Row) -> float | None:
    """Of a step, by the main rail."""
    rail = main_rail(row["power"], row["gpu"])
    return (rail["joules_step"] or None) if rail else None


def energy_grows(rows: Sequence[Row]) -> list[Check]:
    what, paper = "energy of a step over batch", "16× batch costs 2.2–10.5× energy"

    pairs = _ends(rows, joules)
    if not pairs:
        why = _no_pair(rows, "energy") if any(r["power"] for r in rows) else _power_why(rows)
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
            f"batch {_batches(pairs)} costs "
            f"{_range(list(ratios.values()), '{:.2g}', '×')} energy, {len(pairs)} workloads "
            f"({', '.join(sorted(rails))})" + _not(slower),
            _most(slower),
        )
    ]


def intermediate(memory: Row) -> int:
    """Bytes at the peak of what is neither state nor input: a gradient of every parameter is taken
    off, so that it is the least that it can be."""
    at = memory["at_peak"]
    beyond = max(at.get("gradient", 0) - at.get("parameter", 0), 0)
    return int(at.get("activation", 0) + at.get("workspace", 0) + beyond)


def memory_dominated(rows: Sequence[Row]) -> list[Check]:
    largest = [r for r in _largest(rows) if r["memory"]]
    if not largest:
        return [
            Check(
                "memory at the peak",
                "intermediate results dominate",
                "",
                None,
                "the plan's memory is not in these runs",
            )
        ]
    shares = {r["workload"]: intermediate(r["memory"]) / r["memory"]["peak_bytes"] for r in largest}
    over = {name: share > 0.5 for name, share in shares.items()}
    checks = [
        Check(
            "intermediate results at the peak, largest batch",
            "intermediate results dominate",
            f"{_percent(list(shares.values()))} of the peak, more than half in "
            f"{sum(over.values())} of {len(over)}" + _not(over),
            _most(over),
        )
    ]
    pairs = _ends([r for r in rows if r["memory"]], lambda row: row["memory"]["peak_bytes"])
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
            "growth of the peak with batch, parameters beside it",
            "DenseNet-40 2.2→5.9 GB (2.7×), parameters and gradients constant",
            f"peak grows {_range(list(growth.values()), '{:.2g}', '×')} for batch {_batches(pairs)}, "
            "parameters and optimizer state to the byte the same" + _not(same)
            if pairs
            else "",
            _most(same),
            "" if pairs else _no_pair(rows, "memory"),
        )
    )
    return checks


def throughput(rows: Sequence[Row]) -> list[Check]:
    what = "samples a second over batch"
    paper = "ResNet-50 9→55 (6.1×), DQN 889→13,618 (15.3×), DenseNet 1.7×"
    pairs = _ends(rows, lambda row: row["samples_s"])
    if not pairs:
        return [Check(what, paper, "", None, _no_pair(rows, "throughput"))]
    ratios = {name: high["samples_s"] / low["samples_s"] for name, (low, high) in pairs.items()}
    rises = {name: ratio >= RISES for name, ratio in ratios.items()}
    known = [
        f"{name} {low['samples_s']:,.0f}→{high['samples_s']:,.0f} ({ratios[name]:.1f}×)"
        for name, (low, high) in pairs.items()
        if name.startswith(("resnet50", "dqn", "densenet40"))
    ]
    text = f"batch {_batches(pairs)}: {_range(list(ratios.values()), '{:.3g}', '×')}, {len(pairs)} workloads"
    return [Check(what, paper, "; ".join([text, *known]) + _not(rises), _most(rises))]


FINDINGS: tuple[tuple[str, Callable[[Sequence[Row]], list[Check]]], ...] = (
    ("The GPU is near 100% busy, each CPU core 0–60%, and they move against each other", utilisation),
    ("Utilisation repeats with the period of a step, so it is predictable", utilisation_repeats),
    ("GPU utilisation grows with the batch, CPU utilisation hardly changes", utilisation_grows),
    ("Cores differ: some kinds of core idle far more than others", cores_differ),
    ("An LSTM leaves most of the GPU idle, vision models do not", recurrent),
    ("Vision models draw most power on the GPU, an LSTM on memory", power_by_rail),
    ("Power repeats step by step", power_repeats),
    ("Energy per step grows slower than the batch", energy_grows),
    ("Intermediate results dominate memory and grow with the batch; parameters do not", memory_dominated),
    ("Throughput rises with the batch", throughput),
)
