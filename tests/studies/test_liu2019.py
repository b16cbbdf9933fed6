"""The 2019 study from its results folder: result, page, command. Existing results are not measured again."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from handheld import suite
from handheld.analyse.busy import warning_of_runs
from handheld.bench.folder import Writer
from handheld.cli.main import app
from handheld.errors import StudyError
from handheld.report.document import document, write_document
from handheld.sensors.base import Channel
from handheld.store.commands import LAUNCH
from handheld.studies import liu2019, page2019
from helpers import chromium
from helpers.blocks import found, words
from helpers.run_files import MadeRun, busy, rising

CAPS = {"name": "made up", "kind": "gpu", "vendor": "v", "driver": "1", "compute_units": 2}
ABSENT = {"rapl": "there is no /sys/class/powercap"}


def folder(path: Path, *, watts: float | None = 10.0, cases: int = 5) -> Path:
    """Results of two workloads at two batch sizes, one batch that does not fit, and cases that have not run."""
    writer = Writer(path)
    wanted = [(name, batch) for name in ("resnet50", "char_cnn") for batch in (4, 64, 256)]
    writer.describe(
        {
            "handheld": metadata.version("handheld"),
            "created": "2026-01-01T00:00:00+00:00",
            "settings": {"seconds": 1.0},
            "devices": {"opencl": CAPS},
            "versions": {},
            "machine": {"cores": 2, "core_kinds": {"cpu0": "big", "cpu1": "little"}},
            "cases": [{"workload": n, "size": "small", "device": "opencl", "batch": b} for n, b in wanted],
        }
    )
    for name, batch in wanted[:cases]:
        key = f"{name}/small/{batch}/opencl"
        row = {
            "key": key,
            "workload": name,
            "size": "small",
            "device": "opencl",
            "batch": batch,
            "status": "trained",
            "reason": "",
            "run": None,
            "planned_bytes": 3 << 30,
            "began": f"2026-01-01T0{wanted.index((name, batch))}:00:00+00:00",
        }
        if batch == 256:
            row.update(status="does not fit", reason="the plan needs 3072.0 MiB")
        else:
            row["run"] = writer.run_file(f"{name}-{batch}")
            _run(path / row["run"], name, batch, watts)
        writer.append(row)
    writer.close()
    return path


def _run(path: Path, name: str, batch: int, watts: float | None) -> None:
    made = MadeRun(
        path,
        caps=CAPS,
        sensors_absent=ABSENT,
        settings={"what": name, "batch": batch},
        machine={"core_kinds": {"cpu0": "big", "cpu1": "little"}},
    )
    made.steps(60, commands=((LAUNCH, 0, 12.0), (LAUNCH, 1, 8.0)), every=12, outside_ms=lambda i: 1.0)
    counters = [rising(lambda t: 0.4) for _ in range(3)]
    made.source("cpu", busy("cpu0 busy", "cpu1 busy"), 10, lambda t: [c(t) for c in counters[:2]])
    if watts:
        power = rising(lambda t: watts)
        made.source("meter", [Channel("all", "energy", counter=True, covers=("system",))], 10, lambda t: [power(t)])
    made.open().close()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("study") / "out")


def command(*words: object) -> Any:
    return CliRunner().invoke(app, ["study", "liu2019", *map(str, words)])


def test_the_sets_of_workloads_are_those_of_the_paper():
    assert len(liu2019.ALL) == 16 and len(liu2019.TRAINED) == 10
    assert {"resnet50", "char_cnn", "dqn", "dcgan"} <= set(liu2019.TRAINED)
    assert {"bert_base", "nmt", "resnet152"} <= set(liu2019.ALL) - set(liu2019.TRAINED)
    assert set(liu2019.QUICK) <= set(liu2019.TRAINED) and set(liu2019.ALL) <= set(suite.WORKLOADS)
    assert liu2019.domain("char_cnn") == "recurrent" and liu2019.domain("resnet50") == "vision"
    with pytest.raises(StudyError, match="no set"):
        liu2019.workloads("none")


def test_a_result_has_every_row_and_ten_answers(measured):
    made = liu2019.result(measured)
    assert [(r["workload"], r["batch"], r["status"]) for r in made["rows"]] == [
        ("resnet50", 4, "measured"),
        ("resnet50", 64, "measured"),
        ("resnet50", 256, "does not fit"),
        ("char_cnn", 4, "measured"),
        ("char_cnn", 64, "measured"),
    ]
    assert made["runs"] == 6 and made["sensors_absent"] == ABSENT
    assert made["date"] == "2026-01-01 04:00 UTC", "of the last run"
    assert [one["number"] for one in made["answers"]] == list(range(1, 11))
    by = {one["number"]: one for one in made["answers"]}
    assert by[10]["answer"] == "holds" and by[8]["answer"] == "holds"
    assert by[4]["answer"] == "does not hold", "big and little cores do the same here"


def test_a_saved_result_is_the_same_and_makes_the_same_page(measured):
    made = liu2019.result(measured)
    saved = liu2019.load(liu2019.save(measured, made))
    assert saved == json.loads(json.dumps(made))
    assert page2019.draw(saved) == page2019.draw(made)


def test_the_page_shows_what_was_measured_and_what_was_not(measured):
    page = page2019.draw(liu2019.result(measured))
    text = words(page)
    for part in (
        "Utilisation over three steps",
        "Each core against batch",
        "Idle ratio of cores",
        "Power by rail",
        "Energy per step",
        "Peak memory",
        "Samples per second",
        "Times of ops",
        "does not fit",
        "1 more did not run yet",
    ):
        assert part in text, part
    assert "Not measured" not in text
    answers = found(page, "table")[0]
    assert [row[0] for row in answers["rows"]] == [str(n) for n in range(1, 11)]
    memory = next(chart for chart in found(page, "chart") if chart["spec"].get("stacked"))
    assert memory["spec"]["x"]["categories"] and all(one["y"] for one in memory["spec"]["series"])


def test_a_busy_machine_is_said_first_on_the_page(measured):
    made = liu2019.result(measured)
    loads = [{"others_cores": cores, "others_top": top} for cores, top in ((0.1, ""), (2.0, "ffmpeg, process 7"))]
    # The runs have no readings of cores, so the machine must tell how many there are.
    made["disturbed"] = warning_of_runs([*loads, {"status": "failed"}], {"cores": 4})
    assert made["disturbed"].startswith("other processes held 50% of the 4 cores during 1 of 2 runs (most: ffmpeg")
    text = words(page2019.draw(made))
    assert 0 < text.index("Other processes held 50%") < text.index("Of ten findings")
    assert not warning_of_runs(loads[:1], {"cores": 4}) and not warning_of_runs([], {"cores": 4})


def test_the_page_without_power_says_why(tmp_path):
    text = words(page2019.draw(liu2019.result(folder(tmp_path / "out", watts=None))))
    assert "Not measured: there is no power sensor here." in text
    assert "rapl: there is no /sys/class/powercap" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "damaged"),
        ("[]", "not a result of"),
        ('{"format": "other"}', "not a result of"),
        (json.dumps({"format": liu2019.FORMAT, "version": 99}), "version 99"),
    ],
)
def test_files_that_are_no_result(tmp_path, text, words):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(StudyError, match=words):
        liu2019.load(path)


def test_the_command_draws_again_without_measuring(measured, tmp_path):
    result = tmp_path / "kept.json"
    result.write_text(json.dumps(liu2019.result(measured)))
    done = command("--page", result)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "kept.html").read_text() == document(page2019.draw(json.loads(result.read_text())))
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len(re.findall(r"^ ?\d+  \S", done.stdout, re.MULTILINE)) == 10
    said = json.loads(command("--page", measured, "--json").stdout)
    assert said["measured"] == 4 and said["runs"] == 6 and len(said["answers"]) == 10
    assert (measured / liu2019.PAGE).exists()
    assert command("--page", measured, "--out", tmp_path / "else").exit_code == 0
    assert {one.name for one in (tmp_path / "else").iterdir()} == {liu2019.PAGE, liu2019.RESULT}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "4,x"], "of at least 1, separated by commas"),
        (["--batch", "0"], "of at least 1, separated by commas"),
        (["--cool", "x"], "or auto"),
        (["--workloads", "resnet51"], "resnet50"),
        (["--workloads", ","], "names none"),
        (["--size", "huge"], "small or paper"),
        (["--page", "nowhere.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    done = command(*words)
    assert done.exit_code == 1 and said in done.stderr, done.output


def test_an_interrupt_keeps_what_was_measured(tmp_path, monkeypatch):
    out = folder(tmp_path / "out", cases=2)

    def stopped(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(liu2019, "study", stopped)
    done = command("--out", out)
    assert done.exit_code == 130
    assert "2 of 6 runs kept" in " ".join(done.stderr.split())
    kept = liu2019.load(out / liu2019.RESULT)
    assert len(kept["rows"]) == 2 and (out / liu2019.PAGE).exists()


def test_a_study_runs_and_goes_on_where_it_was(tmp_path, monkeypatch):
    """A real run, then the same command again: nothing runs twice."""
    monkeypatch.chdir(tmp_path)
    words = ("--workloads", "mlp", "--batch", "8", "--seconds", "0.1", "--json")
    first = command(*words)
    assert first.exit_code == 0, first.output
    said = json.loads(first.stdout)
    assert said["measured"] == said["runs"] == 1 and len(said["answers"]) == 10
    (run,) = (tmp_path / "liu2019" / "runs").glob("*.run")
    before = run.stat().st_mtime_ns
    assert command(*words).exit_code == 0
    assert run.stat().st_mtime_ns == before
    row = liu2019.load(said["result"])["rows"][0]
    assert row["step_ms"] > 0 and row["memory"]["peak_bytes"] > 0


def test_every_chart_of_the_page_draws(measured, tmp_path):
    made = page2019.draw(liu2019.result(measured))
    write_document(made, tmp_path / "study.html")
    with chromium.browser() as browser, chromium.watched(browser, 400) as seen:
        opened = seen.open(tmp_path / "study.html")
        colours = chromium.colours(opened)
        assert len(colours) == len(found(made, "chart")) > 5 and min(colours) > 20, colours
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth") and seen.problems == []


def test_a_page_that_is_asked_for_and_not_wanted(measured):
    done = command("--page", measured, "--no-page")
    assert done.exit_code == 1 and "Try: one of the two" in done.stderr
