"""Encoder-decoder models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from family import Batch

from huggingface.base import B, V, family, tokens, translate
from huggingface.newer_decoders import DECODER

BART: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
}


T5: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}


LONG: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
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


def bart_classes() -> Batch:
    ids = tokens()
    ids[:, -1] = 2
    return {"input_ids": ids, "labels": torch.randint(0, 3, (B,))}


FAMILIES = [
    *(
        family(kind, "Seq2SeqLM", translate, BART)
        for kind in [
            "bart",
            "mbart",
            "marian",
            "pegasus",
            "blenderbot",
            "blenderbot-small",
            "m2m_100",
            "plbart",
            "mvp",
            "led",
        ]
    ),
    *(family(kind, "Seq2SeqLM", translate, T5) for kind in ["t5", "mt5", "umt5", "longt5", "switch_transformers"]),
    family("bart", "SequenceClassification", bart_classes, BART, num_labels=3, eos_token_id=2),
    family("t5", "Seq2SeqLM", translate, T5, "gated", feed_forward_proj="gated-gelu"),
    family(
        "prophetnet",
        "Seq2SeqLM",
        translate,
        {
            "vocab_size": V,
            "pad_token_id": 0,
            "decoder_start_token_id": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
        hidden_size=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        ngram=2,
    ),
    family("nllb-moe", "Seq2SeqLM", translate, BART, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2),
    family(
        "fsmt",
        "Seq2SeqLM",
        lambda: {**translate(), "labels": tokens()},
        BART,
        src_vocab_size=V,
        tgt_vocab_size=V,
        langs=["en", "de"],
    ),
    family("pegasus_x", "Seq2SeqLM", translate, LONG),
    family("bigbird_pegasus", "Seq2SeqLM", translate, LONG),
    family("t5gemma", "Seq2SeqLM", translate, {}, encoder=DECODER, decoder=DECODER),
]
