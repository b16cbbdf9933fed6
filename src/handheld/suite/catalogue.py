"""Every workload, one entry each. `small` and `paper` are its two sizes."""

from __future__ import annotations

from handheld.suite.workload import Options, Workload

_2019, _TODAY = ("liu2019",), ("today",)
_SMALL, _PAPER = {"size": 32, "classes": 10}, {"size": 224, "classes": 1000}
_CIFAR = {"size": 32, "classes": 10}  # DenseNets were published for CIFAR, so both sizes are the same.
_SMALL_VGG = {**_SMALL, "hidden": 512, "grid": 1}
_PAPER_VGG = {**_PAPER, "hidden": 4096, "grid": 0}


def _vision(
    name: str,
    family: str,
    batch: int,
    about: str,
    used_in: tuple[str, ...] = _TODAY,
    tags: tuple[str, ...] = (),
    options: Options | None = None,
    small: Options = _SMALL,
    paper: Options = _PAPER,
) -> Workload:
    return Workload(name, family, batch, ("vision", *tags), about, options or {}, "vision", used_in, small, paper)


def _text(
    name: str,
    family: str,
    batch: int,
    about: str,
    used_in: tuple[str, ...] = _TODAY,
    tags: tuple[str, ...] = (),
    options: Options | None = None,
    *,
    small: Options,
    paper: Options,
) -> Workload:
    return Workload(name, family, batch, ("text", *tags), about, options or {}, "text", used_in, small, paper)


def _perceptron(name: str, *widths: int) -> Workload:
    about = f"perceptron {'-'.join(map(str, widths))}"
    return Workload(name, "perceptron", 32, ("small",), about, {"widths": widths}, "tabular", ("das2022",))


def _speech(name: str, model: str, about: str, small: Options, paper: Options) -> Workload:
    return Workload(name, "speech", 32, ("speech", "small"), about, {"model": model}, "speech", _TODAY, small, paper)


_SMALL_GPT = {"vocabulary": 256, "width": 128, "layers": 4, "heads": 4, "length": 64}
_PAPER_GPT = {"vocabulary": 50257, "width": 768, "layers": 12, "heads": 12, "length": 1024}


_ALL = (
    # das2022
    _perceptron("m1", 16, 16),
    _perceptron("m2", 16, 16, 16, 16),
    _perceptron("m3", 256, 256),
    _perceptron("m4", 784, 256, 128, 16),
    # liu2019: ten that trained in the study, six that did not
    _vision(
        "densenet40", "densenet", 8, "DenseNet-40, growth 12", _2019, options={"depth": 40}, small=_CIFAR, paper=_CIFAR
    ),
    _vision("resnet50", "resnet", 8, "ResNet-50", _2019, options={"depth": 50}),
    _vision("squeezenet", "squeezenet", 16, "SqueezeNet 1.1", _2019),
    _vision("vgg16", "vgg", 8, "VGG-16", _2019, ("large",), {"depth": 16}, _SMALL_VGG, _PAPER_VGG),
    _vision("xception", "xception", 8, "Xception", _2019),
    _vision("inception_v1", "inception", 8, "Inception-v1 (GoogLeNet)", _2019),
    _vision("alexnet", "vgg", 16, "AlexNet", _2019, ("large",), {"depth": 8}, _SMALL_VGG, _PAPER_VGG),
    _vision(
        "dcgan",
        "dcgan",
        16,
        "DCGAN, two networks, two updates",
        _2019,
        ("gan",),
        small={"size": 32, "width": 16},
        paper={"size": 64, "width": 64},
    ),
    _text(
        "char_cnn",
        "char_cnn",
        16,
        "Char-CNN: convolutions over letters, LSTM",
        _2019,
        ("recurrent",),
        small={"vocabulary": 500, "width": 96, "filters": 8, "widths": 4, "length": 16, "letters": 10},
        paper={"vocabulary": 10000, "width": 300, "filters": 25, "widths": 6, "length": 35, "letters": 21},
    ),
    Workload(
        "dqn",
        "dqn",
        32,
        ("rl",),
        "DQN with target network, replay and a game of catch",
        {},
        "rl",
        _2019,
        {"size": 36, "width": 16, "moves": 3},
        {"size": 84, "width": 32, "moves": 4},
    ),
    _vision("vgg19", "vgg", 8, "VGG-19", _2019, ("large", "unfit"), {"depth": 19}, _SMALL_VGG, _PAPER_VGG),
    _vision("resnet101", "resnet", 4, "ResNet-101", _2019, ("unfit",), {"depth": 101}),
    _vision("resnet152", "resnet", 4, "ResNet-152", _2019, ("unfit",), {"depth": 152}),
    _text(
        "bert_base",
        "bert",
        4,
        "BERT-base finds answers in a text",
        _2019,
        ("attention", "unfit"),
        small={"vocabulary": 1000, "width": 128, "layers": 2, "heads": 2, "length": 32},
        paper={"vocabulary": 30522, "width": 768, "layers": 12, "heads": 12, "length": 384},
    ),
    _vision("densenet100", "densenet", 4, "DenseNet-100, growth 12", _2019, ("unfit",), {"depth": 100}, _CIFAR, _CIFAR),
    _text(
        "nmt",
        "nmt",
        16,
        "translation by LSTM layers with attention",
        _2019,
        ("recurrent", "attention", "unfit"),
        small={"words": 300, "vocabulary": 300, "width": 64, "length": 12},
        paper={"words": 17191, "vocabulary": 7709, "width": 512, "length": 50},
    ),
    # today
    _vision("mlp", "mlp", 64, "784-256-128-10 perceptron on 28x28 images", tags=("small",), small={}, paper={}),
    _vision("lenet5", "lenet", 32, "LeNet-5 on 28x28 images", tags=("small",), small={}, paper={}),
    _vision("mobilenet_v2", "mobilenet", 16, "MobileNetV2"),
    _vision(
        "mobilenet_v2_last",
        "mobilenet",
        16,
        "MobileNetV2, trains its last layer",
        tags=("finetune",),
        options={"tune": "last"},
    ),
    _vision(
        "mobilenet_v2_bias",
        "mobilenet",
        16,
        "MobileNetV2, trains its biases",
        tags=("finetune",),
        options={"tune": "bias"},
    ),
    _vision("mobilenet_v3_small", "mbconv", 16, "MobileNetV3-Small", options={"model": "mobilenet_v3_small"}),
    _vision("efficientnet_b0", "mbconv", 16, "EfficientNet-B0", options={"model": "efficientnet_b0"}),
    _vision("resnet18", "resnet", 16, "ResNet-18"),
    _speech("ds_cnn", "ds_cnn", "DS-CNN spots keywords", {"width": 32}, {"width": 64}),
    _speech("gru_speech", "gru", "GRU spots keywords", {"width": 64}, {"width": 154}),
    _vision(
        "unet",
        "unet",
        4,
        "U-Net finds objects, pixel by pixel",
        small={"size": 32, "classes": 2, "width": 16},
        paper={"size": 224, "classes": 2, "width": 64},
    ),
    _vision(
        "vit_tiny",
        "vit",
        8,
        "ViT-Tiny",
        tags=("attention",),
        small={**_SMALL, "patch": 4, "layers": 4},
        paper={**_PAPER, "patch": 16, "layers": 12},
    ),
    _text(
        "lstm_lm",
        "lstm",
        16,
        "language model of two LSTM layers",
        tags=("recurrent",),
        small={"vocabulary": 256, "width": 128, "length": 32},
        paper={"vocabulary": 10000, "width": 650, "length": 35},
    ),
    _text(
        "transformer",
        "transformer",
        8,
        "encoder of four layers",
        tags=("attention",),
        small={"vocabulary": 1000, "width": 128, "layers": 2, "length": 32},
        paper={"vocabulary": 5000, "width": 256, "layers": 4, "length": 128},
    ),
    _text("gpt", "gpt", 8, "GPT-2", tags=("attention",), small=_SMALL_GPT, paper=_PAPER_GPT),
    _text(
        "gpt_lora",
        "gpt",
        8,
        "LoRA fine-tuning of GPT-2",
        tags=("attention", "finetune"),
        options={"rank": 8},
        small=_SMALL_GPT,
        paper=_PAPER_GPT,
    ),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
#: Old names, from before workloads had sizes.
ALIASES = {f"{name}_224": (name, 224) for name in ("mobilenet_v2", "resnet18", "squeezenet")}
