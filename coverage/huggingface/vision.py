"""Vision transformers, and models for segmentation and depth, of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from family import Batch

from huggingface.base import TEXT, VISION, B, family, image, padded, pixels

STAGES: dict[str, Any] = {"image_size": 32, "num_channels": 3, "num_labels": 5}
FOUR: dict[str, Any] = {**STAGES, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}


def masked_image() -> Batch:
    return {"pixel_values": torch.randn(B, 3, 32, 32), "bool_masked_pos": torch.rand(B, 16) > 0.5}


def segments(size: int = 32) -> Batch:
    return {"pixel_values": torch.randn(B, 3, size, size), "labels": torch.randint(0, 5, (B, size, size))}


FAMILIES = [
    *(
        family(kind, "ImageClassification", image(), VISION)
        for kind in ["vit", "beit", "data2vec-vision", "dinov2", "dinov2_with_registers", "vit_msn", "ijepa"]
    ),
    family(
        "vit_mae",
        "PreTraining",
        lambda: {**pixels()(), "noise": torch.rand(B, 16)},
        VISION,
        decoder_hidden_size=16,
        decoder_intermediate_size=24,
        decoder_num_attention_heads=4,
        decoder_num_hidden_layers=1,
    ),
    family("vit", "MaskedImageModeling", masked_image, VISION, encoder_stride=8),
    family(
        "swin",
        "ImageClassification",
        image(),
        STAGES,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        patch_size=2,
    ),
    family(
        "swinv2",
        "ImageClassification",
        image(),
        STAGES,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        patch_size=2,
    ),
    family(
        "swin2sr",
        "ImageToImage",
        pixels(16),
        STAGES,
        embed_dim=16,
        depths=[2],
        num_heads=[2],
        window_size=4,
        image_size=16,
        upscale=2,
    ),
    family("convnext", "ImageClassification", image(), FOUR),
    family("convnextv2", "ImageClassification", image(), FOUR),
    family(
        "segformer", "SemanticSegmentation", segments, FOUR, num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16
    ),
    family("segformer", "ImageClassification", image(), FOUR, num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16),
    family(
        "beit",
        "SemanticSegmentation",
        segments,
        VISION,
        out_indices=[1, 2, 3, 4],
        num_hidden_layers=4,
        use_auxiliary_head=False,
        pool_scales=[1, 2],
    ),
    family("dinov3_vit", "", pixels(), VISION),
    family("deit", "MaskedImageModeling", masked_image, VISION, encoder_stride=8),
    family("deit", "ImageClassification", image(), VISION, architectures=["DeiTForImageClassification"]),
    family("xmod", "MaskedLM", padded, {**TEXT, "type_vocab_size": 2}, default_language="en_XX"),
    family("siglip_vision_model", "", pixels(), VISION),
    family(
        "upernet",
        "SemanticSegmentation",
        lambda: segments(64),
        {"num_labels": 5, "hidden_size": 16, "pool_scales": [1, 2]},
        backbone_config={
            "model_type": "convnext",
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [8, 16, 24, 32],
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        auxiliary_in_channels=24,
    ),
    family(
        "dpt",
        "DepthEstimation",
        pixels(),
        VISION,
        neck_hidden_sizes=[8, 8, 8, 8],
        backbone_out_indices=[0, 1, 2, 3],
        num_hidden_layers=4,
        reassemble_factors=[4, 2, 1, 0.5],
        fusion_hidden_size=8,
    ),
    family("glpn", "DepthEstimation", pixels(), FOUR, num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16),
]
