"""Answers from a result of das2022. These are pure functions of the document and need no device.

A transfer of b bytes is modelled as latency + b / bandwidth. Both are fitted to transfers of many sizes by
relative error, so that 4 bytes count as much as 4 MiB. The error of the fit is reported too, because no
driver follows a line exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handheld.studies import paper2022 as paper
from handheld.studies.derived2022 import (
    DIRECTIONS,
    POOR_FIT,
    best_cpu,
    crossover,
    fits,
    on_cpu,
    parts,
    peaks,
    resident_parts,
    seconds,
    shares,
)
from handheld.studies.ways2022 import APART, NAIVE, OPTIMISED, PER_OP, REFERENCE

Row = dict[str, Any]


def answers(result: Row) -> list[Row]:
    """The study's questions, answered for this device. Each has `question`, `answer` and `kind` (good, bad or note)."""
    answers = []
    if on_cpu(result):
        answers.append(
            {
                "question": "Which processors are compared?",
                "kind": "note",
                "answer": f"This OpenCL device is the CPU ({result['caps']['name']}): both sides run "
                "on the same cores. The answers compare two ways to program them, and say "
                "nothing about a GPU.",
            }
        )
    for make in (_wins, _wins_apart, _share, _cost, _kernels, _layers):
        answer = make(result)
        if answer is not None:
            answers.append(answer)
    if not result["complete"]:
        answers.append(
            {
                "question": "Is everything measured?",
                "kind": "bad",
                "answer": "No: the study was stopped. The answers use what was measured until then.",
            }
        )
    return answers


def _name(result: Row) -> str:
    return "OpenCL on the CPU" if on_cpu(result) else "the GPU"


def _wins(result: Row) -> Row | None:
    cross = crossover(result, OPTIMISED)
    models = {
        name: (cpu[1] / own)
        for name, row in result["models"].items()
        if (cpu := best_cpu(row["ways"])) and (own := seconds(row["ways"].get(OPTIMISED), "step"))
    }
    if not cross["widths"] and not models:
        return None
    texts = [_from_width(cross, f"{_name(result)} trains faster than the CPU")]
    if models:
        texts.append(
            "Of the study's models: "
            + ", ".join(f"{name.upper()} {_times(ratio)}" for name, ratio in models.items())
            + "."
        )
    won = cross["from_width"] is not None or any(r > 1 for r in models.values())
    return {
        "question": f"Does {_name(result)} win, with everything on the device?",
        "answer": _sentence(" ".join(texts)),
        "kind": "good" if won else "bad",
        "from_width": cross["from_width"],
        "models": models,
    }


def _wins_apart(result: Row) -> Row | None:
    cross = crossover(result, OPTIMISED + PER_OP)
    if not cross["widths"]:
        return None
    return {
        "question": "And if the tensors of every op are moved, as in the study?",
        "answer": _sentence(_from_width(cross, f"{_name(result)} would train faster than the CPU")),
        "kind": "bad" if cross["from_width"] is None else "note",
        "from_width": cross["from_width"],
    }


def _from_width(cross: Row, what: str) -> str:
    """A sentence that begins with a lower-case letter."""
    if not cross["widths"]:
        return "no sweep of widths was measured."
    widest = max(cross["widths"])
    if cross["from_width"] is None:
        return f"no: up to a width of {widest:,} the CPU is faster ({_times(cross['widths'][widest])} at {widest:,})."
    if cross["from_width"] == min(cross["widths"]):
        return (
            f"yes: {what} at every width tried, from {cross['from_width']:,} up "
            f"({_times(cross['widths'][widest])} at {widest:,})."
        )
    return f"{what} from a width of {cross['from_width']:,} up ({_times(cross['widths'][widest])} at {widest:,})."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times as slow"


def _share(result: Row) -> Row | None:
    by_model = shares(result)
    apart = [row["per_op"] for row in by_model.values() if row["per_op"] is not None]
    stay = [row["resident"] for row in by_model.values() if row["resident"] is not None]
    if not apart or not stay:
        return None
    met = max(stay) <= paper.GOAL_SHARE
    wide = _small_from(result)
    rest = "" if met or wide is None else f"; it is met from a width of {wide:,} up"
    return {
        "question": "How much of a step do transfers take?",
        "answer": f"{_range(apart)} if the tensors of every op are moved (paper: "
        f"{paper.TRANSFER_SHARE:.0%}), and {_range(stay)} if they stay on the "
        f"device. The goal there is at most {paper.GOAL_SHARE:.0%}: "
        f"{'met' if met else f'not met by every model{rest}'}.",
        "kind": "good" if met else "bad",
        "per_op": apart,
        "resident": stay,
    }


def _small_from(result: Row) -> int | None:
    """The smallest width from which transfers stay below the goal."""
    first = None
    for row in reversed(result["sweep"]):
        stay = resident_parts(row["ways"][OPTIMISED]) if OPTIMISED in row["ways"] else None
        if stay is None or stay["share"] > paper.GOAL_SHARE:
            break
        first = row["width"]
    return first


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    if f"{low:.1%}" == f"{high:.1%}":
        return f"{low:.1%}"
    return f"{low:.1%} to {high:.1%}"


def _cost(result: Row) -> Row | None:
    """Whether transfers cost latency or bandwidth, according to the fit."""
    lines = fits(result)
    rows = {
        name: cut
        for name, row in result["models"].items()
        if APART[1] in row["ways"] and (cut := parts(row["ways"][APART[1]], lines)) and cut["latency"] is not None
    }
    if not rows:
        return None
    latency = {name: cut["latency"] / cut["transfers"] for name, cut in rows.items()}
    word = (
        "latency"
        if min(latency.values()) > 0.5
        else "bandwidth"
        if max(latency.values()) < 0.5
        else "latency for small models, bandwidth for large ones"
    )
    texts = [
        f"{word}: {_range(list(latency.values()))} of the transfer time is a fixed "
        "cost that does not depend on the number of bytes."
    ]
    for name, line in lines.items():
        if line:
            texts.append(
                f"A transfer {DIRECTIONS[name]} takes {_si(line['latency_s'], 's')} "
                f"(± {_si(line['latency_error_s'], 's')}) and "
                f"{_si(1e6 / line['bytes_s'], 's')} more per megabyte "
                f"({line['bytes_s'] * 1e-9:.1f} GB/s"
                f" ± {line['bytes_s_error'] / line['bytes_s']:.0%}; the line is off by "
                f"{line['rms_error']:.0%})."
            )
    launch = result["launches"].get("round_trip")
    if launch:
        texts.append(f"A launch takes, with waiting for it, {_si(launch['median'], 's')}.")
    explained = [cut["predicted"] / cut["transfers"] for cut in rows.values()]
    texts.append(f"These figures explain {_range(explained)} of the time that the transfers of a step take.")
    poor = any(line and line["rms_error"] > POOR_FIT for line in lines.values())
    if poor:
        texts.append("The line fits poorly, so the split between the two is rough.")
    return {
        "question": "Is the cost latency or bandwidth?",
        "answer": _sentence(" ".join(texts)),
        "kind": "note",
        "latency_share": latency,
    }


def _si(value: float, unit: str) -> str:
    for factor, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def _kernels(result: Row) -> Row | None:
    best = peaks(result)
    if NAIVE not in best or OPTIMISED not in best:
        return None
    gain = best[OPTIMISED][0] / best[NAIVE][0]
    cpu = f"; PyTorch on the CPU {best[REFERENCE][0]:.3g} GFLOP/s" if REFERENCE in best else ""
    theirs = [b / a for a, b in zip(paper.GFLOPS[paper.STOCK], paper.GFLOPS[paper.GPU], strict=True)]
    return {
        "question": "What are better kernels worth?",
        "answer": f"Matrix products at their best: naive {best[NAIVE][0]:.3g} GFLOP/s, "
        f"optimised {best[OPTIMISED][0]:.3g} GFLOP/s, {gain:.1f} times as fast "
        f"(paper: {min(theirs):.1f} to {max(theirs):.1f} times){cpu}.",
        "kind": "good" if gain > 1 else "bad",
        "gain": gain,
    }


def _layers(result: Row) -> Row | None:
    """A hint in the paper: does the per-op time follow the number of layers or of bytes?"""
    took = {name: seconds(row["ways"].get(APART[1]), "backward") for name, row in result["models"].items()}
    m1, m2, m3 = (took.get(name) for name in ("m1", "m2", "m3"))
    if not m1 or not m2 or not m3:
        return None
    theirs = paper.BACKWARD_US
    bytes_ratio = [b / a for a, b in zip(theirs["m1"][paper.GPU], theirs["m3"][paper.GPU], strict=True)]
    layer_ratio = [b / a for a, b in zip(theirs["m1"][paper.GPU], theirs["m2"][paper.GPU], strict=True)]
    follows = m2 / m1 > m3 / m1
    return {
        "question": "Does the time follow the layers or the bytes?",
        "answer": f"{'The layers' if follows else 'The bytes'}, in the per-op placement: three "
        f"times the layers (M2) take {m2 / m1:.1f} times as long backward as M1, 256 "
        f"times the weights (M3) {m3 / m1:.1f} times. In the paper: "
        f"{min(layer_ratio):.1f} to {max(layer_ratio):.1f} and "
        f"{min(bytes_ratio):.1f} to {max(bytes_ratio):.1f}.",
        "kind": "note",
    }
