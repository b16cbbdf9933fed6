"""Fine-tunes a language model of 0.5 billion parameters by LoRA on 4-bit weights; compares a small copy with PyTorch.

    python bench/language_model.py [--on opencl] [--steps 5] [--length 256] [--json FILE]

The model has the published configuration of Qwen2.5-0.5B and random weights. Queries and values get LoRA of rank 8, as
in the paper of LoRA. One text of 256 tokens is learned. Printed are the bytes that the plan allocates on the device and
the loss of each step. The small copy has two layers and 512 tokens; its losses and its trained matrices are compared
with PyTorch in float64, with the same quantised weights. Needs transformers, about 8 GB of memory on this machine, and
minutes.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from typing import Any

import torch
from result_file import Row, device_id, save
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import handheld
from handheld.backends.base import describe
from handheld.step import Step

MB = 10**6
TARGETS = ["*.q_proj", "*.v_proj"]
#: The configuration of Qwen2.5-0.5B, as published.
PUBLISHED = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "use_cache": False,
}
SMALL = PUBLISHED | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 320,
    "vocab_size": 512,
}


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def adapted(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = Qwen2ForCausalLM(Qwen2Config(**config)).train()
    handheld.lora(model, rank=8, targets=TARGETS)
    return model


def quantised(model: nn.Module, batch: dict[str, torch.Tensor]) -> Step:
    """The step that returns the loss only: as an output, the logits would stay in memory until the next step."""
    step = handheld.capture(
        lambda b: model(**b).loss, None, optimizer_of(model), batch, modules=model, evaluate=False, name="qwen2.5-0.5b"
    )
    return handheld.quantise(step, 4)


def text(config: dict[str, Any], length: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, config["vocab_size"], (1, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


def large(on: str, length: int, steps: int) -> dict[str, Any]:
    batch = text(PUBLISHED, length)
    model = adapted(PUBLISHED)
    step = quantised(model, batch)
    del model
    plan = step.plan(on)
    print(f"{step.parameter_count():,} parameters, of which {step.trained_count():,} train; {length} tokens")
    print(f"{plan.bytes / MB:.0f} MB on the device: {(plan.bytes - plan.arena_bytes) / MB:.0f} MB of state", flush=True)
    losses, times = [], []
    with plan.start() as trainer:
        for number in range(steps):
            begun = time.perf_counter()
            losses.append(float(trainer.step(batch)))
            times.append(time.perf_counter() - begun)
            print(f"step {number + 1}: loss {losses[-1]:.4f}, {times[-1]:.1f} s", flush=True)
    return {
        "parameters": step.parameter_count(),
        "trained": step.trained_count(),
        "bytes": plan.bytes,
        "losses": losses,
        "step_s": min(times),
    }


def difference(on: str, steps: int = 5) -> dict[str, float]:
    """The largest relative error of the small copy's losses and of its trained matrices after some steps."""
    batch = text(SMALL, 32)
    model = adapted(SMALL)
    with torch.no_grad():  # Of each pair one matrix is zero at first, so the other would have no gradient.
        for name, parameter in model.named_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter) * ("lora_" in name))
    step = quantised(model, batch)
    wide = copy.deepcopy(model).double()
    wide.load_state_dict({name: value.double() for name, value in step.state_dict().items()}, strict=False)
    optimizer, losses = optimizer_of(wide), []
    with step.plan(on).start() as trainer:
        for _ in range(steps):
            got = float(trainer.step(batch))
            optimizer.zero_grad()
            loss = wide(**batch).loss
            loss.backward()
            optimizer.step()
            losses.append(abs(got - loss.item()) / loss.item())
        state = trainer.state()
    trained = {name: p.detach().numpy() for name, p in wide.named_parameters() if p.requires_grad}
    values = [float(abs(state[n] - p).max() / abs(p).max()) for n, p in trained.items()]
    return {"loss": max(losses), "parameters": max(values)}


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--steps", type=int, default=5, help="steps of the large model; 0: only the small copy")
    parser.add_argument("--length", type=int, default=256, help="tokens of the text")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    caps = describe(options.on)
    device = device_id(caps.name, caps.driver)
    errors = difference(options.on)
    print(f"small copy: losses differ from float64 by {errors['loss']:.1e}, matrices by {errors['parameters']:.1e}")
    rows = [
        Row(
            "small copy of Qwen2.5, loss",
            device,
            errors["loss"],
            "relative error",
            goal="value <= 1e-05",
            figures=errors,
        )
    ]
    if options.steps:
        found = large(options.on, options.length, options.steps)
        what = f"Qwen2.5-0.5B, LoRA on 4 bits, {options.length} tokens"
        details = {"loss, first": found["losses"][0], "loss, last": found["losses"][-1], "s per step": found["step_s"]}
        rows.append(Row(what, device, found["bytes"] / MB, "MB", goal="value <= 1000", details=details, figures=found))
    if options.json:
        save(options.json, "Partial training", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
