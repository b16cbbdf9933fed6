"""Families of timm and pytorchcv at small sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from coverage_family import Batch, Family, Task, scalar_loss, tensors_of, torchvision_stub
from torch import nn

B, CLASSES = 2, 10


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of every [batch, classes] output: auxiliary heads too. What has none is a
    segmentation or a pose."""
    output = tensors_of(model(batch["x"]))
    heads = [t for t in output if t.dim() == 2]
    if not heads:
        return scalar_loss(output)
    total = F.cross_entropy(heads[0], batch["y"])
    for head in heads[1:]:
        total = total + F.cross_entropy(head, batch["y"])
    return total


def images(size: int) -> Batch:
    return {"x": torch.randn(B, 3, size, size), "y": torch.randint(0, CLASSES, (B,))}


def timm_family(name: str, size: int = 64, **change: Any) -> Family:
    def make() -> Task:
        torchvision_stub()
        import timm

        model = timm.create_model(name, num_classes=CLASSES, **change)
        return Task(model, images(size), classify, mode="train")

    return Family(f"timm {name}", "timm", make)


#: model name -> image size and what to change, so that it stays small
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (64, {}),
    "resnet50": (64, {}),
    "resnet26d": (64, {}),
    "resnext26ts": (64, {}),
    "seresnext26d_32x4d": (64, {}),
    "ecaresnet26t": (64, {}),
    "mobilenetv3_small_100": (64, {}),
    "mobilenetv3_large_075": (64, {}),
    "mobilenetv2_050": (64, {}),
    "mobilenetv4_conv_small_050": (64, {}),
    "mobilenetv4_hybrid_medium": (64, {}),
    "efficientnet_b0": (64, {}),
    "efficientnet_lite0": (64, {}),
    "efficientnetv2_rw_t": (64, {}),
    "tf_efficientnet_b0": (64, {}),
    "mnasnet_small": (64, {}),
    "fbnetc_100": (64, {}),
    "spnasnet_100": (64, {}),
    "tinynet_e": (64, {}),
    "mixnet_s": (64, {}),
    "hardcorenas_a": (64, {}),
    "convnext_atto": (64, {}),
    "convnextv2_atto": (64, {}),
    "vit_tiny_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "vit_small_patch16_rope_224": (64, {"img_size": 64, "depth": 2}),
    "deit_tiny_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "deit_tiny_distilled_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "deit3_small_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2}),
    "beit_base_patch16_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "swin_tiny_patch4_window7_224": (
        64,
        {"img_size": 64, "depths": (2, 2), "embed_dim": 24, "num_heads": (2, 4), "window_size": 4},
    ),
    "swinv2_tiny_window8_256": (
        64,
        {"img_size": 64, "depths": (2, 2), "embed_dim": 24, "num_heads": (2, 4), "window_size": 4},
    ),
    "swinv2_cr_tiny_224": (
        64,
        {"img_size": 64, "depths": (2, 2), "embed_dim": 24, "num_heads": (2, 4), "window_size": 4},
    ),
    "mixer_s32_224": (64, {"img_size": 64}),
    "gmlp_s16_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "regnetx_002": (64, {}),
    "regnety_002": (64, {}),
    "regnetz_b16": (64, {}),
    "densenet121": (64, {"block_config": (2, 2, 2, 2), "growth_rate": 8}),
    "repvgg_a0": (64, {}),
    "mobileone_s0": (64, {}),
    "ghostnet_050": (64, {"drop_rate": 0.0}),
    "ghostnetv2_100": (64, {"drop_rate": 0.0}),
    "repghostnet_050": (64, {"drop_rate": 0.0}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "levit_128s": (64, {"img_size": 64}),
    "levit_conv_128s": (64, {"img_size": 64}),
    "coat_tiny": (
        64,
        {"img_size": 64, "serial_depths": (1, 1, 1, 1), "parallel_depth": 1, "embed_dims": (24, 24, 24, 24)},
    ),
    "coat_lite_tiny": (64, {"img_size": 64, "serial_depths": (1, 1, 1, 1)}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64, "depth": 2}),
    "cait_xxs24_224": (64, {"img_size": 64, "depth": 2}),
    "convit_tiny": (64, {"img_size": 64, "depth": 2, "local_up_to_layer": 1}),
    "crossvit_tiny_240": (240, {"depth": ((1, 1, 0),), "embed_dim": (24, 48), "num_heads": (2, 2)}),
    "maxvit_rmlp_pico_rw_256": (64, {"img_size": 64}),
    "coatnet_pico_rw_224": (64, {"img_size": 64}),
    "coatnext_nano_rw_224": (64, {"img_size": 64}),
    "efficientformer_l1": (224, {"depths": (1, 1, 1, 2), "embed_dims": (8, 16, 24, 32)}),
    "efficientformerv2_s0": (64, {"img_size": 64}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (64, {"img_size": 64}),
    "edgenext_xx_small": (64, {}),
    "fastvit_t8": (64, {}),
    "fasternet_t0": (64, {}),
    "hrnet_w18_small": (64, {}),
    "inception_v3": (160, {}),
    "inception_v4": (96, {}),
    "inception_resnet_v2": (96, {}),
    "inception_next_tiny": (64, {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48)}),
    "xception41": (64, {}),
    "legacy_xception": (64, {}),
    "vgg11": (32, {}),
    "vgg11_bn": (32, {}),
    "dla34": (64, {}),
    "dla60_res2net": (64, {}),
    "resnest14d": (64, {}),
    "skresnet18": (64, {}),
    "res2net50_26w_4s": (64, {}),
    "resnetv2_18": (64, {}),
    "resnetv2_50x1_bit": (64, {}),
    "nfnet_f0": (64, {}),
    "eca_nfnet_l0": (64, {}),
    "nf_regnet_b0": (64, {}),
    "poolformer_s12": (64, {}),
    "poolformerv2_s12": (64, {}),
    "caformer_s18": (64, {}),
    "convformer_s18": (64, {}),
    "pvt_v2_b0": (64, {}),
    "pit_ti_224": (64, {"img_size": 64}),
    "pit_ti_distilled_224": (64, {"img_size": 64}),
    "tnt_s_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "twins_pcpvt_small": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "twins_svt_small": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "visformer_tiny": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "nest_tiny": (64, {"img_size": 64}),
    "gcvit_xxtiny": (64, {"img_size": 64}),
    "davit_tiny": (64, {"depths": (1, 1, 1, 1), "embed_dims": (24, 48, 72, 96), "num_heads": (2, 4, 6, 8)}),
    "focalnet_tiny_srf": (64, {}),
    "mvitv2_tiny": (64, {"img_size": 64}),
    "hiera_tiny_224": (64, {"img_size": 64}),
    "tiny_vit_5m_224": (64, {}),
    "nextvit_small": (64, {}),
    "repvit_m0_9": (64, {}),
    "shvit_s1": (64, {}),
    "starnet_s1": (64, {}),
    "swiftformer_xs": (224, {"layers": (1, 1, 1, 1)}),
    "mambaout_femto": (64, {}),
    "rdnet_tiny": (64, {}),
    "hgnetv2_b0": (64, {}),
    "lcnet_050": (64, {}),
    "rexnet_100": (64, {}),
    "selecsls42b": (64, {}),
    "semnasnet_075": (64, {}),
    "legacy_seresnet18": (64, {"drop_rate": 0.0}),
    "sequencer2d_s": (224, {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 32), "hidden_sizes": (8, 16, 16, 16)}),
    "convmixer_768_32": (64, {}),
    "cspresnet50": (64, {}),
    "cspdarknet53": (64, {}),
    "darknet53": (64, {}),
    "dpn48b": (64, {}),
    "ese_vovnet19b_dw": (64, {}),
    "gernet_s": (64, {}),
    "bat_resnext26ts": (256, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "halonet26t": (256, {}),
    "lambda_resnet26t": (64, {}),
    "haloregnetz_b": (224, {}),
    "nasnetalarge": (96, {"num_features": 192 * 2 // 4 * 4, "channel_multiplier": 2, "stem_size": 8}),
    "pnasnet5large": (96, {}),
    "tresnet_m": (64, {}),
    "vit_relpos_small_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "samvit_base_patch16_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "vitamin_small_224": (64, {"img_size": 64}),
    "naflexvit_base_patch16_gap": (64, {"depth": 2, "embed_dim": 48, "num_heads": 4}),
    "wide_resnet50_2": (64, {"layers": (1, 1, 1, 1)}),
    "resnetaa50": (64, {"layers": (1, 1, 1, 1)}),
    "resnetblur50": (64, {"layers": (1, 1, 1, 1)}),
    "gcresnext26ts": (64, {}),
    "cs3darknet_s": (64, {}),
    "mobilenetv5_base": (64, {}),
    "csatv2": (64, {"img_size": 64}),
    "sam2_hiera_tiny": (64, {}),
    "cpubone_nano": (64, {}),
    "efficientvim_m1": (128, {}),
    "iformer_s": (64, {}),
    "lcnetv2_small": (64, {}),
    "lowformer_b0": (64, {}),
    "vit_tiny_r_s16_p8_224": (64, {"img_size": 64, "depth": 2}),
    "deepseek_vit_412m": (56, {"depth": 2, "embed_dim": 48, "num_heads": 4}),
    "gemma4_vit_167m": (64, {"depth": 2, "embed_dim": 48, "num_heads": 4}),
    "qwen3_vit_88m": (64, {"depth": 2, "embed_dim": 48, "num_heads": 4}),
    "aimv2_large_patch14_224": (56, {"img_size": 56, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "vit_base_patch16_siglip_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "vit_wee_patch16_reg1_gap_256": (64, {"img_size": 64, "depth": 2}),
    "vit_dpwee_patch16_reg1_gap_256": (64, {"img_size": 64, "depth": 2}),
    "vit_small_patch14_reg4_dinov2": (56, {"img_size": 56, "depth": 2}),
    "vit_small_patch16_dinov3": (64, {"img_size": 64, "depth": 2}),
    "flexivit_small": (64, {"img_size": 64, "depth": 2}),
    "vit_srelpos_small_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "crossvit_9_dagger_240": (240, {}),
    "xcit_tiny_12_p8_224": (32, {"img_size": 32, "depth": 2}),
    "pvt_v2_b2_li": (64, {"depths": (1, 1, 1, 1)}),
    "convnext_zepto_rms": (64, {}),
    "resnet50_gn": (64, {"layers": (1, 1, 1, 1)}),
    "resnet51q": (64, {}),
    "test_efficientnet_evos": (64, {}),
}


def timm_families() -> list[Family]:
    return [timm_family(name, size, **change) for name, (size, change) in TIMM.items()]


#: image size -> models
PYTORCHCV = {
    32: [
        "resnet20_cifar10",
        "preresnet20_cifar10",
        "seresnet20_cifar10",
        "sepreresnet20_cifar10",
        "wrn16_10_cifar10",
        "wrn20_10_1bit_cifar10",
        "densenet40_k12_cifar10",
        "xdensenet40_2_k24_bc_cifar10",
        "pyramidnet110_a48_cifar10",
        "resnext20_16x4d_cifar10",
        "nin_cifar10",
        "diaresnet20_cifar10",
        "diapreresnet20_cifar10",
        "fractalnet_cifar10",
        "msdnet22_cifar10",
        "shakeshakeresnet20_2x16d_cifar10",
        "shakedropresnet20_cifar10",
        "resdropresnet20_cifar10",
        "ror3_56_cifar10",
        "rir_cifar10",
    ],
    64: [
        "unet_cityscapes",
        "enet_cityscapes",
        "erfnet_cityscapes",
        "edanet_cityscapes",
        "esnet_cityscapes",
        "linknet_cityscapes",
        "segnet_cityscapes",
        "sqnet_cityscapes",
        "cgnet_cityscapes",
        "dabnet_cityscapes",
        "fpenet_cityscapes",
        "fastscnn_cityscapes",
        "lednet_cityscapes",
        "simplepose_mobile_resnet18_coco",
        "centernet_resnet18_voc",
        "bisenet_resnet18_celebamaskhq",
    ],
    128: [
        "sinet_cityscapes",
        "pspnet_resnetd50b_voc",
        "deeplabv3_resnetd50b_voc",
        "fcn8sd_resnetd50b_voc",
        "icnet_resnetd50b_cityscapes",
        "danet_resnetd50b_cityscapes",
    ],
    224: [
        "alexnet",
        "zfnet",
        "vgg11",
        "bninception",
        "resnet10",
        "preresnet18",
        "resnext14_16x4d",
        "seresnet10",
        "sepreresnet10",
        "senet16",
        "resnesta18",
        "ibn_resnet50",
        "ibnb_resnet50",
        "ibn_densenet121",
        "airnet50_1x64d_r2",
        "airnext50_32x4d_r2",
        "bam_resnet18",
        "cbam_resnet18",
        "scnet50",
        "resattnet56",
        "sknet50",
        "regnetx002",
        "regnety002",
        "diaresnet10",
        "diapreresnet10",
        "sharesnet18",
        "pyramidnet101_a360",
        "diracnet18v2",
        "densenet121",
        "condensenet74_c4_g4",
        "sparsenet121",
        "peleenet",
        "wrn50_2",
        "drnc26",
        "drnd22",
        "dpn68",
        "darknet_tiny",
        "darknet53",
        "channelnet",
        "irevnet301",
        "bagnet9",
        "dla34",
        "msdnet22",
        "fishnet99",
        "espnetv2_wd2",
        "dicenet_wd5",
        "hrnet_w18_small_v1",
        "vovnet27s",
        "selecsls42b",
        "hardnet39ds",
        "xdensenet121_2",
        "squeezenet_v1_1",
        "squeezeresnet_v1_1",
        "sqnxt23_w1",
        "shufflenet_g1_wd4",
        "shufflenetv2_wd2",
        "shufflenetv2b_wd2",
        "menet108_8x1_g3",
        "mobilenet_wd4",
        "mobilenetb_wd4",
        "fdmobilenet_wd4",
        "mobilenetv2_wd4",
        "mobilenetv2b_wd4",
        "mobilenetv3_small_w7d20",
        "igcv3_wd4",
        "ghostnet",
        "mnasnet_small",
        "proxylessnas_cpu",
        "fbnet_cb",
        "darts",
        "spnasnet",
        "efficientnet_b0",
        "efficientnet_edge_small_b",
        "mixnet_s",
        "isqrtcovresnet18",
        "resneta10",
        "resnetd50b",
        "fastseresnet101b",
        "octresnet10_ad2",
        "tresnet_m",
    ],
    299: ["inceptionv3", "xception", "inceptionresnetv1"],
}


def pytorchcv_family(name: str, size: int) -> Family:
    def make() -> Task:
        torchvision_stub()
        from pytorchcv.model_provider import get_model

        kwargs: dict[str, Any] = {"in_size": (size, size)}
        if size >= 224:
            kwargs["num_classes"] = CLASSES
        return Task(get_model(name, **kwargs), images(size), classify)

    return Family(f"pytorchcv {name}", "pytorchcv", make)


def pytorchcv_families() -> list[Family]:
    return [pytorchcv_family(name, size) for size, names in PYTORCHCV.items() for name in names]
