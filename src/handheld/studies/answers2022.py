"""What a result of das2022 says: pure functions of the document, no device.

A transfer of b bytes is taken to last latency + b / bandwidth. The two are fitted to transfers of
many sizes by their relative errors, so that 4 bytes count as much as 4 MiB; the fit's own error is
told with it, since no driver follows a line exactly.
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
    """The study's questions, answered for this device: `question`, `answer` and `kind`, which is
    good, bad or note."""
    found = []
    if on_cpu(result):
        found.append(
            {
                "question": "Which processors are compared?",
                "kind": "note",
                "answer": f"This OpenCL device is the CPU ({result['caps']['name']}): both sides run "
                "on the same cores. What follows compares two ways to program them, and says "
                "nothing about a GPU.",
            }
        )
    for make in (_wins, _wins_apart, _share, _cost, _kernels, _layers):
        one = make(result)
        if one is not None:
            found.append(one)
    if not result["complete"]:
        found.append(
            {
                "question": "Is everything measured?",
                "kind": "bad",
                "answer": "No: the study was stopped. Answers rest on what there is.",
            }
        )
    return found


def _name(result: Row) -> str:
    return "OpenCL on the CPU" if on_cpu(result) else "the GPU"


def _wins(result: Row) -> Row | None:
    found = crossover(result, OPTIMISED)
    models = {
        name: (cpu[1] / mine)
        for name, row in result["models"].items()
        if (cpu := best_cpu(row["ways"])) and (mine := seconds(row["ways"].get(OPTIMISED), "step"))
    }
    if not found["widths"] and not models:
        return None
    said = [_from_width(found, f"{_name(result)} trains faster than the CPU")]
    if models:
        said.append(
            "Of the study's models: "
            + ", ".join(f"{name.upper()} {_times(ratio)}" for name, ratio in models.items())
            + "."
        )
    won = found["from_width"] is not None or any(r > 1 for r in models.values())
    return {
        "question": f"Does {_name(result)} win, with everything on the device?",
        "answer": _sentence(" ".join(said)),
        "kind": "good" if won else "bad",
        "from_width": found["from_width"],
        "models": models,
    }


def _wins_apart(result: Row) -> Row | None:
    found = crossover(result, OPTIMISED + PER_OP)
    if not found["widths"]:
        return None
    return {
        "question": "And if every op's tensors cross, as in the study?",
        "answer": _sentence(_from_width(found, f"{_name(result)} would train faster than the CPU")),
        "kind": "bad" if found["from_width"] is None else "note",
        "from_width": found["from_width"],
    }


def _from_width(found: Row, what: str) -> str:
    """Beginning with a small letter."""
    if not found["widths"]:
        return "no sweep of widths was measured."
    widest = max(found["widths"])
    if found["from_width"] is None:
        return f"no: up to a width of {widest:,} the CPU is faster ({_times(found['widths'][widest])} at {widest:,})."
    if found["from_width"] == min(found["widths"]):
        return (
            f"yes: {what} at every width tried, from {found['from_width']:,} on "
            f"({_times(found['widths'][widest])} at {widest:,})."
        )
    return f"{what} from a width of {found['from_width']:,} on ({_times(found['widths'][widest])} at {widest:,})."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times as slow"


def _share(result: Row) -> Row | None:
    found = shares(result)
    apart = [row["per_op"] for row in found.values() if row["per_op"] is not None]
    stay = [row["resident"] for row in found.values() if row["resident"] is not None]
    if not apart or not stay:
        return None
    met = max(stay) <= paper.GOAL_SHARE
    wide = _small_from(result)
    rest = "" if met or wide is None else f"; it is met from a width of {wide:,} on"
    return {
        "question": "How much of a step do transfers take?",
        "answer": f"{_range(apart)} where every op's tensors cross (the paper: "
        f"{paper.TRANSFER_SHARE:.0%}), and {_range(stay)} where they stay on the "
        f"device. The goal there is at most {paper.GOAL_SHARE:.0%}: "
        f"{'met' if met else f'not met by every model{rest}'}.",
        "kind": "good" if met else "bad",
        "per_op": apart,
        "resident": stay,
    }


def _small_from(result: Row) -> int | None:
    """The width from which on transfers stay below the goal."""
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
    """Latency or bandwidth, by the fit."""
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
        else "latency for the small, bandwidth for the large"
    )
    said = [
        f"{word}: {_range(list(latency.values()))} of the time in transfers is their fixed "
        "cost and would be the same for no bytes at all."
    ]
    for name, line in lines.items():
        if line:
            said.append(
                f"A transfer {DIRECTIONS[name]} takes {_si(line['latency_s'], 's')} "
                f"(± {_si(line['latency_error_s'], 's')}) and "
                f"{_si(1e6 / line['bytes_s'], 's')} more a megabyte "
                f"({line['bytes_s'] * 1e-9:.1f} GB/s"
                f" ± {line['bytes_s_error'] / line['bytes_s']:.0%}; the line is off by "
                f"{line['rms_error']:.0%})."
            )
    launch = result["launches"].get("round_trip")
    if launch:
        said.append(f"A launch that is waited for takes {_si(launch['median'], 's')}.")
    explained = [cut["predicted"] / cut["transfers"] for cut in rows.values()]
    said.append(f"From these one would expect {_range(explained)} of the time that a step's transfers take.")
    poor = any(line and line["rms_error"] > POOR_FIT for line in lines.values())
    if poor:
        said.append("The line fits poorly: take the cut between the two as rough.")
    return {
        "question": "Is the cost latency or bandwidth?",
        "answer": _sentence(" ".join(said)),
        "kind": "note",
        "latency_share": latency,
    }


def _si(value: float, unit: str) -> str:
    for factor, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def _kernels(result: Row) -> Row | None:
    found = peaks(result)
    if NAIVE not in found or OPTIMISED not in found:
        return None
    gain = found[OPTIMISED][0] / found[NAIVE][0]
    cpu = f"; PyTorch on the CPU {found[REFERENCE][0]:.3g} GFLOP/s" if REFERENCE in found else ""
    theirs = [b / a for a, b in zip(paper.GFLOPS[paper.STOCK], paper.GFLOPS[paper.GPU], strict=True)]
    return {
        "question": "What are better kernels worth?",
        "answer": f"Matrix products at their best: naive {found[NAIVE][0]:.3g} GFLOP/s, "
        f"optimised {found[OPTIMISED][0]:.3g} GFLOP/s, {gain:.1f} times as fast "
        f"(the paper: {min(theirs):.1f} to {max(theirs):.1f} times){cpu}.",
        "kind": "good" if gain > 1 else "bad",
        "gain": gain,
    }


def _layers(result: Row) -> Row | None:
    """The paper's hint: does the per-op time follow layers or bytes?"""
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
