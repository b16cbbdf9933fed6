"""The workloads: models that people train on devices, each with a loss, an optimizer and batches.

    workload = suite.get("mobilenet_v2", size=224)
    model, loss, optimizer = workload.make()
    step = workload.step(batch=16)              # captured and ready to plan

One file a family. This one imports without PyTorch; the families need it.
"""

from __future__ import annotations

import difflib
from typing import Any

from handheld.errors import HandheldError
from handheld.suite.workload import Workload

__all__ = ["WORKLOADS", "Workload", "get"]

_ALL = (
    Workload("mlp", "mlp", 64, ("vision", "small"), "784-256-128-10 perceptron on 28x28 images"),
    Workload("lenet5", "lenet", 32, ("vision", "small"), "LeNet-5 on 28x28 images"),
    Workload("mobilenet_v2", "mobilenet", 16, ("vision",), "MobileNetV2, 32x32 or `size`"),
    Workload("mobilenet_v2_224", "mobilenet", 16, ("vision", "large"), "MobileNetV2 on 224x224",
             {"size": 224}),
    Workload("resnet18", "resnet", 16, ("vision",), "ResNet-18, 32x32 or `size`"),
    Workload("resnet18_224", "resnet", 16, ("vision", "large"), "ResNet-18 on 224x224",
             {"size": 224}),
    Workload("resnet50", "resnet", 8, ("vision",), "ResNet-50, 32x32 or `size`", {"depth": 50}),
    Workload("alexnet", "vgg", 16, ("vision", "large"), "AlexNet on 224x224", {"depth": 8}),
    Workload("vgg16", "vgg", 8, ("vision", "large"), "VGG-16 on 224x224", {"depth": 16}),
    Workload("squeezenet", "squeezenet", 16, ("vision",), "SqueezeNet 1.1, 32x32 or `size`"),
    Workload("squeezenet_224", "squeezenet", 16, ("vision", "large"), "SqueezeNet 1.1 on 224x224",
             {"size": 224}),
    Workload("lstm_lm", "lstm", 16, ("text", "recurrent"), "language model of two LSTM layers"),
    Workload("transformer", "transformer", 8, ("text", "attention"), "encoder of four layers"),
    Workload("dcgan", "dcgan", 16, ("vision", "gan"), "DCGAN on 64x64, two updates"),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}


def get(name: str, **options: Any) -> Workload:
    """The workload of this name, with other sizes if asked: `get("resnet18", size=224)`."""
    if name not in WORKLOADS:
        near = [known for known in WORKLOADS if len(name) > 2 and known.startswith(name)] \
            or difflib.get_close_matches(name, WORKLOADS, n=2, cutoff=0.7)
        hint = f"Did you mean {' or '.join(near)}?" if near else ""
        raise HandheldError(f"no workload is called {name!r}. {hint} "
                            f"There are: {', '.join(WORKLOADS)}".replace("  ", " "))
    return WORKLOADS[name].with_options(**options)
