"""Text encoders of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from family import Batch

from huggingface.base import TEXT, B, T, V, classes, family, padded, plain, plain_labels, spans

BERT: dict[str, Any] = {**TEXT, "type_vocab_size": 2}


#: kinds that accept BERT's configuration unchanged
LIKE_BERT = [
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "megatron-bert",
    "ernie",
    "rembert",
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


NEWER = ["roc_bert", "xlm-roberta-xl", "nomic_bert", "gte", "jina_embeddings_v3", "esmc"]


def padded_tags() -> Batch:
    return {**padded(), "labels": torch.randint(0, 5, (B, T))}


FAMILIES = [
    *(family(kind, "MaskedLM", padded, BERT) for kind in LIKE_BERT),
    family("bert", "SequenceClassification", classes, BERT, num_labels=3),
    family("bert", "TokenClassification", padded_tags, BERT, num_labels=5),
    family("bert", "QuestionAnswering", spans, BERT),
    family("bert", "PreTraining", plain, BERT),
    family("bert", "SequenceClassification", classes, BERT, "eager", num_labels=3, attn_implementation="eager"),
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
    family("roberta", "SequenceClassification", classes, BERT, num_labels=3),
    family("albert", "MaskedLM", padded, BERT, embedding_size=16),
    family("electra", "MaskedLM", padded, BERT, embedding_size=16),
    family("electra", "SequenceClassification", classes, BERT, embedding_size=16, num_labels=3),
    family("deberta", "MaskedLM", padded, BERT, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    family(
        "deberta-v2",
        "MaskedLM",
        padded,
        BERT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    family("deberta-v2", "SequenceClassification", classes, BERT, num_labels=3),
    family("mobilebert", "MaskedLM", padded, BERT, embedding_size=32, true_hidden_size=16, intra_bottleneck_size=16),
    family("squeezebert", "MaskedLM", padded, BERT, embedding_size=32),
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
    family("xlm", "SequenceClassification", classes, {}, vocab_size=V, emb_dim=32, n_layers=2, n_heads=4, num_labels=3),
    family(
        "flaubert", "SequenceClassification", classes, {}, vocab_size=V, emb_dim=32, n_layers=2, n_heads=4, num_labels=3
    ),
    family("fnet", "MaskedLM", plain_labels, BERT),
    family("longformer", "MaskedLM", padded, BERT, attention_window=4),
    family("big_bird", "MaskedLM", padded, BERT, attention_type="original_full"),
    family(
        "canine", "SequenceClassification", classes, BERT, num_labels=3, downsampling_rate=2, local_transformer_stride=8
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
    family("ibert", "MaskedLM", padded, BERT),
    family("tapas", "SequenceClassification", classes, BERT, num_labels=3),
    family("layoutlm", "MaskedLM", padded, BERT),
    family("luke", "MaskedLM", padded, BERT, entity_vocab_size=11, entity_emb_size=8),
    *(family(kind, "MaskedLM", padded, {**TEXT, "num_key_value_heads": 4}) for kind in NEWER),
]
