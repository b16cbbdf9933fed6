"""The figures of the 2019 study's page, one section each, from the rows of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from handheld.report import charts
from handheld.report.charts import Axis, Guide, Series
from handheld.report.page import NOTHING, Block, beside, group, section, text
from handheld.sensors.base import natural
from handheld.studies.costs2019 import intermediate, joules
from handheld.studies.observations import main_rail

#: The paper's load of the device in %, by batch.
PAPER_BUSY = {"densenet40": {4: 81.6, 64: 96.4}, "squeezenet": {4: 71.4, 64: 84.5}, "resnet50": {4: 85.6, 64: 95.6}}
MOST_TIMELINES = 6
MOST_CORES, MOST_SERIES = 16, 8  # The most that are drawn.
CATEGORIES = ("parameter", "optimizer state", "gradient", "activation", "workspace", "input", "buffer", "other")
MIB = 2**20

Row = dict[str, Any]


def _names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["workload"] for row in rows))


def _by_batch(rows: Sequence[Row], value: Callable[[Row], float | None]) -> list[Series]:
    """One series per batch, one bar per workload."""
    names = _names(rows)
    at = {(row["workload"], row["batch"]): value(row) for row in rows}
    batches = sorted({row["batch"] for row in rows})
    return [Series(f"batch {b}", [at.get((name, b)) for name in names], colour=n) for n, b in enumerate(batches)]


def _bars(
    title: str,
    rows: Sequence[Row],
    value: Callable[[Row], float | None],
    y: Axis,
    note: str = "",
    paper: Sequence[Series] = (),
) -> Block:
    series = [*_by_batch(rows, value), *paper]
    if not any(v is not None for bars in series for v in bars.values):
        return NOTHING
    return charts.bars(title, _names(rows), series, y, note=note)


def _cpu(row: Row) -> float | None:
    busy = [core["busy"] for core in row["cores"] if core["busy"] is not None]
    return 100 * float(np.mean(busy)) if busy else None


def timelines(rows: Sequence[Row], result: Row) -> Block:
    """Three steps of each workload at its largest batch."""
    last = list({row["workload"]: row for row in sorted(rows, key=lambda r: r["batch"])}.values())
    last = [row for name in _names(rows) for row in last if row["workload"] == name and row["three_steps"]]
    figures = [_three(row) for row in _spread_over_domains(last)]
    if not figures:
        return section("Utilisation over three steps", text("No step was recorded op by op."))
    return section(
        "Utilisation over three steps",
        text(
            "The device's load per phase comes from the times of its commands. Cores and "
            "power are shown if their sensors are fast enough."
        ),
        beside(*figures),
    )


def _spread_over_domains(rows: list[Row]) -> list[Row]:
    """A few workloads from every domain."""
    chosen: list[Row] = []
    groups = [[r for r in rows if r["domain"] == d] for d in dict.fromkeys(r["domain"] for r in rows)]
    for n in range(max(map(len, groups), default=0)):
        chosen += [group[n] for group in groups if n < len(group)]
    return chosen[:MOST_TIMELINES]


def _three(row: Row) -> Block:
    steps = row["three_steps"]
    count = len(next(iter(steps["phases"].values())))
    at = [n * steps["ms"] / count for n in range(count + 1)]
    guides = [Guide(ms, name) for ms, name in zip(steps["begins_ms"], steps["names"], strict=True)]
    time = Axis("time", "ms", low=0, high=steps["ms"])
    held = [
        Series(phase, [*(100 * v for v in values), 100 * values[-1]], at) for phase, values in steps["phases"].items()
    ]
    drawn = [
        charts.areas(
            f"{row['workload']}, batch {row['batch']}: the device",
            held,
            time,
            Axis("load", "%", low=0, high=100),
            step=True,
            guides=guides,
            note="; ".join(steps["why"]),
        )
    ]
    for title, y, key, scale in (
        ("cores", Axis("busy", "%", low=0, high=100), "cores", 100),
        ("power", Axis("power", "W"), "power", 1),
    ):
        if steps[key]:
            lines = []
            for name, values in list(steps[key].items())[:8]:
                x = [n * steps["ms"] / len(values) for n in range(len(values) + 1)]
                lines.append(Series(name, [*(scale * v for v in values), scale * values[-1]], x))
            drawn.append(
                charts.lines(
                    f"{row['workload']}, batch {row['batch']}: {title}", lines, time, y, step=True, guides=guides
                )
            )
    return group(*drawn)


def utilisation(rows: Sequence[Row], result: Row) -> Block:
    percent = Axis("busy", "%", low=0, high=100)
    gpu = result["caps"].get("kind") == "gpu"
    figures = [
        _bars(
            "The device against batch",
            rows,
            lambda r: None if r["device_busy"] is None else 100 * r["device_busy"],
            percent,
            "From the times of commands in recorded steps."
            + ("" if gpu else " This device is the CPU; the paper's is a GPU."),
            _paper(rows),
        ),
        _bars(
            "The device by its own sensor",
            rows,
            lambda r: r["device_load"] and 100 * r["device_load"]["share"],
            percent,
        ),
        _bars(
            "Cores against batch, mean of all",
            rows,
            _cpu,
            percent,
            "The whole machine's, other processes included. Paper: changes by 2.1%.",
        ),
    ]
    return section("Utilisation against batch", beside(*filter(None, figures)))


def _paper(rows: Sequence[Row]) -> list[Series]:
    """The paper's loads, in pale colours, next to the batch that they belong to."""
    names, batches = _names(rows), sorted({row["batch"] for row in rows})
    series = [
        Series(f"paper, batch {b}", [PAPER_BUSY.get(name, {}).get(b) for name in names], pale=True, colour=n)
        for n, b in enumerate(batches)
    ]
    return [bars for bars in series if any(v is not None for v in bars.values)]


def cores(rows: Sequence[Row], result: Row) -> Block:
    """The load of each core by batch, and its idle ratio."""
    return section("Cores", beside(*filter(None, (_each_core(rows), _idle(rows)))))


def _each_core(rows: Sequence[Row]) -> Block:
    """Means over workloads. If there are many cores, only the busiest are shown."""
    loads: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        for core in row["cores"]:
            if core["busy"] is not None:
                loads.setdefault(core["core"], {}).setdefault(row["batch"], []).append(100 * core["busy"])
    if not loads:
        return NOTHING
    means = {name: {b: float(np.mean(v)) for b, v in by.items()} for name, by in loads.items()}
    names = sorted(means, key=lambda name: -float(np.mean(list(means[name].values()))))
    batches = sorted({row["batch"] for row in rows})
    series = [Series(name, [means[name].get(b) for b in batches]) for name in sorted(names[:MOST_SERIES], key=natural)]
    return charts.bars(
        "Each core against batch",
        [f"batch {b}" for b in batches],
        series,
        Axis("busy", "%", low=0, high=100),
        note=(f"The {MOST_SERIES} busiest of {len(names)} cores. " if len(names) > MOST_SERIES else "")
        + "Mean over workloads. Paper: 0–60%.",
    )


def _idle(rows: Sequence[Row]) -> Block:
    """The idle ratio of each core over all runs."""
    idle: dict[str, list[float]] = {}
    for row in rows:
        for core in row["cores"]:
            if core["idle"] is not None:
                name = f"{core['core']} {core['kind']}" if _kinds(rows) > 1 else core["core"]
                idle.setdefault(name, []).append(100 * core["idle"])
    if not idle:
        return text("Idle ratios were not measured: the load of the cores is hidden, or runs are too short.")
    names = sorted(idle, key=lambda name: -float(np.mean(idle[name])))[:MOST_CORES]
    note = f"The {MOST_CORES} of {len(idle)} cores that idle most. " if len(idle) > MOST_CORES else ""
    series = [
        Series(
            "idle",
            [float(np.mean(idle[n])) for n in names],
            low=[min(idle[n]) for n in names],
            high=[max(idle[n]) for n in names],
        )
    ]
    return charts.bars(
        "Idle ratio of cores",
        names,
        series,
        Axis("idle", "%", low=0, high=100),
        note=f"{note}Share of 50 ms intervals in which a core did nothing: mean over runs, with the smallest "
        "and the largest. Paper: its Denver2 cores up to 65%.",
    )


def _kinds(rows: Sequence[Row]) -> int:
    return len({core["kind"] for row in rows for core in row["cores"]})


def power(rows: Sequence[Row], result: Row) -> Block:
    powered = [row for row in rows if row["power"]]
    if not powered:
        why = "; ".join(dict.fromkeys(row["power_why"] for row in rows)) or "nothing was measured"
        return section("Power by rail", text(f"Not measured: {why}."))
    last = {row["workload"]: row for row in sorted(powered, key=lambda r: r["batch"])}
    names = [name for name in _names(rows) if name in last]
    rails = list(dict.fromkeys(rail["rail"] for row in last.values() for rail in row["power"]))
    watts = {(n, rail["rail"]): rail["watts"] for n in names for rail in last[n]["power"]}
    idle = {rail["rail"]: rail["idle_watts"] for row in last.values() for rail in row["power"]}
    inside = {rail["rail"]: rail["part_of"] for row in last.values() for rail in row["power"]}
    notes = [f"{rail} idle: {idle[rail]:.1f} W" for rail in rails if idle[rail] is not None]
    notes += [f"{rail} is part of {inside[rail]}" for rail in rails if inside[rail]]
    series = [Series(rail, [watts.get((n, rail)) for n in names]) for rail in rails]
    return section(
        "Power by rail",
        beside(
            charts.bars(
                "Power by rail, largest batch",
                names,
                series,
                Axis("power", "W"),
                note=". ".join([*notes, "Do not add a rail that is part of another"]) + ".",
            )
        ),
    )


def energy(rows: Sequence[Row], result: Row) -> Block:
    if not any(joules(row) for row in rows):
        return section("Energy against batch", text("Not measured, because power was not."))
    rails = {
        main_rail(row["power"], row["gpu"])["rail"]  # type: ignore[index]
        for row in rows
        if row["power"]
    }
    sample = _bars(
        "Energy per sample",
        rows,
        lambda r: None if not (each := joules(r)) else 1e3 * each / r["batch"],
        Axis("energy", "mJ", log=True),
    )
    return section(
        "Energy against batch",
        beside(
            _bars(
                "Energy per step",
                rows,
                joules,
                Axis("energy", "J", log=True),
                f"{', '.join(sorted(rails))}. Paper: 16× the batch costs 2.2–10.5× the energy.",
            ),
            sample,
        ),
    )


def memory(rows: Sequence[Row], result: Row) -> Block:
    known = [row for row in rows if row["memory"]]
    figures = []
    for name in _names(known):
        runs = sorted((r for r in known if r["workload"] == name), key=lambda r: r["batch"])
        series = [
            Series(kind, [r["memory"]["at_peak"].get(kind, 0) / MIB for r in runs], colour=n)
            for n, kind in enumerate(CATEGORIES)
            if any(r["memory"]["at_peak"].get(kind) for r in runs)
        ]
        share = intermediate(runs[-1]["memory"]) / runs[-1]["memory"]["peak_bytes"]
        figures.append(
            charts.bars(
                name,
                [f"batch {r['batch']}" for r in runs],
                series,
                Axis("peak", "MiB"),
                stacked=True,
                note=f"Intermediate results are at least {share:.0%} at batch {runs[-1]['batch']}.",
            )
        )
    return section(
        "Peak memory by category against batch",
        text(
            "Bytes alive at the op with the most bytes alive. Gradients are those of parameters and "
            "of activations. Paper: DenseNet-40 2.2→5.9 GB for batch 4→64; at 64 VGG-16 6.3, "
            "ResNet-50 5.8, SqueezeNet 5.7 GB (TensorFlow, all memory)."
        ),
        beside(*figures),
    )


def throughput(rows: Sequence[Row], result: Row) -> Block:
    return section(
        "Throughput against batch",
        beside(
            _bars(
                "Samples per second",
                rows,
                lambda r: r["samples_s"],
                Axis("samples", "1/s", log=True),
                "Paper: ResNet-50 9→55, DQN 889→13,618, DenseNet 1.7×.",
            )
        ),
    )


def predictability(rows: Sequence[Row], result: Row) -> Block:
    """The prediction errors, which the paper does not give."""
    names, figures = _names(rows), []
    for key, title, note in (
        (
            "ops",
            "Times of ops",
            "The time of each op in earlier steps against later ones. Naive: all ops take the same time.",
        ),
        ("within", "Load within a step", "The device's load in each twentieth of a step. Naive: always its mean."),
        (
            "cores",
            "Load of cores",
            "All cores together, over windows of a quarter of a second or more. Naive: like the window before.",
        ),
        ("power", "Power", "Means over windows that the sensor can resolve. Naive: like the window before."),
        (
            "power_within",
            "Power within a step",
            "At each moment of a step that the sensor can resolve. Naive: always its mean.",
        ),
    ):
        by_workload = {
            name: [
                r["prediction"][key]
                for r in rows
                if r["workload"] == name and r["prediction"][key] and r["prediction"][key]["error"] is not None
            ]
            for name in names
        }
        if not any(by_workload.values()):
            continue
        series = [
            Series(
                word,
                [
                    100 * float(np.median([row[word] for row in by_workload[n]])) if by_workload[n] else None
                    for n in names
                ],
            )
            for word in ("error", "naive")
        ]
        figures.append(charts.bars(title, names, series, Axis("error", "%", low=0), note=note))
    return section(
        "Predictability",
        text(
            "The paper shows by eye that utilisation and power repeat. Here, a prediction from the first half of "
            "the measurements is compared with the second half. Errors are mean differences divided by the mean; "
            "bars are medians over batches."
        ),
        beside(*figures) if figures else text("Too few steps were recorded."),
    )


#: The sections, in the order of the page.
FIGURES: tuple[Callable[[Sequence[Row], Row], Block], ...] = (
    timelines,
    utilisation,
    cores,
    power,
    energy,
    memory,
    throughput,
    predictability,
)
