"""The 2022 study: a tiny real run, the answers for given numbers, and the page."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from handheld.cli.main import app
from handheld.errors import DeviceError, TargetLost
from handheld.report.document import write_document
from handheld.studies import answers2022 as answers
from handheld.studies import das2022 as das
from handheld.studies import derived2022 as derived
from handheld.studies import page2022, paper2022
from handheld.studies.ways2022 import APART, NAIVE, OPTIMISED, PYTORCH, REFERENCE, WAYS
from helpers import chromium
from helpers.blocks import found, words


def called(*words: str) -> object:
    return CliRunner().invoke(app, ["study", "das2022", *words])


# ── a real run ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """Runs the whole command at the smallest size."""
    folder = tmp_path_factory.mktemp("das")
    done = called("--models", "m1", "--widths", "8", "--steps", "2", "--out", str(folder), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["page"] == str(folder / das.PAGE)
    return folder / das.RESULT


def test_a_run_measures_every_way(ran):
    result = das.read(ran)
    assert result["others"] is None or result["others"]["count"] >= 1
    assert result["complete"] and set(result["models"]) == {"m1"}
    ways = result["models"]["m1"]["ways"]
    assert set(ways) == set(WAYS)
    for name, way in ways.items():
        times = way["times"]
        for phase in ("forward", "backward", "update", "step"):
            assert times[phase]["median"] > 0 and times[phase]["p25"] <= times[phase]["p75"], name
        assert name == REFERENCE or way["parameters_differ"] < 1e-5
    for name in (NAIVE, OPTIMISED, REFERENCE):
        assert derived.gflops(ways[name]) > 0
    facts = ways[APART[1]]["facts"]
    assert facts["uploads"] > facts["downloads"] > facts["ops"] and facts["upload_bytes"] > 2176
    # 32x16 by 16x16 forward, 16x32 by 32x16 for the weights. The input needs no gradient.
    assert facts["product_flops"] == 2 * 2 * 32 * 16 * 16
    assert ways[OPTIMISED]["facts"]["upload_bytes"] == 32 * 16 * 4 + 32 * 4
    (row,) = result["sweep"]
    assert row["width"] == 8 and APART[0] not in row["ways"] and not row["left_out"]


def test_its_transfers_are_of_all_sizes(ran):
    result = das.read(ran)
    for rows in result["transfers"].values():
        assert [row["bytes"] for row in rows] == [s for s in das.SIZES if s <= rows[-1]["bytes"]]
        assert all(row["median"] > 0 and row["n"] >= 9 for row in rows)
    assert set(result["launches"]) == {"enqueue", "device", "round_trip"}


def test_a_page_is_drawn_again_without_measuring(ran, tmp_path):
    first = (ran.parent / das.PAGE).read_text(encoding="utf-8")
    done = called("--page", str(ran), "--out", str(tmp_path / "other"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "other" / das.PAGE).read_text(encoding="utf-8") == first
    assert max(map(len, done.stdout.splitlines())) <= 80
    if das.read(ran)["caps"]["kind"] == "cpu":
        assert "This OpenCL device is the CPU" in done.stdout


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(das, "_model", stop)
    done = called("--steps", "1", "--out", str(tmp_path))
    assert done.exit_code == 130
    result = das.read(tmp_path / das.RESULT)
    assert not result["complete"] and result["transfers"]["to_host"] and not result["models"]
    assert "the study was stopped" in (tmp_path / das.PAGE).read_text(encoding="utf-8")


def test_a_device_that_fails_leaves_what_was_measured(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise DeviceError("the device is gone")

    monkeypatch.setattr(das, "_model", fail)
    done = called("--steps", "1", "--out", str(tmp_path), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"] == {"type": "DeviceError", "message": "the device is gone"}
    assert not das.read(tmp_path / das.RESULT)["complete"]
    assert "the device is gone" in (tmp_path / das.PAGE).read_text(encoding="utf-8")


def test_a_study_that_was_cut_off_goes_on_after_its_measured_parts(ran, tmp_path, monkeypatch):
    whole = das.read(ran)
    before = {**whole, "complete": False, "sweep": [], "others": {"cores": 1.0, "count": 2, "seconds": 1e6}}
    (tmp_path / das.RESULT).write_text(json.dumps(before), encoding="utf-8")
    words = ("--models", "m1", "--widths", "8", "--steps", "2", "--out", str(tmp_path), "--no-page")

    def again(*_: object) -> None:
        raise AssertionError("a part was measured again")

    def lost(*_: object) -> None:
        raise TargetLost("the phone was lost")

    for name in ("_transfers", "_model"):
        monkeypatch.setattr(das, name, again)
    with monkeypatch.context() as cut:
        cut.setattr(das, "_width", lost)
        done = called(*words)
    said = " ".join(done.stderr.split())
    assert done.exit_code == 1 and said.endswith("das2022.json holds 2 parts. Run the same command to continue")
    done = called(*words)
    assert done.exit_code == 0 and "is continued: it has 2 parts of the study" in " ".join(done.stderr.split())
    result = das.read(tmp_path / das.RESULT)
    assert result["complete"] and [row["width"] for row in result["sweep"]] == [8]
    assert all(result[name] == whole[name] for name in ("models", "transfers", "launches", "date"))
    assert result["others"]["cores"] == pytest.approx(1.0, rel=0.01), "the load of the time before is not forgotten"


@pytest.mark.parametrize("changed", ({"steps": 3}, {"complete": True}, {"versions": {}}, {"device": "opencl:other"}))
def test_a_result_of_something_else_is_not_continued(ran, tmp_path, changed):
    whole = das.read(ran)
    path = tmp_path / das.RESULT
    path.write_text(json.dumps({**whole, "complete": False}), encoding="utf-8")
    assert das.unfinished(path, whole) is not None
    path.write_text(json.dumps({**whole, "complete": False, **changed}), encoding="utf-8")
    assert das.unfinished(path, whole) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "reference:cpu"], "not an OpenCL device"),
        (["--widths", "16,x"], "'x' is not a width"),
        (["--widths", "0"], "'0' is not a width"),
        (["--models", "m5"], "no model 'm5'"),
        (["--page", "missing.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_asked(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = called(*words)
    assert done.exit_code == 1 and said in " ".join(done.stderr.split())


def test_other_files_are_no_result(ran, tmp_path):
    for name, text, said in (
        ("a", "[]", "not a result"),
        ("b", "{", "damaged"),
        ("c", json.dumps({**das.read(ran), "version": 99}), "version 99"),
        ("d", json.dumps({"handheld": das.FORMAT, "version": das.VERSION}), "damaged"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(text, encoding="utf-8")
        done = called("--page", str(path))
        assert done.exit_code == 1 and said in " ".join(done.stderr.split()), done.stderr


# ── answers for given numbers ────────────────────────────────────────────────────────────────


def times(**seconds: float) -> dict[str, dict[str, float]]:
    return {
        name.replace("_", " "): {"median": s, "p25": 0.9 * s, "p75": 1.2 * s, "n": 10} for name, s in seconds.items()
    }


def way(facts: dict[str, int] | None = None, **seconds: float) -> dict[str, object]:
    return {"steps": 100, "parameters_differ": 1e-7, "facts": facts or {}, "times": times(**seconds)}


def ways(cpu: float, gpu: float, scale: float = 1.0) -> dict[str, dict[str, object]]:
    """Results of a CPU and a GPU with the given seconds per step, and per-op transfers of 20 µs each."""
    flops = {"product_flops": 1_000_000, "launches": 8}
    moved = {"uploads": 20, "upload_bytes": 20_000, "downloads": 10, "download_bytes": 10_000}
    phases = {"forward": 1e-5, "backward": 2e-5 * scale, "update": 1e-5}
    return {
        PYTORCH: way(step=cpu, **phases),
        REFERENCE: way(flops, step=2 * cpu, products=cpu, **phases),
        NAIVE: way(flops, step=2 * gpu, products=1e-4, kernels=1.5e-4, transfers=1e-6, **phases),
        OPTIMISED: way(
            flops, step=gpu, products=2e-5, kernels=gpu / 2, transfers=gpu / 100, without_transfers=0.95 * gpu, **phases
        ),
        APART[0]: way(flops | moved, step=2e-3, uploads=4e-4, downloads=2e-4, launches=2e-4, kernels=1.5e-4, **phases),
        APART[1]: way(flops | moved, step=1e-3, uploads=4e-4, downloads=2e-4, launches=1e-4, kernels=4e-5, **phases),
    }


@pytest.fixture
def result() -> dict[str, object]:
    line = [
        {"bytes": size, "median": 2e-5 + size / 1e10, "p25": 2e-5, "p75": 3e-5 + size / 1e10, "n": 9}
        for size in das.SIZES
    ]
    sweep = [
        {"width": width, "ways": ways(cpu, 1e-4)}
        for width, cpu in ((16, 5e-5), (64, 2e-4), (256, 9e-5), (1024, 5e-4), (2048, 2e-3))
    ]
    return {
        "handheld": das.FORMAT,
        "version": das.VERSION,
        "complete": True,
        "device": "opencl:made-up",
        "caps": {"kind": "gpu", "name": "Made <Up>", "driver": "1"},
        "date": "2026-11-15 12:00 UTC",
        "batch": 32,
        "steps": 100,
        "rounds": 10,
        "versions": {"torch": "2"},
        "notes": [],
        "machine": {"processor": "some", "cores": 4, "threads": 4},
        "models": {
            name: {"ways": ways(3e-4, 1e-4, scale)} for name, scale in (("m1", 1), ("m2", 3), ("m3", 1.2), ("m4", 4))
        },
        "sweep": sweep,
        "transfers": {"to_device": line, "to_host": copy.deepcopy(line)},
        "launches": {"round_trip": {"median": 1e-5, "spread": 0.1}},
    }


def test_a_fit_finds_latency_and_bandwidth():
    chance = np.random.default_rng(0)
    rows = [
        {"bytes": 4**n, "median": (3e-5 + 4**n / 8e9) * (1 + 0.05 * chance.standard_normal())} for n in range(1, 14)
    ]
    found = derived.fit(rows)
    assert abs(found["latency_s"] - 3e-5) < 3 * found["latency_error_s"] < 6e-6
    assert abs(found["bytes_s"] - 8e9) < 3 * found["bytes_s_error"] < 2e9
    assert 0.01 < found["rms_error"] < 0.1 and found["sizes"] == 13
    part = derived.fit(rows, 1 << 20)
    assert part["to_bytes"] == 1 << 20 and part["sizes"] == 10


def test_a_fit_that_says_nothing_is_none():
    flat = [{"bytes": 4**n, "median": 1e-5 / (n + 1)} for n in range(6)]
    assert derived.fit(flat) is None and derived.fit(flat[:2]) is None and derived.fit([]) is None


def test_time_is_cut_into_latency_bandwidth_launches_and_kernels(result):
    cut = derived.parts(result["models"]["m1"]["ways"][APART[1]], derived.fits(result))
    assert cut["transfers"] == pytest.approx(6e-4) and cut["kernels"] == 4e-5
    assert cut["launch"] == pytest.approx(6e-5) and cut["whole"] == pytest.approx(7e-4)
    assert cut["predicted"] == pytest.approx(30 * 2e-5 + 30_000 / 1e10, rel=0.01)
    assert cut["latency"] + cut["bandwidth"] == pytest.approx(cut["transfers"])
    assert cut["latency"] / cut["transfers"] == pytest.approx(0.995, abs=0.002)
    stay = derived.resident_parts(result["models"]["m1"]["ways"][OPTIMISED])
    assert stay["share"] == pytest.approx(0.01) and stay["omitted"] == pytest.approx(0.05)


def test_the_width_from_which_on_it_wins_is_that_of_all_wider_ones(result):
    found = derived.crossover(result, OPTIMISED)
    assert found["from_width"] == 1024  # Width 64 wins too, but 256 does not.
    assert found["widths"][2048] == pytest.approx(20)
    result["sweep"][-1]["ways"][PYTORCH]["times"] = times(step=1e-5)
    assert derived.crossover(result, OPTIMISED)["from_width"] is None
    assert derived.crossover(result, "nothing")["widths"] == {}


def test_answers(result):
    said = {one["question"]: one for one in answers.answers(result)}
    wins = said["Does the GPU win, with everything on the device?"]
    assert wins["from_width"] == 1024 and "20.0 times as fast at 2,048" in wins["answer"]
    assert wins["models"]["m1"] == pytest.approx(3)
    share = said["How much of a step do transfers take?"]
    assert share["kind"] == "good" and "85.7% if" in share["answer"] and "met" in share["answer"]
    cost = said["Is the cost latency or bandwidth?"]["answer"]
    assert cost.startswith("Latency") and "20 µs" in cost and "10.0 GB/s" in cost
    kernels = said["What are better kernels worth?"]
    assert kernels["gain"] == pytest.approx(5) and "4.0 to 5.0" in kernels["answer"]
    layers = said["Does the time follow the layers or the bytes?"]["answer"]
    assert layers.startswith("The layers") and "(M2) take 3.0" in layers
    assert not any("stopped" in one["answer"] or "is the CPU (" in one["answer"] for one in said.values())


def said_without(result) -> str:
    return " ".join(one["answer"] for one in answers.answers(result))


def test_what_noise_could_have_made_is_no_conclusion(result):
    """M1 is 375 times as fast in the median, but a quarter of its steps is slower than the CPU's fast quarter."""
    times_of = result["models"]["m1"]["ways"]
    for way in (PYTORCH, REFERENCE):
        times_of[way]["times"]["step"] = {"median": 0.0375, "p25": 5e-5, "p75": 0.2, "n": 10}
    wins = answers.answers(result)[0]
    assert wins["told"] == {"m1": False, "m2": True, "m3": True, "m4": True}
    assert (
        "375" not in wins["answer"] and "M1 cannot be told here (the measurements allow ratios from" in wins["answer"]
    )
    assert "M2 3.0 times as fast" in wins["answer"]
    for row in result["models"]["m2"]["ways"].values():
        row["times"]["step"]["n"] = 3
    assert "M2 cannot be told here (it was repeated only 3 times, and 5 are needed)" in said_without(result)


def test_every_answer_needs_an_interval(result):
    def wide(times: dict[str, float]) -> None:
        times["p25"], times["p75"] = times["median"] / 10, times["median"] * 10

    for row in (*result["models"].values(), *result["sweep"]):
        for way in row["ways"].values():
            for measured in way["times"].values():
                wide(measured)
    said = answers.answers(result)
    assert {one["kind"] for one in said} == {"note"}
    assert sum("cannot be told here" in one["answer"] for one in said) == 5, "all but the fit of transfers"
    assert "times as fast" not in said_without(result).replace("(paper: 4.0 to 5.0 times)", "")
    assert derived.crossover(result, OPTIMISED)["from_width"] is None


def test_a_busy_machine_is_said_first_and_leaves_no_conclusion(result):
    result["others"] = {"cores": 3.0, "count": 4, "seconds": 60.0, "top": "ffmpeg, process 7", "top_cores": 2.5}
    assert "times as fast" not in said_without(result) and "(other processes held 75% of the cores)" in said_without(
        result
    )
    first, second, *_ = found(page2022.draw(result), "callout")
    assert "Other processes held 75% of the 4 cores (most: ffmpeg, process 7" in first["paragraphs"][0]
    assert first["tone"] == "bad" and "Does the GPU win" in second["title"]
    result["others"] = {"cores": 0.1, "count": 4, "seconds": 60.0}
    assert "20.0 times as fast" in said_without(result) and "ther processes held" not in words(page2022.draw(result))


def test_paper_and_measurement_share_an_axis(result):
    (figure,) = [one for one in found(page2022.draw(result), "chart") if "three phones" in one["title"]]
    series = {one["name"]: one for one in figure["spec"]["series"]}
    assert series["paper: CPU"]["pale"] and "pale" not in series["CPU, PyTorch"] and len(series) == 7
    assert figure["spec"]["y"] == {"label": "backward pass", "unit": "µs", "log": True, "zero": True}


def test_a_goal_that_is_missed_is_said(result):
    result["models"]["m4"]["ways"][OPTIMISED]["times"] |= times(transfers=1e-5)
    share = next(one for one in answers.answers(result) if "transfers take" in one["question"])
    assert share["kind"] == "bad" and "not met by every model" in share["answer"]
    assert "from a width of 16 up" in share["answer"]


def test_a_target_is_another_machine_than_the_cpu(result):
    result["device"] = "adb:R5CT10XYZ/mali-g78"
    first, second, *_ = answers.answers(result)
    assert "two machines: " in first["answer"] and "nothing about the CPU of adb:R5CT10XYZ" in first["answer"]
    assert second["question"] == "Does adb:R5CT10XYZ/mali-g78 win, with everything on the device?"
    assert "the CPU of this computer" in second["answer"]


def test_a_cpu_is_called_a_cpu(result):
    result["caps"]["kind"] = "cpu"
    first = answers.answers(result)[0]
    assert "This OpenCL device is the CPU" in first["answer"]
    assert not any("Does the GPU win" in one["question"] for one in answers.answers(result))


@pytest.mark.parametrize(
    "without",
    [(), ("models",), ("sweep",), ("transfers", "launches"), ("models", "sweep"), ("models", "sweep", "transfers")],
)
def test_a_page_of_whatever_was_measured(result, without):
    for name in without:
        result[name] = type(result[name])()
    result["complete"] = not without
    page = page2022.draw(result)
    shown = words(page)
    assert "Made <Up>" in shown and "2026-11-15" in shown
    assert ("the study was stopped" in shown) == bool(without)
    figures = [one["title"] for one in found(page, "chart")]
    assert ("The paper's three phones (pale), and here" in figures) == ("models" not in without)
    assert ("Speed of matrix products" in figures) == ("sweep" not in without)
    assert ("Time of a transfer, with waiting for it" in figures) == ("transfers" not in without)
    if not without:
        assert len(figures) == 6 and "1,148" in shown


def test_the_paper_is_complete():
    assert set(paper2022.BACKWARD_US) == set(das.MODELS) == set(paper2022.LAYERS)
    assert all(
        len(times) == len(paper2022.PHONES) for rows in paper2022.BACKWARD_US.values() for times in rows.values()
    )


def test_every_chart_of_the_page_draws(result, tmp_path):
    made = page2022.draw(result)
    write_document(made, tmp_path / "study.html")
    with chromium.browser() as browser, chromium.watched(browser, 400) as seen:
        opened = seen.open(tmp_path / "study.html")
        colours = chromium.colours(opened)
        assert len(colours) == len(found(made, "chart")) > 5 and min(colours) > 20, colours
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth") and seen.problems == []
