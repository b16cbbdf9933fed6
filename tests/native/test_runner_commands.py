"""The runner without a host: check, train, evaluate, profile and tune from files, and what it says about bad ones."""

from __future__ import annotations

import csv
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.runner import opencl_library
from helpers.tiny_plan import TinyPlan, batches

Command = Callable[..., subprocess.CompletedProcess[str]]
LOSSES = [64 * (2 * k + 1) for k in range(4)]


def driver_of(described: dict[str, object]) -> str:
    return f"{described['platform_version']}; {described['driver']}"


@pytest.fixture
def plan(described: dict[str, object]) -> TinyPlan:
    unified = bool(described["unified_memory"])
    made = TinyPlan(str(described["name"]), max(int(str(described["base_align_bytes"])), 4), unified)
    made.driver = driver_of(described)
    return made.fill()


@pytest.fixture
def files(tmp_path: Path, plan: TinyPlan) -> Path:
    (tmp_path / "a.plan").write_bytes(plan.pack())
    (tmp_path / "a.batches").write_bytes(batches([[np.full((8, 8), k, np.float32)] for k in range(4)]))
    return tmp_path


@pytest.fixture
def command(runner: Path, files: Path) -> Command:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        options = [*opencl_library(), "--folder", "kept"] if words[0] not in ("--help", "--version") else []
        return subprocess.run([runner, *words, *options], cwd=files, capture_output=True, text=True, check=False)

    return run


def test_check_lists_the_graphs(command: Command) -> None:
    done = command("check", "a.plan")
    assert done.returncode == 0 and "2 graphs, 2 launches, 1 programs" in done.stdout
    assert "train: 4 ops, 2 launches, 1 inputs, 1 outputs" in done.stdout


def test_training_resumes_to_the_same_bits(command: Command, files: Path) -> None:
    whole = command(
        "train", "a.plan", "--batches", "a.batches", "--steps", "6", "--checkpoint", "a", "--losses", "a.csv"
    )
    assert whole.returncode == 0 and "step 6 of 6: loss 192" in whole.stdout
    rows = list(csv.DictReader((files / "a.csv").open()))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [float(row["loss"]) for row in rows] == [*LOSSES, *LOSSES[:2]]
    part = (
        "train",
        "a.plan",
        "--batches",
        "a.batches",
        "--checkpoint",
        "b",
        "--losses",
        "b.csv",
        "--resume",
        "--steps",
    )
    first = command(*part, "3")
    assert "b does not exist yet: training starts at step 0" in first.stdout
    with (files / "b.csv").open("a") as file:
        file.write("4,1.5\n")  # a step whose checkpoint was not written any more
    assert "resumed b at step 3" in command(*part, "6").stdout
    assert (files / "a").read_bytes() == (files / "b").read_bytes()
    assert (files / "a.csv").read_bytes() == (files / "b.csv").read_bytes()
    state = (files / "a").read_bytes()
    (length,) = struct.unpack("<Q", state[:8])
    assert b"00000000000000000006" in state[8 : 8 + length]
    assert struct.unpack("<ff", state[8 + length :]) == (2.0, LOSSES[1])


def test_evaluate_prints_the_mean(command: Command) -> None:
    done = command("evaluate", "a.plan", "--batches", "a.batches")
    assert done.stdout == f"mean loss of 4 batches: {sum(LOSSES) // 4}\n"


def test_profile_writes_every_command(command: Command, files: Path) -> None:
    done = command("profile", "a.plan", "--batches", "a.batches", "--steps", "3", "--out", "a.csv")
    assert done.returncode == 0 and done.stdout.startswith("3 steps, 15 commands, device busy ")
    rows = list(csv.DictReader((files / "a.csv").open()))
    kinds = ["upload", "launch", "launch", "copy", "download"]
    assert [(row["step"], row["kind"]) for row in rows] == [(step, kind) for step in "123" for kind in kinds]
    assert all(int(row["ended"]) >= int(row["started"]) > 0 for row in rows)


def test_tune_times_every_graph(command: Command) -> None:
    lines = command("tune", "a.plan", "--seconds", "0.01").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["train", "evaluate"] and all(
        "median of" in line for line in lines
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_training_with_a_checkpoint(
    runner: Path, command: Command, files: Path, number: int, code: int
) -> None:
    train = ["train", "a.plan", "--batches", "a.batches", "--checkpoint", "c", "--steps"]
    words = [runner, *train, "100000000", *opencl_library(), "--folder", "kept"]
    process = subprocess.Popen(words, cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("step 1 of ")
    time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    done = int(said.split("after step ")[1].split(";")[0])
    assert "the checkpoint is written. Try: --resume" in said
    assert f"resumed c at step {done}" in command(*train, str(done + 1), "--resume").stdout


def changed(path: Path, at: int, data: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:at] + data + content[at + len(data) :])


TRAIN = ("train", "a.plan", "--batches", "a.batches")


@pytest.mark.parametrize(
    ("damage", "words", "text"),
    [
        (lambda at: (at / "a.plan").write_bytes((at / "a.plan").read_bytes()[:900]), TRAIN, "it was cut off. Try: "),
        (lambda at: (at / "a.plan").write_bytes(b"HANDPLAN"), TRAIN, "it was cut off. Try: "),
        (lambda at: changed(at / "a.plan", 8, b"\1"), TRAIN, "of version 1, and this runner reads version 2. Try: "),
        (lambda at: changed(at / "a.plan", 900, b"?"), TRAIN, "is damaged: its checksum does not fit"),
        (lambda at: (at / "a.plan").write_bytes(b"hello"), TRAIN, "is no plan file. Try: handheld plan"),
        (lambda at: (at / "a.plan").unlink(), TRAIN, "a.plan cannot be read: No such file"),
        (
            lambda at: (at / "a.batches").write_bytes(batches([[np.zeros((4, 16), np.float32)]])),
            TRAIN,
            "a.batches has f32 4x16 for input 0 (x), and the plan takes f32 8x8. Try: batches of the shape and type",
        ),
        (
            lambda at: (at / "a.batches").write_bytes(batches([[np.zeros((8, 8), np.int32)]])),
            TRAIN,
            "a.batches has i32 8x8 for input 0 (x), and the plan takes f32 8x8. Try: batches of the shape and type",
        ),
        (
            lambda at: (at / "a.batches").write_bytes(batches([[np.zeros((), np.float32)]])),
            TRAIN,
            "a.batches has f32 number for input 0 (x), and the plan takes f32 8x8. Try: ",
        ),
        (lambda at: changed(at / "a.batches", 24, b"\4"), TRAIN, "has an input of an unknown type. Try: "),
        (lambda at: changed(at / "a.batches", 38, b"\1"), TRAIN, "has an input that is too large. Try: "),
        (lambda at: changed(at / "a.batches", 8, b"\1"), TRAIN, "is a file of batches of another version. Try: "),
        (lambda at: changed(at / "a.batches", 12, b"\2"), TRAIN, "has 2 inputs per batch, and the plan takes 1. Try: "),
        (lambda at: changed(at / "a.batches", 16, b"\5"), TRAIN, "it was cut off. Try: "),
        (lambda at: (at / "a.batches").write_bytes(b"x"), TRAIN, "is no file of batches. Try: "),
        (
            lambda at: (at / "c").write_bytes(b"x" * 99),
            (*TRAIN, "--checkpoint", "c", "--resume"),
            "no checkpoint of this",
        ),
        (lambda at: None, (*TRAIN, "--checkpoint", "/nowhere/c"), "/nowhere/c cannot be written: No such file"),
        (lambda at: None, (*TRAIN, "--resume"), "--resume needs the checkpoint. Try: --checkpoint FILE"),
        (lambda at: None, (*TRAIN, "--graph", "other"), "no graph other. Try: handheld-runner check"),
        (lambda at: None, (*TRAIN, "--device", "99"), "there is no device 99"),
        (lambda at: None, (*TRAIN, "--steps", "many"), "--steps needs a number, not many. Try: "),
        (lambda at: None, (*TRAIN, "--step", "1"), "there is no option --step. Try: handheld-runner --help"),
        (lambda at: None, ("train", "a.plan"), "needs batches. Try: --batches FILE"),
        (lambda at: None, ("dance",), "there is no command dance. Try: handheld-runner --help"),
    ],
)
def test_bad_input_gets_one_sentence(
    command: Command, files: Path, damage: Callable[[Path], object], words: tuple[str, ...], text: str
) -> None:
    damage(files)
    done = command(*words)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("handheld-runner: ") and text in done.stderr


def test_a_plan_for_another_driver_runs_with_a_note(
    command: Command, files: Path, described: dict[str, object], plan: TinyPlan
) -> None:
    other = TinyPlan(str(described["name"]), plan.align, plan.unified, driver="OpenCL 1.2; 7").fill()
    assert command(*TRAIN).stderr == ""
    (files / "a.plan").write_bytes(other.pack())
    done = command(*TRAIN)
    assert done.returncode == 0 and "step 4 of 4" in done.stdout and done.stderr.count("\n") == 1
    assert f"made for driver OpenCL 1.2; 7, but {described['name']} has driver {driver_of(described)}. " in done.stderr
    assert "compiled from source for this driver" in done.stderr and "Try: make the plan again" in done.stderr


def test_a_damaged_checkpoint_is_not_used(command: Command, files: Path) -> None:
    command(*TRAIN, "--checkpoint", "c")
    changed(files / "c", (files / "c").stat().st_size - 1, b"?")
    done = command(*TRAIN, "--checkpoint", "c", "--resume")
    assert done.returncode == 1 and "c is damaged: its checksum is wrong. Try: an older checkpoint" in done.stderr


def test_help_names_every_option(command: Command) -> None:
    said = command("--help").stdout
    for word in ("info", "serve", "check", "train", "evaluate", "profile", "tune", "--batches", "--resume", "--opencl"):
        assert f" {word} " in said or f" {word}\n" in said
    assert all(len(line) <= 110 for line in said.splitlines())
