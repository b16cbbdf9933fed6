"""The page of a training: what it says, and that it draws."""

from __future__ import annotations

import json
import math

from handheld.report.document import write_document
from handheld.report.training_page import MOST_POINTS, training_page
from handheld.sensors.base import Channel
from helpers import chromium
from helpers.blocks import found, words
from helpers.run_files import MS, MadeRun, rising


def trained(path, steps=90, epochs=3, sensors=True, **meta) -> MadeRun:
    made = MadeRun(path, settings={"what": "net <b>", "data": "digits", "batch": 8}, **meta)
    made.steps(steps, first=5, every=steps + 10)
    each = steps // epochs
    for step in range(1, steps + 1):
        loss = math.nan if step == 7 else 1 / step
        made.writer.put("training_step", step, (step - 1) // each + 1, made.now - (steps - step) * MS, loss, 0.1)
    for number in range(1, epochs + 1):
        test = json.dumps({"loss": 1 / number, "accuracy": 0.5 + 0.1 * number})
        made.writer.put("training_epoch", number, made.now, number * each, 0.5, 0.1, 100, 2.0, test, 3, "")
    if sensors:
        joules = rising(lambda s: 4.0)
        made.source("meter", (Channel("chip", "energy", counter=True, covers=("gpu",)),), 20, lambda s: (joules(s),))
        both = (Channel("cpu", "temperature"), Channel("cpu0", "frequency"))
        made.source("machine", both, 50, lambda s: (40 + s, 1.5e9))
        made.source("process", (Channel("resident", "memory"),), 50, lambda s: (2e8,))
    return made


def charts(payload):
    return {chart["title"]: chart for chart in found(payload, "chart")}


def test_it_has_losses_metrics_rate_time_memory_energy_and_conditions(tmp_path):
    with trained(tmp_path / "a.run", plan_bytes=3 << 20).open() as run:
        made = training_page(run)
        drawn = charts(made)
    assert list(drawn) == [
        "Loss",
        "Learning rate",
        "Test loss",
        "Test accuracy",
        "Samples per second, by epoch",
        "Time of a step",
        "Memory of the process and the device",
        "Power",
        "Temperature",
        "Clocks",
    ]
    step, mean, test = drawn["Loss"]["spec"]["series"]
    assert step["y"][6] is None and step["y"][0] == 1.0 and "1 × NaN or infinite" in drawn["Loss"]["note"]
    assert mean["x"] == [15.0, 45.0, 75.0] and test["x"] == [30.0, 60.0, 90.0]
    assert drawn["Test accuracy"]["spec"]["series"][0]["y"] == [60.0, 70.0, 80.0]
    (power,) = drawn["Power"]["spec"]["series"]
    assert power["name"] == "meter/chip" and all(abs(v - 4) < 0.5 for v in power["y"])
    shown = {tile["name"]: tile for tile in found(made, "tiles")[0]["tiles"]}
    assert shown["test accuracy"]["value"] == 80.0 and shown["energy of meter/chip"]["unit"] == "J"
    assert shown["memory on the device"]["value"] == 3.0 and shown["training time"]["value"] == 6.0
    assert "9 samples left out" in words(made) and "Power was not measured" not in words(made)
    write_document(made, tmp_path / "a.html")
    with chromium.browser() as browser, chromium.watched(browser, 400, "dark") as seen:
        opened = seen.open(tmp_path / "a.html")
        colours = chromium.colours(opened)
        assert min(colours) > 20 and len(colours) == len(drawn)
        assert opened.inner_text("h1") == "Training net <b>" and seen.problems == []


def test_what_is_missing_is_said_and_not_drawn(tmp_path):
    made = trained(tmp_path / "b.run", epochs=1, sensors=False, status="interrupted", sensors_absent={"rapl": "no"})
    made.writer._rows = [row for row in made.writer._rows if row[0] != "training_epoch"]
    with made.open() as run:
        page = training_page(run)
    assert list(charts(page)) == ["Loss", "Learning rate", "Time of a step"]
    text = words(page)
    assert "no epoch has ended" in text and "Power was not measured" in text and "rapl: no" in text
    assert found(page, "callout")[0]["title"] == "Not finished"
    assert "The training was interrupted." in text


def test_a_long_training_is_thinned_and_says_so(tmp_path):
    with trained(tmp_path / "long.run", steps=3 * MOST_POINTS, sensors=False).open() as run:
        loss = charts(training_page(run))["Loss"]
    assert len(loss["spec"]["series"][0]["y"]) == MOST_POINTS and "mean of 3 steps" in loss["note"]
