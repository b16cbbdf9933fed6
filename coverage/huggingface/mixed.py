"""Models of Hugging Face transformers for text with images, text to speech and time series."""

from __future__ import annotations

from typing import Any

import torch
from family import Batch

from huggingface.base import TEXT, VISION, B, T, V, causal, family, plain, plain_labels

TOWERS: dict[str, Any] = {
    "text_config": {**TEXT, "num_key_value_heads": None},
    "vision_config": VISION,
    "projection_dim": 16,
}


def series() -> Batch:
    return {
        "past_values": torch.randn(B, 10).exp(),
        "past_time_features": torch.randn(B, 10, 2),
        "past_observed_mask": torch.ones(B, 10),
        "future_values": torch.randn(B, 4).exp(),
        "future_time_features": torch.randn(B, 4, 2),
    }


def pairs() -> Batch:
    return {**plain(), "pixel_values": torch.randn(B, 3, 32, 32)}


def clip() -> Batch:
    return {"input_ids": torch.randint(3, V, (B, 11)), "pixel_values": torch.randn(B, 3, 32, 32)}


def boxes() -> Batch:
    return {
        "input_ids": torch.randint(3, V, (B, 11)),
        "bbox": torch.randint(0, 60, (B, 11, 1)).expand(B, 11, 4).contiguous(),
        "labels": torch.randint(0, 5, (B,)),
    }


FAMILIES = [
    family("clip", "", pairs, TOWERS),
    family("siglip", "", pairs, TOWERS, text_config={**TEXT, "max_position_embeddings": T}),
    family("altclip", "", pairs, TOWERS),
    family("blip", "", pairs, TOWERS),
    family("vilt", "", pairs, {**TEXT, **VISION}),
    family(
        "git", "CausalLM", lambda: {**causal(), "pixel_values": torch.randn(B, 3, 32, 32)}, TEXT, vision_config=VISION
    ),
    family(
        "flava",
        "",
        pairs,
        {},
        text_config=TEXT,
        image_config=VISION,
        multimodal_config=VISION,
        projection_dim=16,
        hidden_size=32,
    ),
    family("vits", "", plain, {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    family(
        "time_series_transformer",
        "",
        series,
        {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "input_size": 1},
        prediction_length=4,
        context_length=8,
        lags_sequence=[1, 2],
        num_time_features=2,
        encoder_layers=1,
        decoder_layers=1,
    ),
    family(
        "perceiver",
        "MaskedLM",
        plain_labels,
        {
            "vocab_size": V,
            "max_position_embeddings": T,
            "d_model": 32,
            "d_latents": 32,
            "num_latents": 8,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
        },
    ),
    family("metaclip_2", "", clip, {}, text_config=TEXT, vision_config=VISION),
    family("lilt", "SequenceClassification", boxes, {**TEXT, "type_vocab_size": 2}, hidden_size=48, num_labels=5),
]
