"""Training on two devices: how the batch is split between them, and whether that is faster than one of them.

Both devices are measured alone on their part, and the split follows their speeds. Then the pair and its faster device
take turns. The pair is used only if it is the faster one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from handheld.device import canonical
from handheld.errors import HandheldError, PlanError
from handheld.graph.graph import Graph
from handheld.profile.inputs import inputs_for
from handheld.profile.turns import LEAST_STEPS, Turns, take_turns
from handheld.run.pair import PairTrainer, Split, split_step
from handheld.run.sizes import rows
from handheld.run.trainer import Trainer
from handheld.step import Step

#: A split is made anew if the measured speeds ask for one that differs by more than this share of the batch.
NEAR = 0.08
#: How long the pair and one device take turns.
SECONDS = 3.0
#: The update of the pair must be that of one device up to this share of its length; rounding is far below.
ALIKE = 0.02

Say = Callable[[str], None]
Opened = Callable[[PairTrainer], None]


@dataclass(frozen=True)
class Paired:
    """A started trainer: a `PairTrainer`, or that of one device if it was faster. `text` says which and why."""

    trainer: Trainer
    text: str
    #: The turns of one device (before) and the pair (after).
    turns: Turns
    split: Split


def is_pair(device: str) -> bool:
    return "+" in device


def devices_of(device: str) -> tuple[str, str]:
    """The two devices of a name such as `opencl:gpu+opencl:cpu`. Raises HandheldError."""
    names = [name.strip() for name in device.split("+")]
    if len(names) != 2 or not all(names):
        raise HandheldError(f"{device!r} must be two devices. Try: --on opencl:0+opencl:1")
    return canonical(names[0]), canonical(names[1])


def first_of(device: str) -> str:
    """The first device of a pair, or the device itself."""
    return devices_of(device)[0] if is_pair(device) else device


def start_pair(
    step: Step,
    devices: tuple[str, str],
    graph: str,
    graphs: Sequence[str],
    *,
    seconds: float = SECONDS,
    say: Say = lambda text: None,
    force: bool = False,
    opened: Opened = lambda pair: None,
    **options: Any,
) -> Paired:
    """Start a trainer on two devices, or on the faster one of them if it is not slower alone.

    `graph` is the training graph of the whole batch, `graphs` are all that the trainer needs. `options` are those of
    `step.plan`, for both devices. With `force` the pair is used in any case. Raises PlanError if the step cannot be
    split. The state of the step does not change. `opened` is told about each pair that is opened.
    """
    if options.get("precision", "float32") != "float32":
        raise PlanError("two devices train in float32 only: the loss scale is kept per device. Try: one device")
    whole = step.graph(graph)
    batch = rows(whole)
    if batch < 2:
        raise PlanError(f"a batch of {batch} cannot be split between two devices. Try: a larger batch, or one device")
    inputs = _arrays(whole)

    def open_at(devices: tuple[str, str], first: int) -> PairTrainer:
        pair = _opened(step, devices, (first, batch - first), graphs, options, say)
        opened(pair)
        return pair

    pair = open_at(devices, batch - batch // 2)
    try:
        pair = _balanced(pair, devices, inputs, open_at, say)
        before = _state(pair)
        _check_equal(pair, graph, whole, inputs, before)
        say(f"measuring {' + '.join(pair.devices)} and {pair.devices[0]} in turns")
        turns = take_turns(_alone(pair, graph, inputs), together(pair, inputs), seconds=seconds)
        _restore(pair, before)
    except BaseException:
        pair.close()
        raise
    return _decided(pair, turns, force, step, graphs, options)


def _decided(
    pair: PairTrainer, turns: Turns, force: bool, step: Step, graphs: Sequence[str], options: Mapping[str, Any]
) -> Paired:
    one, other = pair.devices
    split = pair.split
    figures = f"{turns.after_ms:.3g} ms per step together, {turns.before_ms:.3g} ms on {one} alone, measured in turns"
    parts = f"{split.first} samples on {one}, {split.second} on {other}"
    if turns.low > 1 or force:
        return Paired(pair, f"{one} + {other}: {parts}; {figures}", turns, split)
    device = pair.plan.device
    pair.close()
    alone = step.plan(device, graphs=list(graphs), **options).start()
    return Paired(alone, f"{one} alone, because two devices are not faster: {figures} ({parts})", turns, split)


def _opened(
    step: Step,
    devices: tuple[str, str],
    samples: tuple[int, int],
    graphs: Sequence[str],
    options: Mapping[str, Any],
    say: Say,
) -> PairTrainer:
    split = split_step(step, *samples)
    say(f"building the step for {devices[0]} ({split.first} samples) and {devices[1]} ({split.second})")
    own = step.plan(devices[0], graphs=[*graphs, split.gradients[0], split.update], micro_batches=1, **options)
    # The second device computes gradients and nothing else, so it needs no state of the optimizer.
    other = _gradient_step(step, split).plan(devices[1], micro_batches=1, **options)
    return PairTrainer(own, other, split)


def _gradient_step(step: Step, split: Split) -> Step:
    graph = step.graph(split.gradients[1])
    slots = {name: step.slots[name] for name in graph.slots}
    return Step(slots, {n: step.values[n].copy() for n in slots}, {split.gradients[1]: graph}, step.meta)


def _balanced(
    pair: PairTrainer,
    devices: tuple[str, str],
    inputs: Sequence[np.ndarray],
    open_at: Callable[[tuple[str, str], int], PairTrainer],
    say: Say,
) -> PairTrainer:
    """The pair with its parts as large as the devices are fast, and the faster device first."""
    say("measuring the speed of both devices")
    before = _state(pair)
    speeds = _speeds(pair, inputs)
    _restore(pair, before)
    if speeds[1] > speeds[0]:
        devices, speeds = (devices[1], devices[0]), (speeds[1], speeds[0])
    batch = pair.split.batch
    first = min(max(round(batch * speeds[0] / sum(speeds)), 1), batch - 1)
    same = devices[0] == pair.plan.device
    if same and abs(first - pair.split.first) <= NEAR * batch:
        return pair
    pair.close()
    return open_at(devices, first)


def _speeds(pair: PairTrainer, inputs: Sequence[np.ndarray]) -> tuple[float, float]:
    """Samples per second of both devices, each alone on its part: the gradients, and their way to the host."""
    parts = pair.parts(inputs)
    counts = (pair.split.first, pair.split.second)
    found = []
    for which in (0, 1):

        def run(steps: int, which: int = which) -> float:
            begun = time.perf_counter()
            for _ in range(steps):
                for pending in pair.start_gradients(which, parts[which])[1]:
                    pending.read()
            return time.perf_counter() - begun

        run(1)
        found.append(counts[which] * LEAST_STEPS / min(run(LEAST_STEPS) for _ in range(3)))
    return found[0], found[1]


def _alone(pair: PairTrainer, graph: str, inputs: Sequence[np.ndarray]) -> Callable[[int], float]:
    def run(steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            pair.run(graph, *inputs)
        pair.session.finish()
        return time.perf_counter() - begun

    return run


def together(pair: PairTrainer, inputs: Sequence[np.ndarray]) -> Callable[[int], float]:
    """Runs steps on both devices; returns their seconds."""

    def run(steps: int) -> float:
        pair.forget()  # A step of one device may have come before.
        begun = time.perf_counter()
        for _ in range(steps):
            pair.step(*inputs)
        pair.session.finish()
        return time.perf_counter() - begun

    return run


def _arrays(graph: Graph) -> list[np.ndarray]:
    found = inputs_for(None, graph, 0)
    return [np.asarray(array) for array in found]


def _state(pair: PairTrainer) -> dict[str, np.ndarray]:
    slots = pair.plan.step.slots
    return {name: pair.session.read_slot(name) for name, slot in slots.items() if slot.role != "constant"}


def _restore(pair: PairTrainer, values: Mapping[str, np.ndarray]) -> None:
    pair.forget()
    for name, value in values.items():
        pair.session.write_slot(name, value)


def _check_equal(
    pair: PairTrainer, graph: str, whole: Graph, inputs: Sequence[np.ndarray], before: Mapping[str, np.ndarray]
) -> None:
    """Raises PlanError if a step of the pair is another one than that of one device: if the loss is no mean over
    samples, or if samples influence each other. Random numbers are drawn per device, so with them it cannot be told."""
    if any(instr.op == "random" for node in whole.nodes for instr in node.attrs.get("program", ())):
        return
    names = [name for name, slot in pair.plan.step.slots.items() if slot.role == "parameter"]
    after = []
    for together in (False, True):
        _restore(pair, before)
        float(pair.step(*inputs) if together else pair.run(graph, *inputs))
        after.append({name: pair.session.read_slot(name) for name in names})
    _restore(pair, before)
    length = _norm({name: after[0][name] - before[name] for name in names})
    apart = _norm({name: after[1][name] - after[0][name] for name in names})
    if apart > ALIKE * length:
        raise PlanError(
            f"the update on two devices differs from that on one by {apart / max(length, 1e-30):.0%} of its length: "
            "the loss is no mean over samples, or samples of a batch influence each other. Try: one device"
        )


def _norm(values: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(value, dtype=np.float64))) for value in values.values())))
