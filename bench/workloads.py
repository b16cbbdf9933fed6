"""The training steps that the benchmarks compare, and PyTorch's own way of running them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import handheld
from handheld import suite
from handheld.frontend.capture import Capture
from handheld.suite import dcgan


@dataclass(frozen=True)
class Entry:
    """A workload of the suite at a batch size. Results and --only name it by its letter."""

    letter: str
    workload: str
    batch: int
    options: dict[str, Any] = field(default_factory=dict)

    #: small or paper: the workload as the suite has it, with its own optimizer
    suite_size: str = ""

    @property
    def name(self) -> str:
        size = f" {self.options['size']}" if "size" in self.options else ""
        return f"{self.letter} {self.workload}{size} b{self.batch}".lstrip()

    def as_in_suite(self) -> suite.Workload:
        return suite.get(self.workload).with_options(self.suite_size)


#: nine small and medium steps, as they run on devices
STEPS = (
    Entry("a", "lenet5", 64),
    Entry("b", "mobilenet_v2", 32),
    Entry("c", "resnet18", 32, {"small_stem": True}),
    Entry("d", "resnet50", 4, {"size": 224}),
    Entry("e", "squeezenet", 8, {"size": 224}),
    Entry("f", "lstm_lm", 32, {"vocabulary": 5000, "width": 256, "length": 64}),
    Entry("g", "transformer", 16),
    Entry("h", "dcgan", 16),
    Entry("i", "mlp", 128, {"widths": (1024, 1024)}),
)

#: five steps that fill a large GPU
LARGE = (
    Entry("A", "alexnet", 64),
    Entry("V", "vgg16", 64),
    Entry("R", "resnet18", 64, {"size": 224}),
    Entry("S", "resnet50", 64, {"size": 224}),
    Entry("M", "mobilenet_v2", 64, {"size": 224}),
)


def of_the_suite(text: str) -> list[Entry]:
    """The entries of `suite`, `suite:paper`, `suite:small:vgg16,gpt` or `suite:paper:vgg16=2` (batch 2)."""
    _, _, rest = text.partition(":")
    size, _, names = rest.partition(":")
    size = size or "small"
    entries = []
    for item in names.split(",") if names else list(suite.WORKLOADS):
        name, _, batch = item.partition("=")
        workload = suite.get(name).with_options(size)
        entries.append(Entry("", name, int(batch or workload.default_batch), suite_size=size))
    return entries


def chosen(letters: str) -> list[Entry]:
    """The entries of the given letters; "small" and "large" select a whole list, "suite" the workloads of the suite."""
    if letters.partition(":")[0] == "suite":
        return of_the_suite(letters)
    if letters in ("small", "large"):
        return list(STEPS if letters == "small" else LARGE)
    known = {entry.letter: entry for entry in (*STEPS, *LARGE)}
    unknown = set(letters) - set(known)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise SystemExit(f"there is no workload {names}. Try: --only small, large, or letters of {''.join(known)}")
    return [known[letter] for letter in letters]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _gan(entry: Entry) -> tuple[Any, Any, tuple[Any, ...]]:
    make, judge = dcgan.seeded(lambda: (dcgan.generator(), dcgan.discriminator()), 0)
    return make, judge, dcgan.batch(entry.batch, 0)


def batches(entry: Entry) -> list[tuple[str, tuple[Any, ...]]]:
    """The graphs of a step, in order, each with its batch."""
    if entry.suite_size:
        workload = entry.as_in_suite()
        return workload.runs(workload.batch(entry.batch))
    if entry.workload != "dcgan":
        return [("train", suite.get(entry.workload, **entry.options).batch(entry.batch))]
    real, noise = dcgan.batch(entry.batch, 0)
    return [("d", (real, noise)), ("g", (noise,))]


def captured(entry: Entry) -> tuple[handheld.Step, list[tuple[str, tuple[Any, ...]]]]:
    """The captured step, and its graphs with their batches."""
    runs = batches(entry)
    if entry.suite_size:
        return entry.as_in_suite().step(entry.batch, evaluate=False), runs
    if entry.workload != "dcgan":
        return suite.get(entry.workload, **entry.options).step(entry.batch), runs
    make, judge, _ = _gan(entry)
    capture = Capture({"generator": make, "discriminator": judge}, 0)
    capture.train(lambda b: dcgan.loss_d(make, judge, *b), sgd(judge), runs[0][1], "d")
    capture.train(lambda b: dcgan.loss_g(make, judge, *b), sgd(make), runs[1][1], "g")
    return capture.step(), runs


@dataclass
class Eager:
    """The step in PyTorch: modules, losses on host batches, and optimizers."""

    models: list[torch.nn.Module]
    losses: list[Callable[[], torch.Tensor]]
    optimizers: list[torch.optim.Optimizer]

    def step(self) -> torch.Tensor:
        for loss, optimizer in zip(self.losses, self.optimizers, strict=True):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
        return value


def single(entry: Entry) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """(model, loss, optimizer, batch) of a step with one update."""
    workload = suite.get(entry.workload, **entry.options)
    return (*workload.make(), workload.batch(entry.batch))


def eager(entry: Entry, where: str = "cpu", compiled: bool = False) -> Eager:
    """The step in PyTorch. Its batches start on the host, as they do for Handheld."""
    wrap: Callable[[Any], Any] = torch.compile if compiled else lambda model: model
    if entry.suite_size:
        return _suite_step(entry, where, wrap)
    if entry.workload == "dcgan":
        make, judge, (real, noise) = _gan(entry)
        make.to(where), judge.to(where)
        run_make, run_judge = wrap(make), wrap(judge)
        return Eager(
            [make, judge],
            [
                lambda: dcgan.loss_d(run_make, run_judge, real.to(where), noise.to(where)),
                lambda: dcgan.loss_g(run_make, run_judge, noise.to(where)),
            ],
            [sgd(judge), sgd(make)],
        )
    model, loss, optimizer, (x, y) = single(entry)
    model.to(where)
    run = wrap(model)
    return Eager([model], [lambda: loss(run(x.to(where)), y.to(where))], [optimizer])


def _suite_step(entry: Entry, where: str, wrap: Callable[[Any], Any]) -> Eager:
    workload = entry.as_in_suite()
    modules, updates = workload.parts()
    models = [module.to(where).train() for module in modules.values()]
    optimizers = [update.optimizer(modules) for update in updates]
    called = {name: wrap(module) for name, module in modules.items()}
    whole = workload.batch(entry.batch)

    def loss(update: Any) -> Callable[[], torch.Tensor]:
        return lambda: update.loss(called, tuple(whole[i].to(where) for i in update.takes))

    return Eager(models, [loss(update) for update in updates], optimizers)
