"""Models of Hugging Face transformers for vision in stages or by convolution, detection and video."""

from __future__ import annotations

from typing import Any

import torch
from family import Batch

from huggingface.base import VISION, B, family, image, pixels
from huggingface.vision import FOUR, STAGES

DETECTOR = {
    "num_queries": 7,
    "d_model": 16,
    "hidden_dim": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage4"],
    },
}


VIDEO: dict[str, Any] = {**VISION, "num_frames": 4, "tubelet_size": 2}


#: depth estimation on top of a vision transformer
DEPTH: dict[str, Any] = {
    "backbone_config": {
        **VISION,
        "model_type": "dinov2",
        "num_hidden_layers": 4,
        "out_indices": [1, 2, 3, 4],
        "reshape_hidden_states": False,
    },
    "patch_size": 8,
    "reassemble_hidden_size": 32,
    "neck_hidden_sizes": [8, 8, 8, 8],
    "fusion_hidden_size": 8,
}


def video(size: int = 32, frames: int = 4) -> Batch:
    return {"pixel_values": torch.randn(B, frames, 3, size, size), "labels": torch.randint(0, 5, (B,))}


FAMILIES = [
    family("resnet", "ImageClassification", image(), FOUR, embedding_size=8, layer_type="basic"),
    family("regnet", "ImageClassification", image(), FOUR, embedding_size=8, groups_width=8),
    family("mobilenet_v1", "ImageClassification", image(), STAGES, depth_multiplier=0.25),
    family("mobilenet_v2", "ImageClassification", image(), STAGES, depth_multiplier=0.25),
    family(
        "mobilevit",
        "ImageClassification",
        image(64),
        {**STAGES, "image_size": 64},
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
        num_attention_heads=2,
    ),
    family(
        "mobilevitv2",
        "ImageClassification",
        image(64),
        {**STAGES, "image_size": 64},
        width_multiplier=0.25,
        base_attn_unit_dims=[16, 16, 16],
    ),
    family(
        "levit",
        "ImageClassification",
        image(64),
        {**STAGES, "image_size": 64},
        hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        architectures=["LevitForImageClassification"],
        mode="train",
    ),
    family("poolformer", "ImageClassification", image(64), FOUR),
    family("pvt", "ImageClassification", image(64), FOUR, num_attention_heads=[1, 2, 3, 4], image_size=64),
    family("pvt_v2", "ImageClassification", image(64), FOUR, num_attention_heads=[1, 2, 3, 4]),
    family(
        "efficientnet",
        "ImageClassification",
        image(),
        STAGES,
        width_coefficient=0.25,
        depth_coefficient=0.25,
        hidden_dim=320,
    ),
    family(
        "focalnet",
        "ImageClassification",
        image(),
        STAGES,
        embed_dim=16,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    family("bit", "ImageClassification", image(), FOUR, embedding_size=8, num_groups=4),
    family(
        "cvt",
        "ImageClassification",
        image(),
        STAGES,
        embed_dim=[8, 16, 32],
        num_heads=[1, 2, 4],
        depth=[1, 2, 3],
        drop_path_rate=[0.0, 0.0, 0.1],
    ),
    family("swiftformer", "ImageClassification", image(64), STAGES, depths=[1, 1, 1, 1], embed_dims=[8, 16, 24, 32]),
    family(
        "hiera",
        "ImageClassification",
        image(),
        STAGES,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        image_size=[32, 32],
        masked_unit_size=[2, 2],
        query_stride=[2, 2],
        num_query_pool=1,
    ),
    family("textnet", "ImageClassification", image(64), STAGES),
    family("hgnet_v2", "", pixels(64), {}),
    *(family(kind, "", pixels(64), DETECTOR) for kind in ("detr", "table-transformer")),
    *(family(kind, "", pixels(64), DETECTOR) for kind in ("conditional_detr", "dab-detr")),
    family("yolos", "", pixels(), VISION, num_detection_tokens=5, image_size=[32, 32]),
    family("pp_lcnet", "ImageClassification", image(64), {"num_labels": 5}),
    family("depth_anything", "DepthEstimation", pixels(), {}, **DEPTH),
    family("videomae", "VideoClassification", video, VIDEO),
    family("vivit", "VideoClassification", video, {**VIDEO, "tubelet_size": [2, 8, 8]}),
    family("timesformer", "VideoClassification", video, VIDEO),
]
