"""Models of other libraries, as small as their code allows, with random weights."""

from __future__ import annotations

from typing import Any

import pytest


def bert() -> Any:
    """BERT with one layer, 64 tokens, three classes and no dropout; skips the test without transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)
