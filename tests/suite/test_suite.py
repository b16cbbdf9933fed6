"""The workloads: the architectures they claim to be, data that can be learned, a captured step."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from handheld import suite
from handheld.errors import HandheldError
from handheld.suite import dcgan, mobilenet, resnet, squeezenet


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "parameters"), [
    ("mlp", 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10), ("lenet5", 61_706),
    ("mobilenet_v2", 2_236_682), ("resnet18", 11_181_642), ("squeezenet", 727_626),
])
def test_parameters(name, parameters):
    assert count(suite.get(name).make()[0]) == parameters


def test_published_parameters():
    assert count(mobilenet.build(1000)) == 3_504_872
    assert count(resnet.build(1000)) == 11_689_512
    assert count(squeezenet.SqueezeNet(1000)) == 1_235_496
    assert count(dcgan.generator()) == 3_576_704
    assert count(dcgan.discriminator()) == 2_765_568


def small(name: str) -> suite.Workload:
    options = {"lstm_lm": {"vocabulary": 31, "width": 16, "length": 7}, "dcgan": {"width": 4},
               "transformer": {"vocabulary": 31, "width": 32, "layers": 2, "length": 16}}
    return suite.get(name, **options.get(name, {}))


NAMES = [name for name, workload in suite.WORKLOADS.items() if "large" not in workload.tags]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "dcgan"])
def test_forward_and_seeds(name):
    workload = small(name)
    model, loss, optimizer = workload.make()
    x, y = workload.batch(2, seed=1)
    value = loss(model.eval()(x), y)
    assert value.shape == () and torch.isfinite(value)
    assert isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["momentum"] == 0.9
    again, *_ = workload.make()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    assert all(torch.equal(a, b) for a, b in zip((x, y), workload.batch(2, seed=1)))
    assert not torch.equal(x, workload.batch(2, seed=2)[0])
    assert len(workload.batch()[0]) == workload.default_batch


@pytest.mark.parametrize("name", ["mlp", "lenet5", "lstm_lm", "transformer"])
def test_it_can_be_learned(name):
    workload = small(name)
    model, loss, optimizer = workload.make()
    batches = [workload.batch(16, seed) for seed in range(4)]
    losses = []
    for step in range(60):
        x, y = batches[step % 4]
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def test_making_a_model_leaves_the_generator_alone():
    torch.manual_seed(5)
    want = torch.rand(1)
    torch.manual_seed(5)
    small("lenet5").make()
    assert torch.equal(torch.rand(1), want)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "squeezenet", "lstm_lm", "transformer"])
def test_captured(name):
    step = small(name).step(batch=2)
    assert list(step.graphs) == ["train", "evaluate", "predict"] and step.meta["name"] == name
    assert not step.no_gradient()


def test_dcgan_is_two_updates_over_one_state():
    step = small("dcgan").step(batch=2)
    assert list(step.graphs) == ["d", "g"]
    written = {name: {slot for slot, _ in graph.writes} for name, graph in step.graphs.items()}
    for name, own in (("d", "discriminator"), ("g", "generator")):
        parameters = {s.name for s in step.slots.values() if s.role == "parameter"}
        assert written[name] & parameters == {p for p in parameters if p.startswith(own)}
    assert [name for name, _, _ in step.graphs["d"].inputs] == ["0", "1"]
    with pytest.raises(HandheldError, match="several updates"):
        small("dcgan").make()


def test_options_and_names():
    assert suite.get("resnet18", size=64).batch(1)[0].shape == (1, 3, 64, 64)
    assert suite.get("resnet18_224").batch(1)[0].shape == (1, 3, 224, 224)
    assert suite.get("resnet18", size="paper").batch(1)[0].shape == (1, 3, 224, 224)
    assert suite.get("vgg16", size="small").batch(1)[0].shape == (1, 3, 32, 32)
    assert suite.get("vgg16").options == {"depth": 16} and not suite.get("vgg16").size
    with pytest.raises(HandheldError, match=r"no size 'large'\. There are: small, paper"):
        suite.get("resnet18", size="large")
    with pytest.raises(HandheldError, match=r"no option 'layers'.* size, classes"):
        suite.get("resnet18", layers=50)
    with pytest.raises(HandheldError, match="Did you mean lenet5"):
        suite.get("lenet")
    with pytest.raises(HandheldError, match="There are: mlp, lenet5"):
        suite.get("zzzz")


def test_the_list_needs_no_pytorch():
    code = ("import sys; sys.modules['torch'] = None\n"
            "from handheld import suite\n"
            "assert suite.get('lenet5').default_batch == 32\n"
            "try: suite.get('lenet5').make()\n"
            "except Exception as error: print(type(error).__name__, error)")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HandheldError" in run.stdout and "pip install 'handheld[capture]'" in run.stdout
