"""The page of the 2022 study: its answers, and the paper's figures beside those measured here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from handheld.report import charts
from handheld.report.charts import Axis, Guide, Reference, Series
from handheld.report.markup import Markup, tag
from handheld.report.page import Column, beside, callout, page, section, spread, table, text
from handheld.studies import answers2022 as answers
from handheld.studies import paper2022 as paper
from handheld.studies.ways2022 import APART, CPU, NAIVE, OPTIMISED, PER_OP, PYTORCH, REFERENCE, RESIDENT, WAYS

US = 1e6
Row = dict[str, Any]

#: a colour for each way, the same in every figure
COLOUR = {PYTORCH: 0, REFERENCE: 5, NAIVE: 4, OPTIMISED: 2, NAIVE + PER_OP: 3, OPTIMISED + PER_OP: 1}
NAME = {
    PYTORCH: "CPU, PyTorch",
    REFERENCE: "CPU, reference:cpu",
    NAIVE: "naive, resident",
    OPTIMISED: "optimised, resident",
    NAIVE + PER_OP: "naive, per-op",
    OPTIMISED + PER_OP: "optimised, per-op",
}


def draw(result: Row) -> str:
    """The whole page, from a result alone."""
    blocks = [_answers(result)]
    for has, make in (
        ("models", _backward),
        ("sweep", _sweep),
        ("models", _where),
        ("transfers", _transfers),
        ("models", _steps),
    ):
        if result[has]:
            blocks.append(make(result))
    blocks.append(_how(result))
    own = result["machine"]
    return page(
        "Is training on this device's GPU worth it? The 2022 study, repeated",
        blocks,
        device=f"{result['device']} ({result['caps']['name']})",
        date=result["date"],
        about=f"{paper.AUTHORS}, trained four perceptrons on three phones through OpenCL and found "
        "the GPU slower than the CPU: tensors that cross between the two took nine tenths of "
        "the time. The same questions, asked of this device.",
        facts={
            "CPU": f"{own['processor']}, {own['cores']} cores, PyTorch on {own['threads']} threads",
            "driver": result["caps"]["driver"],
            "batch": str(result["batch"]),
            "versions": ", ".join(f"{k} {v}" for k, v in result["versions"].items()),
        },
    )


def _answers(result: Row) -> Markup:
    return section(
        "The answer",
        *(callout(one["kind"], one["question"], one["answer"]) for one in answers.answers(result)),
        *(callout("note", "Left out", note) for note in result["notes"]),
    )


# ── the paper's figures ───────────────────────────────────────────────────────────────────────


def _models(result: Row) -> list[str]:
    return [name for name in paper.BACKWARD_US if name in result["models"]]


def _measured(result: Row, way: str, what: str, name: str = "") -> Series:
    """A bar a model, in µs, with the quarters around its median."""
    rows = [result["models"][model]["ways"].get(way) for model in _models(result)]
    times = [row["times"].get(what) if row else None for row in rows]

    def side(key: str) -> list[float | None]:
        return [one and one[key] * US for one in times]

    return Series(name or NAME[way], side("median"), low=side("p25"), high=side("p75"), colour=COLOUR[way])


def _published(result: Row, what: str, colour: int) -> Series:
    """The mean of three phones, and the range of them."""
    found = [paper.BACKWARD_US[model][what] for model in _models(result)]
    return Series(
        what,
        [mean(one) for one in found],
        low=[float(min(one)) for one in found],
        high=[float(max(one)) for one in found],
        pale=True,
        colour=colour,
    )


def _backward(result: Row) -> Markup:
    names = [name.upper() for name in _models(result)]
    axis = Axis("backward pass", "µs", log=True)
    theirs = charts.bars(
        "In the paper: three phones",
        names,
        [_published(result, paper.CPU, 0), _published(result, paper.STOCK, 3), _published(result, paper.GPU, 1)],
        axis,
        note=f"Mean of {', '.join(paper.PHONES)}; whiskers span the three. Read off a chart, ± {paper.READ_OFF:.0%}.",
    )
    ours = charts.bars(
        "Here",
        names,
        [_measured(result, way, "backward") for way in (PYTORCH, NAIVE + PER_OP, OPTIMISED + PER_OP, OPTIMISED)],
        axis,
        note="Median, whiskers span the middle half. “Per-op” moves every op's tensors "
        "between host and device, as in the study; “resident” is Handheld's normal: "
        "the backward launches alone, back to back.",
    )
    processors = (paper.CPU, paper.STOCK, paper.GPU)
    columns = [
        Column("model"),
        *(Column(what, "µs", "paper: OnePlus 6 / 8 Pro / Nord") for what in processors),
        *(Column(NAME[way], "µs", "here") for way in (PYTORCH, *APART, OPTIMISED)),
    ]
    rows = [
        [
            model.upper(),
            *("\u00a0/\u00a0".join(f"{us:,}" for us in paper.BACKWARD_US[model][what]) for what in processors),
            *(_cell(result["models"][model]["ways"].get(way), "backward") for way in (PYTORCH, *APART, OPTIMISED)),
        ]
        for model in _models(result)
    ]
    return section(
        "Backward time",
        beside(theirs, ours),
        table(
            columns,
            rows,
            caption="Backward pass, batch 32, µs",
            note="Small figures are the middle half of what was measured.",
        ),
    )


def _cell(way: Row | None, what: str) -> Markup:
    one = way["times"].get(what) if way else None
    if one is None:
        return spread(None)
    return spread(one["median"] * US, one["p25"] * US, one["p75"] * US)


# ── the sweep ─────────────────────────────────────────────────────────────────────────────────


def _over_widths(result: Row, way: str, value: Callable[[Row], float | None]) -> Series:
    rows = result["sweep"]
    return Series(
        NAME[way],
        [value(row["ways"][way]) if way in row["ways"] else None for row in rows],
        x=[float(row["width"]) for row in rows],
        colour=COLOUR[way],
    )


def _sweep(result: Row) -> Markup:
    widths = [float(row["width"]) for row in result["sweep"]]
    x = Axis("width of two layers, batch 32", "units", log=True, ticks=widths)
    ways = [way for way in WAYS if any(way in row["ways"] for row in result["sweep"])]
    from_width = answers.crossover(result, OPTIMISED)["from_width"]
    guides = (
        [Guide(float(from_width), "faster than the CPU from here")] if from_width and (from_width > min(widths)) else []
    )  # faster everywhere needs no line
    times = charts.lines(
        "Time of a step",
        [_over_widths(result, way, lambda one: one["times"]["step"]["median"] * US) for way in ways],
        x,
        Axis("step", "µs", log=True),
        guides=guides,
        note="Whole training steps: forward, backward, update. A way that takes more than a second "
        "is not tried at wider layers.",
    )
    best = [way for way in (REFERENCE, *RESIDENT) if way in ways]
    stock, tuned = (mean(paper.GFLOPS[what]) for what in (paper.STOCK, paper.GPU))
    rates = charts.lines(
        "Speed of matrix products",
        [_over_widths(result, way, answers.gflops) for way in best],
        x,
        Axis("products", "GFLOP/s", log=True),
        references=[
            Reference(stock, f"paper, stock: {stock:.0f} GFLOP/s"),
            Reference(tuned, f"paper, optimised: {tuned:.0f} GFLOP/s"),
        ],
        note="By the device's clock, kernels alone. Paper: mean of three phones; their CPUs made "
        f"{paper.CPU_GFLOPS[0]:.0f} to {paper.CPU_GFLOPS[1]:.0f} GFLOP/s. “Naive” is one "
        "work-item an output, as a framework has it before anyone has tuned it.",
    )
    return section("From which width on?", beside(times, rates))


# ── where the time goes ───────────────────────────────────────────────────────────────────────


def _where(result: Row) -> Markup:
    lines, names = answers.fits(result), _models(result)
    cuts = {
        name: answers.parts(result["models"][name]["ways"][APART[1]], lines)
        for name in names
        if APART[1] in result["models"][name]["ways"]
    }
    stay = {
        name: answers.resident_parts(result["models"][name]["ways"][OPTIMISED])
        for name in names
        if OPTIMISED in result["models"][name]["ways"]
    }
    known = all(cut and cut["latency"] is not None for cut in cuts.values())
    parts = (
        [("transfers: latency", "latency", 1), ("transfers: bandwidth", "bandwidth", 4)]
        if known
        else [("transfers", "transfers", 1)]
    )
    shown = [name for name in names if cuts.get(name)]
    apart = charts.bars(
        "Per-op: every op's tensors cross",
        [name.upper() for name in shown],
        [
            Series(label, _us(cuts, shown, key), colour=colour)
            for label, key, colour in (*parts, ("launch latency", "launch", 7), ("kernels", "kernels", 2))
        ],
        Axis("step", "µs"),
        stacked=True,
        note=f"In the paper transfers take {paper.TRANSFER_SHARE:.0%} of the time, "
        f"{paper.TRANSFERS_TO_COMPUTE[0]:.0f} to {paper.TRANSFERS_TO_COMPUTE[1]:.0f} times "
        "the compute time.",
    )
    kept = [name for name in names if stay.get(name)]
    resident = charts.bars(
        "Resident: everything stays on the device",
        [name.upper() for name in kept],
        [
            Series("transfers", _us(stay, kept, "transfers"), colour=1),
            Series("launches and host", _us(stay, kept, "launch"), colour=7),
            Series("kernels", _us(stay, kept, "kernels"), colour=2),
        ],
        Axis("step", "µs"),
        stacked=True,
        note="Transfers are the batch and the loss. Kernels and transfers by the device's clock.",
    )
    shares = answers.shares(result)
    rows = [
        [
            name.upper(),
            *_facts(result["models"][name]["ways"]),
            _percent(shares[name]["per_op"]),
            shares[name]["to_compute"],
            _percent(shares[name]["resident"]),
            _percent(shares[name]["omitted"]),
        ]
        for name in names
    ]
    return section(
        "Where the time goes",
        beside(apart, resident),
        table(
            [
                Column("model"),
                Column("transfers", "a step", "per-op"),
                Column("moved", "kB", "per-op"),
                Column("launches", "a step", "per-op"),
                Column("share of transfers", "%", "per-op"),
                Column("transfers over kernels", "times", "per-op"),
                Column("share of transfers", "%", "resident"),
                Column("gain if nothing moved", "%", "resident"),
            ],
            rows,
            caption="Transfers' share of a step",
            note=f"Paper: {paper.TRANSFER_SHARE:.0%}. Goal of the resident placement: at most {paper.GOAL_SHARE:.0%}.",
        ),
    )


def _us(rows: Mapping[str, Row | None], names: Sequence[str], key: str) -> list[float | None]:
    return [None if row is None else row[key] * US for row in (rows[name] for name in names)]


def _facts(ways: Mapping[str, Row]) -> list[object]:
    if APART[1] not in ways:
        return [None, None, None]
    facts = ways[APART[1]]["facts"]
    return [
        facts["uploads"] + facts["downloads"],
        (facts["upload_bytes"] + facts["download_bytes"]) / 1e3,
        facts["launches"],
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


# ── transfers ─────────────────────────────────────────────────────────────────────────────────


def _transfers(result: Row) -> Markup:
    series = []
    for colour, (name, words) in enumerate(answers.DIRECTIONS.items()):
        rows = result["transfers"].get(name, ())
        sizes = [float(row["bytes"]) for row in rows]
        series.append(
            Series(
                words,
                [row["median"] * US for row in rows],
                x=sizes,
                low=[row["p25"] * US for row in rows],
                high=[row["p75"] * US for row in rows],
                colour=colour,
            )
        )
        line = answers.fits(result)[name]
        if line:
            inside = [size for size in sizes if size <= line["to_bytes"]]
            series.append(
                Series(
                    f"{words}, fitted",
                    [(line["latency_s"] + size / line["bytes_s"]) * US for size in inside],
                    x=inside,
                    pale=True,
                    colour=colour,
                )
            )
    chart = charts.lines(
        "Time of a transfer that is waited for",
        series,
        Axis("size", "B", log=True),
        Axis("time", "µs", log=True),
        note="Fitted: latency + bytes / bandwidth, by relative error.",
    )
    fitted = [
        (f"{words}, up to {line['to_bytes'] / 2**20:.3g} MiB", line)
        for lines in (answers.fits(result), answers.whole_fits(result))
        for name, words in answers.DIRECTIONS.items()
        if (line := lines[name])
    ]
    launches = result["launches"]
    names = {
        "enqueue": "for the host to enqueue it",
        "device": "to run it after another",
        "round_trip": "to enqueue it and wait for it",
    }
    return section(
        "Latency or bandwidth?",
        beside(
            chart,
            tag(
                "div",
                table(
                    [
                        Column("transfer"),
                        Column("latency", "µs"),
                        Column("±", "µs"),
                        Column("bandwidth", "GB/s"),
                        Column("±", "GB/s"),
                        Column("off by", "% rms"),
                    ],
                    [
                        [
                            words,
                            line["latency_s"] * US,
                            line["latency_error_s"] * US,
                            line["bytes_s"] * 1e-9,
                            line["bytes_s_error"] * 1e-9,
                            line["rms_error"] * 100,
                        ]
                        for words, line in dict(fitted).items()
                    ],
                    caption="The fit, with its standard errors",
                    note="A line that is off by much describes nothing: caches and the driver's own copies bend it.",
                ),
                table(
                    [Column("an empty kernel"), Column("time", "µs"), Column("spread", "%")],
                    [[names[name], one["median"] * US, one["spread"] * 100] for name, one in launches.items()],
                    caption="Launches",
                ),
            ),
        ),
    )


def _steps(result: Row) -> Markup:
    rows: list[list[object]] = []
    for name in _models(result):
        ways = result["models"][name]["ways"]
        for way in (*CPU, *RESIDENT, *APART):
            if way in ways:
                one = ways[way]
                rows.append(
                    [
                        f"{name.upper()}, {NAME[way]}",
                        *(_cell(one, what) for what in ("forward", "backward", "update", "step")),
                        answers.gflops(one),
                        one["facts"].get("launches"),
                        one["steps"],
                    ]
                )
    return section(
        "Every way, every model",
        table(
            [
                Column("model and way"),
                Column("forward", "µs"),
                Column("backward", "µs"),
                Column("update", "µs"),
                Column("step", "µs"),
                Column("products", "GFLOP/s"),
                Column("launches", "a step"),
                Column("measured", "steps"),
            ],
            rows,
            note="Resident phases are run alone, so that they need not add up to a step.",
        ),
    )


def _how(result: Row) -> Markup:
    gaps = [
        way["parameters_differ"]
        for row in (*result["models"].values(), *result["sweep"])
        for way in row["ways"].values()
        if way["parameters_differ"] is not None
    ]
    return section(
        "How it was measured",
        text(
            "All ways of a model are open at once and take turns, in "
            f"{result['rounds']} rounds of at most {result['steps'] // max(result['rounds'], 1)} "
            "steps. Figures are medians with the middle half of what was measured around them.",
            "Per-op: for each op of the captured step its inputs are uploaded, it is launched and "
            "waited for, and its outputs are downloaded, every copy waited for. The ops are "
            "Handheld's, which joins bias, activation and loss to fewer of them than a framework "
            "has: a framework's own would cross more often. Resident: the batch is uploaded, the loss "
            "downloaded, nothing is waited for.",
            "The naive product is a plain loop a work-item, one for each output, in the way of a "
            "published baseline; everything else is the same in both.",
            "Calls go through pyopencl: some microseconds of each belong to Python.",
            (
                "Before it was timed every way trained some steps: with the same kernels the parameters "
                "are the same bits in both placements"
                + (f", and all are within {max(gaps):.1e} of PyTorch's." if gaps else ".")
            ),
        ),
    )
