"""The advice on the page of a run equals `handheld advise`, and its command can be copied."""

from __future__ import annotations

import shlex

import pytest

from handheld.analyse import advise
from handheld.report.run_advice import MOST, UNNAMED
from handheld.report.run_payload import run_payload
from helpers.advised_runs import launch_bound
from helpers.run_files import MadeRun


def shown(run):
    return run_payload(run)["answer"]["advice"]


def test_it_equals_the_advice_of_the_run(tmp_path):
    with launch_bound(tmp_path / "my run.run") as run:
        given, page = advise.advice(run), shown(run)
    assert given and [item["rule"] for item in page["items"]] == [item.rule for item in given[:MOST]]
    first, item = given[0], page["items"][0]
    assert item["factor"] == pytest.approx(first.gain.factor, rel=1e-3) and item["spread"]
    assert first.gain.text == f"{first.gain.factor:.2f}x ({item['spread']}): {item['values']}"
    assert item["change"].lower() == first.change.lower() and item["seen"].lower() == first.seen.lower()
    assert item["costs_ms"] == pytest.approx(first.costs_ms, rel=1e-3)
    words = ["handheld", "advise", "my run.run", "--try", "--rule", first.rule]
    assert shlex.split(item["command"]) == words and page["note"] == "" == page["none"]


def test_a_run_that_cannot_be_repeated_has_a_command_without_try(tmp_path):
    with launch_bound(tmp_path / "one.run", named=False) as run:
        page = shown(run)
    assert page["note"] == UNNAMED
    assert all("--try" not in item["command"] for item in page["items"])
    assert page["items"][0]["command"].startswith("handheld profile MODEL")


def test_what_cannot_be_tried_says_why(tmp_path):
    """Steps wait for their batches, which come from the caller's own code."""
    made = MadeRun(tmp_path / "one.run")
    made.steps(60, outside_ms=lambda i: 5.0)
    with made.open() as run:
        (item,) = [item for item in shown(run)["items"] if item["rule"] == "inputs"]
    assert item["command"] == "" and "the batches come from the caller's own code" in item["note"]
    assert "Try: handheld train" in item["note"]


def test_three_are_shown_and_the_rest_counted(tmp_path, monkeypatch):
    with launch_bound(tmp_path / "one.run") as run:
        item = advise.advice(run)[0]
        monkeypatch.setattr("handheld.report.run_advice.given_advice", lambda run: [item] * 5)
        page = shown(run)
    assert len(page["items"]) == 3 and page["more"] == 2 and page["all"] == "handheld advise one.run"


def test_no_advice_is_a_sentence(tmp_path):
    with MadeRun(tmp_path / "one.run").open() as run:
        assert "no step of this run has op times" in shown(run)["none"]
    made = MadeRun(tmp_path / "two.run")
    made.steps(60)
    with made.open() as run:
        page = shown(run)
    assert page["items"] == [] and "no rule found" in page["none"]
