"""How commands resolve a workload's name, its size and a user's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from handheld.cli.prepare import load
from handheld.errors import BatchError, HandheldError
from handheld.resolve import open_model


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("resnet18", "small", (1, 3, 32, 32)),
        ("resnet18", "paper", (1, 3, 224, 224)),
        ("resnet18", "64", (1, 3, 64, 64)),
        ("vgg16", None, (1, 3, 224, 224)),
        ("dqn", "small", (1, 4, 36, 36)),
        ("gpt", "paper", (1, 1024)),
        ("m3", "paper", (1, 256)),
    ],
)
def test_sizes(name, size, shape):
    spec = open_model(name, size)
    assert spec.shape() == shape
    assert spec.name == (name if size is None else f"{name}_{size}")


@pytest.mark.parametrize(
    ("what", "size", "message"),
    [
        ("resnet18", "huge", r"resnet18 has no size 'huge'\. Try: small, paper"),
        ("m1", "64", r"m1 has no images whose size can be chosen\. Try: --size small"),
        ("mine.py:make", "small", r"--size small applies only to workloads of the suite\. mine\.py:make"),
        ("mine.step", "paper", r"--size paper applies only to workloads"),
        ("resnet19", "small", r"no workload 'resnet19'\. Try: resnet18, "),
    ],
)
def test_bad_sizes(what, size, message):
    with pytest.raises(HandheldError, match=message):
        open_model(what, size)


def test_a_text_is_cut_to_the_models_length(tmp_path: Path):
    path = tmp_path / "mine.txt"
    path.write_text(Path(__file__).read_text())
    for spec in (str(path), "pydoc"):
        found = load(spec, 4, 0, open_model("gpt", "small"))
        x, y = next(iter(found.train.epoch(0)))
        assert x.shape == y.shape == (4, 64) and (x[:, 1:] == y[:, :-1]).all()
        assert len(found.classes) == 256
    assert found.train.samples > 3000 and found.test is not None  # The text has 500 kB.


def test_a_step_file_refuses_another_batch_size(tmp_path):
    """Else a command would run its own batch and report the figures of the other."""
    open_model("m1").step([8], 0).save(tmp_path / "one.step")
    spec = open_model(str(tmp_path / "one.step"))
    assert spec.step([8], 0).graphs.keys() == {"train", "evaluate", "predict"}
    with pytest.raises(BatchError, match=r"captured for a batch of 8, not 16\. Try: --batch 8"):
        spec.step([16], 0)


@pytest.mark.parametrize(
    ("batch", "size"),
    (
        ("def batch(n=16): return torch.ones(n, 3), torch.zeros(n, dtype=torch.long)", 16),
        ("def batch(n): return torch.ones(n, 3), torch.zeros(n, dtype=torch.long)", 32),
        ("batch = torch.ones(5, 3), torch.zeros(5, dtype=torch.long)", 5),
    ),
)
def test_a_factory_has_its_own_batch_size(tmp_path, batch, size):
    """A default size of the batch function is the model's own size."""
    (tmp_path / "mine.py").write_text(
        f"import torch\n{batch}\ndef make():\n"
        "    model = torch.nn.Linear(3, 2)\n"
        "    return model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch\n"
    )
    spec = open_model(f"{tmp_path}/mine.py:make")
    assert spec.default_batch == size and len(spec.example(size)[0]) == size
