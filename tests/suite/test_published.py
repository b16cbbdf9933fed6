"""Compares parameters and FLOPs with published figures, counted on tensors without values."""

from __future__ import annotations

import pytest
import torch

from handheld import suite
from handheld.suite import char_cnn, densenet
from handheld.suite.count import forward_flops, parameters, trained
from handheld.suite.transformer import LowRank

TORCHVISION = "torchvision's table of weights, docs.pytorch.org/vision/stable/models.html"

#: workload at size paper -> (parameters, the publication)
PARAMETERS = {
    "resnet18": (11_689_512, TORCHVISION),
    "resnet50": (25_557_032, TORCHVISION),
    "resnet101": (44_549_160, TORCHVISION),
    "resnet152": (60_192_808, TORCHVISION),
    "squeezenet": (1_235_496, TORCHVISION),
    "vgg16": (138_357_544, TORCHVISION),
    "vgg19": (143_667_240, TORCHVISION),
    "alexnet": (61_100_840, TORCHVISION),
    "inception_v1": (6_624_904, TORCHVISION),
    "mobilenet_v2": (3_504_872, TORCHVISION),
    "mobilenet_v3_small": (2_542_856, TORCHVISION),
    "efficientnet_b0": (5_288_548, TORCHVISION),
    "xception": (22_855_952, "timm's table of results, legacy_xception: 22.86 M; the paper's 22,855,952 in table 3"),
    "vit_tiny": (5_717_416, "timm, vit_tiny_patch16_224: 5.72 M; DeiT-Ti, table 1: 5 M"),
    "bert_base": (108_893_186, "Devlin et al.: 110 M; transformers' BertForQuestionAnswering"),
    "gpt": (124_439_808, "GPT-2's smallest: 124 M; transformers' GPT2LMHeadModel"),
    "dqn": (2 * 1_686_180, "as Mnih et al. describe it, four moves; both networks"),
    "ds_cnn": (23_756, "MLPerf Tiny's keyword spotting, trainable parameters"),
    "gru_speech": (78_552, "Hello Edge (Zhang et al.): GRU(S) 78.8 KB of 8-bit weights"),
    "unet": (31_030_658, "Ronneberger et al., figure 1, with biases: 31.0 M"),
    "dcgan": (3_576_704 + 2_765_568, "PyTorch's DCGAN tutorial, both networks"),
    "lenet5": (61_706, "LeCun et al., figure 2, all maps connected: 61.7 k"),
    "m4": (784 * 256 + 256 + 256 * 128 + 128 + 128 * 16 + 16, "das2022's layers"),
    "m3": (256 * 256 + 256, "das2022's layers"),
    "m2": (3 * (16 * 16 + 16), "das2022's layers"),
    "m1": (16 * 16 + 16, "das2022's layers"),
}

#: workload -> (giga multiply-adds per sample, options, the publication)
GMACS = {
    "resnet18": (1.81, {}, TORCHVISION),
    "resnet50": (4.09, {}, TORCHVISION),
    "resnet101": (7.80, {}, TORCHVISION),
    "resnet152": (11.51, {}, TORCHVISION),
    "squeezenet": (0.35, {}, TORCHVISION),
    "vgg16": (15.47, {}, TORCHVISION),
    "vgg19": (19.63, {}, TORCHVISION),
    "alexnet": (0.71, {}, TORCHVISION),
    "inception_v1": (1.50, {}, TORCHVISION),
    "mobilenet_v2": (0.30, {}, TORCHVISION),
    "mobilenet_v3_small": (0.057, {}, TORCHVISION),
    "efficientnet_b0": (0.39, {}, TORCHVISION),
    "xception": (8.40, {"size": 299}, "timm's table of results"),
    "vit_tiny": (1.26, {}, "timm's table of results, vit_tiny_patch16_224"),
    "bert_base": (22.5 / 2, {"length": 128}, "TinyBERT (Jiao et al.), table 1: 22.5 GFLOPs"),
    "ds_cnn": (5.4e-3 / 2, {}, "Hello Edge (Zhang et al.): DS-CNN(S) 5.4 MOps"),
    "gru_speech": (3.8e-3 / 2, {}, "Hello Edge (Zhang et al.): GRU(S) 3.8 MOps"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    assert parameters(suite.get(name, size="paper")) == PARAMETERS[name][0], PARAMETERS[name][1]


#: 101 and 152 layers repeat the blocks of 50 layers, and take seconds
SLOW = ("resnet101", "resnet152", "xception", "mobilenet_v2")


@pytest.mark.parametrize("name", GMACS)
def test_flops(name, request):
    if name in SLOW and not request.config.getoption("--all-cases"):
        pytest.skip("with --all-cases")
    published, options, where = GMACS[name]
    workload = suite.get(name, size="paper").with_options(**options)
    assert forward_flops(workload) / 2e9 == pytest.approx(published, rel=0.02), where


def millions(model: torch.nn.Module) -> float:
    return sum(p.numel() for p in model.parameters()) / 1e6


def test_rounded_figures():
    with torch.device("meta"):
        # Huang et al., table 2: growth 12, 40 layers 1.0 M, 100 layers 7.0 M
        assert round(millions(densenet.build(depth=40)), 1) == 1.0
        assert round(millions(densenet.build(depth=100)), 1) == 7.0
        # Kim et al., table 3: LSTM-Char-Small 5 M, LSTM-Char-Large 19 M
        assert round(millions(char_cnn.CharCnn(10_000, 300, 25, 6))) == 5
        assert round(millions(char_cnn.CharCnn(10_000, 650, 50, 7, most=200, highways=2))) == 19
        # Hu et al., table 4: GPT-3's 96 layers, queries and values, rank 1: 4.7 M; rank 8: 37.7 M
        for rank, published in ((1, 4.7), (8, 37.7)):
            assert round(96 * 2 * millions(LowRank(12_288, rank)), 1) == published


def test_nmt_as_its_description_says():
    """By TensorFlow's nmt/standard_hparams/iwslt15.json: 512 units, vocabularies of both languages."""
    read, write, units = 17_191, 7_709, 512
    lstm = 4 * units * (2 * units + 2)  # PyTorch's LSTM has two biases.
    want = (read + 2 * write) * units + 4 * lstm + 2 * units**2 + 1 + 3 * units**2
    assert parameters(suite.get("nmt", size="paper")) == want


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mobilenet_v2_last", 1280 * 1000 + 1000),
        ("mobilenet_v2_bias", 1280 * 1000 + 1000 + 17_056),  # one bias per channel with a norm
        ("gpt_lora", 12 * 2 * 2 * 8 * 768),
        ("dqn", 1_686_180),
    ],
)
def test_what_is_trained(name, count):
    assert trained(suite.get(name, size="paper")) == count
