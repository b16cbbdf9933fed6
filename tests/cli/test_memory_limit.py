"""`--memory-limit` of the commands, `handheld fit`, and what is said about a plan that was made to fit."""

from __future__ import annotations

import json
import re
import runpy

import numpy as np
import pytest
import torch

import handheld
from handheld.analyse.rules import activations
from handheld.analyse.rules.base import Change
from handheld.cli.repeating import Request, as_measured
from handheld.cli.trying import _then, made, request_of
from handheld.cost.time import TimeModel
from handheld.errors import HandheldError
from handheld.limits import planning
from handheld.limits.prices import USUAL, DevicePrices
from handheld.partial.options import PartialOptions
from handheld.plan.fit import Fit, fit_text, fits_of
from handheld.profile import less_memory
from handheld.profile.facts import plan_hash
from handheld.run.planning import plan_step
from helpers.commands import fails
from helpers.run_files import MadeRun

DEEP = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    blocks = [part for _ in range(4) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU())]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    batch = torch.randn(8, 4, 16, 16), torch.zeros(8, dtype=torch.int64)
    return model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch
"""
WIDE = """
import torch
from torch import nn

def make():
    model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 7))
    batch = torch.randn(500, 32), torch.zeros(500, dtype=torch.int64)  # 8 pieces do not divide it.
    return model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch
"""
WORDS = ("--steps", "6", "--no-ceilings", "--no-report", "--json")
TIGHT = 250 << 10  # The step of DEEP needs about 320 KiB, and at least about 200 KiB.


@pytest.fixture(autouse=True)
def typical_prices(monkeypatch):
    """What is known about the device takes seconds to read; its choices are tested elsewhere."""

    def prices(caps, choices, name=""):
        return DevicePrices(caps, choices, TimeModel(USUAL["cpu"]), "typical rates")

    monkeypatch.setattr(planning, "prices_of", prices)


@pytest.fixture
def deep(run, work):
    """A model whose training step can be made smaller, as file.py:factory."""
    (work / "deep.py").write_text(DEEP)
    return "deep.py:make"


@pytest.fixture
def step(deep, work):
    space: dict = {}
    exec(DEEP, space)
    return handheld.capture(*space["make"]())


def test_explain_says_what_is_computed_again(step):
    plain = step.plan("opencl", graphs=["train"])
    plan = step.plan("opencl", graphs=["train"], memory_limit_bytes=TIGHT)
    assert plan.bytes <= TIGHT < plain.bytes and "computes again" not in plain.explain()
    fit = fits_of(plan.options)["train"]
    sizes = [repeat.nbytes for repeat in fit.repeats]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 8 * 4 * 16 * 16 * 4
    assert all(repeat.seconds > 0 and repeat.path.isdigit() for repeat in fit.repeats)
    text = " ".join(plan.explain().split())
    assert f"to fit: {fit_text(plan.options, plan.bytes)}" in text
    assert f"train computes again in the backward pass: {len(fit.repeats)} value" in text
    assert f"{fit.repeats[0].path}, {fit.repeats[0].torch_op.removeprefix('aten.').split('.')[0]}" in text
    assert Fit.from_json(json.loads(json.dumps(plan.to_json()["options"]["fit"]["train"]))) == fit


def test_outputs_that_are_not_kept_are_an_error(step):
    fit = Fit((), outputs=False).to_json()
    with plan_step(step, "opencl", graphs=["train"], fit={"train": fit}).start() as trainer:
        loss = trainer.step(torch.randn(8, 4, 16, 16), torch.zeros(8, dtype=torch.int64))
        assert float(loss) > 0
        with pytest.raises(HandheldError, match=r"outputs of 'train' are not kept.* Try: a larger memory_limit_bytes"):
            trainer.outputs()


def test_profile_repeats_a_fitted_run(run, deep):
    first = run("profile", deep, "--memory-limit", "250KiB", "--out", "tight.run", *WORDS)
    assert first.exit_code == 0, first.output
    shown = run("show", "tight.run")
    assert "to fit" in shown.stdout and "computed again" in " ".join(shown.stdout.split())
    again = run("profile", "--like", "tight.run", "--out", "tight2.run", *WORDS)
    assert again.exit_code == 0, again.output
    with handheld.open_run("tight.run") as a, handheld.open_run("tight2.run") as b:
        assert a.meta["fit"] and a.meta["plan_bytes"] <= TIGHT
        assert (a.meta["plan_hash"], a.meta["fit"]) == (b.meta["plan_hash"], b.meta["fit"])
    fails(run("profile", "--like", "tight.run", "--memory-limit", "1GB"), "--memory-limit cannot be combined with")


def test_profile_says_that_a_training_may_divide_its_batches(run, work, deep):
    """Unless the model has a batch norm."""
    (work / "wide.py").write_text(WIDE)
    step = handheld.capture(*runpy.run_path(str(work / "wide.py"))["make"]())
    limit = int(step.plan("opencl").bytes * 0.6)
    result = run("profile", "wide.py:make", "--memory-limit", str(limit), *WORDS[:-1])
    fails(result, "handheld train may also divide a batch into micro-batches")
    result = run("profile", deep, "--memory-limit", "1KiB", *WORDS[:-1])
    fails(result, "the plan needs")
    assert "may also divide" not in result.stderr


def test_verify_compares_what_is_computed_again(run, deep):
    words = ("verify", deep, "--batch", "8", "--graph", "train", "--memory-limit", "250KiB", "--json")
    tight = json.loads(run(*words).stdout)[0]
    again = [op for op in tight["ops"] if (op["phase"], op["source"]) == ("backward", "aten.native_batch_norm.default")]
    assert tight["passed"] and again, "the backward pass computes normalised values of the forward pass"


def test_plan_says_what_fitting_costs_and_writes_the_fitted_plan(run, deep, tmp_path):
    words = ("plan", deep, "--on", "adreno-740", "--batch", "8", "--graphs", "train", "--seconds", "0")
    path = str(tmp_path / "tight.plan")
    shown = run(*words, "--memory-limit", "250KiB", "--out", path)
    text = " ".join(shown.stdout.split())
    assert "batch 8 does not fit as it is" in text and "computed again, about" in text and "more time" in text
    assert 0 < json.loads(run("plan", path, "--json").stdout)["memory_bytes"] <= TIGHT
    never = json.loads(run(*words, "--memory", "100KiB", "--json").stdout)["batches"][0]
    assert never["fitted"] is None and "smallest limit" in never["why_never"]


def test_plan_and_train_choose_the_same_plan(run, work):
    """One that runs in micro-batches, which a batch norm would forbid."""
    (work / "plain.py").write_text(DEEP.replace("nn.BatchNorm2d(4)", "nn.GELU()"))
    np.savez("data.npz", x=np.ones((16, 4, 16, 16), np.float32), y=np.zeros(16, np.int64))
    words = ("plain.py:make", "--data", "data.npz", "--batch", "8", "--memory-limit", "100KiB", "--json")
    planned = json.loads(run("plan", *words, "--on", "reference:cpu", "--seconds", "0").stdout)["batches"][0]
    assert planned["fitted"]["micro_batches"] > 1 and planned["fitted"]["bytes"] <= 100 << 10
    trained = json.loads(run("train", *words, "--on", "reference:cpu", "--epochs", "1", "--no-record").stdout)
    assert planned["fitted"]["text"] in str(trained)


def test_fit_names_the_largest_batch_first(run, deep):
    words = ("fit", deep, "--on", "adreno-740", "--points", "2", "--seconds")
    found = json.loads(run(*words, "0", "--json").stdout)
    first, last = found["points"][0], found["points"][-1]
    assert first["share"] == first["factor"] == 1 and first["values"] == 0 and found["largest"] is None
    assert last["bytes"] < first["bytes"] and last["values"] > 0
    shown = run(*words, "0.001", "--memory-limit", str(first["bytes"] - 1))
    assert shown.exit_code == 0, shown.output
    largest = re.match(r"The largest batch that trains in [\d.]+ KiB is (\d+)", shown.stdout)
    assert largest and int(largest[1]) >= 8, "the own batch fits if values are computed again"
    assert "does not fit" in shown.stdout and max(map(len, shown.stdout.splitlines())) <= 80


def test_fit_knows_the_batches_that_fit_as_they_are(run):
    """Planning micro-batches for its table leaves nothing in the step."""
    words = ("lenet5", "--on", "adreno-740", "--memory-limit", "956KiB", "--json")
    largest = json.loads(run("fit", *words, "--points", "2").stdout)["largest_as_it_is"]["batch"]
    plans = json.loads(run("plan", *words, "--batch", f"{largest},{largest + 1}").stdout)["batches"]
    assert [plan["fits"] for plan in plans] == [True, False]


def test_a_size_that_is_none(run, deep):
    for command in ("train", "profile", "verify", "fit"):
        data = ("--data", "digits") if command == "train" else ()
        fails(run(command, deep, *data, "--memory-limit", "lots"), "--memory-limit 'lots' must be a size", "512MiB")


def test_advice_is_tried_on_the_plan_that_was_advised_on(run, deep, work):
    """The plan before the change computes the same again, and the one after it has the same limit and means."""
    words = ("--memory-limit", str(TIGHT), "--out", "advised.run")
    assert run("profile", deep, "--seed", "5", *words, *WORDS).exit_code == 0
    with handheld.open_run("advised.run") as opened:
        asked = request_of(opened)
        before, _ = made(as_measured(opened, asked, work))
        assert plan_hash(before) == opened.meta["plan_hash"] and fits_of(before.options)
        after, _ = made(_then(opened, asked, Change(batch=4), before, work))
    assert after.options["memory_limit_bytes"] == TIGHT
    assert after.graphs["train"].graph.tensors[after.step.graphs["train"].inputs[0].tensor].shape[0] == 4


def test_what_trains_within_a_budget_is_the_same_after_a_change(run, deep, work):
    partial = PartialOptions(("sparse:400KiB",))
    asked = Request(deep, batch=8, partial=partial)
    before, _ = made(asked)
    chosen = PartialOptions.of(before.step.meta)
    assert chosen.only and not chosen.sparse
    with MadeRun(work / "sparse.run").open() as opened:
        then = _then(opened, asked, Change(batch=4), before, work)
    assert then.partial == chosen and then.batch == 4


def test_a_full_memory_is_advised_to_compute_again_with_the_planners_cost(run, deep, work, monkeypatch):
    """The plan of this device is taken as one that fills its memory, and the advice is tried."""
    monkeypatch.setattr(less_memory, "FILLED", 0.0)
    monkeypatch.setattr(activations, "FILLED", 0.0)
    assert run("profile", deep, "--out", "full.run", "--steps", "40", *WORDS[2:]).exit_code == 0
    with handheld.open_run("full.run") as opened:
        less, before = opened.meta["less_memory"], opened.meta["plan_bytes"]
        assert less["bytes"] <= less["limit_bytes"] < before
    done = run("advise", "full.run", "--rule", "activations", "--try", "--seconds", "0.5", "--json")
    assert done.exit_code == 0, done.output
    trial = json.loads(done.stdout)["trial"]
    assert (trial["before_bytes"], trial["after_bytes"]) == (before, less["bytes"])
    assert trial["measured"] == trial["promised"] == before / less["bytes"]
