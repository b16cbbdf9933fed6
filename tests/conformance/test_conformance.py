"""`doctor --conformance`: op cases in child processes, resumed after an interruption, with a report."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from handheld.backends.base import describe
from handheld.child import Ending
from handheld.cli import doctor, probe
from handheld.cli.main import app
from handheld.conformance import run as running
from handheld.conformance import worker as working
from handheld.conformance.cases import CASES
from handheld.conformance.report import bad, counts
from handheld.conformance.run import conformance
from handheld.conformance.worker import Gone, run_case
from handheld.drivers.store import Failure, Truth, keep, kernels_hash
from handheld.errors import DeviceError, HandheldError, TargetLost


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))


def test_a_crash_is_one_failure_and_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen, children = tmp_path / "report", [], []

    class Watched(running.Child):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            children.append(self.pid)

    monkeypatch.setattr(running, "Child", Watched)

    def progress(done: int, total: int, name: str) -> None:
        seen.append(name)
        if len(seen) == 1:  # It takes the longest: PyTorch is warm after it.
            os.kill(children[-1], signal.SIGKILL)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conformance("opencl", folder, 5, progress)
    assert json.loads((folder / "report.json").read_text())["counts"] == {
        "passed": 1,
        "failed": 0,
        "crashed": 1,
        "skipped": 0,
        "not run": 3,
    }
    (folder / "cases.jsonl").open("a").write('{"case": "half a li')
    summary = conformance("opencl", folder, 5, lambda *now: seen.append(now[2]))
    assert counts(summary) == {"passed": 4, "failed": 0, "crashed": 1, "skipped": 0, "not run": 0}
    assert len(seen) == 3 + 3 and len(children) == 4, "one ran the crashed case op by op"
    (crashed,) = bad(summary)
    assert crashed["case"] == seen[0] and "SIGKILL" in crashed["problems"][0]
    assert crashed["problems"][1] == "op by op, it does not crash"
    page = (folder / "report.md").read_text()
    assert "| 4 | 0 | 1 | 0 | 0 |" in page and crashed["case"] in page and describe("opencl").driver in page
    assert "SIGKILL" in (folder / "report.html").read_text()
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "kernels": "other"}))
    with pytest.raises(HandheldError, match="another version of Handheld: kernels changed"):
        conformance("opencl", folder, 5)


def test_a_crash_names_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(running.Child):
        """Its case dies; op by op, it dies in the second op."""

        def __init__(self, command: object) -> None:
            self.messages: list[dict[str, str]] = []

        def send(self, request: dict[str, Any]) -> None:
            whats = ("while its kernels were built", "in map_0 of op 0 (map)", "in conv_tile of op 1 (conv)")
            self.messages = [{"what": what} for what in whats] if request["blame"] else [{"begin": request["names"][0]}]

        def receive(self, timeout: float) -> dict[str, str] | None:
            return self.messages.pop(0) if self.messages else None

        def ending(self) -> Ending:
            return Ending(-11)

        def close(self) -> None: ...

    monkeypatch.setattr(running, "Child", Dying)
    (crashed,) = bad(conformance("opencl", tmp_path / "report", 1))
    assert crashed["status"] == "crashed" and "SIGSEGV" in crashed["problems"][0]
    assert crashed["problems"][1].startswith("op by op, it ends in conv_tile of op 1 (conv): the process")


def test_a_case_runs_op_by_op() -> None:
    said: list[str] = []
    working.blame("linear", "opencl", describe("opencl"), said.append)
    assert said[0] == "while its kernels were built" and len(said) > 2
    assert said[1] == "in contract of op 0 (matmul)", said


def test_a_lost_target_is_no_failure_of_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, gone = next(iter(CASES)), "ssh:me@127.0.0.1:1"
    with pytest.raises(Gone, match=gone):
        run_case(name, gone, describe("opencl"), False)

    class Lost(running.Child):
        def receive(self, timeout: float) -> dict[str, str]:
            return {"lost": f"{gone} was lost"}

    monkeypatch.setattr(running, "Child", Lost)
    with pytest.raises(TargetLost, match=f"{gone} was lost. 0 of 2 cases are done. Run the same command to continue"):
        conformance("opencl", tmp_path / "report", 2)
    assert not (tmp_path / "report" / "cases.jsonl").exists()


def test_a_case_that_ends_its_runner_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def crash(*_: object) -> None:
        tries.append(1)
        raise TargetLost("the runner crashed", crashed=True)

    monkeypatch.setattr(working, "run_plan", crash)
    result = run_case(next(iter(CASES)), "opencl", describe("opencl"), False)
    assert len(tries) == 2 and result["status"] == "failed" and "the runner crashed" in result["problems"][0]


def test_what_cannot_be_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(HandheldError, match="Try: --out with a new folder"):
        conformance("opencl", tmp_path, 1)
    with pytest.raises(DeviceError, match="Try: --on opencl"):
        conformance("reference:cpu", tmp_path / "new", 1)
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HandheldError, match="Try: pip install torch"):
        conformance("opencl", tmp_path / "new", 1)


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--conformance", "--sample", "1", "--out", str(tmp_path / "r")])
    assert done.exit_code == 0 and "1 passed" in done.output and "report.html" in done.output.replace("\n", "")
    refused = CliRunner().invoke(app, ["doctor", "--sample", "1"])
    assert refused.exit_code != 0


def test_doctor_fails_for_a_driver_with_a_refused_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "run_in_child", lambda name: "")
    caps = describe("opencl")
    facts = (caps.name, caps.vendor, caps.driver, kernels_hash(), "2026-01-01", 1.0, 29, True)
    for avoid, passed in (("matmul=gpu", True), ("matmul=gpu sort=none", False)):
        keep(Truth(*facts, avoid, (Failure("linear", "matmul", "", "output 0 is off by 9.0e-01"),)), caps)
        (device,) = doctor.examine(on="opencl")["devices"]
        assert device.to_json()["passed"] is passed
        assert ("sort computed wrongly" in device.problem) is not passed
        assert device.check is not None and "avoided: matmul: with the kernels for GPUs" in device.check.words()
