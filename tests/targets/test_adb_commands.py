"""Commands on the stand-in phone, with the Linux build of the runner: train, bench, verify, tune and study."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import Result
from typer.testing import CliRunner

from handheld.cli.main import app
from handheld.package import load_state
from helpers.commands import FACTORY
from helpers.killing import killing
from helpers.opencl_library import opencl_library
from helpers.phones import AddPhone, Phone


@pytest.fixture
def phone(phones: AddPhone, monkeypatch: pytest.MonkeyPatch, runner: object, tmp_path: Path) -> Phone:
    monkeypatch.delenv("HANDHELD_RUNNER")
    monkeypatch.setenv("HANDHELD_OPENCL", opencl_library())
    monkeypatch.setenv("HANDHELD_DRIVER_CHECK", "off")
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(FACTORY)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((400, 6)).astype(np.float32), y=rng.integers(0, 3, 400))
    monkeypatch.chdir(tmp_path)
    return phones()


def handheld(*words: str) -> Result:
    done = CliRunner().invoke(app, [*words, "--on", "adb"], env={"COLUMNS": "80"})
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done


def plans_on(phone: Phone) -> list[Path]:
    return list((phone.storage / "handheld-runner" / "plans").glob("*.plan"))


def test_a_training_whose_runner_is_killed_continues_to_the_same_bits(phone: Phone) -> None:
    def train(name: str, *more: str) -> Result:
        words = ("train", "mine.py:make", "--data", "data.npz", "--batch", "8", "--epochs", "20", "--no-record")
        return handheld(*words, "--every", "10", "--checkpoint", name, *more)

    def is_runner(process: psutil.Process) -> bool:
        return (process.info["exe"] or "").startswith(f"{phone.storage}/handheld-runner/runner-")

    assert train("plain").exit_code == 0
    thread = killing(Path("torn").exists, is_runner)
    lost = train("torn")
    thread.join()
    said = " ".join(lost.stderr.split())
    assert lost.exit_code == 1 and f"{phone.name} was lost" in said and "the runner was killed" in said, lost.output
    assert said.endswith("To continue from torn, add --resume to the same command")
    assert train("torn", "--resume").exit_code == 0
    (a, _), (b, _) = load_state("plain"), load_state("torn")
    assert set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_bench_trains_a_workload(phone: Phone) -> None:
    done = handheld("bench", "mine.py:with_batch", "--steps", "5", "--cool", "0", "--out", "bench", "--json")
    assert done.exit_code == 0, done.output
    (row,) = (json.loads(line) for line in Path("bench/results.jsonl").read_text().splitlines())
    assert row["device"].startswith("adb") and row["status"] == "trained", row
    assert plans_on(phone)


def test_verify_compares_every_op(phone: Phone) -> None:
    done = handheld("verify", "mine.py:with_batch", "--json")
    assert done.exit_code == 0, done.output
    reports = {report["graph"]: report for report in json.loads(done.stdout)}
    assert all(report["device"] == "adb" and report["passed"] for report in reports.values())
    assert {"matmul", "reduce"} <= {op["op"] for op in reports["train"]["ops"]}
    assert plans_on(phone)


def test_tune_keeps_the_fastest_variants(phone: Phone, tmp_path: Path) -> None:
    done = handheld("tune", "mine.py:with_batch", "--budget", "1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["signatures"][0]["candidates"] > 1 and found["signatures"][0]["best_ms"] > 0
    assert Path(found["record"]).is_relative_to(tmp_path / "cache") and plans_on(phone)


def test_a_study_measures_a_model(phone: Phone) -> None:
    words = ("study", "das2022", "--models", "m1", "--widths", "16", "--steps", "2", "--out", "das", "--no-page")
    done = handheld(*words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["complete"] and found["device"].startswith(f"{phone.name}/") and found["steps"] == 2
    assert Path("das/das2022.json").is_file() and plans_on(phone)
