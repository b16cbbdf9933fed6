"""Sizes, batches and losses of small models of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from family import Batch, Family, Task, scalar_loss, torchvision_stub
from torch import nn

V, T, B = 97, 11, 2  # vocabulary, sequence, batch
Maker = Callable[[], Batch]


#: arguments that most language-model configurations accept
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


def plain_labels() -> Batch:
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


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

    return Family(f"{kind}{f':{head}' if head else ''}{f' {tag}' if tag else ''}", "huggingface", make)
