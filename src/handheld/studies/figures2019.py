"""The figures of the 2019 study's page, a section each, from the rows of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from handheld.report import charts
from handheld.report.charts import Axis, Guide, Series
from handheld.report.markup import Markup, join
from handheld.report.page import beside, section, text
from handheld.sensors.base import natural
from handheld.studies.costs2019 import intermediate, joules
from handheld.studies.observations import main_rail

#: the paper's device load in %, by batch
PAPER_BUSY = {"densenet40": {4: 81.6, 64: 96.4}, "squeezenet": {4: 71.4, 64: 84.5}, "resnet50": {4: 85.6, 64: 95.6}}
MOST_TIMELINES = 6
MOST_CORES, MOST_SERIES = 16, 8  # that are drawn
CATEGORIES = ("parameter", "optimizer state", "gradient", "activation", "workspace", "input", "buffer", "other")
MIB = 2**20

Row = dict[str, Any]


def _names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["workload"] for row in rows))


def _by_batch(rows: Sequence[Row], value: Callable[[Row], float | None]) -> list[Series]:
    """A series a batch, a bar a workload."""
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
) -> Markup:
    series = [*_by_batch(rows, value), *paper]
    if not any(v is not None for one in series for v in one.values):
        return Markup()
    return charts.bars(title, _names(rows), series, y, note=note)


def _cpu(row: Row) -> float | None:
    busy = [core["busy"] for core in row["cores"] if core["busy"] is not None]
    return 100 * float(np.mean(busy)) if busy else None


def timelines(rows: Sequence[Row], result: Row) -> Markup:
    """Three steps of each workload at its largest batch."""
    last = list({row["workload"]: row for row in sorted(rows, key=lambda r: r["batch"])}.values())
    last = [row for name in _names(rows) for row in last if row["workload"] == name and row["three_steps"]]
    figures = [_three(row) for row in _spread_over_domains(last)]
    if not figures:
        return section("Utilisation over three steps", text("No step was recorded op by op."))
    return section(
        "Utilisation over three steps",
        text(
            "The device's load by phase from the times of its commands; cores and "
            "power where their sensors are fast enough for it."
        ),
        beside(*figures),
    )


def _spread_over_domains(rows: list[Row]) -> list[Row]:
    """A few of them, of every domain."""
    found: list[Row] = []
    groups = [[r for r in rows if r["domain"] == d] for d in dict.fromkeys(r["domain"] for r in rows)]
    for n in range(max(map(len, groups), default=0)):
        found += [group[n] for group in groups if n < len(group)]
    return found[:MOST_TIMELINES]


def _three(row: Row) -> Markup:
    steps = row["three_steps"]
    count = len(next(iter(steps["phases"].values())))
    at = [n * steps["ms"] / count for n in range(count + 1)]
    guides = [Guide(ms, name) for ms, name in zip(steps["begins_ms"], steps["names"], strict=True)]
    time = Axis("time", "ms", low=0, high=steps["ms"])
    held = [
        Series(phase, [*(100 * v for v in values), 100 * values[-1]], at) for phase, values in steps["phases"].items()
    ]
    made = [
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
            made.append(
                charts.lines(
                    f"{row['workload']}, batch {row['batch']}: {title}", lines, time, y, step=True, guides=guides
                )
            )
    return join(*made)


def utilisation(rows: Sequence[Row], result: Row) -> Markup:
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
    """The paper's loads, pale, beside the batch that they are of."""
    names, batches = _names(rows), sorted({row["batch"] for row in rows})
    found = [
        Series(f"paper, batch {b}", [PAPER_BUSY.get(name, {}).get(b) for name in names], pale=True, colour=n)
        for n, b in enumerate(batches)
    ]
    return [one for one in found if any(v is not None for v in one.values)]


def cores(rows: Sequence[Row], result: Row) -> Markup:
    """Each core's load against batch, and its idle ratio."""
    return section("Cores", beside(*filter(None, (_each_core(rows), _idle(rows)))))


def _each_core(rows: Sequence[Row]) -> Markup:
    """Means over workloads; of many cores the busiest."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        for core in row["cores"]:
            if core["busy"] is not None:
                found.setdefault(core["core"], {}).setdefault(row["batch"], []).append(100 * core["busy"])
    if not found:
        return Markup()
    means = {name: {b: float(np.mean(v)) for b, v in by.items()} for name, by in found.items()}
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


def _idle(rows: Sequence[Row]) -> Markup:
    """Each core's idle ratio, over all runs."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for core in row["cores"]:
            if core["idle"] is not None:
                name = f"{core['core']} {core['kind']}" if _kinds(rows) > 1 else core["core"]
                found.setdefault(name, []).append(100 * core["idle"])
    if not found:
        return text("Idle ratios are not measured: the cores' load is hidden, or runs are too short for it.")
    names = sorted(found, key=lambda name: -float(np.mean(found[name])))[:MOST_CORES]
    note = f"The {MOST_CORES} of {len(found)} cores that idle most. " if len(found) > MOST_CORES else ""
    series = [
        Series(
            "idle",
            [float(np.mean(found[n])) for n in names],
            low=[min(found[n]) for n in names],
            high=[max(found[n]) for n in names],
        )
    ]
    return charts.bars(
        "Idle ratio of cores",
        names,
        series,
        Axis("idle", "%", low=0, high=100),
        note=f"{note}Share of intervals of 50 ms in which a core did nothing: mean over runs, "
        "from the least to the most. Paper: its Denver2 cores up to 65%.",
    )


def _kinds(rows: Sequence[Row]) -> int:
    return len({core["kind"] for row in rows for core in row["cores"]})


def power(rows: Sequence[Row], result: Row) -> Markup:
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
    said = [f"{rail} idle: {idle[rail]:.1f} W" for rail in rails if idle[rail] is not None]
    said += [f"{rail} is part of {inside[rail]}" for rail in rails if inside[rail]]
    series = [Series(rail, [watts.get((n, rail)) for n in names]) for rail in rails]
    return section(
        "Power by rail",
        beside(
            charts.bars(
                "Power by rail, largest batch",
                names,
                series,
                Axis("power", "W"),
                note=". ".join([*said, "Rails that are part of another are never to be added"]) + ".",
            )
        ),
    )


def energy(rows: Sequence[Row], result: Row) -> Markup:
    if not any(joules(row) for row in rows):
        return section("Energy against batch", text("Not measured, as power."))
    rails = {
        main_rail(row["power"], row["gpu"])["rail"]  # type: ignore[index]
        for row in rows
        if row["power"]
    }
    sample = _bars(
        "Energy of a sample",
        rows,
        lambda r: None if not (each := joules(r)) else 1e3 * each / r["batch"],
        Axis("energy", "mJ", log=True),
    )
    return section(
        "Energy against batch",
        beside(
            _bars(
                "Energy of a step",
                rows,
                joules,
                Axis("energy", "J", log=True),
                f"{', '.join(sorted(rails))}. Paper: 16× the batch costs 2.2–10.5× the energy.",
            ),
            sample,
        ),
    )


def memory(rows: Sequence[Row], result: Row) -> Markup:
    known = [row for row in rows if row["memory"]]
    figures = []
    for name in _names(known):
        mine = sorted((r for r in known if r["workload"] == name), key=lambda r: r["batch"])
        series = [
            Series(kind, [r["memory"]["at_peak"].get(kind, 0) / MIB for r in mine], colour=n)
            for n, kind in enumerate(CATEGORIES)
            if any(r["memory"]["at_peak"].get(kind) for r in mine)
        ]
        share = intermediate(mine[-1]["memory"]) / mine[-1]["memory"]["peak_bytes"]
        figures.append(
            charts.bars(
                name,
                [f"batch {r['batch']}" for r in mine],
                series,
                Axis("peak", "MiB"),
                stacked=True,
                note=f"Intermediate results are at least {share:.0%} at batch {mine[-1]['batch']}.",
            )
        )
    return section(
        "Peak memory by category against batch",
        text(
            "Bytes alive at the op at which most are alive. Gradients are those of parameters and "
            "of activations. Paper: DenseNet-40 2.2→5.9 GB for batch 4→64; at 64 VGG-16 6.3, "
            "ResNet-50 5.8, SqueezeNet 5.7 GB (TensorFlow, all of it)."
        ),
        beside(*figures),
    )


def throughput(rows: Sequence[Row], result: Row) -> Markup:
    return section(
        "Throughput against batch",
        beside(
            _bars(
                "Samples a second",
                rows,
                lambda r: r["samples_s"],
                Axis("samples", "1/s", log=True),
                "Paper: ResNet-50 9→55, DQN 889→13,618, DenseNet 1.7×.",
            )
        ),
    )


def predictability(rows: Sequence[Row], result: Row) -> Markup:
    """The error figures that the paper lacks."""
    names, figures = _names(rows), []
    for key, title, note in (
        ("ops", "Times of ops", "What an op took in earlier steps against later ones; naive: all ops take alike."),
        ("within", "Load within a step", "The device's load at each twentieth of a step; naive: always its mean."),
        (
            "cores",
            "Load of cores",
            "All cores together, over stretches of a quarter of a second or more; naive: like the stretch before.",
        ),
        ("power", "Power", "Means over stretches of steps that a sensor can resolve; naive: like the stretch before."),
        (
            "power_within",
            "Power within a step",
            "At each moment of a step that the sensor can resolve; naive: always its mean.",
        ),
    ):
        found = {
            name: [
                r["prediction"][key]
                for r in rows
                if r["workload"] == name and r["prediction"][key] and r["prediction"][key]["error"] is not None
            ]
            for name in names
        }
        if not any(found.values()):
            continue
        series = [
            Series(word, [100 * float(np.median([one[word] for one in found[n]])) if found[n] else None for n in names])
            for word in ("error", "naive")
        ]
        figures.append(charts.bars(title, names, series, Axis("error", "%", low=0), note=note))
    return section(
        "Predictability",
        text(
            "The paper shows by eye that utilisation and power repeat. Here a prediction is made "
            "from the first half of what was measured and held against the second half. Errors "
            "are mean differences over the mean, medians over batches."
        ),
        beside(*figures) if figures else text("Too few steps were recorded."),
    )


#: the sections, in the page's order
FIGURES: tuple[Callable[[Sequence[Row], Row], Markup], ...] = (
    timelines,
    utilisation,
    cores,
    power,
    energy,
    memory,
    throughput,
    predictability,
)
