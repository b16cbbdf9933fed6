"""`handheld predict`: classes and scores of every kind of data, with and without labels, equal to PyTorch's."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass

import numpy as np
import pytest

import handheld
from handheld import package
from helpers.commands import fails

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

NETWORKS = """
import torch
from torch import nn
from torch.nn import functional as F

def _parts(model, loss=F.cross_entropy, lr=0.1):
    return model, loss, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

def photos():
    return _parts(nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                nn.Linear(8, 3)))

def table():
    return _parts(nn.Linear(2, 2))

def price():
    return _parts(nn.Linear(2, 1), F.mse_loss, 0.05)

def example():
    model = nn.Linear(2, 2)
    return (*_parts(model), (torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)))

def text():
    model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
    def loss(out, y):
        return F.cross_entropy(out.reshape(-1, 256), y.reshape(-1))
    return (*_parts(model, loss, 1.0), (torch.zeros(8, 12, dtype=torch.int64),) * 2)

def segments():
    model = nn.Conv2d(1, 4, 1)
    return (*_parts(model), (torch.zeros(4, 1, 6, 6), torch.zeros(4, 6, 6, dtype=torch.int64)))
"""
KINDS = ("circle", "square", "triangle")
WORDS = ("--epochs", "6", "--batch", "8", "--on", "reference:cpu")


def picture(kind: int, seed: int):
    pixels = np.random.default_rng(seed).integers(0, 60, (24, 24, 3), np.uint8)
    pixels[..., kind] += 150
    return Image.fromarray(pixels)


@pytest.fixture(scope="module", autouse=True)
def data(work):
    (work / "nets.py").write_text(NETWORKS)
    for k, name in enumerate(KINDS):
        (work / "photos" / name).mkdir(parents=True)
        for i in range(15):
            picture(k, 100 * k + i).save(work / "photos" / name / f"{i}.png")
    (work / "flat").mkdir()
    for i in range(11):  # Not a multiple of the batch.
        picture(i % 3, 1000 + i).save(work / "flat" / f"{i:02d}.png")
    random = np.random.default_rng(0)
    x = random.standard_normal((101, 2)) * [1, 40] + [0, 300]
    kinds = np.where(x[:, 0] > 0, "warm", "cold")
    (work / "weather.csv").write_text(
        "wind,sun,kind\n" + "".join(f"{a:.5f},{b:.5f},{k}\n" for (a, b), k in zip(x, kinds, strict=True))
    )
    (work / "new.csv").write_text("sun,extra,wind\n" + "".join(f"{b:.5f},7,{a:.5f}\n" for a, b in x[:9]))
    (work / "price.csv").write_text("a,b,price\n" + "".join(f"{a:.4f},{a + 1:.4f},{2 * a:.4f}\n" for a in x[:, 0]))
    (work / "words.txt").write_text("to be or not to be " * 60)
    np.savez(work / "rows.npz", x=x[:13] / [1, 100])


@pytest.fixture(scope="module")
def trained(work):
    """Trains a model once and returns its step file."""
    from typer.testing import CliRunner

    from handheld.cli.main import app

    made: dict[tuple[str, ...], str] = {}

    def train(name: str, source: str, *more: str) -> str:
        key = (name, source, *more)
        if key not in made:
            path = f"{name}-{len(made)}.step"
            words = ["train", f"nets.py:{name}", "--data", source, *WORDS, *more, "--export", path]
            result = CliRunner().invoke(app, words, prog_name="handheld")
            assert result.exit_code == 0, result.output
            made[key] = path
        return made[key]

    return train


def predicted(run, *words: str):
    result = run("predict", *words, "--on", "reference:cpu", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_images_with_and_without_folders_of_classes(run, work, trained):
    step = trained("photos", "photos", "--normalise", "--image-size", "20", "--lr", "0.3")
    report = predicted(run, step, "--data", "photos")
    assert report["samples"] == 45 and report["accuracy"] > 0.9 and report["labelled"] == 45
    rows = {row["sample"]: row for row in report["predictions"]}
    assert rows["circle/3.png"]["label"] == "circle" and rows["circle/3.png"]["class"] in KINDS
    report = predicted(run, step, "--data", "flat", "--top", "3", "--out", "flat.csv")
    assert "accuracy" not in report and report["samples"] == 11
    assert [row["sample"] for row in report["predictions"]] == [f"{i:02d}.png" for i in range(11)]
    assert np.mean([row["class"] == KINDS[i % 3] for i, row in enumerate(report["predictions"])]) > 0.8
    with (work / "flat.csv").open() as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == ["sample", "class", "score", "class_2", "score_2", "class_3", "score_3"]
    assert abs(sum(float(written[0][k]) for k in ("score", "score_2", "score_3")) - 1) < 1e-5
    one = predicted(run, step, "--data", "flat/01.png")
    assert one["predictions"][0]["sample"] == "01.png"
    assert abs(one["predictions"][0]["score"] - report["predictions"][1]["score"]) < 1e-4


def test_scores_equal_pytorch(run, work, trained):
    step_file = trained("table", "weather.csv", "--normalise")
    report = predicted(run, step_file, "--data", "new.csv", "--top", "2", "--out", "new.json")
    step = handheld.load(work / step_file)
    model = torch.nn.Linear(2, 2)
    model.load_state_dict(step.state_dict())
    rows = np.genfromtxt(work / "new.csv", delimiter=",", skip_header=1)[:, [2, 0]]
    facts = step.meta["data"]
    x = ((rows - np.array(facts["mean"])) / np.array(facts["std"])).astype(np.float32)
    want = torch.softmax(model(torch.tensor(x)), 1).detach().numpy()
    for row, probabilities in zip(report["predictions"], want, strict=True):
        assert row["class"] == ("cold", "warm")[probabilities.argmax()]
        assert abs(row["score"] - probabilities.max()) < 1e-5
    assert json.loads((work / "new.json").read_text()) == report["predictions"]
    assert any("does not take: extra" in note for note in report["notes"])
    assert predicted(run, step_file, "--data", "weather.csv")["accuracy"] > 0.9


def test_the_terminal_shows_a_short_table(run, work, trained):
    result = run(
        "predict", trained("table", "weather.csv", "--normalise"), "--data", "weather.csv", "--on", "reference:cpu"
    )
    assert result.exit_code == 0, result.output
    assert "… and 89 more. Try: --out FILE.csv" in result.stdout and "accuracy" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "warm" in result.stdout and "sample" in result.stdout


def test_numbers(run, work, trained):
    step = trained("price", "price.csv", "--normalise")
    report = predicted(run, step, "--data", "price.csv", "--out", "price-out.csv")
    assert report["mean_squared_error"] < 0.1 and len(report["predictions"][0]["values"]) == 1
    with (work / "price-out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["sample", "value", "label"] and len(rows) == 101
    shown = run("predict", step, "--data", "price.csv", "--on", "reference:cpu")
    assert "value" in shown.stdout and "mean squared" in shown.stdout


def test_text_predicts_the_next_token(run, work, trained):
    step = trained("text", "words.txt")
    (work / "prompt.txt").write_text("or not to be or not t")
    report = predicted(run, step, "--data", "prompt.txt")
    assert report["predictions"][-1]["class"] == "o"
    assert report["samples"] == 1 and any("first 9 tokens are not used" in note for note in report["notes"])
    (work / "short.txt").write_text("to be")
    fails(run("predict", step, "--data", "short.txt"), "has 5 bytes, but the model takes windows of 12", "--length 5")


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(3, 2)

    def forward(self, x, z):
        return self.a(x) + self.b(z)


def test_several_inputs_and_raw_outputs(run, work):
    random = np.random.default_rng(0)
    x, z = random.standard_normal((50, 2), np.float32), random.standard_normal((50, 3), np.float32)
    model, step = Two(), "two.step"
    np.savez(work / "two.npz", x, z, model(torch.tensor(x), torch.tensor(z)).argmax(1).numpy())
    np.savez(work / "two-new.npz", x, z)
    batch = (torch.tensor(x[:8]), torch.tensor(z[:8]), torch.zeros(8, dtype=torch.int64))
    loss, optimizer = torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters())
    handheld.capture(model, loss, optimizer, batch, inputs=2).save(work / step)
    assert predicted(run, step, "--data", "two.npz")["accuracy"] == 1
    report = predicted(run, step, "--data", "two-new.npz", "--out", "two-out.npz")
    assert "accuracy" not in report and report["predictions"][0]["class"] in ("0", "1")
    with np.load(work / "two-out.npz") as file:
        assert file["output"].shape == (50, 2)
    np.savez(work / "one.npz", x)
    fails(run("predict", step, "--data", "one.npz"), "the model takes 2")


def test_outputs_that_no_table_holds(run, work):
    assert run("package", "nets.py:segments", "--out", "seg.step").exit_code == 0
    np.savez(work / "maps.npz", x=np.zeros((3, 1, 6, 6), np.float32))
    result = run("predict", "seg.step", "--data", "maps.npz", "--on", "reference:cpu", "--out", "maps-out.npz")
    assert result.exit_code == 0, result.output
    with np.load(work / "maps-out.npz") as file:
        assert file["output"].shape == (3, 4, 6, 6)


def test_the_best_epoch_of_a_checkpoint_predicts(run, work):
    words = ("--data", "weather.csv", "--epochs", "30", "--batch", "8", "--lr", "2", "--schedule", "constant")
    words += ("--on", "reference:cpu", "--patience", "2", "--keep-best", "--checkpoint", "best.checkpoint")
    report = json.loads(run("train", "nets.py:example", *words, "--export", "best.step", "--json").stdout)
    best, done = report["best_epoch"], len(report["epochs"])
    assert best < done, "the last epoch must not be the best one here"
    from_file = predicted(run, "best.step", "--data", "weather.csv")
    checkpoint = ("nets.py:example", "--checkpoint", "best.checkpoint", "--data", "weather.csv")
    from_checkpoint, last = predicted(run, *checkpoint), predicted(run, *checkpoint, "--last")
    assert from_checkpoint["state"] == f"best epoch {best} of {done} by test loss"
    assert from_checkpoint["predictions"] == from_file["predictions"] != last["predictions"]
    assert last["state"] == f"last, after epoch {done}" and "state" not in from_file
    text = run("predict", *checkpoint, "--on", "reference:cpu").stdout
    assert f"best epoch {best} of {done} by test loss" in text
    fails(run("predict", "best.step", "--data", "weather.csv", "--last"), "--last chooses a state of a checkpoint")


def test_a_checkpoint_of_a_factory(run, work):
    words = ("--data", "weather.csv", "--normalise", *WORDS)
    assert run("train", "nets.py:example", *words, "--checkpoint", "c.checkpoint", "--export", "c.step").exit_code == 0
    from_file = predicted(run, "c.step", "--data", "weather.csv")
    from_checkpoint = predicted(run, "nets.py:example", "--checkpoint", "c.checkpoint", "--data", "weather.csv")
    assert from_file["predictions"] == from_checkpoint["predictions"]
    words = ("--data", "weather.csv", "--on", "reference:cpu")
    fails(run("predict", "nets.py:example", *words), "without a trained state. Try: --checkpoint FILE")
    fails(run("predict", "nets.py:example", *words, "--checkpoint", "none"), "there is no checkpoint none")
    fails(run("predict", "nets.py:segments", *words, "--checkpoint", "c.checkpoint"), "belongs to another model")


@pytest.mark.parametrize(
    ("name", "data", "new", "more"),
    [
        ("table", "weather.csv", "new.csv", ("--normalise",)),
        ("price", "price.csv", "price.csv", ("--normalise",)),
        ("photos", "photos", "flat", ("--normalise", "--image-size", "20")),
        ("table", "labelled.npz", "labelled.npz", ()),
    ],
)
def test_a_checkpoint_of_a_factory_without_an_example(run, work, name, data, new, more):
    np.savez(work / "labelled.npz", x=np.eye(2, dtype=np.float32)[np.arange(40) % 2], y=np.arange(40) % 2)
    words = (f"nets.py:{name}", "--data", data, *more, *WORDS, "--checkpoint", "e.checkpoint", "--export", "e.step")
    trained = run("train", *words, "--force")
    assert trained.exit_code == 0, trained.output
    want = predicted(run, "e.step", "--data", new)["predictions"]
    assert predicted(run, f"nets.py:{name}", "--checkpoint", "e.checkpoint", "--data", new)["predictions"] == want
    (work / "e.checkpoint").unlink()


def test_an_old_step_file_predicts_numbers(run, work, trained):
    step = handheld.load(work / trained("table", "weather.csv", "--normalise"))
    for key in ("data", "captured", "transient", "absent", "written"):
        step.meta.pop(key, None)
    step.save(work / "old.step")
    report = predicted(run, "old.step", "--data", "rows.npz")
    assert {row["class"] for row in report["predictions"]} <= {"0", "1"} and report["samples"] == 13
    assert "classes have numbers instead of names" in report["notes"][0]
    assert "not known" in run("show", "old.step").stdout
    assert package.load(work / "old.step").meta["written"]


def test_bad_words(run, work, trained):
    step = trained("table", "weather.csv", "--normalise")
    for words, match in (
        (("--data", "nothing"), "no such file or folder. Try: digits"),
        (("--data", "flat"), "holds images, but the model takes [8, 2]"),
        (("--data", "price.csv"), "no column 'wind', which the model was trained with"),
        (("--data", "new.csv", "--out", "a.xlsx"), "should end in .csv, .json or .npz"),
        (("--data", "new.csv", "--out", "flat/../new.csv"), "new.csv would replace the data itself. Try: another name"),
        (("--data", "new.csv", "--batch", "5"), "predicts batches of 8, not 5"),
        (("--data", "new.csv", "--out", "none/a.csv"), "there is no folder"),
    ):
        fails(run("predict", step, *words), match)
    np.savez(work / "wide3.npz", x=np.zeros((4, 3), np.float32))
    fails(run("predict", step, "--data", "wide3.npz"), "wide3.npz", "3")


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class Answering(torch.nn.Linear):
    def forward(self, x):
        return Answer(super().forward(x), x * 2)


def test_outputs_in_an_object_are_kept(run, work):
    model = Answering(2, 3)
    batch, optimizer = (torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)), torch.optim.SGD(model.parameters())
    step = handheld.capture(model, lambda out, y: torch.nn.functional.cross_entropy(out.logits, y), optimizer, batch)
    assert [shown.name for shown in step.graphs["predict"].outputs] == ["output.logits", "output.hidden"]
    step.save(work / "answer.step")
    np.savez(work / "ones.npz", x=np.ones((5, 2), np.float32))
    report = predicted(run, "answer.step", "--data", "ones.npz", "--out", "answer.npz")
    assert report["predictions"][0]["class"] in ("0", "1", "2")
    with np.load(work / "answer.npz") as file:
        assert file["output.hidden"].tolist() == [[2, 2]] * 5
