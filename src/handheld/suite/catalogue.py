"""Every workload, one entry each. `small` and `paper` are its two sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handheld.suite.workload import Workload

_2019, _TODAY, _BOTH = ("liu2019",), ("today",), ("liu2019", "today")
_SMALL, _PAPER = {"size": 32, "classes": 10}, {"size": 224, "classes": 1000}
_SMALL_VGG = {**_SMALL, "hidden": 512, "grid": 1}
_PAPER_VGG = {**_PAPER, "hidden": 4096, "grid": 0}


def _vision(name: str, family: str, batch: int, about: str, source: tuple[str, ...] = _TODAY,
            tags: tuple[str, ...] = (), options: Mapping[str, Any] | None = None,
            small: Mapping[str, Any] = _SMALL, paper: Mapping[str, Any] = _PAPER) -> Workload:
    return Workload(name, family, batch, ("vision", *tags), about, options or {}, "vision", source,
                    small, paper)


def _text(name: str, family: str, batch: int, about: str, source: tuple[str, ...] = _TODAY,
          tags: tuple[str, ...] = (), small: Mapping[str, Any] | None = None,
          paper: Mapping[str, Any] | None = None) -> Workload:
    return Workload(name, family, batch, ("text", *tags), about, {}, "text", source, small or {},
                    paper or {})


_ALL = (
    _vision("mlp", "mlp", 64, "784-256-128-10 perceptron on 28x28 images", tags=("small",),
            small={}, paper={}),
    _vision("lenet5", "lenet", 32, "LeNet-5 on 28x28 images", tags=("small",), small={}, paper={}),
    _vision("mobilenet_v2", "mobilenet", 16, "MobileNetV2"),
    _vision("resnet18", "resnet", 16, "ResNet-18"),
    _vision("resnet50", "resnet", 8, "ResNet-50", _BOTH, options={"depth": 50}),
    _vision("squeezenet", "squeezenet", 16, "SqueezeNet 1.1", _BOTH),
    _vision("alexnet", "vgg", 16, "AlexNet", _2019, ("large",), {"depth": 8}, _SMALL_VGG,
            _PAPER_VGG),
    _vision("vgg16", "vgg", 8, "VGG-16", _2019, ("large",), {"depth": 16}, _SMALL_VGG, _PAPER_VGG),
    _vision("dcgan", "dcgan", 16, "DCGAN, two updates", _2019, ("gan",),
            small={"size": 32, "width": 16}, paper={"size": 64, "width": 64}),
    _text("lstm_lm", "lstm", 16, "language model of two LSTM layers", tags=("recurrent",),
          small={"vocabulary": 256, "width": 128, "length": 32},
          paper={"vocabulary": 10000, "width": 650, "length": 35}),
    _text("transformer", "transformer", 8, "encoder of four layers", tags=("attention",),
          small={"vocabulary": 1000, "width": 128, "layers": 2, "length": 32},
          paper={"vocabulary": 5000, "width": 256, "layers": 4, "length": 128}),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
#: names from before there were sizes
ALIASES = {f"{name}_224": (name, 224) for name in ("mobilenet_v2", "resnet18", "squeezenet")}
