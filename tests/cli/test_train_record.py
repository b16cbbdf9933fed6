"""What `handheld train` writes about a training: a run file and its page."""

from __future__ import annotations

import json
import os

from handheld.analyse.run import open_run
from handheld.errors import RunFileError
from handheld.profile import training as recording

TRAIN = ("train", "mine.py:make", "--data", "data.npz", "--on", "reference:cpu", "--epochs", "2")


def test_train_writes_a_run_file_and_a_page_and_says_where(run, work):
    result = run(*TRAIN)
    assert result.exit_code == 0, result.output
    assert "run file       mine_make-train-1.run" in result.stdout and "mine_make-train-1.html" in result.stdout
    with open_run(work / "mine_make-train-1.run") as record:
        steps, epochs = record.training_steps(), record.epochs()
        assert [e.number for e in epochs] == [1, 2] and "accuracy" in epochs[0].test and record.complete
        assert len(steps) == epochs[-1].step and steps[-1].epoch == 2
        assert record.meta["settings"]["data"] == "data.npz" and record.meta["settings"]["training"] is True
        assert "plan_hash" in record.meta and "tuning" not in record.meta, "no facts that only advice on ops needs"
    page = (work / "mine_make-train-1.html").read_text()
    assert '"kind":"blocks"' in page and "Test accuracy" in page
    shown = " ".join(run("show", "mine_make-train-1.run").stdout.split())
    assert shown.startswith(f"Training: 2 epochs, {len(steps)} steps; loss ")
    assert f"{epochs[-1].loss:.4f} in the last" in shown and f"test accuracy {epochs[-1].test['accuracy']:.4g}" in shown
    again = run("report", "mine_make-train-1.run", "--out", "again.html")
    assert again.exit_code == 0 and (work / "again.html").read_text() == page


def test_the_page_or_both_can_be_left_out(run, work):
    before = set(os.listdir(work))
    result = run(*TRAIN, "--no-page", "--out", "own.run", "--json")
    document = json.loads(result.stdout)
    assert document["record"] == "own.run" and "page" not in document
    result = run(*TRAIN, "--no-record", "--json")
    assert "record" not in json.loads(result.stdout)
    assert set(os.listdir(work)) - before == {"own.run"}


def test_out_is_checked_before_the_training(run, work):
    (work / "there.run").write_text("")
    for words, told in (
        (("--out", "there.run"), "there.run exists. Try: another --out"),
        (("--out", "nowhere/x.run"), "there is no folder nowhere"),
        (("--out", "x.run", "--no-record"), "--no-record asks for none"),
    ):
        result = run(*TRAIN, *words)
        assert result.exit_code == 1 and told in " ".join(result.stderr.split()), result.stderr
        assert "epoch" not in result.stdout


def test_a_training_that_fails_keeps_its_record(run, work):
    (work / "bad.run").unlink(missing_ok=True)
    result = run(*TRAIN, "--lr", "1e38", "--out", "bad.run")
    assert result.exit_code == 1 and "the loss became" in result.stderr
    with open_run(work / "bad.run") as record:
        assert record.meta["status"] == "failed: NonFiniteLoss" and record.training_steps()
    assert "Not finished" in (work / "bad.html").read_text()


def test_without_room_for_the_record_the_training_goes_on(run, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise RunFileError("mine_make-train-9.run cannot be created: the disk is full")

    monkeypatch.setattr(recording, "Profiler", full)
    result = run(*TRAIN)
    assert result.exit_code == 0 and "test accuracy" in result.stdout
    assert "the disk is full. The training goes on without" in " ".join(result.stderr.split())


def test_training_is_the_same_with_and_without_a_record(run):
    one, other = (run(*TRAIN, "--json", *extra) for extra in ((), ("--no-record",)))
    losses = [[e["loss"] for e in json.loads(result.stdout)["epochs"]] for result in (one, other)]
    assert losses[0] == losses[1]
