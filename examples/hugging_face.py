"""Fine-tune a Hugging Face model on sentences. Weights are random here: no download is needed.

pip install transformers
python examples/hugging_face.py
handheld train examples/hugging_face.py:make --data sentences.npz
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

import handheld
from handheld.data import ArrayData

#: A made-up task: does a sentence hold more words of the first half of the vocabulary than of the second?
VOCABULARY, LENGTH = 200, 16


def sentences(count: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    ids = random.integers(2, VOCABULARY, (count, LENGTH))
    lengths = random.integers(LENGTH // 2, LENGTH + 1, count)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    low = ((ids < VOCABULARY // 2) * mask).sum(1)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": (2 * low > lengths).astype(np.int64)}


def make() -> tuple[torch.nn.Module, None, torch.optim.Optimizer, dict[str, torch.Tensor]]:
    """Model, loss (None: the model computes it from `labels`), optimizer, example batch."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    batch = {name: torch.from_numpy(array) for name, array in sentences(32, 0).items()}
    return model, None, torch.optim.AdamW(model.parameters(), lr=1e-3), batch


def main() -> None:
    torch.manual_seed(0)
    np.savez("sentences.npz", **sentences(1200, 1))
    model, loss, optimizer, batch = make()
    step = handheld.capture(model, loss, optimizer, batch)
    train, test = (ArrayData(**sentences(count, seed), batch_size=32) for count, seed in ((1200, 1), (300, 2)))
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(train, epochs=6, test=test)
        new = sentences(5, 3)
        scores = trainer.predict({"input_ids": new["input_ids"], "attention_mask": new["attention_mask"]})
    print(f"test accuracy {history.test['accuracy']:.1%}")
    print("predicted", scores.argmax(1), "true", new["labels"])
    step.copy_to(model)
    model.save_pretrained("fine-tuned")


if __name__ == "__main__":
    main()
