"""The ten findings on run files with planted properties: each answer follows from these properties."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handheld.analyse.busy import warning_of_runs
from handheld.sensors.base import Channel
from handheld.store.commands import LAUNCH
from handheld.studies.checks2019 import IS_CPU
from handheld.studies.findings2019 import FAILS, HOLDS, UNKNOWN, Answer, answers
from handheld.studies.observations import observe
from helpers.run_files import MadeRun, busy, rising

GPU = {"name": "made up", "kind": "gpu"}
CPU = {"name": "made up", "kind": "cpu"}
KINDS = {"cpu0": "big", "cpu1": "little"}

Row = dict[str, Any]


def constant(value: float) -> Callable[[float], float]:
    return lambda _: value


def row(
    folder: Path,
    batch: int = 4,
    *,
    name: str = "net",
    domain: str = "vision",
    caps: Row = GPU,
    ms: float = 10.0,
    steps: int = 120,
    wait_ms: float = 0.0,
    slower: Callable[[int], float] = lambda i: 1.0,
    watts: Callable[[float], float] | dict[str, float] | None = None,
    cores: Callable[[float], tuple[float, float]] | None = lambda t: (0.3, 0.3),
    kinds: dict[str, str] | None = None,
    live: Row | None = None,
) -> Row:
    """The observed run of one workload at one batch size."""
    made = MadeRun(
        folder / f"{name}-{batch}.run",
        caps=caps,
        machine={"core_kinds": kinds or {}},
        settings={"what": name, "batch": batch},
    )
    if live:
        made.writer.put(
            "op",
            1,
            "train",
            1,
            "conv_input",
            "aten.conv_input",
            "backward",
            "layer",
            "sig1",
            "default",
            1,
            1000,
            2000,
            json.dumps(live),
        )
    made.steps(
        steps,
        commands=((LAUNCH, 0, 0.6 * ms), (LAUNCH, 1, 0.4 * ms)),
        every=12,
        outside_ms=lambda i: wait_ms,
        slower=slower,
    )
    if cores:
        counters = [rising(lambda t, n=n: cores(t)[n]) for n in (0, 1)]
        made.source("cpu", busy("cpu0 busy", "cpu1 busy"), 10, lambda t: [counter(t) for counter in counters])
    _powered(made, watts)
    with made.open() as run:
        return observe(run, name, domain)


def _powered(made: MadeRun, watts: Callable[[float], float] | dict[str, float] | None) -> None:
    """Adds power sensors: one per part, or one for everything."""
    if isinstance(watts, dict):
        made.source(
            "rails",
            [Channel(part, "power", covers=(part,)) for part in watts],
            10,
            lambda t: [value + 1e-6 * (round(t * 100) % 2) for value in watts.values()],
        )
    elif watts:
        counter = rising(watts)
        made.source("meter", [Channel("all", "energy", counter=True, covers=("system",))], 10, lambda t: [counter(t)])


def answer(number: int, *rows: Row) -> Answer:
    found = answers(rows)[number - 1]
    assert found.number == number
    return found


def noise(seed: int, low: float, high: float, each_s: float) -> Callable[[float], float]:
    """A random level that changes at regular intervals."""
    return lambda t: random.Random(f"{seed} {int(t / each_s)}").uniform(low, high)


# ── 1, 3, 5: the device's load ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("wait_ms", "word"), [(0.0, HOLDS), (10.0, FAILS)])
def test_1_a_device_that_waits_is_not_near_full(tmp_path, wait_ms, word):
    found = answer(1, row(tmp_path, wait_ms=wait_ms))
    assert found.answer == word, found
    assert "device busy" in found.figure and found.paper


def test_1_cores_beyond_what_the_paper_saw(tmp_path):
    found = answer(1, row(tmp_path, cores=lambda t: (0.95, 0.95)))
    assert found.answer == FAILS and found.checks[1].holds is False


@pytest.mark.parametrize(("sign", "holds"), [(-1, True), (1, False)])
def test_1_device_and_cores_over_time(tmp_path, sign, holds):
    """Steps of 1.2 s that begin with a gap of half their length, in which the cores work or do not."""
    made = MadeRun(tmp_path / "a.run", caps=GPU, settings={"what": "net", "batch": 4})
    made.steps(12, commands=((LAUNCH, 0, 600.0),), every=4, outside_ms=lambda i: 600.0)
    counters = [rising(lambda t: 0.5 if (t % 1.2 < 0.6) == (sign < 0) else 0.1) for _ in (0, 1)]
    made.source("cpu", busy("cpu0 busy", "cpu1 busy"), 10, lambda t: [c(t) for c in counters])
    with made.open() as run:
        seen = observe(run)["against"]
    assert seen["r"] is not None, seen["why"]
    assert (seen["r"] < -0.2) == holds, seen


def test_1_3_5_are_no_questions_to_a_cpu(tmp_path):
    rows = [
        row(tmp_path, caps=CPU),
        row(tmp_path, 64, caps=CPU),
        row(tmp_path, 64, name="lstm", domain="recurrent", caps=CPU),
    ]
    for number in (1, 3, 5):
        found = answer(number, *rows)
        assert found.answer == UNKNOWN and IS_CPU in found.why and "it is the CPU" in found.figure


@pytest.mark.parametrize(("waits", "word"), [((5.0, 1.0), HOLDS), ((1.0, 5.0), FAILS)])
def test_3_load_grows_with_batch(tmp_path, waits, word):
    found = answer(3, *(row(tmp_path, b, wait_ms=w) for b, w in zip((4, 64), waits, strict=True)))
    assert found.answer == word, found


def test_3_cores_that_work_more_at_larger_batches(tmp_path):
    found = answer(3, row(tmp_path, 4, wait_ms=5.0), row(tmp_path, 64, wait_ms=1.0, cores=lambda t: (0.6, 0.6)))
    assert found.answer == FAILS and [c.holds for c in found.checks] == [True, False]


@pytest.mark.parametrize(("wait_ms", "word"), [(30.0, HOLDS), (1.0, FAILS)])
def test_5_a_recurrent_model_beside_vision(tmp_path, wait_ms, word):
    found = answer(5, row(tmp_path), row(tmp_path, name="lstm", domain="recurrent", wait_ms=wait_ms))
    assert found.answer == word, found
    assert answer(5, row(tmp_path, name="alone")).why == "no recurrent model was measured"


# ── 2, 7: what repeats ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("low", "high", "word"), [(0.98, 1.02, HOLDS), (0.4, 1.8, FAILS)])
def test_2_steps_that_repeat_and_steps_that_do_not(tmp_path, low, high, word):
    draw = random.Random(3)
    found = answer(2, row(tmp_path, slower=lambda i: draw.uniform(low, high)))
    assert found.answer == word, found.figure
    assert "held out" in found.figure and "naive" in found.figure


@pytest.mark.parametrize(("cores", "holds"), [(constant(0.3), True), (noise(2, 0.0, 1.0, 0.25), False)])
def test_2_cores_that_repeat_and_cores_that_do_not(tmp_path, cores, holds):
    found = answer(2, row(tmp_path, steps=300, cores=lambda t: (cores(t), cores(t))))
    assert found.checks[2].holds is holds, found.checks[2]
    assert (found.answer == HOLDS) is holds


def test_2_says_how_far_off_it_is(tmp_path):
    """Later steps are a quarter slower than the steps that the prediction is based on."""
    seen = row(tmp_path, slower=lambda i: 1.0 if i < 60 else 1.25)["prediction"]["ops"]
    assert seen["error"] == pytest.approx(0.2, abs=0.03)  # relative to the measured time: 0.25 / 1.25
    assert seen["held_out"] >= 10 and seen["learned_from"] >= 10


@pytest.mark.parametrize(
    ("watts", "word"), [(constant(10.0), HOLDS), (noise(1, 9.5, 10.5, 0.06), HOLDS), (noise(1, 2.0, 30.0, 0.06), FAILS)]
)
def test_7_power_that_repeats_and_power_that_does_not(tmp_path, watts, word):
    found = answer(7, row(tmp_path, watts=watts, steps=240))
    assert found.answer == word, found.figure
    assert "naive" in found.figure


@pytest.mark.parametrize(("regular", "word"), [(True, HOLDS), (False, FAILS)])
def test_7_power_within_a_step(tmp_path, regular, word):
    """Steps of 100 ms. The second half draws three times the power, or a randomly chosen half does."""

    def watts(t: float) -> float:
        late = t % 0.1 > 0.05
        if not regular:
            late ^= random.Random(int(t / 0.1)).random() < 0.5
        return 15.0 if late else 5.0

    seen = row(tmp_path, ms=100.0, steps=48, watts=watts)
    found = answer(7, seen)
    assert found.answer == word, found
    assert seen["prediction"]["power_within"]["bins"] >= 4


def test_6_7_8_without_a_sensor_of_power(tmp_path):
    rows = [row(tmp_path, 4), row(tmp_path, 64)]
    for number in (6, 7, 8):
        found = answer(number, *rows)
        assert found.answer == UNKNOWN and found.why == "there is no power sensor here"
        assert not found.figure


def test_7_a_run_too_short_for_its_sensor(tmp_path):
    found = answer(7, row(tmp_path, steps=8, watts=constant(5.0)))
    assert found.answer == UNKNOWN and "short" in found.why


# ── 4: cores ──────────────────────────────────────────────────────────────────────────────────


def bursts(share: float) -> Callable[[float], float]:
    """A core that is busy for the first part of every second."""
    return lambda t: 1.0 if t % 1.0 < share else 0.0


@pytest.mark.parametrize(("little", "word"), [(0.3, HOLDS), (0.9, FAILS)])
def test_4_kinds_of_cores(tmp_path, little, word):
    one, other = bursts(0.9), bursts(little)
    seen = row(tmp_path, steps=300, kinds=KINDS, cores=lambda t: (one(t), other(t)))
    found = answer(4, seen)
    assert found.answer == word, found
    idle = {core["kind"]: core["idle"] for core in seen["cores"]}
    assert idle["big"] == pytest.approx(0.1, abs=0.06)
    assert idle["little"] == pytest.approx(1 - little, abs=0.06)


def test_4_cores_that_are_alike_or_not_known(tmp_path):
    alike = answer(4, row(tmp_path, kinds={"cpu0": "big", "cpu1": "big"}))
    assert alike.answer == UNKNOWN and "alike (big)" in alike.why
    unknown = answer(4, row(tmp_path, name="other"))
    assert unknown.answer == UNKNOWN and "does not report" in unknown.why


@pytest.mark.parametrize(("own", "said"), [(0.5, "held 35% of the 2 cores during the run"), (1.2, "")])
def test_others_on_the_machine_are_named(tmp_path, own, said):
    """Two cores are busy for 0.6 of the time each; the run's own process takes a given part of that."""
    made = MadeRun(tmp_path / "a.run", caps=CPU, settings={"what": "net", "batch": 4})
    made.steps(120)
    counters = [rising(lambda t, rate=rate: rate) for rate in (0.6, 0.6, own)]
    made.source("cpu", busy("cpu0 busy", "cpu1 busy"), 10, lambda t: [c(t) for c in counters[:2]])
    made.source("process", busy("cpu time"), 10, lambda t: [counters[2](t)])
    with made.open() as run:
        text = warning_of_runs([observe(run)], {"cores": 2})
    assert said in text and bool(text) == bool(said)


# ── 6, 8: power and energy ────────────────────────────────────────────────────────────────────

LIKE_THE_PAPER = {"gpu": 8.0, "cpu": 2.0, "memory": 4.0, "system": 15.0}


@pytest.mark.parametrize(
    ("part", "watts", "index"), [("", 0.0, None), ("cpu", 7.0, 0), ("memory", 8.0, 1), ("system", 40.0, 2)]
)
def test_6_power_by_rail(tmp_path, part, watts, index):
    rails = {**LIKE_THE_PAPER, **({part: watts} if part else {})}
    lstm = row(tmp_path, name="lstm", domain="recurrent", watts={"gpu": 1.0, "cpu": 1.0, "memory": 2.0, "system": 6.0})
    found = answer(6, row(tmp_path, watts=rails), lstm)
    assert [c.holds for c in found.checks] == [n != index for n in range(4)], found
    assert found.answer == (HOLDS if index is None else FAILS)


def test_6_memory_does_not_draw_most_for_the_lstm(tmp_path):
    lstm = row(tmp_path, name="lstm", domain="recurrent", watts=LIKE_THE_PAPER)
    found = answer(6, row(tmp_path, watts=LIKE_THE_PAPER), lstm)
    assert found.answer == FAILS and found.checks[3].holds is False


def test_6_names_the_rail_that_is_missing(tmp_path):
    found = answer(6, row(tmp_path, watts={"gpu": 8.0}))
    assert found.answer == UNKNOWN
    assert "no rail measures the cpu alone (rails here: rails/gpu)" in found.why


def test_an_nvidia_card_as_it_reports_itself(tmp_path):
    """A counter of the board that updates every 100 ms, the board's power, and the memory's part of it."""
    made = MadeRun(tmp_path / "a.run", caps=GPU, settings={"what": "net", "batch": 4})
    made.steps(450)
    joules = rising(lambda t: 300.0)
    channels = [
        Channel("gpu0 energy", "energy", counter=True, covers=("gpu",)),
        Channel("gpu0 power", "power", covers=("gpu",)),
        Channel("gpu0 memory power", "power", covers=("memory",), part_of="gpu0 power"),
    ]
    made.source(
        "nvidia-power", channels, 10, lambda t: [joules(t // 0.1 * 0.1), 300.0, 100.0 + 1e-3 * (round(t * 100) % 2)]
    )
    with made.open() as run:
        seen = observe(run, "net", "vision")
    assert [rail["rail"] for rail in seen["power"]] == ["nvidia-power/gpu0 energy", "nvidia-power/gpu0 memory power"]
    rails = answer(6, seen)
    assert "GPU relative to memory 2.0×" in rails.figure, "its memory is subtracted from the board"
    assert rails.answer == HOLDS and rails.extent == "1 of 4 checks"
    assert "no rail measures the cpu alone" in rails.why
    foretold = seen["prediction"]["power"]
    assert foretold["tick_ms"] == pytest.approx(100, rel=0.2) and foretold["error"] < 0.05
    assert answer(7, seen).answer == HOLDS


@pytest.mark.parametrize(("ms", "word", "ratio"), [(40.0, HOLDS, "4×"), (200.0, FAILS, "20×")])
def test_8_energy_over_batch(tmp_path, ms, word, ratio):
    found = answer(8, row(tmp_path, 4, watts=constant(10.0)), row(tmp_path, 64, watts=constant(10.0), ms=ms))
    assert found.answer == word and ratio in found.figure, found.figure
    assert "meter/all" in found.figure


# ── 9, 10: memory and throughput ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("activation", "word"), [(900, HOLDS), (90, FAILS)])
def test_9_what_fills_memory(tmp_path, activation, word):
    rows = [
        row(tmp_path, b, live={"activation": activation * b // 4, "parameter": 2000, "gradient": 2000}) for b in (4, 64)
    ]
    found = answer(9, *rows)
    assert found.answer == word, found


def test_9_parameters_that_grow(tmp_path):
    found = answer(9, *(row(tmp_path, b, live={"activation": 900 * b, "parameter": 20 * b}) for b in (4, 64)))
    assert found.answer == FAILS and [c.holds for c in found.checks] == [True, False]


@pytest.mark.parametrize(("ms", "word"), [(40.0, HOLDS), (160.0, FAILS), (320.0, FAILS)])
def test_10_throughput_over_batch(tmp_path, ms, word):
    found = answer(10, row(tmp_path, 4), row(tmp_path, 64, ms=ms))
    assert found.answer == word, found
    shown = re.search(r": ([\d.]+)×", found.figure)
    assert shown is not None and float(shown[1]) == pytest.approx(160 / ms, rel=0.02)


def test_10_most_workloads_decide_and_the_others_are_named(tmp_path):
    rows = [
        row(tmp_path, b, name=name, ms=ms)
        for name in "abcd"
        for b, ms in ((4, 10.0), (64, 320.0 if name == "d" else 20.0))
    ]
    found = answer(10, *rows)
    assert found.answer == HOLDS and "(not: d)" in found.figure


def test_batches_too_near_say_nothing(tmp_path):
    found = answer(10, row(tmp_path, 4), row(tmp_path, 8))
    assert found.answer == UNKNOWN and "4× apart" in found.why


def test_rows_that_were_not_measured_do_not_count():
    failed = {"workload": "net", "batch": 64, "status": "out of memory", "why": "needs 9 GiB"}
    assert {a.answer for a in answers([failed])} == {UNKNOWN}
