"""A small copy of a published language model (Qwen2) with LoRA on 4-bit weights equals PyTorch in float64."""

from __future__ import annotations

import pytest
import torch

import handheld
from helpers.partial_steps import errors, shaken

transformers = pytest.importorskip("transformers")


def test_lora_on_four_bits_equals_float64():
    """Two layers with grouped heads, a tied head and a vocabulary that is no multiple of a block."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=160,
        vocab_size=259,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = transformers.Qwen2ForCausalLM(config)
    names = handheld.lora(model, rank=4, targets=["*.q_proj", "*.v_proj", "*.down_proj"])
    assert len(names) == 12
    shaken(model)
    tokens = torch.randint(0, 259, (1, 12))
    batch = {"input_ids": tokens, "labels": tokens}

    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    trained = [p for p in model.parameters() if p.requires_grad]
    step = handheld.capture(lambda b: model(**b).loss, None, optimizer(trained), batch, modules=model, evaluate=False)
    small = handheld.quantise(step, 4)
    assert set(small.packings()) >= {"model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight"}
    found = errors(small, model, lambda m, b: m(**b).loss, [batch] * 2, optimizer=optimizer)
    assert max(found.values()) < 1e-4, found
