"""`handheld advise`: its list, and promised beside measured on this device."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace

import pytest

import handheld
from handheld.analyse.rules.command import command
from handheld.cli import profile as profile_command
from handheld.cli.data_options import DataOptions
from handheld.cli.means_options import Means
from handheld.cli.repeating import Request
from handheld.cli.trying import Trial, made, request_of
from handheld.partial.options import PartialOptions
from handheld.profile.turns import Turns, stepping, take_turns
from helpers.advised_runs import launch_bound
from helpers.commands import fails
from helpers.known_ceilings import store_ceilings
from helpers.run_files import MadeRun

#: What a printed command need not say: only a workload has a size, and the others are the same in every command.
UNCHANGED = ("model", "size", "on", "fit", "moves", "tuning")
FREEZABLE = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    layers = [nn.Linear(256, 256) for _ in range(6)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())], nn.Linear(256, 3))
    batch = lambda size: (torch.randn(size, 256), torch.zeros(size, dtype=torch.int64))
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.01), batch
"""


@pytest.fixture(scope="module", autouse=True)
def known_ceilings(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANDHELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        store_ceilings()
        yield


@pytest.fixture
def tiny(run, work):
    """A run of a step that is nearly all launches."""
    path = work / "tiny.run"
    if not path.exists():
        result = run("profile", "m1", "--batch", "4", "--steps", "60", "--out", "tiny.run")
        assert result.exit_code == 0, result.output
    return "tiny.run"


def test_the_list(run, tiny):
    result = run("advise", tiny)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Bound by ") and max(map(len, lines)) <= 80
    assert any(line.startswith("1. ") for line in lines) and "command" in result.stdout
    given = json.loads(run("advise", tiny, "--json").stdout)
    assert given["trial"] is None and given["advice"][0]["gain"]["before"] > given["advice"][0]["gain"]["after"]


def test_without_op_times_there_is_no_word_of_nothing_to_gain(run, work):
    made = MadeRun(work / "untimed.run")
    made.steps(5, every=10**6, first=4)
    made.open().close()
    said = " ".join(run("advise", "untimed.run").stdout.split())
    assert "No rule applies. The run does not hold op times" in said and "nothing clear to gain" not in said
    assert "Try: handheld profile MODEL --steps 50" in said


def test_a_larger_batch_is_tried(run, tiny):
    rule = next(
        item["rule"]
        for item in json.loads(run("advise", tiny, "--json").stdout)["advice"]
        if item["rule"] in ("launches", "batch")
    )
    result = run("advise", tiny, "--try", "--rule", rule, "--seconds", "1", "--json")
    assert result.exit_code == 0, result.output
    trial = json.loads(result.stdout)["trial"]
    assert trial["promised"] > 1.5 and trial["measured"] > 1.2, "its step is nearly all launches"
    assert trial["measured_low"] <= trial["measured"] <= trial["measured_high"] and trial["turns"]["rounds"] >= 8
    shown = run("advise", tiny, "--try", "--rule", rule, "--seconds", "0.5").stdout
    assert "promised" in shown and "measured" in shown and max(map(len, shown.splitlines())) <= 80
    assert "before" in shown and "after" in shown and "not shown" not in shown
    assert trial["before"] / trial["after"] == pytest.approx(trial["measured"], rel=0.3), "both are per sample"


def test_frozen_layers_are_tried(run, work, tmp_path):
    (work / "deep.py").write_text(FREEZABLE)
    path = str(tmp_path / "deep.run")
    assert run("profile", "deep.py:make", "--batch", "256", "--steps", "30", "--out", path).exit_code == 0
    items = json.loads(run("advise", path, "--rule", "freeze", "--json").stdout)["advice"]
    assert len(items) == 1 and items[0]["effect"] == "other model" and items[0]["to"]["freeze"][0] == "0"
    trial = json.loads(run("advise", path, "--try", "--rule", "freeze", "--seconds", "2", "--json").stdout)["trial"]
    assert trial["promised"] > 1.1 and trial["measured_high"] > 1.05


def test_the_state_of_frozen_layers_stays(work):
    (work / "deep.py").write_text(FREEZABLE)
    request = Request(f"{work}/deep.py:make", batch=8)
    steps = [made(request, layers)[0].step for layers in ((), ("0", "2"))]
    written = [{write.slot for write in step.graphs["train"].writes} for step in steps]
    assert "0.weight" in written[0] and "0.weight" not in written[1] and "4.weight" in written[1]


def test_what_cannot_be_tried_says_why(run, tmp_path, tiny):
    fails(run("advise", tiny, "--rule", "magic"), "there is no rule 'magic'. Try one of: ", "launches")
    fails(run("advise", "gone.run"), "there is no run file gone.run")
    unknown = run("advise", tiny, "--try", "--rule", "heat")
    fails(
        unknown,
        "the rule heat does not apply to this run, so there is nothing to try. Try: handheld advise",
        "which lists the rules that do",
    )
    assert "does not apply to this run." in run("advise", tiny, "--rule", "heat").stdout
    caps = {"name": "made up", "kind": "cpu", "global_mem_bytes": 1 << 30}
    slow = MadeRun(tmp_path / "slow.run", caps=caps)
    slow.steps(60, outside_ms=lambda i: 5.0)
    slow.open().close()
    fails(
        run("advise", str(tmp_path / "slow.run"), "--try"), "inputs cannot be tried automatically", "caller's own code"
    )


def test_without_any_rule_the_missing_facts_are_said(run, tmp_path):
    made_run = MadeRun(tmp_path / "bare.run")
    made_run.steps(60)
    made_run.open().close()
    result = run("advise", str(tmp_path / "bare.run"), "--try")
    fails(result, "no rule applies to this run", "does not hold the ceilings of its device or how to repeat it. Try: ")
    assert "handheld advise" not in result.output, "it would lead back here"


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ((1.5, 1.4, 1.6), "agrees with the promised range"),
        ((1.1, 1.0, 1.3), "is below the promised range, though its interval reaches into it"),
        ((1.0, 0.9, 1.1), "is below the promised range"),
        ((2.5, 2.4, 2.6), "is above the promised range"),
    ],
)
def test_only_a_gain_inside_the_range_agrees(measured, words):
    trial = Trial("batch", "ms per step", 1.5, 1.2, 2.0, *measured, Turns(2, 1, 2, 2, 2, 8), 1, 1, 2, 1, 2, 1)
    assert trial.verdict == words


def test_a_long_heading_is_indented(run, tmp_path):
    launch_bound(tmp_path / "long.run").close()
    lines = run("advise", str(tmp_path / "long.run")).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("1. "))
    assert lines[at + 1].startswith("   ")


def test_a_printed_command_is_the_one_that_was_run_and_the_change(run, work, tmp_path, monkeypatch):
    """Every option of the request is in the command, which is read by the command itself."""
    given = DataOptions((8, 8), True, "", False, "y", ("a b", "c"), ("d",), True, 16)
    partial = PartialOptions(("head", "biases"), ("first*",), 4, ("head",), 8)
    means = Means(True, True, "some where", 8)
    asked = Request(
        *("mine.py:make", None, "opencl", "half", 12, 200, "train", "data.npz", 3, given, partial, 96 << 20, means)
    )
    assert all(getattr(asked, field.name) != field.default for field in fields(asked) if field.name not in UNCHANGED)
    settings = {"model": asked.model, "batch": 12, "repeat": asked.to_json()}
    monkeypatch.setattr(profile_command, "_prepared", lambda request, json: requests.append(request) or stop())
    requests: list[Request] = []
    with MadeRun(tmp_path / "asked.run", device="opencl", settings=json.loads(json.dumps(settings))).open() as opened:
        for words, expected in (("", asked), ("--batch 24", replace(asked, batch=24))):
            printed = command(opened, words)
            assert "--memory-limit 96MiB" in printed and printed.count("--batch") == 1
            assert "stopped" in run(*shlex.split(printed)[1:]).stderr
            assert requests[-1] == expected
        tuned = command(opened, "--budget 20", "tune")
        assert "--precision half --graph train" in tuned and "--memory-limit" not in tuned and "--steps" not in tuned
        assert "--graph" not in command(opened, "", "train")


def stop() -> None:
    raise handheld.HandheldError("stopped")


def test_a_run_that_does_not_name_its_model(run, tmp_path, tiny):
    with handheld.open_run(tiny) as opened:
        opened.meta["settings"] = {}
        with pytest.raises(handheld.HandheldError, match=r"does not say which model.*Try: handheld profile MODEL"):
            request_of(opened)


def test_equal_steps_take_equal_turns(work):
    (work / "deep.py").write_text(FREEZABLE)
    plan, inputs = made(Request(f"{work}/deep.py:make", batch=64))
    with stepping(plan, inputs) as first, stepping(plan, inputs) as second:
        turns = take_turns(first, second, seconds=2)
    assert turns.low <= turns.factor <= turns.high and 0.6 < turns.factor < 1.7
