"""Answers from a result of das2022. These are pure functions of the document and need no device.

A transfer of b bytes is modelled as latency + b / bandwidth. Both are fitted to transfers of many sizes by
relative error, so that 4 bytes count as much as 4 MiB. The error of the fit is reported too, because no
driver follows a line exactly. What noise could have made is no answer: evidence2022 decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from handheld.studies import paper2022 as paper
from handheld.studies.derived2022 import (
    DIRECTIONS,
    POOR_FIT,
    against_cpu,
    crossover,
    fits,
    on_cpu,
    parts,
    peaks,
    seconds,
    shares,
)
from handheld.studies.evidence2022 import Ratio, busy, ratio
from handheld.studies.ways2022 import APART, NAIVE, OPTIMISED, PER_OP, REFERENCE
from handheld.targets.names import is_remote

Row = dict[str, Any]


def answers(result: Row) -> list[Row]:
    """The study's questions, answered for this device. Each has `question`, `answer` and `kind` (good, bad or note)."""
    compared = _compared(result)
    answers: list[Row] = []
    if compared:
        answers.append({"question": "Which processors are compared?", "kind": "note", "answer": compared})
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


def _compared(result: Row) -> str:
    """What is unusual about the two processors; empty if they are the GPU and the CPU of this machine."""
    name = result["caps"]["name"]
    if is_remote(result["device"]):
        return (
            f"Those of two machines: {name} of {result['device']}, and the CPU of this computer "
            f"({result['machine']['processor']}), because PyTorch runs here. The answers say nothing about the CPU of "
            f"{result['device']}."
        )
    if on_cpu(result):
        return (
            f"This OpenCL device is the CPU ({name}): both sides run on the same cores. The answers compare two ways "
            "to program them, and say nothing about a GPU."
        )
    return ""


def _name(result: Row) -> str:
    if is_remote(result["device"]):
        return str(result["device"])
    return "OpenCL on the CPU" if on_cpu(result) else "the GPU"


def _cpu(result: Row) -> str:
    return "the CPU of this computer" if is_remote(result["device"]) else "the CPU"


def _wins(result: Row) -> Row | None:
    cross = crossover(result, OPTIMISED)
    models = {
        name: found
        for name, row in result["models"].items()
        if (found := against_cpu(result, row["ways"], OPTIMISED)) is not None
    }
    if not cross["widths"] and not models:
        return None
    texts = [_from_width(cross, _name(result), "trains faster than", _cpu(result))]
    if models:
        texts.append(f"Of the study's models: {_told(models)}.")
    verdicts = [found.above(1.0) for found in (*models.values(), *cross["ratios"].values())]
    won = cross["from_width"] is not None or any(found.above(1.0) for found in models.values())
    return {
        "question": f"Does {_name(result)} win, with everything on the device?",
        "answer": _sentence(" ".join(texts)),
        "kind": "good" if won else "bad" if False in verdicts else "note",
        "from_width": cross["from_width"],
        "models": {name: found.value for name, found in models.items()},
        "told": {name: found.above(1.0) is not None for name, found in models.items()},
    }


def _told(models: Mapping[str, Ratio]) -> str:
    """The ratio of each model. Those that cannot be told for the same reason are named together."""
    texts = [f"{name.upper()} {_times(found.value)}" for name, found in models.items() if found.above(1.0) is not None]
    unknown: dict[str, list[str]] = {}
    for name, found in models.items():
        if found.above(1.0) is None:
            unknown.setdefault(found.why, []).append(name.upper())
    texts += [f"{', '.join(names)} cannot be told here ({why})" for why, names in unknown.items()]
    return "; ".join(texts)


def _wins_apart(result: Row) -> Row | None:
    cross = crossover(result, OPTIMISED + PER_OP)
    if not cross["widths"]:
        return None
    slower = any(found.above(1.0) is False for found in cross["ratios"].values())
    return {
        "question": "And if the tensors of every op are moved, as in the study?",
        "answer": _sentence(_from_width(cross, _name(result), "would train faster than", _cpu(result))),
        "kind": "bad" if cross["from_width"] is None and slower else "note",
        "from_width": cross["from_width"],
    }


def _from_width(cross: Row, name: str, wins: str, cpu: str) -> str:
    """A sentence that begins with a lower-case letter."""
    what = f"{name} {wins} {cpu}"
    if not cross["widths"]:
        return "no sweep of widths was measured."
    widest = max(cross["widths"])
    last: Ratio = cross["ratios"][widest]
    if cross["from_width"] is None:
        if last.above(1.0) is None:
            return f"this cannot be told here: {last.why}."
        untold = [width for width, found in cross["ratios"].items() if found.above(1.0) is not False]
        reach = "at" if untold else "up to"
        return f"no: {reach} a width of {widest:,} {cpu} is faster ({_times(last.value)} at {widest:,})."
    if cross["from_width"] == min(cross["widths"]):
        return (
            f"yes: {what} at every width tried, from {cross['from_width']:,} up ({_times(last.value)} at {widest:,})."
        )
    return f"{what} from a width of {cross['from_width']:,} up ({_times(last.value)} at {widest:,})."


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
    verdict, why = _goal(result)
    wide = _small_from(result)
    rest = "" if verdict is not False or wide is None else f"; it is met from a width of {wide:,} up"
    told = {True: "met", False: f"not met by every model{rest}", None: f"whether it is met cannot be told here ({why})"}
    return {
        "question": "How much of a step do transfers take?",
        "answer": f"{_range(apart)} if the tensors of every op are moved (paper: "
        f"{paper.TRANSFER_SHARE:.0%}), and {_range(stay)} if they stay on the "
        f"device. The goal there is at most {paper.GOAL_SHARE:.0%}: "
        f"{told[verdict]}.",
        "kind": {True: "good", False: "bad", None: "note"}[verdict],
        "per_op": apart,
        "resident": stay,
    }


def _goal(result: Row) -> tuple[bool | None, str]:
    """Whether the share of transfers is at most the goal in every model; None and the reason if it cannot be told."""
    found = [
        ratio(result, times["transfers"], times["step"])
        for row in result["models"].values()
        if OPTIMISED in row["ways"] and "transfers" in (times := row["ways"][OPTIMISED]["times"])
    ]
    above = [one.above(paper.GOAL_SHARE) for one in found]
    if True in above:
        return False, ""
    if None in above:
        return None, found[above.index(None)].why
    return True, ""


def _small_from(result: Row) -> int | None:
    """The smallest width from which transfers stay below the goal."""
    first = None
    for row in reversed(result["sweep"]):
        times = row["ways"][OPTIMISED]["times"] if OPTIMISED in row["ways"] else {}
        if (
            "transfers" not in times
            or ratio(result, times["transfers"], times["step"]).above(paper.GOAL_SHARE) is not False
        ):
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
    poor = any(line and line["rms_error"] > POOR_FIT for line in lines.values())
    share = (
        f"{_range(list(latency.values()))} of the transfer time is a fixed cost that does not depend on the number of"
    )
    why = busy(result) or ("the line fits poorly" if poor else "")
    texts = [f"this cannot be told here ({why}). By the fit, {share} bytes." if why else f"{word}: {share} bytes."]
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
    naive, own = (_products(result, way, best[way][1]) for way in (NAIVE, OPTIMISED))
    better = ratio(result, naive, own)
    # Both peaks may be at different widths, so the interval of the times is moved to the gain.
    better = replace(better, value=gain, low=better.low * gain / better.value, high=better.high * gain / better.value)
    verdict = better.above(1.0)
    worth = (
        f"{gain:.1f} times as fast" if verdict is not None else f"which is faster cannot be told here ({better.why})"
    )
    cpu = f"; PyTorch on {_cpu(result)} {best[REFERENCE][0]:.3g} GFLOP/s" if REFERENCE in best else ""
    theirs = [b / a for a, b in zip(paper.GFLOPS[paper.STOCK], paper.GFLOPS[paper.GPU], strict=True)]
    return {
        "question": "What are better kernels worth?",
        "answer": f"Matrix products at their best: naive {best[NAIVE][0]:.3g} GFLOP/s, "
        f"optimised {best[OPTIMISED][0]:.3g} GFLOP/s, {worth} "
        f"(paper: {min(theirs):.1f} to {max(theirs):.1f} times){cpu}.",
        "kind": {True: "good", False: "bad", None: "note"}[verdict],
        "gain": gain,
    }


def _products(result: Row, way: str, width: int) -> Row:
    """The times of the matrix products of a way at a width."""
    row = next(row for row in result["sweep"] if row["width"] == width)
    times: Row = row["ways"][way]["times"]["products"]
    return times


def _layers(result: Row) -> Row | None:
    """A hint in the paper: does the per-op time follow the number of layers or of bytes?"""
    took = {name: seconds(row["ways"].get(APART[1]), "backward") for name, row in result["models"].items()}
    m1, m2, m3 = (took.get(name) for name in ("m1", "m2", "m3"))
    if not m1 or not m2 or not m3:
        return None
    theirs = paper.BACKWARD_US
    bytes_ratio = [b / a for a, b in zip(theirs["m1"][paper.GPU], theirs["m3"][paper.GPU], strict=True)]
    layer_ratio = [b / a for a, b in zip(theirs["m1"][paper.GPU], theirs["m2"][paper.GPU], strict=True)]
    rows = {name: result["models"][name]["ways"][APART[1]]["times"]["backward"] for name in ("m2", "m3")}
    found = ratio(result, rows["m2"], rows["m3"])
    first = {True: "The layers", False: "The bytes", None: f"This cannot be told here ({found.why})"}[found.above(1.0)]
    return {
        "question": "Does the time follow the layers or the bytes?",
        "answer": f"{first}, in the per-op placement: three "
        f"times the layers (M2) take {m2 / m1:.1f} times as long backward as M1, 256 "
        f"times the weights (M3) {m3 / m1:.1f} times. In the paper: "
        f"{min(layer_ratio):.1f} to {max(layer_ratio):.1f} and "
        f"{min(bytes_ratio):.1f} to {max(bytes_ratio):.1f}.",
        "kind": "note",
    }
