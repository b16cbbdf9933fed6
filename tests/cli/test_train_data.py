"""Data of `handheld train`: what is changed is said, and the options for images and tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

import handheld
from handheld.data.dataset import DataFacts
from helpers.commands import fails

Image = pytest.importorskip("PIL.Image")

NETWORKS = """
import torch
from torch import nn
from torch.nn import functional as F

def _parts(model, loss=F.cross_entropy):
    return model, loss, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

def any_size():
    return _parts(nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                nn.Linear(4, 3)))

def fixed():
    model = nn.Sequential(nn.Flatten(), nn.Linear(20 * 20, 3))
    return (*_parts(model), (torch.zeros(4, 1, 20, 20), torch.zeros(4, dtype=torch.int64)))

def table():
    return _parts(nn.Linear(2, 3))

def flat():
    class Flat(nn.Linear):
        def forward(self, x):
            return super().forward(x).squeeze(-1)
    return _parts(Flat(2, 1), F.mse_loss)

def column():
    return _parts(nn.Linear(2, 1), F.mse_loss)

class Output(dict):
    def __init__(self, loss, logits):
        super().__init__(logits=logits, **({} if loss is None else {"loss": loss}))
    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]

class Named(nn.Module):
    # Takes a dictionary and returns the loss, as the models of Hugging Face do.
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)
    def forward(self, input_ids, attention_mask, labels=None):
        seen = (self.words(input_ids) * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        logits = self.head(seen)
        if labels is None:
            return Output(None, logits)
        return Output(F.cross_entropy(logits, labels), logits)

def named():
    model = Named()
    batch = {"input_ids": torch.zeros(4, 6, dtype=torch.int64), "attention_mask": torch.ones(4, 6),
             "labels": torch.zeros(4, dtype=torch.int64)}
    return model, None, torch.optim.Adam(model.parameters(), lr=0.05), batch

def named_without():
    return named()[:3]

def binary():
    return (*_parts(nn.Linear(2, 1), F.binary_cross_entropy_with_logits), (torch.zeros(4, 2), torch.zeros(4, 1)))
"""


@pytest.fixture(scope="module", autouse=True)
def photos(work):
    (work / "nets.py").write_text(NETWORKS)
    random = np.random.default_rng(0)
    for k, name in enumerate(("circle", "square", "triangle")):
        (work / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 60, (48, 48, 3), np.uint8)
            pixels[..., k] += 150
            Image.fromarray(pixels).save(work / "photos" / name / f"{i}.png")
    x = random.standard_normal((120, 2))
    kinds = np.where(x[:, 0] > 0, "warm", "cold")
    lines = [f"{a:.4f},{b:.4f},n{i},{k}" for i, ((a, b), k) in enumerate(zip(x, kinds, strict=True))]
    (work / "weather.csv").write_text("\n".join(["wind,sun,station,kind", *lines]) + "\n")
    numbers = [f"{a:.4f},{b:.4f},{3 * a - b + 1:.4f}" for a, b in x]
    (work / "price.csv").write_text("\n".join(["size,age,price", *numbers]) + "\n")


WORDS = ("--epochs", "2", "--batch", "4", "--on", "reference:cpu")


def test_images_are_resized_and_that_is_said(run, work):
    result = run("train", "nets.py:any_size", "--data", "photos", *WORDS, "--export", "any.step", "--force")
    assert result.exit_code == 0, result.output
    assert "resized to 32×32 from 48×48; classes circle, square, triangle" in result.stderr
    assert "has no example batch" in result.stderr and "--image-size changes it" in result.stderr
    facts = DataFacts.of(handheld.load(work / "any.step").meta)
    assert facts == DataFacts("images", ("circle", "square", "triangle"), image_size=(32, 32))
    result = run("train", "nets.py:any_size", "--data", "photos", *WORDS, "--image-size", "48x40")
    assert "resized to 48×40 from 48×48" in result.stderr and "example batch" not in result.stderr
    result = run("train", "nets.py:fixed", "--data", "photos", *WORDS)
    assert "resized to 20×20 from 48×48" in result.stderr and "made gray: 36 images" in result.stderr


def test_sizes_that_do_not_fit(run, work):
    words = ("--data", "photos", *WORDS)
    fails(
        run("train", "nets.py:fixed", *words, "--image-size", "24"), "example batch has images of 20x20. Try: --image"
    )
    run("package", "nets.py:fixed", "--out", "fixed.step", "--force")
    fails(run("train", "fixed.step", *words, "--image-size", "24"), "takes images of 20x20, not 24x24. Try: without")
    for size in ("0", "3x", "big"):
        fails(run("train", "nets.py:fixed", *words, "--image-size", size), f"--image-size {size} is not a size")
    fails(run("train", "nets.py:table", "--data", "data.npz", "--image-size", "8", *WORDS), "no folder of images")


def test_augment_and_normalise(run, work):
    words = ("--data", "photos", *WORDS, "--image-size", "24", "--augment", "flip,crop")
    result = run("train", "nets.py:any_size", *words, "--normalize", "--export", "norm.step", "--force")
    assert result.exit_code == 0, result.output
    assert "photos: normalised with mean 0." in result.stderr
    facts = DataFacts.of(handheld.load(work / "norm.step").meta)
    assert len(facts.mean) == 3 and facts.image_size == (24, 24)
    again = run("train", "norm.step", "--data", "photos", *WORDS)
    assert "photos: normalised with mean 0." in again.stderr  # as the file says
    given = run("train", "nets.py:any_size", *words, "--mean", "0.5", "--std", "0.25")
    assert "normalised with mean 0.5 and standard deviation 0.25" in given.stderr
    fails(run("train", "nets.py:any_size", *words, "--mean", "0.5"), "--mean needs --std too")
    fails(run("train", "nets.py:any_size", *words, "--mean", "a", "--std", "1"), "--mean a is not a list of numbers")
    fails(run("train", "nets.py:any_size", "--data", "photos", "--augment", "rotate"), "no augmentation 'rotate'. Try")


def test_package_remembers_the_form_of_the_data(run, work):
    words = ("package", "nets.py:any_size", "--batch", "4", "--out", "form.step", "--force")
    result = run(*words, "--data", "photos", "--image-size", "24", "--normalise")
    assert result.exit_code == 0, result.output
    facts = DataFacts.of(handheld.load(work / "form.step").meta)
    assert facts.image_size == (24, 24) and len(facts.std) == 3 and facts.classes[0] == "circle"
    trained = run("train", "form.step", "--data", "photos", *WORDS)
    assert trained.exit_code == 0 and "resized to 24×24" in trained.stderr and "normalised" in trained.stderr
    fails(run("package", "nets.py:fixed", "--image-size", "24", "--out", "x.step"), "Try: --data DATA")


@pytest.mark.parametrize(
    "bad", [3, {"classes": "abc"}, {"mean": ("a",)}, {"gray": 1}, {"image_size": (True, 2)}, {"one_hot": ("ab",)}]
)
def test_malformed_facts_are_refused(run, work, bad):
    step = handheld.load(work / "form.step")
    step.meta["data"], step.meta["transient"], step.meta["absent"] = bad, 7, "ab"
    step.save(work / "bad.step")
    fails(run("train", "bad.step", "--data", "photos", *WORDS), "malformed step file")
    assert run("export", "bad.step", "--format", "safetensors").exit_code == 0


def test_a_checkpoint_remembers_the_augmentation(run, work):
    words = ("train", "nets.py:any_size", "--data", "photos", *WORDS, "--checkpoint", "aug.checkpoint")
    assert run(*words, "--augment", "flip").exit_code == 0
    fails(run(*words, "--resume", "--augment", "crop"), "prepared by 32x32 RGB; flip; now it is 32x32 RGB; crop")


def test_tables(run, work):
    words = ("--data", "weather.csv", "--epochs", "15", "--batch", "8", "--on", "reference:cpu")
    fails(run("train", "nets.py:table", *words), "column 'station'", "line 2: 'n0'", "Try: --drop station")
    result = run("train", "nets.py:table", *words, "--drop", "station", "--normalise", "--json", "--export", "w.step")
    report = json.loads(result.stdout)
    assert report["test"]["accuracy"] > 0.9 and report["classes"] == ["cold", "warm"]
    assert any("dropped station" in note for note in report["notes"])
    assert "label 'kind', classes cold, warm" in result.stderr and "dropped station" in result.stderr
    facts = DataFacts.of(handheld.load(work / "w.step").meta)
    assert facts.features == ("wind", "sun") and facts.label == "kind" and facts.classes == ("cold", "warm")
    again = run("train", "w.step", *words)
    assert again.exit_code == 0, again.output
    assert "columns that the model does not take: station" in again.stderr


@pytest.mark.parametrize("model", ["flat", "column"])
def test_a_regression_compares_each_output_with_its_label(run, work, model):
    words = ("--data", "price.csv", "--epochs", "30", "--batch", "8", "--on", "reference:cpu", "--json")
    report = json.loads(run("train", f"nets.py:{model}", *words, "--lr", "0.1").stdout)
    assert report["test"]["loss"] < 1e-3
    assert any("labels have the shape [n] instead of [n, 1]" in note for note in report["notes"]) == (model == "flat")


@pytest.mark.parametrize("model", ["named", "named_without"])
def test_named_arrays(run, work, model):
    random = np.random.default_rng(0)
    words = random.integers(0, 20, (60, 6))
    labels = (words < 10).sum(1) > 3
    mask = np.ones((60, 6), np.float32)
    np.savez(work / "named.npz", labels=labels.astype(np.int64), attention_mask=mask, input_ids=words)
    words = ("--data", "named.npz", "--epochs", "30", "--batch", "4", "--on", "reference:cpu", "--json")
    result = run("train", f"nets.py:{model}", *words, "--export", f"{model}.step", "--force")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["epochs"][-1]["loss"] < 0.3
    again = run("train", f"{model}.step", *words)
    assert again.exit_code == 0, again.output
    report = json.loads(
        run("predict", f"{model}.step", "--data", "named.npz", "--on", "reference:cpu", "--json").stdout
    )
    assert report.get("accuracy", 0) > 0.8, report
    assert report["samples"] == 60 and report["predictions"][0]["class"] in ("0", "1")
    np.savez(work / "unnamed.npz", x=np.zeros((60, 6), np.int64), y=labels.astype(np.int64))
    if model == "named":
        fails(run("train", "nets.py:named", "--data", "unnamed.npz", "--on", "reference:cpu"), "no 'input_ids', which")


def test_two_classes_as_floats(run, work):
    words = ("--data", "weather.csv", "--drop", "station", "--epochs", "20", "--batch", "8", "--on", "reference:cpu")
    result = run("train", "nets.py:binary", *words, "--json")
    assert json.loads(result.stdout)["test"]["loss"] < 0.3, result.output


def test_one_class_is_a_warning(run, work):
    (work / "single" / "ring").mkdir(parents=True)
    for i in range(8):
        Image.fromarray(np.full((8, 8, 3), 20 * i, np.uint8)).save(work / "single" / "ring" / f"{i}.png")
    result = run("train", "nets.py:any_size", "--data", "single", *WORDS)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "only one class, ring, so accuracy says nothing. Try: one sub-folder per class" in said
    np.savez(work / "same.npz", x=np.zeros((20, 2), np.float32), y=np.full(20, 2))
    said = " ".join(run("train", "nets.py:table", "--data", "same.npz", *WORDS).stderr.split())
    assert "only one class, 2, so accuracy" in said
    (work / "same.csv").write_text("a,b,kind\n" + "1.5,2,warm\n" * 20)
    said = " ".join(run("train", "nets.py:table", "--data", "same.csv", *WORDS).stderr.split())
    assert "only one class, warm, so accuracy" in said and "--label COLUMN" in said
    assert "only one class" not in run("train", "nets.py:any_size", "--data", "photos", *WORDS).stderr


def test_more_classes_than_scores(run, work):
    for name in ("cross", "ring", "stripes", "zebra"):
        (work / "four" / name).mkdir(parents=True)
        for i in range(8):
            Image.fromarray(np.full((20, 20), 20 * i, np.uint8)).save(work / "four" / name / f"{i}.png")
    words = ("the data has 4 classes (cross, ring, stripes, zebra), but the model gives scores for 3", "4 outputs")
    fails(run("train", "nets.py:any_size", "--data", "four", *WORDS), *words)
    run("package", "nets.py:fixed", "--out", "three.step", "--batch", "4", "--force")
    fails(run("train", "three.step", "--data", "four", *WORDS), *words)


def test_bad_images_are_skipped_on_request(run, work):
    for name in ("circle", "square", "triangle"):
        (work / "mixed" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(np.full((20, 20), 20 * i, np.uint8)).save(work / "mixed" / name / f"{i}.png")
    for i in range(2):
        (work / "mixed" / "circle" / f"{i}.png").write_bytes(b"broken")
    words = ("train", "nets.py:fixed", "--data", "mixed", *WORDS)
    fails(run(*words), "2 of 18 images of mixed cannot be read", "0.png", "1.png", "--skip-bad")
    result = run(*words, "--skip-bad", "--export", "mixed.step")
    assert result.exit_code == 0 and "left out 2 of 18 images" in " ".join(result.stderr.split()), result.output
    words = ("predict", "mixed.step", "--data", "mixed", "--on", "reference:cpu")
    fails(run(*words), "2 of 18 images of mixed cannot be read", "--skip-bad")
    assert json.loads(run(*words, "--skip-bad", "--json").stdout)["samples"] == 16
    fails(run("train", "nets.py:table", "--data", "data.npz", "--skip-bad", *WORDS), "no folder of images")


def test_one_hot_columns(run, work):
    rows = [f"{i % 7}.5,{('red', 'blue', 'green')[i % 3]},{('a', 'b')[i % 3 == 1]}" for i in range(60)]
    (work / "hot.csv").write_text("\n".join(["size,colour,kind", *rows]) + "\n")
    (work / "hot.py").write_text(NETWORKS + "\ndef hot():\n    return _parts(nn.Linear(4, 2))\n")
    words = ("train", "hot.py:hot", "--data", "hot.csv", "--epochs", "20", "--batch", "8", "--on", "reference:cpu")
    fails(run(*words), "--drop colour", "--one-hot colour for one input per value")
    fails(run(*words, "--one-hot", "kind"), "'kind' of hot.csv is no input")
    fails(run(*words, "--one-hot", "shape"), "no column 'shape' for --one-hot")
    result = run(*words, "--one-hot", "colour", "--normalise", "--export", "hot.step")
    assert result.exit_code == 0, result.output
    assert "'colour' became 3 inputs of 0 or 1: blue, green, red" in " ".join(result.stderr.split())
    facts = DataFacts.of(handheld.load(work / "hot.step").meta)
    assert facts.one_hot == (("colour", "blue", "green", "red"),) and facts.features == ("size", "colour")
    (work / "later.csv").write_text("size,colour\n1.5,red\n1.5,blue\n")  # Fewer values, and no labels.
    predict = ("predict", "hot.step", "--on", "reference:cpu", "--data")
    found = json.loads(run(*predict, "later.csv", "--json").stdout)["predictions"]
    assert [row["class"] for row in found] == ["a", "b"]
    (work / "new.csv").write_text("size,colour\n1.5,red\n1.5,pink\n")
    fails(run(*predict, "new.csv"), "'colour' of new.csv holds 'pink' in line 3", "It knows: blue, green, red. Try")
    assert run("train", "hot.step", *words[2:]).exit_code == 0
    fails(run("train", "hot.step", *words[2:], "--one-hot", "size"), "was not trained with --one-hot size")
    fails(run("train", "mine.py:make", "--data", "data.npz", "--one-hot", "size"), "no columns", "--one-hot apply")


def test_a_regression_is_shown_as_one(run, work):
    words = ("--data", "price.csv", "--epochs", "1", "--batch", "8", "--on", "reference:cpu")
    result = run("train", "nets.py:column", *words, "--export", "price.step")
    assert "test loss" in result.stdout and "accuracy" not in result.stdout
    assert "accuracy" in run("train", "nets.py:any_size", "--data", "photos", *WORDS).stdout
    shown = run("predict", "price.step", "--data", "price.csv", "--on", "reference:cpu").stdout
    assert "mean squared error  " in shown
    first = float((work / "price.csv").read_text().splitlines()[1].split(",")[2])
    assert shown.splitlines()[1].split()[2] == f"{first:.4f}"


def test_a_warning_of_the_loss_appears_once(run, work):
    np.savez(work / "wrong.npz", x=np.zeros((40, 2), np.float32), y=np.zeros(40, np.float32))
    with pytest.warns(UserWarning, match="target size") as caught:  # The test set of 8 has a last batch of 3.
        run("train", "nets.py:column", "--data", "wrong.npz", "--epochs", "1", "--batch", "5", "--on", "reference:cpu")
    assert sum("target size" in str(warning.message) for warning in caught) == 1


def test_windows_of_a_text(run, work):
    model = "nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))"
    loss = "lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())"
    (work / "words.py").write_text(f"{NETWORKS}\ndef words():\n    return _parts({model}, {loss})\n")
    (work / "book.txt").write_text("a text to read. " * 80)
    words = ("--data", "book.txt", "--epochs", "1", "--batch", "4", "--on", "reference:cpu")
    assert "book.txt: windows of 64 bytes" in run("train", "words.py:words", *words).stderr
    result = run("train", "words.py:words", *words, "--length", "16", "--export", "words.step")
    assert result.exit_code == 0 and "book.txt: windows of 16 bytes" in result.stderr, result.output
    assert DataFacts.of(handheld.load(work / "words.step").meta).length == 16
    fails(run("train", "words.step", *words, "--length", "8"), "windows of 16 tokens, not 8. Try: without --length")
    fails(run("train", "nets.py:table", "--data", "data.npz", "--length", "8"), "data.npz is no text")
    (work / "prompt.txt").write_text("a text")
    short = run("predict", "words.step", "--data", "prompt.txt", "--on", "reference:cpu")
    fails(short, "prompt.txt has 6 bytes, but the model takes windows of 16", "at least 16 bytes", "--length 6")
