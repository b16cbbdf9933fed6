"""Results folders: the single writer, finished cases, comparing, merging, the report card."""

from __future__ import annotations

import json
import os
import platform

import pytest

import handheld
from handheld import bench
from handheld.bench.folder import Results, Writer
from handheld.bench.heat import Heat
from handheld.bench.matrix import Case, Matrix, expand, ordered
from handheld.errors import HandheldError, ResultsError
from handheld.runners.find import find as find_runner
from handheld.runners.find import platform_of
from handheld.sensors import Where
from handheld.targets import find
from helpers.bench_rows import CAPS, folder, info, row
from helpers.phones import phones
from helpers.sensor_trees import put

__all__ = ["phones"]


def test_the_matrix_is_all_of_it_and_names_what_is_not_known():
    cases = Matrix(("mlp", "lenet5"), ("opencl", "reference:cpu"), (1, 4)).cases()
    assert len({case.key for case in cases}) == len({case.file for case in cases}) == 8
    assert {case.batch for case in Matrix(("lenet5",)).cases()} == {32}
    with pytest.raises(HandheldError, match="Try: lenet5"):
        Matrix(("lenet",)).cases()
    for wrong in (
        Matrix(("mlp",), size="huge"),
        Matrix(("mlp",), batches=(0,)),
        Matrix(()),
        Matrix(("mlp",), ()),
        Matrix(("no.step",)),
        Matrix(("no.py:make",)),
    ):
        with pytest.raises(HandheldError):
            wrong.cases()


def test_groups_stand_for_their_workloads():
    assert expand(["das2022", "mlp"]) == ("m1", "m2", "m3", "m4", "mlp")
    assert "gpt" in expand(["text"]) and "gpt" not in expand(["vision"])
    assert expand(["lenett"]) == ("lenett",)
    assert len(expand([])) > 30


def test_files_of_models_that_are_called_alike_are_told_apart():
    one, other = (Case(name, "own", "opencl", None) for name in ("a/m.py:f", "a-m.py:f"))
    assert one.file != other.file


def test_no_device_is_favoured_by_the_order():
    cases = Matrix(("mlp", "lenet5", "m1", "m2", "m3", "m4"), ("opencl", "reference:cpu"), (1, 4)).cases()
    made = ordered(cases, 0)
    assert sorted(c.key for c in made) == sorted(c.key for c in cases)
    firsts = [one.device for one, other in zip(made[::2], made[1::2], strict=True) if one.pair == other.pair]
    assert len(firsts) == 12 and firsts.count("opencl") == 6, "each is first as often"
    assert made == ordered(cases, 0)
    assert made != ordered(cases, 1)
    assert [c.workload for c in made] != [c.workload for c in cases], "drawn, not as listed"


def test_a_folder_has_one_writer(tmp_path):
    writer = Writer(tmp_path / "results")
    with pytest.raises(ResultsError, match=f"written by process {os.getpid()}"):
        Writer(tmp_path / "results")
    writer.close()
    Writer(tmp_path / "results").close()


def test_a_half_written_line_is_dropped_with_a_note(tmp_path):
    folder(tmp_path, [row(batch=1), row(batch=4)])
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:70])
    results = bench.open_results(tmp_path)
    assert len(results.rows) == 2 and "cut off" in results.notes[0]
    assert path.read_bytes() != whole, "who only reads changes nothing"
    writer = Writer(tmp_path)
    assert "cut off" in writer.open().notes[0] and path.read_bytes() == whole
    writer.append(row(batch=16))
    writer.close()
    assert [one["batch"] for one in bench.open_results(tmp_path).rows] == [1, 4, 16]


def test_a_damaged_line_is_named(tmp_path):
    folder(tmp_path, [row(batch=1), row(batch=4)])
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"key"', b'"kez"', 1))
    with pytest.raises(ResultsError, match="damaged in line 1"):
        bench.open_results(tmp_path)


def test_the_later_of_two_rows_counts(tmp_path):
    results = folder(tmp_path, [row(status="hung"), row(device="x"), row(samples_s=7.0)])
    assert [one["samples_s"] for one in results.rows if one["device"] == "opencl"] == [7.0]


@pytest.mark.parametrize(
    "change, match",
    [
        ({"format": 2}, "has format 2, written by Handheld .*; this version reads and writes format 1"),
        ({"handheld": "0.0.9"}, "measured with Handheld 0.0.9.*another --out"),
        ({"settings": {"seconds": 9.0}}, "seconds=9.0"),
        ({"merged": []}, "was merged"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, change, match):
    folder(tmp_path, [row()])
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ResultsError, match=match):
        bench.run(Matrix(("mlp",)), tmp_path, bench.Settings())
    Writer(tmp_path).close()  # The lock was released.


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ResultsError, match="holds other files"):
        bench.run(Matrix(("mlp",)), tmp_path)
    with pytest.raises(ResultsError, match="not a results folder"):
        bench.open_results(tmp_path)
    (tmp_path / "bench.json").write_text("{")
    with pytest.raises(ResultsError, match="damaged"):
        bench.open_results(tmp_path)
    with pytest.raises(ResultsError, match="nothing to resume"):
        bench.run(None, tmp_path / "new")


def results(rows, **more):
    return Results("", info(**more), rows, [])


def test_compare():
    a = results([row(batch=1), row(batch=4, samples_s=50.0), row("lenet5")])
    b = results(
        [row(batch=1, samples_s=200.0), row(batch=4, status="hung", samples_s=None), row("vgg16")],
        handheld="9",
        devices={"opencl": {**CAPS, "driver": "2"}},
    )
    found = bench.compare(a, b)
    by_key = {line["key"]: line for line in found["rows"]}
    assert len(by_key) == 4
    assert by_key["mlp/small/1/opencl"]["ratios"]["samples_s"] == 2.0
    assert by_key["mlp/small/1/opencl"]["ratios"]["planned_bytes"] == 1.0
    assert "samples_s" not in by_key["mlp/small/4/opencl"]["ratios"]
    assert by_key["lenet5/small/4/opencl"]["b"] is None
    assert by_key["vgg16/small/4/opencl"]["a"] is None
    assert found["means"]["samples_s"] == {"ratio": 2.0, "rows": 1}
    assert found["means"]["joules_sample"] is None, "not measured is not zero"
    assert found["differences"] == [f"handheld: {handheld.__version__} / 9", "opencl: 1 / 2"]


def test_merge(tmp_path):
    run = "runs/x.run"
    a = folder(tmp_path / "a", [row(batch=1, run=run), row(batch=4)])
    b = folder(
        tmp_path / "b", [row(batch=1, status="hung", began="2027", run=run), row("lenet5", run=run.replace("x", "y"))]
    )
    made = bench.merge([a, b], tmp_path / "c")
    rows = {one["key"]: one for one in made.rows}
    assert len(rows) == 3 and len(made.lines) == 4, "nothing is lost"
    assert rows["mlp/small/1/opencl"]["status"] == "trained"
    texts = [made.run_path(one).read_text() for one in made.lines if one["run"]]
    assert sorted(texts) == sorted(["mlp/small/1/opencl"] * 2 + ["lenet5/small/4/opencl"])
    assert len(made.info["merged"]) == 2
    with pytest.raises(ResultsError, match="already"):
        bench.merge([a, b], tmp_path / "c")
    with pytest.raises(ResultsError, match="two results folders"):
        bench.merge([a], tmp_path / "d")


def test_two_processors_of_one_name_stay_apart_when_merged(tmp_path):
    a = folder(tmp_path / "a", [row(processor="phone")], devices={"opencl": {**CAPS, "name": "phone"}})
    b = folder(tmp_path / "b", [row(processor="desk")], devices={"opencl": {**CAPS, "name": "desk"}})
    made = bench.merge([a, b], tmp_path / "c")
    assert {one["device"] for one in made.rows} == {"opencl (phone)", "opencl (desk)"}
    assert {one["key"] for one in made.rows} == {"mlp/small/4/opencl (phone)", "mlp/small/4/opencl (desk)"}


def test_the_report_card():
    lines = bench.card(
        [
            row(batch=1, samples_s=10.0),
            row(batch=16, samples_s=80.0, joules_sample=0.5),
            row(batch=64, status="does not fit", reason="big", samples_s=None),
            row(device="reference:cpu", batch=16, samples_s=40.0, joules_sample=0.25),
            row("vgg16", status="crashed", reason="SIGSEGV", samples_s=None),
        ]
    )
    mlp, vgg = lines
    assert (mlp["trains"], mlp["device"], mlp["batch"], mlp["largest_batch"]) == (True, "opencl", 16, 16)
    assert mlp["others"] == [
        {"device": "reference:cpu", "batch": 16, "samples_s": 40.0, "joules_sample": 0.25, "ratio": 0.5}
    ]
    assert mlp["least_joules"]["device"] == "reference:cpu"
    assert [one["status"] for one in mlp["not_trained"]] == ["does not fit"]
    assert not vgg["trains"] and vgg["reason"] == "SIGSEGV"


def test_cooling_waits_for_the_machine_of_a_target(phones, monkeypatch):
    phone = phones()
    monkeypatch.setenv(
        "HANDHELD_RUNNER", str(phone.furnish(find_runner(platform_of(platform.system(), platform.machine()))))
    )
    monkeypatch.setattr(find, "_opened", {})
    zone = "sys/class/thermal/thermal_zone0/temp"
    heat, said = Heat(devices=["opencl", "adb"], base={"adb adreno/gpu temperature": 40.0}), []
    assert heat.base["adb adreno/gpu temperature"] == 40.0 and heat.base["adb thermal/gpu"] == 40.0
    put(phone.folder / "root", zone, "55000")

    def tell(stage):
        said.append(stage)
        put(phone.folder / "root", zone, "42000")

    facts = heat.cool(tell, "adb/0")
    assert said == ["cooling, +15 °C"] and (facts["celsius"], facts["warmer_by"]) == (42.0, 2.0)
    phone.set("")  # Without an answer there is a pause, and the run says what is wrong.
    heat.close()
    assert heat.above("adb") is None


def test_cooling_waits_for_the_sensors(tmp_path, monkeypatch):
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("soc\n")
    (zone / "temp").write_text("40000\n")
    heat, said = Heat(where=Where(tmp_path)), []
    (zone / "temp").write_text("55000\n")

    def tell(stage):
        said.append(stage)
        (zone / "temp").write_text("41000\n")  # The device cools down.

    facts = heat.cool(tell)
    assert said == ["cooling, +15 °C"] and facts["cooled_by"] == "sensors"
    assert facts["warmer_by"] == pytest.approx(1.0) and facts["celsius"] == pytest.approx(41.0)
    heat.close()
    bare = Heat(where=Where(tmp_path / "nothing"), cool_s=0)
    assert bare.cool(said.append) | {"cooled_s": 0} == {
        "cooled_s": 0,
        "cooled_by": "seconds",
        "celsius": None,
        "warmer_by": None,
    }
