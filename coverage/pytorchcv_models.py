"""Models of pytorchcv."""

from __future__ import annotations

from typing import Any

from classify import CLASSES, classify, images
from family import Family, Task, torchvision_stub

#: image size -> models
MODELS = {
    32: """
resnet20_cifar10 preresnet20_cifar10 seresnet20_cifar10 sepreresnet20_cifar10 wrn16_10_cifar10
wrn20_10_1bit_cifar10 densenet40_k12_cifar10 xdensenet40_2_k24_bc_cifar10 pyramidnet110_a48_cifar10
resnext20_16x4d_cifar10 nin_cifar10 diaresnet20_cifar10 diapreresnet20_cifar10 fractalnet_cifar10
msdnet22_cifar10 shakeshakeresnet20_2x16d_cifar10 shakedropresnet20_cifar10 resdropresnet20_cifar10
ror3_56_cifar10 rir_cifar10
""",
    64: """
unet_cityscapes enet_cityscapes erfnet_cityscapes edanet_cityscapes esnet_cityscapes
linknet_cityscapes segnet_cityscapes sqnet_cityscapes cgnet_cityscapes dabnet_cityscapes
fpenet_cityscapes fastscnn_cityscapes lednet_cityscapes simplepose_mobile_resnet18_coco
centernet_resnet18_voc bisenet_resnet18_celebamaskhq
""",
    128: """
sinet_cityscapes pspnet_resnetd50b_voc deeplabv3_resnetd50b_voc fcn8sd_resnetd50b_voc
icnet_resnetd50b_cityscapes danet_resnetd50b_cityscapes
""",
    224: """
alexnet zfnet vgg11 bninception resnet10 preresnet18 resnext14_16x4d seresnet10 sepreresnet10
senet16 resnesta18 ibn_resnet50 ibnb_resnet50 ibn_densenet121 airnet50_1x64d_r2 airnext50_32x4d_r2
bam_resnet18 cbam_resnet18 scnet50 resattnet56 sknet50 regnetx002 regnety002 diaresnet10
diapreresnet10 sharesnet18 pyramidnet101_a360 diracnet18v2 densenet121 condensenet74_c4_g4
sparsenet121 peleenet wrn50_2 drnc26 drnd22 dpn68 darknet_tiny darknet53 channelnet irevnet301
bagnet9 dla34 msdnet22 fishnet99 espnetv2_wd2 dicenet_wd5 hrnet_w18_small_v1 vovnet27s selecsls42b
hardnet39ds xdensenet121_2 squeezenet_v1_1 squeezeresnet_v1_1 sqnxt23_w1 shufflenet_g1_wd4
shufflenetv2_wd2 shufflenetv2b_wd2 menet108_8x1_g3 mobilenet_wd4 mobilenetb_wd4 fdmobilenet_wd4
mobilenetv2_wd4 mobilenetv2b_wd4 mobilenetv3_small_w7d20 igcv3_wd4 ghostnet mnasnet_small
proxylessnas_cpu fbnet_cb darts spnasnet efficientnet_b0 efficientnet_edge_small_b mixnet_s
isqrtcovresnet18 resneta10 resnetd50b fastseresnet101b octresnet10_ad2 tresnet_m
""",
    299: """
inceptionv3 xception inceptionresnetv1
""",
}


def _family(name: str, size: int) -> Family:
    def make() -> Task:
        torchvision_stub()
        from pytorchcv.model_provider import get_model

        kwargs: dict[str, Any] = {"in_size": (size, size)}
        if size >= 224:
            kwargs["num_classes"] = CLASSES
        return Task(get_model(name, **kwargs), images(size), classify)

    return Family(f"pytorchcv {name}", "pytorchcv", make)


FAMILIES = [_family(name, size) for size, names in MODELS.items() for name in names.split()]
