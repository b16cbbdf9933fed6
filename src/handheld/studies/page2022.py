"""The page of the 2022 study: its answers, and the paper's figures next to those of this device."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

from handheld.report import charts
from handheld.report.charts import Axis, Guide, Reference, Series
from handheld.report.document import Payload
from handheld.report.page import Block, Cell, Column, Spread, beside, busy, callout, page, section, table, text
from handheld.studies import answers2022 as answers
from handheld.studies import derived2022 as derived
from handheld.studies import evidence2022 as evidence
from handheld.studies import paper2022 as paper
from handheld.studies import time2022
from handheld.studies.ways2022 import APART, CPU, NAIVE, OPTIMISED, PER_OP, PYTORCH, REFERENCE, RESIDENT, WAYS
from handheld.units import count

US = 1e6
Row = dict[str, Any]

#: A colour for each way, the same in every figure.
COLOUR = {PYTORCH: 0, REFERENCE: 5, NAIVE: 4, OPTIMISED: 2, NAIVE + PER_OP: 3, OPTIMISED + PER_OP: 1}
NAME = {
    PYTORCH: "CPU, PyTorch",
    REFERENCE: "CPU, reference:cpu",
    NAIVE: "naive, resident",
    OPTIMISED: "optimised, resident",
    NAIVE + PER_OP: "naive, per-op",
    OPTIMISED + PER_OP: "optimised, per-op",
}


def draw(result: Row) -> Payload:
    """The payload of the page, from a result alone."""
    blocks = [_answers(result)]
    for has, make in (
        ("models", _backward),
        ("sweep", _sweep),
        ("models", time2022.where),
        ("transfers", time2022.transfers),
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
        "the GPU slower than the CPU: moving tensors between the two took nine tenths of "
        "the time. This page asks the same questions of this device.",
        facts={
            "CPU": f"{own['processor']}, {count(own['cores'], 'core')}, PyTorch on {count(own['threads'], 'thread')}",
            "driver": result["caps"]["driver"],
            "batch": str(result["batch"]),
            "versions": ", ".join(f"{k} {v}" for k, v in result["versions"].items()),
        },
    )


def _answers(result: Row) -> Block:
    warning = evidence.warning(result)
    return section(
        "The answer",
        busy(warning),
        *(callout(answer["kind"], answer["question"], answer["answer"]) for answer in answers.answers(result)),
        *(callout("note", "Left out", note) for note in result["notes"]),
    )


# ── the paper's figures ───────────────────────────────────────────────────────────────────────


def _models(result: Row) -> list[str]:
    return [name for name in paper.BACKWARD_US if name in result["models"]]


def _measured(result: Row, way: str, what: str, name: str = "") -> Series:
    """One bar per model, in µs, with the quartiles around its median."""
    rows = [result["models"][model]["ways"].get(way) for model in _models(result)]
    times = [row["times"].get(what) if row else None for row in rows]

    def side(key: str) -> list[float | None]:
        return [time and time[key] * US for time in times]

    return Series(name or NAME[way], side("median"), low=side("p25"), high=side("p75"), colour=COLOUR[way])


def _published(result: Row, what: str, colour: int) -> Series:
    """The mean of three phones, and their range."""
    published = [paper.BACKWARD_US[model][what] for model in _models(result)]
    return Series(
        f"paper: {what}",
        [mean(phones) for phones in published],
        low=[float(min(phones)) for phones in published],
        high=[float(max(phones)) for phones in published],
        pale=True,
        colour=colour,
    )


def _backward(result: Row) -> Block:
    theirs = [_published(result, what, colour) for what, colour in ((paper.CPU, 0), (paper.STOCK, 3), (paper.GPU, 1))]
    ours = [_measured(result, way, "backward") for way in (PYTORCH, NAIVE + PER_OP, OPTIMISED + PER_OP, OPTIMISED)]
    both = charts.bars(
        "The paper's three phones (pale), and here",
        [name.upper() for name in _models(result)],
        [*theirs, *ours],
        Axis("backward pass", "µs", log=True),
        note=f"Paper: mean of {', '.join(paper.PHONES)}, whiskers span the three, read off a chart, "
        f"± {paper.READ_OFF:.0%}. Here: median, whiskers span the middle half. “Per-op” moves the tensors of every op "
        "between host and device, as in the study; “resident” is how Handheld normally works: "
        "here, only the backward launches, one after another.",
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
        both,
        table(
            columns, rows, caption="Backward pass, batch 32, µs", note="Small figures are the range of the middle half."
        ),
    )


def _cell(way: Row | None, what: str) -> Cell:
    time = way["times"].get(what) if way else None
    if time is None:
        return Spread(None)
    return Spread(time["median"] * US, time["p25"] * US, time["p75"] * US)


# ── the sweep ─────────────────────────────────────────────────────────────────────────────────


def _over_widths(result: Row, way: str, value: Callable[[Row], float | None]) -> Series:
    rows = result["sweep"]
    return Series(
        NAME[way],
        [value(row["ways"][way]) if way in row["ways"] else None for row in rows],
        x=[float(row["width"]) for row in rows],
        colour=COLOUR[way],
    )


def _sweep(result: Row) -> Block:
    widths = [float(row["width"]) for row in result["sweep"]]
    x = Axis("width of two layers, batch 32", "units", log=True, ticks=widths)
    ways = [way for way in WAYS if any(way in row["ways"] for row in result["sweep"])]
    from_width = derived.crossover(result, OPTIMISED)["from_width"]
    guides = (
        [Guide(float(from_width), "faster than the CPU from here")] if from_width and (from_width > min(widths)) else []
    )  # A way that is faster everywhere needs no line.
    times = charts.lines(
        "Time of a step",
        [_over_widths(result, way, lambda measured: measured["times"]["step"]["median"] * US) for way in ways],
        x,
        Axis("step", "µs", log=True),
        guides=guides,
        note="Whole training steps: forward, backward, update. A way that takes more than one second "
        "per step is not tried with wider layers.",
    )
    best = [way for way in (REFERENCE, *RESIDENT) if way in ways]
    stock, tuned = (mean(paper.GFLOPS[what]) for what in (paper.STOCK, paper.GPU))
    rates = charts.lines(
        "Speed of matrix products",
        [_over_widths(result, way, derived.gflops) for way in best],
        x,
        Axis("products", "GFLOP/s", log=True),
        references=[
            Reference(stock, f"paper, stock: {stock:.0f} GFLOP/s"),
            Reference(tuned, f"paper, optimised: {tuned:.0f} GFLOP/s"),
        ],
        note="Kernels alone, by the device's clock. Paper: mean of three phones; their CPUs reached "
        f"{paper.CPU_GFLOPS[0]:.0f} to {paper.CPU_GFLOPS[1]:.0f} GFLOP/s. “Naive” uses one "
        "work-item per output, as a framework does before tuning.",
    )
    return section("From which width?", beside(times, rates))


def _steps(result: Row) -> Block:
    rows: list[list[Cell]] = []
    for name in _models(result):
        ways = result["models"][name]["ways"]
        for way in (*CPU, *RESIDENT, *APART):
            if way in ways:
                measured = ways[way]
                rows.append(
                    [
                        f"{name.upper()}, {NAME[way]}",
                        *(_cell(measured, what) for what in ("forward", "backward", "update", "step")),
                        derived.gflops(measured),
                        measured["facts"].get("launches"),
                        measured["steps"],
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
                Column("launches", "per step"),
                Column("measured", "steps"),
            ],
            rows,
            note="Resident phases run alone, so their sum may differ from the step.",
        ),
    )


def _how(result: Row) -> Block:
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
            "steps. Figures are medians with the range of the middle half.",
            "Per-op: for each op of the captured step, its inputs are uploaded, it is launched, and its outputs are "
            "downloaded; every copy and launch is waited for. The ops are Handheld's, which fuses bias, activation and "
            "loss, so a framework's own graph has more ops and would move more. Resident: the batch is uploaded, "
            "the loss is downloaded, and nothing is waited for.",
            "The naive product is one plain loop per work-item, with one work-item per output, as in a "
            "published baseline. Everything else is the same in both.",
            "Calls go through pyopencl; some microseconds of each call are Python's.",
            (
                "Before the timing, every way trained some steps: with the same kernels, the parameters "
                "are the same bits in both placements"
                + (f", and all are within {max(gaps):.1e} of PyTorch's." if gaps else ".")
            ),
        ),
    )
