"""The output, files and errors of `handheld profile`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import handheld
from handheld.cli import output, profile
from handheld.cli.main import app
from handheld.errors import RunFileError
from handheld.profile import sampling
from helpers.commands import BLOCK_TORCH
from helpers.known_ceilings import store_ceilings
from helpers.paths import clean_path

FACTORY = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    batch = (torch.randn(8, 6), torch.zeros(8, dtype=torch.int64))
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2), batch
"""


@pytest.fixture(scope="module", autouse=True)
def known_ceilings(tmp_path_factory):
    """Only the tests about them measure ceilings, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANDHELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        store_ceilings()
        yield


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in its own folder, with 80 columns, no colours and no idle second."""
    (tmp_path / "mine.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "_width", 80)

    def call(*words: str):
        return CliRunner().invoke(app, ["profile", *words], prog_name="handheld")

    return call


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> str:
    """The step file of the factory. A process that profiles it need not import PyTorch and capture the model."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "mine.py").write_text(FACTORY)
    path = folder / "mine.step"
    result = CliRunner().invoke(app, ["package", f"{folder / 'mine.py'}:make", "--out", str(path)])
    assert result.exit_code == 0, result.output
    return str(path)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(clean_path()), **more}


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from handheld.cli.main import main; main()", "profile", *words]


def test_help(run):
    result = run("--help")
    assert result.exit_code == 0 and "Examples:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_output(run):
    result = run("mine.py:make", "--steps", "30")
    assert result.exit_code == 0, result.output
    for words in (
        "device",
        "s per step in the median",
        "alive at the peak: ",
        "parameter ",
        "tuning ",
        "allocated",
        "overhead",
        "where a recorded step goes",
        "forward",
        "backward",
        "matmul",
        "run file mine_make-1.run",
        "page     mine_make-1.html",
    ):
        assert words in result.stdout, words
    assert result.stdout.startswith("Bound by "), "the answer comes first"
    assert "energy" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert run("mine.py:make", "--steps", "3").exit_code == 0
    assert Path("mine_make-2.run").exists(), "no run is written over"


def test_a_busy_machine_is_a_warning_above_the_tables(run, tmp_path, packed):
    """The busy processes are no children of the command, so they count as others."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        done = subprocess.run(
            command(packed, "--steps", "60", "--out", "busy.run", "--no-report"),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(),
            check=False,
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()
    answer, caution, *_ = done.stdout.split("\n\n", 1)
    assert answer.startswith("Bound by "), done.stderr
    assert caution.startswith("warning: other processes held ") and "Try: end them" in caution, done.stderr
    with handheld.open_run("busy.run") as opened:
        assert opened.others().busy and opened.meta["others"]["during"]["count"] == os.cpu_count()
        assert opened.summary().to_json()["others"]["cores"] == opened.others().cores


def test_few_steps_say_what_they_cannot_tell(run):
    """Five steps leave one recorded period and no other step to compare it with."""
    lines = [line.rstrip() for line in run("mine.py:make", "--steps", "5").stdout.splitlines()]
    text = " ".join(" ".join(lines).split())
    assert "x the time of others" not in text and "too few steps to compare recorded ones with others" in text
    assert "op times from 2 steps only, too few to tell their spread. Try: --steps 50" in text
    with handheld.open_run(next(Path().glob("*.run"))) as opened:
        parts, ops = opened.parts(), opened.ops()
        for phase in ("forward", "backward", "update"):
            assert sum(op.mean_ms for op in ops if op.phase == phase) == pytest.approx(getattr(parts, phase))


def test_the_tables_are_apart_and_add_up(run):
    lines = run("mine.py:make", "--steps", "40").stdout.splitlines()
    assert all(line == line.rstrip() for line in lines)
    parts = next(i for i, line in enumerate(lines) if line.startswith(" where a recorded step goes"))
    ops = next(i for i, line in enumerate(lines) if line.startswith(" op "))
    assert lines[parts - 1] == lines[ops - 1] == ""
    layers = next(i for i, line in enumerate(lines) if line.startswith(" layer "))
    assert parts < layers < ops and lines[layers - 1] == ""
    phases = {row[0]: float(row[-1].rstrip("%")) for row in map(str.split, lines[parts + 1 : layers - 1])}
    forward = [line for line in lines[ops + 1 : lines.index("", ops)] if " forward " in line]
    shares = [float(re.findall(r"([\d.]+)%", line)[0]) for line in forward]
    assert sum(shares) == pytest.approx(phases["forward"], abs=0.5)


def test_a_run_file_is_shown_again(run):
    first = run("mine.py:make", "--steps", "30", "--out", "one.run")
    again = CliRunner().invoke(app, ["show", "one.run"], prog_name="handheld")
    assert again.exit_code == 0 and again.stdout + "page     one.html\n" == first.stdout
    found = CliRunner().invoke(app, ["show", "one.run", "--json"], prog_name="handheld")
    assert json.loads(found.stdout)["steps"] == 30
    missing = CliRunner().invoke(app, ["show", "other.run"], prog_name="handheld")
    assert missing.exit_code == 1 and "there is no run file other.run" in missing.stderr


def test_no_folder_to_write_to(run):
    result = run("mine.py:make", "--steps", "3", "--out", "away/one.run")
    assert result.exit_code == 1 and "cannot be created: there is no folder away" in result.stderr


def test_json(run):
    result = run("mine.py:make", "--steps", "30", "--json", "--out", "one.run")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["steps"] == 30 and found["status"] == "complete"
    assert found["parts"]["ms"] > 0 and found["ops"][0]["ms"] > 0
    assert isinstance(found["findings"], list) and found["memory"]["allocated_bytes"] > 0
    assert found["energy"] == [] or found["energy"][0]["rail"]
    with handheld.open_run("one.run") as opened:
        assert opened.meta["settings"]["what"] == "mine_make"


def test_a_graph_that_no_training_step_runs(run):
    result = run("mine.py:make", "--graph", "predict", "--steps", "5", "--out", "one.run")
    assert result.exit_code == 0, result.output
    with handheld.open_run("one.run") as opened:
        assert opened.meta["settings"]["data"] == "random"


def test_a_file_that_exists_is_not_touched(run):
    Path("one.run").write_text("mine")
    result = run("mine.py:make", "--out", "one.run")
    assert result.exit_code == 1 and "one.run exists" in result.stderr
    assert Path("one.run").read_text() == "mine"


def test_bad_requests(run):
    for words, said in (
        (("mine.py:make", "--graph", "tain"), "there is no graph 'tain'"),
        (("mine.py:make", "--estimate-energy"), "Try: --watts-busy"),
        (("mine.py:make", "--watts-busy", "5"), "need --estimate-energy"),
        (("nothing",), "nothing"),
    ):
        result = run(*words, "--steps", "2")
        assert result.exit_code == 1 and said in result.stderr, result.output
        assert not list(Path().glob("*.run"))


def test_energy_without_a_sensor_is_an_error_before_anything_runs(run, monkeypatch):
    monkeypatch.setattr(sampling, "find", lambda where=None: [])
    monkeypatch.setattr(profile, "open_model", lambda what: pytest.fail("it went on"))
    result = run("mine.py:make", "--energy")
    assert result.exit_code == 1 and "this machine has no power sensor" in result.stderr
    assert "--estimate-energy" in result.stderr


def test_an_estimate_says_that_it_is_one(run):
    words = ("mine.py:make", "--steps", "20", "--estimate-energy", "--watts-busy", "5", "--watts-idle", "1")
    result = run(*words)
    assert "estimate, not measured" in result.stdout.replace("\n               ", "")
    assert "energy of ops (an estimate)" in result.stdout and "estimate mJ" in result.stdout
    found = json.loads(run(*words, "--json").stdout)
    assert [row["estimate"] for row in found["energy"]][-1] is True
    assert all(row["method"] == "estimate" for row in found["op_energy"])
    plain = run("mine.py:make", "--steps", "20").stdout
    assert "estimate" not in plain


def test_the_git_state_is_that_of_the_users_code(run, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.py").write_text(Path("mine.py").read_text())
    git = ["git", "-C", str(project), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert run("project/mine.py:make", "--steps", "3", "--out", "one.run").exit_code == 0
    with handheld.open_run("one.run") as found:
        assert found.meta["code"] == {"commit": head, "changed": False}


def test_torch_cpu(run):
    result = run("mine.py:make", "--on", "reference:cpu", "--steps", "20")
    assert result.exit_code == 0 and "reference:cpu" in result.stdout
    assert "allocated" not in result.stdout, "PyTorch's own memory is not ours to state"


def test_examples_come_from_data_and_what_is_frozen_is_named(run, tmp_path):
    (tmp_path / "bare.py").write_text(
        FACTORY.replace(", batch\n", "\n")
        .replace("nn.ReLU()", "Gate()")
        .replace(
            "def make",
            """class Gate(nn.Module):
    def forward(self, x):
        return x if x.mean() > 0 else -x

def make""",
        )
    )
    np.savez(tmp_path / "data.npz", x=np.ones((64, 6), np.float32), y=np.arange(64) % 3)
    words = ("bare.py:make", "--on", "reference:cpu", "--steps", "5", "--json")
    assert "--data DATA" in json.loads(run(*words).stdout)["error"]["message"]
    result = run(*words, "--data", "data.npz")
    assert result.exit_code == 0, result.output
    assert "`return x if x.mean() > 0 else -x`" in result.stderr


def test_a_workload_of_two_updates(run):
    result = run("dcgan", "--batch", "2", "--steps", "4")
    assert result.exit_code == 0, result.output
    assert "d and g" in result.stdout and "a recorded step of g" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_step_file_without_pytorch(run, tmp_path, packed):
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "sitecustomize.py").write_text(BLOCK_TORCH)
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path / 'block'}{os.pathsep}{env['PYTHONPATH']}"
    done = subprocess.run(
        command(packed, "--steps", "20", "--json"), cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 20 and found["parts"]["backward"] > 0


def test_ctrl_c(run, tmp_path, packed):
    process = subprocess.Popen(
        command(packed, "--steps", "100000000", "--out", "one.run"),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
        if Path("one.run").exists():
            try:
                with handheld.open_run("one.run") as found:
                    if len(found.steps()) > 50:
                        break
            except RunFileError:  # The file is being created.
                continue
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert re.search(
        r"stopped: interrupted; one\.run holds [\d,]+ steps\. "
        r"Try: handheld show one\.run",
        said,
    ), said
    with handheld.open_run("one.run") as found:
        assert found.meta["status"] == "interrupted" and found.summary()["steps"] > 50
        assert "sampler" in found.meta


def test_a_disk_that_fills(run, tmp_path, packed):
    """A limit on the size of files acts as a full disk."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
        "from handheld.cli.main import main; main()"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", code),
            "profile",
            packed,
            "--on",
            "reference:cpu",
            "--steps",
            "800",
            "--out",
            "one.run",
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "one.run could not be written" in said and "committed before can still be read" in said, said
    with handheld.open_run("one.run") as found:
        assert found.meta["status"] == "running" and not found.complete
        assert found.summary()["steps"] == len(found.steps())


def test_live_in_a_terminal(run, tmp_path, packed):
    """On a real terminal of 80 columns, progress is drawn while steps run and removed at the end."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    process = subprocess.Popen(
        command(packed, "--steps", "4000", "--live"),
        cwd=tmp_path,
        stdout=end,
        stderr=end,
        stdin=end,
        close_fds=True,
        env=environment(TERM="xterm", COLUMNS="80", LINES="40"),
    )
    os.close(end)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # The other end is closed.
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert process.wait(60) == 0, shown[-2000:]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "of 4000 steps" in text, text[:2000]
    assert "run file mine_make-1.run" in text and "page     mine_make-1.html" in text
    assert max(map(len, re.split(r"[\r\n]+", text))) <= 80
    assert shown.rstrip().endswith(b".html") and text.count("where a recorded step goes") == 1
