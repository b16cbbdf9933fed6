"""`handheld plan`: what a step needs on a device, and which batch fits."""

from __future__ import annotations

import json

import pytest

from handheld.device import DeviceCaps
from helpers.commands import fails

Image = pytest.importorskip("PIL.Image")

PICTURES = """
import torch
from torch import nn

def make():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1)
"""
ADRENO = ("--device", "adreno-740")


def planned(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_table_fits_80_columns(run):
    result = run("plan", "mine.py:with_batch", "--batch", "1,8,64,128,256,512", *ADRENO, "--memory", "1MiB")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for word in ("parameter", "activation", "total", "launches per step", "largest batch that fits is"):
        assert word in result.stdout
    assert sum(line.startswith(" batch ") for line in lines) == 2, "six batches need two tables"
    assert "No time is predicted" in "\n".join(lines[-3:])


def test_an_example_from_data(run, work):
    """The options of train that change the shapes apply, and too few samples for a batch are repeated."""
    (work / "pics.py").write_text(PICTURES)
    for number in range(4):
        (work / "tiny" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(work / "tiny" / str(number % 2) / f"{number}.png")
    words = ("pics.py:make", "--data", "tiny", *ADRENO, "--seconds", "0", "--batch", "8")
    small, large = (run("plan", *words, *more, "--json") for more in (("--image-size", "16"), ()))
    assert "4 samples to train: they are repeated to make a batch of 8" in " ".join(small.stderr.split())
    assert "--image-size" in large.stderr and "--image-size" not in small.stderr
    before, after = (planned(r)["batches"][0]["by_category"]["input"] for r in (small, large))
    assert before == 8 * (3 * 16 * 16 * 4 + 4) and after == 8 * (3 * 32 * 32 * 4 + 4)
    assert run("plan", *words, "--gray").exit_code == 1, "the model takes three channels"
    for command in ("profile", "verify", "tune"):
        fails(run(command, "mine.py:with_batch", "--image-size", "16"), "need data. Try: --data DATA")
    checked = run("verify", "pics.py:make", "--data", "tiny", "--image-size", "16", "--batch", "8")
    assert checked.exit_code == 0, checked.output


def test_categories_add_up_and_the_largest_batch_fits(run):
    words = ("mine.py:with_batch", *ADRENO, "--memory", "100KiB", "--json")
    found = planned(run("plan", *words, "--batch", "1,8,4096"))
    assert found["available_bytes"] == 100 << 10 and found["graphs"] == ["train", "evaluate", "predict"]
    for row in found["batches"]:
        assert sum(row["by_category"].values()) == row["bytes"] and row["launches"] > 3
    small, middle, large = found["batches"]
    assert small["fits"] and middle["fits"] and not large["fits"] and "needs" in large["why"]
    assert small["by_category"]["parameter"] >= 4 * (6 * 16 + 16 + 16 * 3 + 3)
    assert middle["by_category"]["input"] == 8 * small["by_category"]["input"] == 8 * (6 * 4 + 4)
    assert small["flops"] < middle["flops"] < large["flops"]
    most = found["largest"]["batch"]
    assert found["largest"]["exact"] and found["largest"]["grows"] and found["time"] is None
    edge = planned(run("plan", *words, "--batch", f"{most},{most + 1}"))
    assert [row["fits"] for row in edge["batches"]] == [True, False]


def test_graphs_precision_and_no_search(run):
    words = ("plan", "mine.py:with_batch", *ADRENO, "--seconds", "0", "--json")
    every, train, half = (planned(run(*words, *more)) for more in ((), ("--graphs", "train"), ("--precision", "half")))
    assert every["largest"] is None and every["batches"][0]["batch"] == 8
    assert train["graphs"] == ["train"] and train["batches"][0]["bytes"] < every["batches"][0]["bytes"]
    assert half["precision"] == "half"
    explained = run("plan", "mine.py:with_batch", *ADRENO, "--seconds", "0", "--explain")
    assert "plan for adreno-740" in explained.stdout and "graph train:" in explained.stdout


def test_a_search_that_is_cut_says_so(run):
    result = run("plan", "mine.py:with_batch", *ADRENO, "--seconds", "0.001", "--batch", "1")
    assert "larger ones were not tried" in result.stdout.replace("\n", " ") or "those between" in result.stdout


def test_a_step_file_has_its_own_batches(run, work):
    assert run("package", "mine.py:with_batch", "--batch", "2,8", "--out", "two.step").exit_code == 0
    found = planned(run("plan", "two.step", *ADRENO, "--json"))
    assert [row["batch"] for row in found["batches"]] == [2, 8]
    assert found["largest"]["batch"] == 8 and found["largest"]["only_batches_of_the_file"]
    shown = run("plan", "two.step", "--batch", "2", *ADRENO)
    assert "only the batches that it was packaged with: the largest that fits is 8" in shown.stdout.replace("\n", " ")
    fails(run("plan", "two.step", "--batch", "4", *ADRENO), "captured for a batch of 2, 8, not 4")


def test_devices(run, work):
    caps = DeviceCaps.shipped("mali-g78").to_json()
    (work / "phone.json").write_text(json.dumps({**caps, "name": "my phone", "global_mem_bytes": 1 << 30}))
    words = ("plan", "m1", "--seconds", "0", "--json", "--device")
    assert planned(run(*words, "phone.json"))["name"] == "my phone"
    assert planned(run(*words, "phone.json"))["available_bytes"] == 1 << 30
    assert planned(run(*words, "reference:cpu"))["device"] == "reference:cpu"
    (work / "bad.json").write_text(json.dumps({**caps, "global_mem_bytes": "2GiB"}))
    (work / "worse.json").write_text("{")
    plain = ("plan", "m1", "--seconds", "0", "--device")
    fails(run(*plain, "bad.json"), "bad.json: global_mem_bytes", "must be int", "'2GiB'")
    fails(run(*plain, "worse.json"), "worse.json is no JSON file", "Try: ")
    fails(run(*plain, "gone.json"), "gone.json cannot be read")
    fails(run(*plain, "toaster"), "there is no device 'toaster'", "Try: ", "adreno-740")
    fails(run("plan", "m1", "--memory", "lots"), "--memory-limit 'lots' must be a size", "2GiB")
    fails(run("plan", "m1", "--graphs", "fly", *ADRENO), "--graphs fly", "train, evaluate, predict")


@pytest.mark.parametrize("command", ["train", "profile", "verify"])
def test_commands_name_the_largest_batch(run, monkeypatch, command):
    from handheld.run import planning

    kib = 4 if command == "train" else 30  # `train` also takes micro-batches, so it is given less.
    tiny = DeviceCaps.from_json({**planning.described("opencl").to_json(), "global_mem_bytes": kib << 10})
    monkeypatch.setattr(planning, "described", lambda device, precision: tiny)
    data = ("--data", "data.npz") if command == "train" else ()
    says = {
        "train": ("smallest limit", "micro-batches of", "Try: "),
        "profile": ("smallest limit", "Try: a batch of"),
        "verify": ("largest batch that fits is", "Try: a batch of"),
    }
    fails(run(command, "mine.py:with_batch", "--batch", "256", *data), *says[command])


def test_a_plan_file_is_written_and_read_back(run, tmp_path):
    path = tmp_path / "mine.plan"
    result = run("plan", "mine.py:with_batch", "--on", "adreno-740", "--seconds", "0", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert "with all values" in " ".join(result.stdout.split())
    shown = planned(run("plan", str(path), "--json"))
    assert shown["device"] == DeviceCaps.shipped("adreno-740").name and shown["values"] == shown["slots"] > 0
    assert "for QUALCOMM" in run("plan", str(path), "--on", "adreno-740").stdout


def test_plan_files_that_cannot_be_written_or_read(run, tmp_path):
    path = tmp_path / "mine.plan"
    fails(run("plan", "mine.py:with_batch", "--batch", "1,2", "--out", str(path)), "one batch size")
    fails(run("plan", "mine.py:with_batch", "--out", "mine.txt"), "ends in .plan")
    fails(run("plan", "mine.py:with_batch", "--out", "no/mine.plan"), "no folder")
    fails(run("plan", "mine.py:with_batch", "--on", "null", "--seconds", "0", "--out", str(path)), "no launches")
    assert run("plan", "mine.py:with_batch", *ADRENO, "--seconds", "0", "--out", str(path)).exit_code == 0
    fails(run("plan", str(path), "--on", "mali-g78"), "is a plan for QUALCOMM")
    path.write_bytes(path.read_bytes()[:-1])
    fails(run("plan", str(path)), "is cut off")
