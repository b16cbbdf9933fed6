"""Speech and audio models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from family import Batch

from huggingface.base import TEXT, VISION, B, V, family, tokens

AUDIO: dict[str, Any] = {
    **TEXT,
    "conv_dim": [8, 8],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "num_labels": 3,
    "classifier_proj_size": 8,
    "mask_time_prob": 0.0,
}


WHISPER: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


#: kinds that take no text
SOUND: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "num_labels": 5,
}


def speech(samples: int = 1600) -> Batch:
    return {"input_values": torch.randn(B, samples)}


def spectrogram() -> Batch:
    return {"input_features": torch.randn(B, 16, 40), "labels": tokens(7)}


def voices() -> Batch:
    return {**speech(), "labels": torch.randint(0, 3, (B,))}


def sound() -> Batch:
    return {"input_values": torch.randn(B, 800), "labels": torch.randint(0, 5, (B,))}


FAMILIES = [
    family("whisper", "SpeechSeq2Seq", spectrogram, WHISPER),
    family("wav2vec2", "AudioClassification", voices, AUDIO),
    family("hubert", "AudioClassification", voices, AUDIO),
    family("wavlm", "AudioClassification", voices, AUDIO),
    family("data2vec-audio", "AudioClassification", voices, AUDIO),
    family("sew", "AudioClassification", voices, AUDIO, squeeze_factor=2),
    family(
        "audio-spectrogram-transformer",
        "AudioClassification",
        lambda: {"input_values": torch.randn(B, 40, 16), "labels": torch.randint(0, 5, (B,))},
        VISION,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=40,
        num_mel_bins=16,
    ),
    *(family(kind, "AudioClassification", sound, SOUND) for kind in ("sew-d", "unispeech")),
    family("unispeech-sat", "AudioClassification", sound, SOUND),
    family("wav2vec2-conformer", "AudioClassification", sound, SOUND),
]
