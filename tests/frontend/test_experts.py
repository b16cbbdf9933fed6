"""Mixtures of experts of transformers: the routing depends on the batch and is not fixed at capture."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from handheld import capture

transformers = pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[2] / "coverage"))


def model_of(kind: str) -> torch.nn.Module:
    from family import torchvision_stub

    torchvision_stub()
    torch.manual_seed(0)
    if kind == "dbrx":
        config = transformers.DbrxConfig(
            vocab_size=31,
            d_model=16,
            n_heads=2,
            n_layers=1,
            max_seq_len=32,
            attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        )
        return transformers.DbrxForCausalLM(config).eval()
    config = transformers.JetMoeConfig(
        vocab_size=31,
        hidden_size=16,
        num_hidden_layers=1,
        num_key_value_heads=2,
        kv_channels=8,
        intermediate_size=24,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return transformers.JetMoeForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["dbrx", "jetmoe"])
def test_another_batch_is_routed_by_its_own_values(kind: str) -> None:
    model = model_of(kind)
    twin = copy.deepcopy(model)
    first, second = (torch.randint(0, 31, (2, 7)) for _ in range(2))

    def loss(of: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        found = of(input_ids=ids, labels=ids, use_cache=False).loss
        assert isinstance(found, torch.Tensor)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # A fixed value would cause a warning.
        step = capture(
            lambda ids: loss(model, ids),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            batch=first,
            modules=model,
            evaluate=False,
        )
    with step.plan("reference:cpu").start() as trainer:
        got = [float(trainer.step(ids)) for ids in (first, second, second)]
    optimizer, want = torch.optim.SGD(twin.parameters(), lr=0.1), []
    for ids in (first, second, second):
        optimizer.zero_grad()
        value = loss(twin, ids)
        value.backward()
        optimizer.step()
        want.append(float(value.detach()))
    np.testing.assert_allclose(got, want, rtol=1e-5)
