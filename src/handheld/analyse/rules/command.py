"""The command that was run, with a change: what a piece of advice prints."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from handheld.units import parse_size, size

if TYPE_CHECKING:
    from handheld.analyse.run import Run


def command(run: Run, words: str = "", name: str = "profile") -> str:
    """A command about the same model with the options of the run, except those in `words`, which replace them."""
    settings = run.meta.get("settings") or {}
    stored = settings.get("repeat")
    repeat = {**stored, "batch": settings.get("batch")} if isinstance(stored, Mapping) else {}
    given = {
        "--size": settings.get("size"),
        "--on": _unless("opencl")(run.meta.get("device")),
        "--batch": settings.get("batch"),
        **{option: value(repeat) for option, value in _OPTIONS.items() if option not in _MISSING.get(name, ())},
    }
    if name == "train":
        given = {"--data": "DATA", **{option: value for option, value in given.items() if value is not None}}
    changed = shlex.split(words)
    same = [text for option, value in given.items() if option not in changed for text in _said(option, value)]
    model = settings.get("model")
    return " ".join(
        ["handheld", name, shlex.quote(str(model)) if model else "MODEL", *same, *([words] if words else [])]
    )


def _said(option: str, value: object) -> list[str]:
    """The words of an option. A list of values repeats it; without a value, it is left out."""
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    values = value if isinstance(value, list) else [value]
    return [f"{option} {shlex.quote(str(each))}" for each in values]


Value = Callable[[Mapping[str, Any]], object]


def _unless(default: object) -> Callable[[object], object]:
    return lambda value: None if value == default else value


def _of(name: str, default: object = None, part: str = "") -> Value:
    """The value of a setting, or None if it is the default. `part` is the group of options that it belongs to."""

    def value(repeat: Mapping[str, Any]) -> object:
        group = repeat.get(part) if part else repeat
        return _unless(default)(group.get(name)) if isinstance(group, Mapping) else None

    return value


def _joined(name: str, part: str, sign: str = ",") -> Value:
    """The same for a list that one word holds."""

    def value(repeat: Mapping[str, Any]) -> object:
        known = _of(name, None, part)(repeat)
        return sign.join(map(str, known)) if isinstance(known, list) and known else None

    return value


def _limit(repeat: Mapping[str, Any]) -> object:
    nbytes = repeat.get("memory_limit")
    return limit_text(nbytes) if isinstance(nbytes, int) else None


def limit_text(nbytes: int) -> str:
    """A memory limit as a person writes it, if that is exact."""
    text = size(nbytes).replace(" ", "").replace(".0", "")
    return text if parse_size(text) == nbytes else str(nbytes)


#: The options of `handheld profile` beside model, size, device and batch, in the order in which they are printed. A run
#: file keeps their values (`settings.repeat`).
_OPTIONS: Mapping[str, Value] = {
    "--precision": _of("precision", "float32"),
    "--steps": _of("steps", 50),
    "--graph": _of("graph"),
    "--data": _of("data"),
    "--image-size": _joined("image_size", "given", "x"),
    "--gray": _of("gray", False, "given"),
    "--label": _of("label", None, "given"),
    "--drop": _of("drop", None, "given"),
    "--one-hot": _of("one_hot", None, "given"),
    "--skip-bad": _of("skip_bad", False, "given"),
    "--length": _of("length", None, "given"),
    "--seed": _of("seed", 0),
    "--only": _joined("only", "partial"),
    "--freeze": _joined("freeze", "partial"),
    "--lora": _of("lora", None, "partial"),
    "--lora-on": _joined("lora_on", "partial"),
    "--frozen-bits": _of("bits", None, "partial"),
    "--memory-limit": _limit,
    "--spill": _of("spill", False, "means"),
    "--stream": _of("stream", False, "means"),
    "--spill-to": _of("spill_to", None, "means"),
    "--state-bits": _of("state_bits", 32, "means"),
}
#: Those that another command does not have.
_MISSING: Mapping[str, tuple[str, ...]] = {
    "train": ("--steps", "--graph"),
    "tune": ("--steps", "--seed", "--memory-limit", "--spill", "--stream", "--spill-to", "--state-bits"),
}
