"""Newer causal language models of Hugging Face transformers, with the configuration that most accept."""

from __future__ import annotations

from typing import Any

from huggingface.base import EXPERTS, TEXT, V, causal, family

#: names of the arguments in newer configurations
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


FAMILIES = [
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
]
