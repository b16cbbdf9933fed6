"""`handheld where`: the table, the winner and the reason, and what is reported instead."""

from __future__ import annotations

import json

import pytest

from helpers.commands import fails

PHONES = ("--on", "adreno-740,mali-g78")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))


def test_it_says_which_device_from_which_batch_and_why(run):
    result = run("where", "mine.py:with_batch", *PHONES)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for words in ("adreno-740", "mali-g78", "bound by", "Least time per sample: ", "error 98% in the median", "best"):
        assert words in text
    assert "handheld doctor --energy on a machine that has this device" in text
    assert max(map(len, result.stdout.splitlines())) <= 80
    data = json.loads(run("where", "mine.py:with_batch", *PHONES, "--json").stdout)
    assert sorted({row["batch"] for row in data["entries"]}) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert len(data["entries"]) == 18 and data["choice"]["device"] in ("adreno-740", "mali-g78")
    assert {each["batch"] for each in data["best"]} == {row["batch"] for row in data["entries"]}
    assert all(row["joules_per_sample"] is None for row in data["entries"])


def test_memory_is_that_of_the_plan(run):
    data = json.loads(run("where", "mine.py:with_batch", "--on", "adreno-740", "--batch", "4,16", "--json").stdout)
    plan = json.loads(
        run("plan", "mine.py:with_batch", "--on", "adreno-740", "--batch", "4,16", "--seconds", "0", "--json").stdout
    )
    assert [row["bytes"] for row in data["entries"]] == [row["bytes"] for row in plan["batches"]]


def test_a_device_without_predictions_is_named_beside_the_others(run):
    result = run("where", "mine.py:with_batch", "--on", "adreno-740,reference:cpu", "--batch", "4")
    assert result.exit_code == 0 and "reference:cpu has none" in " ".join(result.stdout.split())
    fails(run("where", "mine.py:with_batch", "--on", "reference:cpu"), "reference:cpu has none", "Try: ")


def test_what_cannot_be_answered_says_what_to_do(run):
    fails(run("where", "mine.py:with_batch", *PHONES, "--for", "energy"), "energy model", "doctor --energy")
    fails(run("where", "mine.py:with_batch", *PHONES, "--for", "speed"), "is no goal", "Try: --for time")
    fails(run("where", "mine.py:with_batch", "--on", "toaster"), "there is no device 'toaster'")
    fails(run("where", "mine.py:with_batch", "--on", ","), "names no device", "Try: ")
