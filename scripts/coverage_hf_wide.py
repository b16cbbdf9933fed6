"""The other kinds that transformers' auto classes know, with the configuration most understand."""

from __future__ import annotations

from typing import Any

import torch
from coverage_family import Batch, Family
from coverage_hf import EXPERTS, TEXT, VISION, B, V, causal, family, image, padded, pixels, translate

#: what newer decoders call their parts
DECODER: dict[str, Any] = {
    **TEXT,
    **EXPERTS,
    "head_dim": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "n_shared_experts": 1,
    "num_kv_shared_layers": 0,
    "shared_expert_intermediate_size": 24,
    "sliding_window": 8,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
    "mamba_d_ssm": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
DECODERS = [
    "afmoe",
    "bitnet",
    "cohere2_moe",
    "cwm",
    "doge",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "gemma4_text",
    "glm4_moe",
    "granite_swa",
    "granitemoe_swa",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "hy_v3",
    "jais2",
    "jetmoe",
    "llama4_text",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "ministral3",
    "solar_open",
    "vaultgemma",
]
HYBRIDS = [
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
]
LATENT = ["deepseek_v2", "glm4_moe_lite", "longcat_flash", "minicpm3", "youtu"]
ENCODERS = ["roc_bert", "xlm-roberta-xl", "nomic_bert", "gte", "jina_embeddings_v3", "esmc"]
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
AUDIO = {
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


def video(size: int = 32, frames: int = 4) -> Batch:
    return {"pixel_values": torch.randn(B, frames, 3, size, size), "labels": torch.randint(0, 5, (B,))}


def sound() -> Batch:
    return {"input_values": torch.randn(B, 800), "labels": torch.randint(0, 5, (B,))}


def families() -> list[Family]:
    video_config = {**VISION, "num_frames": 4, "tubelet_size": 2}
    return [
        *(family(kind, "CausalLM", causal, DECODER) for kind in DECODERS),
        *(family(kind, "CausalLM", causal, {**DECODER, **MAMBA}) for kind in HYBRIDS),
        *(family(kind, "CausalLM", causal, {**DECODER, "num_key_value_heads": 4}) for kind in LATENT),
        family("zaya", "CausalLM", causal, DECODER, num_experts_per_tok=1),
        family(
            "gemma3n_text",
            "CausalLM",
            causal,
            DECODER,
            layer_types=["sliding_attention", "full_attention"],
            vocab_size_per_layer_input=V,
            hidden_size_per_layer_input=8,
            laurel_rank=4,
            altup_num_inputs=2,
            intermediate_size=[48, 48],
            activation_sparsity_pattern=[0.0, 0.0],
        ),
        family("lfm2_moe", "CausalLM", causal, DECODER, layer_types=["conv", "full_attention"]),
        family(
            "zamba2",
            "CausalLM",
            causal,
            {**DECODER, **MAMBA},
            layers_block_type=["mamba", "hybrid"],
            mamba_ngroups=1,
            n_mamba_heads=4,
            mamba_headdim=16,
            chunk_size=4,
            num_mem_blocks=1,
            attention_head_dim=16,
            attention_hidden_size=64,
        ),
        *(family(kind, "MaskedLM", padded, {**TEXT, "num_key_value_heads": 4}) for kind in ENCODERS),
        *(family(kind, "", pixels(64), DETECTOR) for kind in ("detr", "table-transformer")),
        *(family(kind, "", pixels(64), DETECTOR) for kind in ("conditional_detr", "dab-detr")),
        family("yolos", "", pixels(), VISION, num_detection_tokens=5, image_size=[32, 32]),
        family("metaclip_2", "", clip, {}, text_config=TEXT, vision_config=VISION),
        family("pp_lcnet", "ImageClassification", image(64), {"num_labels": 5}),
        family("depth_anything", "DepthEstimation", pixels(), {}, **depth()),
        *(family(kind, "AudioClassification", sound, AUDIO) for kind in ("sew-d", "unispeech")),
        family("unispeech-sat", "AudioClassification", sound, AUDIO),
        family("wav2vec2-conformer", "AudioClassification", sound, AUDIO),
        family("videomae", "VideoClassification", video, video_config),
        family("vivit", "VideoClassification", video, {**video_config, "tubelet_size": [2, 8, 8]}),
        family("timesformer", "VideoClassification", video, video_config),
        family("pegasus_x", "Seq2SeqLM", translate, {"vocab_size": V, "d_model": 32, **layers()}),
        family("bigbird_pegasus", "Seq2SeqLM", translate, {"vocab_size": V, "d_model": 32, **layers()}),
        family("t5gemma", "Seq2SeqLM", translate, {}, encoder=DECODER, decoder=DECODER),
        family("lilt", "SequenceClassification", boxes, {**TEXT, "type_vocab_size": 2}, hidden_size=48, num_labels=5),
    ]


def clip() -> Batch:
    return {"input_ids": torch.randint(3, V, (B, 11)), "pixel_values": torch.randn(B, 3, 32, 32)}


def boxes() -> Batch:
    return {
        "input_ids": torch.randint(3, V, (B, 11)),
        "bbox": torch.randint(0, 60, (B, 11, 1)).expand(B, 11, 4).contiguous(),
        "labels": torch.randint(0, 5, (B,)),
    }


def layers() -> dict[str, Any]:
    return {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "attention_type": "original_full",
        "pad_token_id": 0,
        "decoder_start_token_id": 2,
    }


def depth() -> dict[str, Any]:
    return {
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
