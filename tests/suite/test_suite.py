"""The workloads: the architectures they claim to be, data that can be learned, a captured step."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from handheld import suite
from handheld.errors import HandheldError
from handheld.suite import dqn

#: fast enough for every run; --all-cases runs the others too
CHEAP = (
    "m2",
    "squeezenet",
    "char_cnn",
    "dqn",
    "bert_base",
    "nmt",
    "lenet5",
    "ds_cnn",
    "gru_speech",
    "unet",
    "vit_tiny",
    "lstm_lm",
    "transformer",
    "gpt_lora",
    "dcgan",
)
LESS: dict[str, dict[str, int]] = {
    "lstm_lm": {"vocabulary": 31, "width": 16, "length": 7},
    "dcgan": {"width": 4},
    "transformer": {"vocabulary": 31, "width": 32, "layers": 2, "length": 16},
    "gpt_lora": {"layers": 2},
    "vit_tiny": {"layers": 2},
    "unet": {"width": 4},
}


def small(name: str) -> suite.Workload:
    return suite.get(name, size="small").with_options(**LESS.get(name, {}))


@pytest.fixture(params=suite.WORKLOADS)
def name(request):
    if request.param not in CHEAP and not request.config.getoption("--all-cases"):
        pytest.skip("with --all-cases")
    return request.param


def test_a_batch_of_too_few_arrays_is_an_error():
    with pytest.raises(HandheldError, match="dqn takes batches of 5 arrays; this one has 2"):
        suite.get("dqn").runs((torch.zeros(1), torch.zeros(1)))


def test_every_workload_says_what_it_is():
    for workload in suite.WORKLOADS.values():
        assert workload.domain in ("vision", "text", "speech", "rl", "tabular")
        assert workload.used_in and set(workload.used_in) <= {"das2022", "liu2019", "today"}
        assert set(workload.small) == set(workload.paper), workload.name
        assert workload.default_batch > 0 and workload.about
    counts = {source: sum(source in w.used_in for w in suite.WORKLOADS.values()) for source in ("das2022", "liu2019")}
    assert counts == {"das2022": 4, "liu2019": 16}
    assert sum("unfit" in w.tags for w in suite.WORKLOADS.values()) == 6


def test_forward_and_seeds(name):
    workload = small(name)
    modules, updates = workload.parts()
    batch = workload.batch(4, seed=1)
    for update, (graph, part) in zip(updates, workload.runs(batch), strict=True):
        value = update.loss(modules, part)
        assert graph == update.graph and value.shape == () and torch.isfinite(value)
    again, _ = workload.parts()
    assert all(
        torch.equal(a, b)
        for key in modules
        for a, b in zip(modules[key].parameters(), again[key].parameters(), strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(batch, workload.batch(4, seed=1), strict=True))
    assert not torch.equal(batch[0], workload.batch(4, seed=2)[0])
    assert len(workload.batch()[0]) == workload.default_batch


@pytest.mark.parametrize("learner", ["m2", "lenet5", "lstm_lm", "transformer"])
def test_it_can_be_learned(learner):
    workload = small(learner)
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


def test_losses_fall_on_opencl(request):
    """Two small workloads by scripts/check_losses.py; with --all-cases all of them, which takes half an hour."""
    path = Path(__file__).parents[2] / "scripts" / "check_losses.py"
    script = runpy.run_path(str(path))
    everything = request.config.getoption("--all-cases")
    for found in suite.WORKLOADS if everything else ("m2", "m4"):
        assert script["falls"](script["losses"](found, 60, 4, "opencl")), found


def test_making_a_model_leaves_the_generator_alone():
    torch.manual_seed(5)
    want = torch.rand(1)
    torch.manual_seed(5)
    small("lenet5").make()
    assert torch.equal(torch.rand(1), want)


def test_captured(name):
    workload = small(name)
    step = workload.step(batch=4)
    assert step.meta["name"] == name and not step.frozen() and not step.no_gradient()
    assert {graph for graph, _ in workload.runs(workload.batch(4))} <= set(step.graphs)
    if workload.single:
        assert list(step.graphs) == ["train", "evaluate", "predict"]


def test_what_is_frozen_stays():
    """Fine-tuning writes only what it trains, and no running statistics."""
    for tuned in ("mobilenet_v2_last", "gpt_lora"):
        step = small(tuned).step(batch=2, evaluate=False)
        written = {write.slot for write in step.graphs["train"].writes}
        kept = {s.name for s in step.slots.values() if s.role in ("parameter", "buffer")}
        own = ("low_",) if tuned == "gpt_lora" else ("model.head.",)
        assert written & kept == {slot for slot in kept if any(part in slot for part in own)}


def test_dqn_plays_learns_and_copies():
    """All three graphs share one state and use a replay memory that fills while the agent plays."""
    workload = suite.get("dqn", size="small", width=4)
    step = workload.step(batch=8)
    assert list(step.graphs) == ["learn", "copy", "predict"]
    with step.plan("reference:cpu").start() as trainer:
        before = trainer.state()
        rewards = dqn.play(trainer, 8, 16, size=36, copy_every=10)
        after = trainer.state()
    assert len(rewards) == (8 + 16) // 11 and set(rewards) <= {-1.0, 1.0}
    assert not (before["online.fc2.bias"] == after["online.fc2.bias"]).all()
    assert not (before["target.fc2.bias"] == after["target.fc2.bias"]).all()  # The online network was copied to it.
    assert not (after["online.fc2.bias"] == after["target.fc2.bias"]).all()  # That was some steps ago.


def test_dcgan_is_two_updates_over_one_state():
    step = small("dcgan").step(batch=2)
    assert list(step.graphs) == ["d", "g"]
    written = {name: {write.slot for write in graph.writes} for name, graph in step.graphs.items()}
    for name, own in (("d", "discriminator"), ("g", "generator")):
        parameters = {s.name for s in step.slots.values() if s.role == "parameter"}
        assert written[name] & parameters == {p for p in parameters if p.startswith(own)}
    assert [given.name for given in step.graphs["d"].inputs] == ["0", "1"]
    with pytest.raises(HandheldError, match="several updates"):
        small("dcgan").make()


def test_options_and_names():
    assert suite.get("resnet18", size=64).batch(1)[0].shape == (1, 3, 64, 64)
    assert suite.get("resnet18_224").batch(1)[0].shape == (1, 3, 224, 224)
    assert suite.get("resnet18", size="paper").batch(1)[0].shape == (1, 3, 224, 224)
    assert suite.get("vgg16", size="small").batch(1)[0].shape == (1, 3, 32, 32)
    assert suite.get("vgg16").options == {"depth": 16} and not suite.get("vgg16").size
    with pytest.raises(HandheldError, match=r"no size 'large'\. Try: small, paper"):
        suite.get("resnet18", size="large")
    with pytest.raises(HandheldError, match=r"no option 'layers'.* size, classes"):
        suite.get("resnet18", layers=50)
    with pytest.raises(HandheldError, match="Try: lenet5"):
        suite.get("lenet")
    with pytest.raises(HandheldError, match="Try: handheld bench --list"):
        suite.get("zzzz")


def test_the_list_needs_no_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from handheld import suite\n"
        "assert suite.get('lenet5').default_batch == 32\n"
        "try: suite.get('lenet5').make()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HandheldError" in run.stdout and "pip install torch" in run.stdout


@pytest.mark.parametrize(("name", "rate"), [("vgg16", 0.01 * 8 / 256), ("vgg19", 0.01 * 8 / 256), ("alexnet", 0.00125)])
def test_networks_without_normalisation_have_a_rate_for_their_batch(name, rate):
    """With the published rate, for far larger batches, they diverge at paper size."""
    with torch.device("meta"):
        _, _, paper = suite.get(name, size="paper").make()
        _, _, small = suite.get(name, size="small").make()
    assert paper.param_groups[0]["lr"] == pytest.approx(rate) and small.param_groups[0]["lr"] == 0.01
