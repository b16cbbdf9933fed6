"""The output of `handheld tune`, and what `doctor` prints about tuning and ceilings."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import output, probe, tune
from handheld.cli.main import app
from handheld.measure import ceilings, measurable, open_device
from handheld.measure.process import WorkerProcess
from handheld.measure.tuner import Row, Tuner
from handheld.plan import lowering, tuning
from handheld.plan.tuning import Entry, TuningRecord
from helpers import fake_family

FACTORY = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    model = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 3))
    batch = torch.randn(32, 40), torch.zeros(32, dtype=torch.int64)
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2), batch
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command next to a user's file, with the fake family and its own cache."""
    (tmp_path / "mine.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_VARIANTS", "own empty fast")
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")  # The shipped records are for other families.
    monkeypatch.setattr(lowering, "FAMILIES", {**lowering.FAMILIES, "matmul": fake_family.lower_matmul})
    child = functools.partial(WorkerProcess, fake_family.COMMAND)
    monkeypatch.setattr(tune, "Tuner", lambda *args: Tuner(*args, child()))
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "_width", 80)

    def call(*words: str):
        return CliRunner().invoke(app, list(words), prog_name="handheld")

    return call


@pytest.fixture
def one_device(monkeypatch):
    found = opencl_devices.devices()[:1]
    monkeypatch.setattr(opencl_devices, "devices", lambda: found)
    monkeypatch.setattr(probe, "run_in_child", lambda device: "")
    return found[0]


def test_tune_and_go_on(run, one_device, tmp_path):
    result = run("tune", "mine.py:make", "--json", "--budget", "60")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["signatures"] and not report["interrupted"] and not report["notes"]
    assert report["best_ms"] < report["default_ms"]
    products = [row for row in report["signatures"] if row["signature"].startswith("matmul")]
    assert products and all(row["done"] for row in products)
    assert {"VARIANT": fake_family.FAST} in [row["choice"] for row in products]
    assert all("wrong result" in why for row in products for _, why in row["failed"])
    assert list(TuningRecord.read(Path(report["record"])).entries)
    again = run("tune", "mine.py:make")
    assert again.exit_code == 0 and again.stderr == ""
    lines = again.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "default ms" in lines[0]
    assert f"{len(products)} of {len(products)} shapes" in again.stdout
    assert "ms in tuned ops instead of" in again.stdout and "VARIANT=1" in again.stdout
    doctor = run("doctor").stdout
    assert f"{len(products)} shapes tuned" in doctor and "wrong result" in doctor


def test_long_signatures_and_paths_lose_their_middle(run, one_device, monkeypatch, tmp_path):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / ("deep" * 12) / "cache"))
    shown = tune._table(
        [
            Row(
                "matmul " + "64x" * 40 + "7 e3",
                1,
                Entry({"VARIANT": 1, **{f"PARAMETER{n}": n for n in range(9)}}, 2.0, 1.0, 3, True),
            )
        ]
    )
    with output.out.capture() as taken:
        output.out.print(shown)
    lines = taken.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "matmul 64x" in lines[1] and "…" in lines[1] and "x7 e3" in lines[1]
    assert " ".join(" ".join(lines[2:]).split()).endswith("PARAMETER7=7 PARAMETER8=8")
    result = run("tune", "mine.py:make", "--budget", "1")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("record")]
    assert "…" in line and line.rstrip().endswith(".json") and len(line) <= 80


def test_ctrl_c_keeps_what_was_found(run, one_device, monkeypatch):
    seen = []

    def stop(self, budget: float) -> None:
        seen.append(budget)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tuner, "run", stop)
    result = run("tune", "mine.py:make", "--budget", "7")
    assert result.exit_code == 130 and seen == [7.0]
    assert "run the same command to continue" in result.stderr
    result = run("tune", "mine.py:make", "--json")
    assert result.exit_code == 130 and json.loads(result.stdout)["interrupted"]


def test_a_foreign_record_is_named_by_tune_and_doctor(run, one_device):
    record = TuningRecord.of(one_device.caps)
    record.driver = "an older one"
    record.write(record.path())
    result = run("tune", "mine.py:make", "--budget", "1")
    assert "is for the driver an older one" in result.stderr.replace("\n", " ")
    assert "an older one" in run("doctor").stdout


def test_a_damaged_record_is_replaced(run, one_device):
    path = TuningRecord.of(one_device.caps).path()
    path.parent.mkdir(parents=True)
    path.write_text("{")
    result = run("tune", "mine.py:make", "--budget", "60")
    assert result.exit_code == 0 and "A new record replaces it" in result.stderr
    assert TuningRecord.read(path).entries


def test_fresh_forgets(run, one_device, monkeypatch):
    record = run("tune", "mine.py:make", "--json", "--budget", "60")
    path = Path(json.loads(record.stdout)["record"])
    monkeypatch.setattr(Tuner, "run", lambda self, budget: self.save())
    run("tune", "mine.py:make")
    assert TuningRecord.read(path).entries
    run("tune", "mine.py:make", "--fresh")
    assert not TuningRecord.read(path).entries


@pytest.mark.parametrize(
    "words, said",
    [
        (("lenet5", "--on", "reference:cpu"), "has no variants"),
        (("mine.py:make", "--graph", "fly"), "no graph 'fly'"),
        (("no-such-model",), "no-such-model"),
    ],
)
def test_what_cannot_be_tuned(run, words, said):
    result = run("tune", *words)
    assert result.exit_code == 1 and said in result.stderr and not result.stdout


def test_a_model_without_variants(run, one_device, monkeypatch):
    monkeypatch.setenv("FAKE_VARIANTS", "own")
    monkeypatch.setattr(tune, "find_jobs", lambda graphs, caps: [])
    assert "nothing to tune" in run("tune", "mine.py:make").stdout


def test_doctor_measures_and_shows_ceilings(run, one_device, monkeypatch):
    assert "not measured. Try: handheld doctor --ceilings" in run("doctor").stdout
    short = {
        "RUN_SECONDS": 1e-4,
        "LARGEST": 64 << 10,
        "TRANSFER": 1 << 20,
        "LAUNCHES": 20,
        "WIDTHS": ("4",),
        "SUMS": (4,),
    }
    for module in (ceilings, measurable, open_device):
        for name in short.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, short[name])
    result = run("doctor", "--ceilings", "--on", "opencl")
    assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= 80
    for shown in (run("doctor").stdout, result.stdout):
        for words in ("GFLOP/s (±", "64.0 KiB", "to device", "µs", "one after another"):
            assert words in shown
    (device,) = json.loads(run("doctor", "--json").stdout)["devices"]
    assert device["ceilings"]["fp32"]["median"] > 0


def test_ceilings_that_fail_are_said(run, one_device, monkeypatch):
    def broken(device: str, progress: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(ceilings, "measure", broken)
    result = run("doctor", "--ceilings")
    assert result.exit_code == 1 and "could not be measured: MemoryError" in result.stdout
    assert run("doctor", "--on", "opencl:no-such-device").exit_code == 1
