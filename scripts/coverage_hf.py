"""Language models of Hugging Face transformers, as small as their configurations allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from coverage_family import Batch, Family, Task, scalar_loss, torchvision_stub
from torch import nn

V, T, B = 97, 11, 2  # vocabulary, sequence, batch
Maker = Callable[[], Batch]

#: what most language-model configurations understand
TEXT: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
VISION: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_labels": 5,
}


def tokens(length: int = T) -> torch.Tensor:
    return torch.randint(3, V, (B, length))


def causal() -> Batch:
    ids = tokens()
    labels = ids.clone()
    labels[:, :2] = -100
    return {"input_ids": ids, "labels": labels}


def padded() -> Batch:
    mask = torch.ones(B, T, dtype=torch.long)
    mask[0, -3:] = 0
    return {"attention_mask": mask, **causal()}


def classes() -> Batch:
    mask = torch.ones(B, T, dtype=torch.long)
    mask[0, -3:] = 0
    return {"input_ids": tokens(), "attention_mask": mask, "labels": torch.randint(0, 3, (B,))}


def spans() -> Batch:
    return {
        "input_ids": tokens(),
        "start_positions": torch.randint(0, T, (B,)),
        "end_positions": torch.randint(0, T, (B,)),
    }


def plain() -> Batch:
    return {"input_ids": tokens()}


def translate() -> Batch:
    return {"input_ids": tokens(), "attention_mask": torch.ones(B, T, dtype=torch.long), "labels": tokens(7)}


def image(size: int = 32, labels: int = 5) -> Maker:
    return lambda: {"pixel_values": torch.randn(B, 3, size, size), "labels": torch.randint(0, labels, (B,))}


def pixels(size: int = 32) -> Maker:
    return lambda: {"pixel_values": torch.randn(B, 3, size, size)}


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    output = model(**batch)
    loss = getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else scalar_loss(dict(output) if hasattr(output, "items") else output)


def family(
    kind: str, head: str, batch: Maker, base: dict[str, Any], tag: str = "", mode: str = "eval", **change: Any
) -> Family:
    """`head` is an Auto class without its `AutoModelFor`, or "" for the base model."""

    def make() -> Task:
        torchvision_stub()
        import transformers

        transformers.logging.set_verbosity_error()
        known = {**base, **change}
        config = transformers.AutoConfig.for_model(kind, **known)
        name = f"AutoModelFor{head}" if head else "AutoModel"
        model = getattr(transformers, name).from_config(config)
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        return Task(model.float(), batch(), loss_of, mode=mode)

    return Family(f"{kind}{f':{head}' if head else ''}{f' {tag}' if tag else ''}", "hf", make)


def _decoders() -> list[Family]:
    """Causal language models."""
    found = [
        family("gpt2", "CausalLM", padded, {}, vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        family(
            "gpt2",
            "CausalLM",
            causal,
            {},
            "eager",
            vocab_size=V,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            attn_implementation="eager",
        ),
        family(
            "gpt2",
            "SequenceClassification",
            classes,
            {},
            vocab_size=V,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            pad_token_id=0,
            num_labels=3,
        ),
        family("openai-gpt", "CausalLM", causal, {}, vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        family(
            "gptj", "CausalLM", causal, {}, vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4
        ),
        family(
            "gpt_neo",
            "CausalLM",
            causal,
            TEXT,
            attention_types=[[["global", "local"], 1]],
            num_layers=2,
            num_heads=4,
            window_size=4,
        ),
        family("gpt_bigcode", "CausalLM", causal, {}, vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        family(
            "codegen",
            "CausalLM",
            causal,
            {},
            vocab_size=V,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            rotary_dim=4,
        ),
        family("ctrl", "CausalLM", causal, {}, vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=64, dff=48),
        family("bloom", "CausalLM", padded, {}, vocab_size=V, hidden_size=32, n_layer=2, n_head=4),
        family("falcon", "CausalLM", causal, TEXT, new_decoder_architecture=True, num_kv_heads=2),
        family("falcon", "CausalLM", causal, TEXT, "alibi", alibi=True, multi_query=False),
        family("opt", "CausalLM", padded, TEXT, ffn_dim=48, word_embed_proj_dim=32),
        family("mpt", "CausalLM", causal, {}, vocab_size=V, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
        family("xglm", "CausalLM", causal, {}, vocab_size=V, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
        family("biogpt", "CausalLM", causal, TEXT),
        family("llama", "CausalLM", padded, TEXT, "padded"),
        family("llama", "CausalLM", causal, TEXT, "eager", attn_implementation="eager"),
        family("llama", "SequenceClassification", classes, TEXT, num_labels=3),
        family("gemma", "CausalLM", causal, TEXT, head_dim=8),
        family("gemma2", "CausalLM", causal, TEXT, head_dim=8, sliding_window=4),
        family("gemma3_text", "CausalLM", causal, TEXT, head_dim=8, sliding_window=4),
        family("qwen3", "CausalLM", causal, TEXT, head_dim=8),
        family(
            "mamba",
            "CausalLM",
            causal,
            {},
            vocab_size=V,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=2,
            intermediate_size=64,
            time_step_rank=4,
        ),
        family(
            "mamba2",
            "CausalLM",
            causal,
            {},
            vocab_size=V,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=2,
            num_heads=8,
            head_dim=8,
            expand=2,
            n_groups=2,
            chunk_size=4,
        ),
        family(
            "falcon_mamba",
            "CausalLM",
            causal,
            {},
            vocab_size=V,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=2,
            intermediate_size=64,
            time_step_rank=4,
        ),
        family(
            "rwkv",
            "CausalLM",
            causal,
            {},
            vocab_size=V,
            hidden_size=32,
            attention_hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=48,
            context_length=64,
        ),
        family(
            "recurrent_gemma",
            "CausalLM",
            causal,
            TEXT,
            lru_width=32,
            attention_window_size=8,
            head_dim=8,
            block_types=["recurrent", "attention"],
        ),
        family(
            "xlstm", "CausalLM", causal, {}, vocab_size=V, hidden_size=32, num_heads=2, num_blocks=2, embedding_dim=32
        ),
        family("mixtral", "CausalLM", causal, {**TEXT, **EXPERTS}),
        family("qwen2_moe", "CausalLM", causal, {**TEXT, **EXPERTS}, shared_expert_intermediate_size=24),
        family("qwen3_moe", "CausalLM", causal, {**TEXT, **EXPERTS}, head_dim=8),
        family("olmoe", "CausalLM", causal, {**TEXT, **EXPERTS}),
        family("phimoe", "CausalLM", causal, {**TEXT, **EXPERTS}),
        family("granitemoe", "CausalLM", causal, {**TEXT, **EXPERTS}),
        family("gpt_oss", "CausalLM", causal, {**TEXT, **EXPERTS}, head_dim=8, sliding_window=4),
        family(
            "deepseek_v3",
            "CausalLM",
            causal,
            {**TEXT, **EXPERTS},
            num_key_value_heads=4,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=8,
            first_k_dense_replace=1,
            n_shared_experts=1,
        ),
        family(
            "dbrx",
            "CausalLM",
            causal,
            {},
            vocab_size=V,
            d_model=32,
            n_heads=4,
            n_layers=2,
            max_seq_len=64,
            attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        ),
        family(
            "jamba",
            "CausalLM",
            causal,
            {**TEXT, **EXPERTS},
            mamba_d_state=4,
            mamba_dt_rank=4,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            use_mamba_kernels=False,
        ),
        family("modernbert-decoder", "CausalLM", causal, TEXT, global_attn_every_n_layers=2, local_attention=8),
        family("helium", "CausalLM", causal, TEXT, head_dim=8),
        family("ministral", "CausalLM", causal, TEXT, head_dim=8),
        family("hunyuan_v1_dense", "CausalLM", causal, TEXT, head_dim=8),
        family("lfm2", "CausalLM", causal, TEXT, layer_types=["conv", "full_attention"]),
        family("xlnet", "CausalLM", plain_labels, {}, vocab_size=V, d_model=32, n_layer=2, n_head=4, d_inner=48),
    ]
    same = [
        "mistral",
        "qwen2",
        "phi",
        "phi3",
        "gpt_neox",
        "stablelm",
        "starcoder2",
        "olmo",
        "olmo2",
        "olmo3",
        "cohere",
        "cohere2",
        "granite",
        "glm",
        "glm4",
        "nemotron",
        "persimmon",
        "arcee",
        "smollm3",
        "exaone4",
        "diffllama",
        "apertus",
        "seed_oss",
        "ernie4_5",
        "nanochat",
        "gpt_neox_japanese",
    ]
    return found + [family(kind, "CausalLM", causal, TEXT) for kind in same]


def plain_labels() -> Batch:
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def _encoders() -> list[Family]:
    bert = {**TEXT, "type_vocab_size": 2}
    found = [
        family(kind, "MaskedLM", padded, bert)
        for kind in [
            "bert",
            "roberta",
            "xlm-roberta",
            "camembert",
            "megatron-bert",
            "ernie",
            "rembert",
            "nezha",
            "data2vec-text",
            "roformer",
            "convbert",
            "esm",
            "mpnet",
            "roberta-prelayernorm",
            "modernbert",
            "nystromformer",
            "yoso",
            "mra",
            "eurobert",
        ]
        if kind != "nezha"
    ]
    found += [
        family("bert", "SequenceClassification", classes, bert, num_labels=3),
        family("bert", "TokenClassification", padded_tags, bert, num_labels=5),
        family("bert", "QuestionAnswering", spans, bert),
        family("bert", "PreTraining", plain, bert),
        family("bert", "SequenceClassification", classes, bert, "eager", num_labels=3, attn_implementation="eager"),
        family(
            "distilbert",
            "MaskedLM",
            padded,
            {},
            vocab_size=V,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=48,
            max_position_embeddings=64,
        ),
        family(
            "distilbert",
            "SequenceClassification",
            classes,
            {},
            vocab_size=V,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=48,
            num_labels=3,
        ),
        family("roberta", "SequenceClassification", classes, bert, num_labels=3),
        family("albert", "MaskedLM", padded, bert, embedding_size=16),
        family("electra", "MaskedLM", padded, bert, embedding_size=16),
        family("electra", "SequenceClassification", classes, bert, embedding_size=16, num_labels=3),
        family("deberta", "MaskedLM", padded, bert, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        family(
            "deberta-v2",
            "MaskedLM",
            padded,
            bert,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
        family("deberta-v2", "SequenceClassification", classes, bert, num_labels=3),
        family(
            "mobilebert", "MaskedLM", padded, bert, embedding_size=32, true_hidden_size=16, intra_bottleneck_size=16
        ),
        family("squeezebert", "MaskedLM", padded, bert, embedding_size=32),
        family(
            "funnel",
            "MaskedLM",
            padded,
            {},
            vocab_size=V,
            d_model=32,
            n_head=4,
            d_head=8,
            d_inner=48,
            block_sizes=[1, 1],
            num_decoder_layers=1,
        ),
        family(
            "xlnet",
            "SequenceClassification",
            classes,
            {},
            vocab_size=V,
            d_model=32,
            n_layer=2,
            n_head=4,
            d_inner=48,
            num_labels=3,
        ),
        family(
            "xlm", "SequenceClassification", classes, {}, vocab_size=V, emb_dim=32, n_layers=2, n_heads=4, num_labels=3
        ),
        family(
            "flaubert",
            "SequenceClassification",
            classes,
            {},
            vocab_size=V,
            emb_dim=32,
            n_layers=2,
            n_heads=4,
            num_labels=3,
        ),
        family("fnet", "MaskedLM", plain_labels, bert),
        family("longformer", "MaskedLM", padded, bert, attention_window=4),
        family("big_bird", "MaskedLM", padded, bert, attention_type="original_full"),
        family(
            "canine",
            "SequenceClassification",
            classes,
            bert,
            num_labels=3,
            downsampling_rate=2,
            local_transformer_stride=8,
        ),
        family(
            "reformer",
            "MaskedLM",
            plain_labels,
            TEXT,
            attn_layers=["local", "local"],
            is_decoder=False,
            mode="train",
            hidden_dropout_prob=0.0,
            local_attention_probs_dropout_prob=0.0,
            attention_head_size=8,
            feed_forward_size=48,
            axial_pos_embds=False,
            local_attn_chunk_length=11,
        ),
        family("ibert", "MaskedLM", padded, bert),
        family("tapas", "SequenceClassification", classes, bert, num_labels=3),
        family("layoutlm", "MaskedLM", padded, bert),
        family("luke", "MaskedLM", padded, bert, entity_vocab_size=11, entity_emb_size=8),
    ]
    return found


def padded_tags() -> Batch:
    return {**padded(), "labels": torch.randint(0, 5, (B, T))}


def families() -> list[Family]:
    return [*_decoders(), *_encoders()]
