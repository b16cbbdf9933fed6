"""A lost target: the command says what it has and how to go on, and continues to the same bits. The runner is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from handheld.analyse.run import open_run
from handheld.backends.base import is_gone
from handheld.cli.main import app
from handheld.cli.train import _rescue
from handheld.errors import DeviceError, TargetLost
from handheld.package import load_state
from helpers.commands import FACTORY
from helpers.killing import killing
from helpers.opencl_library import opencl_library
from helpers.phones import AddPhone
from helpers.progress import steps_in
from helpers.ssh_server import MISSING, SshServer, ssh_server

needs_sshd = pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is a server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("sshd") / "server", {"HANDHELD_OPENCL": opencl_library()}) as started:
        yield started


@pytest.fixture(autouse=True)
def real(monkeypatch: pytest.MonkeyPatch, runner: object, tmp_path: Path) -> None:
    monkeypatch.delenv("HANDHELD_RUNNER")
    monkeypatch.setenv("HANDHELD_OPENCL", opencl_library())
    monkeypatch.setenv("HANDHELD_DRIVER_CHECK", "off")
    (tmp_path / "mine.py").write_text(FACTORY)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((400, 6)).astype(np.float32), y=rng.integers(0, 3, 400))
    monkeypatch.chdir(tmp_path)


def handheld(*words: str):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})


def train(target: str, name: str, *more: str):
    words = ("train", "mine.py:make", "--data", "data.npz", "--batch", "8", "--epochs", "30", "--no-record")
    return handheld(*words, "--every", "10", "--checkpoint", name, "--on", target, *more)


def same_bits(one: str, other: str) -> bool:
    (a, _), (b, _) = load_state(one), load_state(other)
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


@needs_sshd
@pytest.mark.parametrize("victim", ("connection", "runner"))
def test_a_training_continues_to_the_same_bits(server: SshServer, monkeypatch: pytest.MonkeyPatch, victim: str):
    monkeypatch.setenv("HANDHELD_SSH", server.client)
    assert train(server.name, "plain").exit_code == 0

    def whom(process: psutil.Process) -> bool:
        exe, words = process.info["exe"] or "", process.info["cmdline"] or []
        if victim == "runner":
            return exe.startswith(f"{server.home}/handheld-runner/runner-")
        return process.info["name"] == "ssh" and f"{server.folder}/client" in words

    thread = killing(Path("torn").exists, whom)
    lost = train(server.name, "torn")
    thread.join()
    assert lost.exit_code == 1, lost.output
    said = " ".join(lost.stderr.split())
    assert f"{server.name} was lost" in said and "The last checkpoint is from epoch" in said
    assert said.endswith("To continue from torn, add --resume to the same command")
    assert ("(ssh) was ended" if victim == "connection" else "the runner was killed") in said
    assert train(server.name, "torn", "--resume").exit_code == 0
    assert same_bits("plain", "torn")


def test_a_phone_that_is_unplugged_while_it_is_profiled(phones: AddPhone):
    phone = phones()

    def whom(process: psutil.Process) -> bool:
        words = process.info["cmdline"] or []
        mine = any(str(phone.folder.parent.parent) in word for word in words)
        if mine and phone.folder.name in " ".join(words):
            phone.set("")
            return True
        return False

    thread = killing(lambda: steps_in(Path("torn.run")) >= 20, whom)
    words = ("profile", "mine.py:with_batch", "--on", "adb", "--steps", "200000", "--no-ceilings", "--no-report")
    lost = handheld(*words, "--out", "torn.run")
    thread.join()
    said = " ".join(lost.stderr.split())
    assert lost.exit_code == 1 and "adb:R5CT10XYZ was lost" in said, lost.output
    with open_run("torn.run") as run:
        assert "TargetLost" in str(run.meta.get("status"))
        steps = run.steps()
    assert [step.id for step in steps] == list(range(len(steps))) and len(steps) >= 20
    assert said.endswith(f"torn.run holds {len(steps):,} steps. Try: handheld show torn.run")
    shown = json.loads(handheld("show", "torn.run", "--json").stdout)
    assert shown
    phone.set("device")
    assert handheld(*words[:5], "20", *words[6:], "--out", "again.run").exit_code == 0


def test_a_training_that_saves_nothing_says_so(tmp_path: Path):
    lost = TargetLost("adb:R5CT10XYZ was lost after 7 steps: the phone is no longer attached")
    for checkpoint, says in ((None, "Try: --checkpoint FILE next time"), (tmp_path / "none", "was not written yet")):
        with pytest.raises(TargetLost, match=f"after 7 steps: .* Nothing was saved.*{says}"), _rescue(None, checkpoint):
            raise lost


def test_only_what_says_something_about_the_work_counts_against_it(phones: AddPhone):
    phones()
    ended, cut = TargetLost("the runner ended", crashed=True), TargetLost("the cable was pulled")
    assert is_gone("adb", cut) and not is_gone("adb", ended) and not is_gone("adb", DeviceError("it refused"))
    assert not is_gone("opencl", ended)


@needs_sshd
def test_a_target_that_does_not_answer_is_gone():
    ended = TargetLost("the runner ended", crashed=True)
    assert is_gone("ssh:me@127.0.0.1:1", ended) and is_gone("ssh:me@127.0.0.1:1", DeviceError("it refused"))
