"""Options of `handheld train` about updates and the best epoch, and what a killed or resumed training leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import handheld
from helpers.commands import fails

TRAIN = ("train", "mine.py:make", "--data", "data.npz", "--batch", "16", "--schedule", "constant")


def test_patience_ends_training_and_keep_best_exports_the_best_epoch(run, work):
    words = (*TRAIN, "--epochs", "40", "--lr", "3")  # A rate at which the test loss soon rises.
    result = run(*words, "--patience", "2", "--keep-best", "--checkpoint", "run1.checkpoint", "--export", "out1.step")
    assert result.exit_code == 0, result.output
    assert "note: no lower test loss for 2 epochs: stopped after epoch" in " ".join(result.stderr.split())
    assert "add --resume" not in result.stderr
    assert "by test loss; the result is its state" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    report = json.loads(run(*words, "--patience", "2", "--keep-best", "--json").stdout)
    losses = [e["test"]["loss"] for e in report["epochs"]]
    best = int(np.argmin(losses))
    assert report["best_epoch"] == report["kept_epoch"] == best + 1 == len(losses) - 2
    assert report["best_by"] == "test loss" and report["test"] == report["epochs"][best]["test"]
    # The exported state is that of a training that ends with the best epoch.
    short = run(*(*TRAIN, "--epochs", str(best + 1), "--lr", "3"), "--export", "short.step")
    assert short.exit_code == 0, short.output
    mine, other = (handheld.load(work / name).state() for name in ("out1.step", "short.step"))
    assert all(np.array_equal(mine[key], other[key]) for key in mine)
    # The checkpoint holds two states; export takes that of the best epoch, as --export does.
    done = len(losses)
    result = run("export", "run1.checkpoint", "--out", "best.pt")
    assert f"best epoch {best + 1} of {done} by test loss" in result.stdout, result.output
    report = json.loads(run("export", "run1.checkpoint", "--out", "last.pt", "--last", "--json").stdout)
    assert report["state"] == f"last, after epoch {done}"
    result, last = (torch.load(work / name, weights_only=True) for name in ("best.pt", "last.pt"))
    assert all(np.array_equal(value, mine[key]) for key, value in result.items())
    assert not all(np.array_equal(value, mine[key]) for key, value in last.items())
    fails(run("export", "out1.step", "--last"), "out1.step is none. Try: without --last")


def test_best_says_which_epoch_and_keeps_the_last_state(run, work):
    report = json.loads(run(*TRAIN, "--epochs", "2", "--best", "accuracy", "--json").stdout)
    assert report["best_by"] == "test accuracy" and report["kept_epoch"] == 0 and len(report["epochs"]) == 2
    fails(run(*TRAIN, "--best", "f1"), "--best f1 is no metric", "--best accuracy")


def test_accumulate_and_clipping_reach_the_capture(run, work):
    result = run(*TRAIN, "--epochs", "1", "--accumulate", "2", "--clip-norm", "0.5", "--export", "out3.step")
    assert result.exit_code == 0 and "one update per 2 batches" in result.stdout
    step = handheld.load(work / "out3.step")
    assert "train.accumulate" in step.graphs and step.graphs["train"].notes["accumulate"] == 2
    ops = {node.origin.torch_op for node in step.graphs["train"].nodes}
    assert any("clip_grad_norm" in op for op in ops)
    fails(run(*TRAIN, "--clip-value", "-1"), "clip_value=-1.0 should be a number above 0")
    again = ("train", "out3.step", "--data", "data.npz", "--batch", "16")
    fails(run(*again, "--accumulate", "2", "--clip-norm", "1"), "--accumulate, --clip-norm cannot be used here")
    fails(run("train", "dcgan", "--data", "digits", "--clip-value", "1"), "--clip-value", "several updates")


def test_clipped_training_equals_pytorch(run, work):
    result = run(*TRAIN, "--epochs", "1", "--clip-value", "0.01", "--export", "out4.step", "--json")
    assert result.exit_code == 0, result.output
    sys.path.insert(0, str(work))
    try:
        import mine

        torch.manual_seed(0)
        model, loss, optimizer = mine.make()
    finally:
        sys.path.remove(str(work))
        sys.modules.pop("mine", None)
    from handheld.data import load_data

    for x, y in load_data("data.npz", 16, seed=0).train.epoch(0):
        optimizer.zero_grad()
        loss(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
    state = handheld.load(work / "out4.step").state()
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=1e-6)


def test_resume_says_where_it_continues(run, work):
    keep = ("--checkpoint", "run5.checkpoint")
    assert run(*TRAIN, "--epochs", "1", *keep).exit_code == 0
    result = run(*TRAIN, "--epochs", "2", *keep, "--resume")
    assert "note: continuing at epoch 2 of 2, from run5.checkpoint" in result.stderr


def test_a_checkpoint_of_another_model_or_optimizer_says_so(run, work):
    keep = ("--checkpoint", "run6.checkpoint")
    assert run(*TRAIN, "--epochs", "1", *keep).exit_code == 0
    other = ("train", "lenet5", "--data", "digits", "--batch", "8", *keep, "--resume")
    fails(run(*other), "run6.checkpoint belongs to another model")
    fails(run(*TRAIN, "--epochs", "2", *keep, "--resume", "--accumulate", "2"), "another accumulate")


WRITER = """
import sys
import numpy as np
from pathlib import Path
from handheld.package import save_state

while True:
    save_state(Path(sys.argv[1]), {"a": np.zeros(24 << 20, np.float32)}, {})
"""


def _temporaries(folder: Path) -> list[Path]:
    return sorted(folder.glob(".handheld-*.tmp"))


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_not_disturbed(tmp_path):
    target = tmp_path / "run.checkpoint"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(target)])
    try:
        deadline = time.monotonic() + 60
        from handheld.files import remove_stale

        while not (left := _temporaries(tmp_path)):
            assert time.monotonic() < deadline and writer.poll() is None
        writer.send_signal(signal.SIGSTOP)  # It cannot finish the file now.
        left = _temporaries(tmp_path)
        while not left:  # It had just finished one; wait for the next.
            writer.send_signal(signal.SIGCONT)
            time.sleep(0.001)
            writer.send_signal(signal.SIGSTOP)
            left = _temporaries(tmp_path)
            assert time.monotonic() < deadline
        remove_stale(target)
        assert _temporaries(tmp_path) == left, "its writer lives"
        (tmp_path / ".handheld-00000000-00000000.tmp").write_bytes(b"of another file")
    finally:
        writer.kill()
        writer.wait()
    assert len(_temporaries(tmp_path)) == 2
    handheld.package.save_state(target, {"a": np.zeros(2, np.float32)}, {})
    assert [path.name for path in _temporaries(tmp_path)] == [".handheld-00000000-00000000.tmp"]
    assert target.exists() and os.path.getsize(target) < 1000


def test_a_training_removes_what_a_killed_one_left(run, work):
    from handheld.files import _prefix

    stale = work / f"{_prefix(Path('run8.checkpoint'))}00000000.tmp"
    stale.write_bytes(b"x")
    result = run(*TRAIN, "--epochs", "1", "--checkpoint", "run8.checkpoint")
    assert result.exit_code == 0 and not stale.exists() and not _temporaries(work)


def test_a_large_part_that_is_left_out_is_said_at_the_start_with_a_way_out(run, work):
    words = ("train", "mine.py:make", "--data", "data.npz", "--epochs", "1")
    result = run(*words, "--batch", "120", "--export", "left-out.step", "--force")  # 320 samples to train.
    said = "note: each epoch leaves out 80 of 320 training samples, because they do not fill a batch of 120."
    assert f"{said} Try: --batch 80, which leaves out 0" in " ".join(result.stderr.split()), result.output
    assert "80 samples per epoch" in result.stdout
    again = run("train", "left-out.step", "--data", "data.npz", "--epochs", "1", "--batch", "120")
    assert "Try: package the model again with --batch 80" in " ".join(again.stderr.split()), again.output
    for batch, dropped in ((80, 0), (96, 32)):  # A tenth is not more than a tenth; the result still counts it.
        report = json.loads(run(*words, "--batch", str(batch), "--json").stdout)
        assert report["dropped_per_epoch"] == dropped and not any("leaves out" in note for note in report["notes"])
