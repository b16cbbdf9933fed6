"""The advice on the page of a run: what to change, what that would gain, why, and how to try it."""

from __future__ import annotations

import shlex

from handheld.analyse.advise import advice as given_advice
from handheld.analyse.rules.base import BYTES, JOULES, MODEL, SAME, SAMPLE, STEP, TRAINING, Advice
from handheld.analyse.run import Run
from handheld.report.pack import rounded

MOST = 3
UNNAMED = (
    "This run does not say which model (MODEL) it measured, so its changes cannot be tried automatically. "
    "Try: handheld profile MODEL, and the advice of that run."
)
_GAINS = {STEP: "faster", SAMPLE: "faster per sample", BYTES: "less memory", JOULES: "less energy per sample"}
_EFFECTS = {SAME: "same results", TRAINING: "changes the training", MODEL: "changes the model"}


def advice(run: Run) -> dict[str, object]:
    """The best pieces of advice, how many more there are, and a sentence if there are none or none can be tried."""
    given = given_advice(run)
    return {
        "items": [_item(run, item) for item in given[:MOST]],
        "more": max(len(given) - MOST, 0),
        "all": f"handheld advise {_name(run)}",
        "none": "" if given else _none(run),
        "note": UNNAMED if any(item.to for item in given[:MOST]) and not _named(run) else "",
    }


def _item(run: Run, item: Advice) -> dict[str, object]:
    command, note = _command(run, item)
    return {
        "rule": item.rule,
        "change": item.change[:1].upper() + item.change[1:],
        "factor": rounded(item.gain.factor),
        "spread": item.gain.spread,
        "gain": _GAINS[item.gain.quantity],
        "values": item.gain.values,
        "effect": _EFFECTS[item.effect],
        "seen": item.seen[:1].upper() + item.seen[1:],
        "costs_ms": rounded(item.costs_ms) or None,
        "command": command,
        "note": note,
    }


def _command(run: Run, item: Advice) -> tuple[str, str]:
    """A command that tries the change, and a sentence about it. Both may be empty."""
    if item.to is None:
        return "", f"Cannot be tried automatically: {item.why_not}. Try: {item.command}"
    if _named(run):
        return f"handheld advise {_name(run)} --try --rule {item.rule}", ""
    return ("" if item.command.startswith("handheld advise") else item.command), ""


def _named(run: Run) -> bool:
    """Whether the run says what it measured, as `handheld advise --try` needs it."""
    return bool((run.meta.get("settings") or {}).get("repeat"))


def _name(run: Run) -> str:
    """The run file, for a command. Its folder is not told: a page may be given away."""
    return shlex.quote(run.path.name)


def _none(run: Run) -> str:
    if not run.timed:
        return "There is no advice: no step of this run has op times."
    return "There is no advice: no rule found something clear to gain."
