"""Smaller updates on request: in 8 bits, or only the largest values, with error feedback.

An update is the difference between the state after training and the state that the server sent. What a form cannot
express is kept by the device and added to its next update (error feedback), so that nothing is lost over the rounds.

    int8        one scale per array; values in steps of scale
    topk:0.01   the largest 1% of all values, with their positions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from handheld.errors import HandheldError
from handheld.federated.model import State

#: What is put after the name of an array for its parts. A name of PyTorch never contains it.
VALUES, SCALE, PLACES = "|values", "|scale", "|places"


@dataclass(frozen=True)
class Form:
    """How updates are sent: "" (the state itself), "int8" or "topk"."""

    kind: str = ""
    share: float = 1.0

    @staticmethod
    def parse(text: str) -> Form:
        kind, _, rest = text.partition(":")
        if text in ("", "none"):
            return Form()
        if text == "int8":
            return Form("int8")
        try:
            share = float(rest or "0.01")
        except ValueError:
            share = 0.0
        if kind != "topk" or not 0 < share <= 1:
            raise HandheldError(f"updates cannot be compressed as {text!r:.40}. Try: int8, topk:0.01 or none")
        return Form("topk", share)

    def __str__(self) -> str:
        return f"topk:{self.share:g}" if self.kind == "topk" else self.kind or "none"


def encode(form: Form, update: Mapping[str, np.ndarray], left: Mapping[str, np.ndarray]) -> tuple[State, State]:
    """The parts that are sent, and what is left for the next round. `left` is that of the round before. Raises
    HandheldError if a value is not finite: no form can express it, and it would stay in what is left."""
    whole = {name: array + left[name] if name in left else array for name, array in update.items()}
    for name, array in whole.items():
        if not np.isfinite(array).all():
            raise HandheldError(f"{name} has values that are not finite")
    parts: State = {}
    if form.kind == "int8":
        for name, array in whole.items():
            scale = np.float32(np.abs(array).max(initial=0.0) / 127)
            steps = np.rint(array / scale) if scale > 0 else np.zeros_like(array)
            parts |= {name + VALUES: steps.astype(np.int8), name + SCALE: scale.reshape(1)}
    else:
        every = np.concatenate([np.abs(array).ravel() for array in whole.values()])
        count = max(1, round(form.share * every.size))
        least = np.partition(every, every.size - count)[every.size - count]
        for name, array in whole.items():
            places = np.flatnonzero(np.abs(array).ravel() >= least).astype(np.int32)
            parts |= {name + PLACES: places, name + VALUES: array.ravel()[places]}
    sent = decode(form, parts, whole)
    return parts, {name: array - sent[name] for name, array in whole.items()}


def decode(form: Form, parts: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray]) -> State:
    """The update that was sent. `like` has the names and shapes. Raises HandheldError if the parts do not fit it."""
    update: State = {}
    for name, array in like.items():
        try:
            values = parts[name + VALUES]
            if form.kind == "int8":
                update[name] = (values.astype(np.float32) * parts[name + SCALE][0]).reshape(array.shape)
                continue
            places = parts[name + PLACES]
        except (KeyError, ValueError, IndexError) as error:
            raise HandheldError(f"the compressed update of {name} is not complete ({error})") from None
        if places.shape != values.shape or (places.size and not 0 <= places.min() <= places.max() < array.size):
            raise HandheldError(f"the compressed update of {name} has positions outside of it")
        flat = np.zeros(array.size, np.float32)
        flat[places] = values
        update[name] = flat.reshape(array.shape)
    return update
