"""Partial training from the command line: --only, --freeze, --lora, --frozen-bits and what becomes of the result."""

from __future__ import annotations

import json

import numpy as np
import pytest

from handheld import package
from handheld.cli.repeating import Request
from handheld.partial.options import PartialOptions, budget
from handheld.run.checkpoint import read_result
from helpers.commands import fails

torch = pytest.importorskip("torch")

NETS = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3))

def make():
    model = net()
    return model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), (
        torch.zeros(32, 6), torch.zeros(32, dtype=torch.int64))
"""
TRAIN = ("train", "part.py:make", "--data", "data.npz", "--epochs", "2", "--on", "reference:cpu", "--no-record")


@pytest.fixture(scope="module", autouse=True)
def nets(work):
    (work / "part.py").write_text(NETS)


def net(folder):
    space: dict = {}
    exec((folder / "part.py").read_text(), space)
    return space["net"]()


def test_lora_on_four_bits_is_trained_exported_merged_and_predicted(run, work):
    words = ("--lora", "2", "--lora-on", "0,2", "--only", "4", "--frozen-bits", "4")
    result = run(*TRAIN, *words, "--checkpoint", "c.checkpoint", "--export", "p.step")
    assert result.exit_code == 0, result.output
    assert "of which 847 train, frozen weights in 4 bits" in " ".join(result.output.split())
    step = package.load(work / "p.step")
    assert set(step.packings()) == {"2.weight"}, "the first layer is too small and the last is trained"
    written = {w.slot for w in step.graphs["train"].writes if step.slots[w.slot].role == "parameter"}
    assert written == {"0.lora_a", "0.lora_b", "2.lora_a", "2.lora_b", "4.weight", "4.bias"}
    for source in ("p.step", "c.checkpoint"):
        assert run("export", source, "--out", "merged.pt").exit_code == 0
        state = torch.load(work / "merged.pt", weights_only=True)
        plain = net(work)
        assert str(plain.load_state_dict(state)) == "<All keys matched successfully>"
        x = np.load(work / "data.npz")["x"][:32]
        with step.plan("reference:cpu").start() as trainer:
            want = trainer.predict(x)
        np.testing.assert_allclose(plain(torch.from_numpy(x)).detach().numpy(), want, rtol=1e-4, atol=1e-5)
    assert run("export", "p.step", "--lora", "adapter", "--out", "adapter.safetensors").exit_code == 0
    assert run("export", "p.step", "--lora", "all", "--out", "all.safetensors").exit_code == 0
    predict = ("--data", "data.npz", "--on", "reference:cpu", "--json")
    both = [
        json.loads(run("predict", *source, *predict).stdout)["predictions"][:5]
        for source in (["p.step"], ["part.py:make", "--checkpoint", "c.checkpoint"])
    ]
    assert both[0] == both[1], "predict knows from the checkpoint what was trained"
    more = (*TRAIN[:4], "--epochs", "3", *TRAIN[6:], *words)
    assert run(*more, "--checkpoint", "c.checkpoint", "--resume").exit_code == 0


def test_what_is_frozen_keeps_its_values(run, work):
    result = run(*TRAIN, "--only", "last:2", "--freeze", "*.bias", "--export", "last.step", "--force")
    assert result.exit_code == 0, result.output
    state, before = package.load(work / "last.step").state_dict(), net(work).state_dict()
    assert {n for n in before if not torch.equal(state[n], before[n])} == {"2.weight", "4.weight"}


def test_a_step_file_can_be_packed_but_not_changed(run, work):
    assert run("package", "part.py:make", "--only", "last:1", "--out", "one.step", "--force").exit_code == 0
    plan = [
        json.loads(run("plan", "one.step", "--on", "reference:cpu", "--json", *more).stdout)
        for more in ([], ["--frozen-bits", "8"])
    ]
    sizes = [p["batches"][0]["by_category"]["parameter"] for p in plan]
    assert sizes[0] - sizes[1] > 128 * 64 * 2
    fails(run("plan", "one.step", "--only", "last:1"), "--only cannot be used here", "a step file holds its updates")


def test_sparse_budgets_are_kept(run):
    words = ("plan", "part.py:make", "--graphs", "train", "--json", "--seconds", "0")
    whole, part = (json.loads(run(*words, *more).stdout) for more in ([], ["--only", "sparse:72KiB"]))
    assert part["batches"][0]["bytes"] <= 72 * 1024 < whole["batches"][0]["bytes"]
    assert budget("sparse:1.5s") == {"time_ms": 1500.0} and budget("sparse:20ms") == {"time_ms": 20.0}
    assert budget("sparse:2MiB") == {"memory_bytes": 2 << 20}


def test_a_training_with_a_budget_goes_on_with_what_was_chosen(run, work):
    words = (*TRAIN, "--only", "sparse:1GiB", "--checkpoint", "s.checkpoint")
    assert run(*words).exit_code == 0
    result = run(*words[:4], "--epochs", "3", *words[6:], "--resume")
    assert result.exit_code == 0, result.output
    assert len(PartialOptions.of(read_result(work / "s.checkpoint").origin).only) == 6


def test_a_profile_is_repeated_with_its_options():
    request = Request("part.py:make", partial=PartialOptions(("biases",), (), 4, ("0",), 8))
    stored = json.loads(json.dumps(request.to_json()))
    assert Request.from_json(stored).partial == request.partial
    stored.pop("partial")  # as in a run of an older version
    assert Request.from_json(stored).partial == PartialOptions()


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("--only", "5"), ("'5' matches no parameter", "Names are, for example, 0.weight")),
        (("--freeze", "4.weigth"), ("'4.weigth' matches no parameter", "nearest names are 4.weight")),
        (("--lora", "2", "--lora-on", "1"), ("matches no layer that LoRA can be added to",)),
        (("--lora-on", "0"), ("--lora 8",)),
        (("--frozen-bits", "5"), ("8 or 4",)),
        (("--frozen-bits", "4"), ("every parameter of the step is trained",)),
        (("--only", "last:9"), ("from last:1 to last:3",)),
        (("--only", "sparse:many"), ("'many' is no budget",)),
        (("--only", ","), ("--only names nothing",)),
        (("--freeze", "*"), ("--freeze * leaves no parameter", "Try: fewer patterns, or --lora")),
    ],
)
def test_bad_options_are_errors_that_help(run, words, texts):
    fails(run(*TRAIN, *words), *texts)


def test_a_workload_with_several_updates_refuses_them(run):
    fails(run("plan", "dcgan", "--lora", "2"), "--lora cannot be used here", "several updates per step")
