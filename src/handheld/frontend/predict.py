"""Records the prediction of a model: what it returns without labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from handheld.frontend.closures import keywords

if TYPE_CHECKING:
    from handheld.frontend.capture import Capture

#: Keywords that hold labels. A prediction leaves them out.
LABELS = ("labels", "label", "label_ids", "start_positions", "end_positions", "next_sentence_label", "mc_labels")


def record_prediction(
    builder: Capture, model: nn.Module, batch: object, has_loss: bool, inputs: int, name: str = "predict"
) -> None:
    """Records the graph `name`. Without one, `builder.no_predict` says why.

    A model that is called with keywords may not run without its labels; then there is no prediction.
    """
    if isinstance(batch, (tuple, list)):
        builder.evaluate(lambda b: (None, model(*b)), tuple(batch[:inputs]), name)
    elif isinstance(batch, Mapping):
        known = keywords(model, batch) if has_loss else batch
        given = {key: value for key, value in known.items() if key not in LABELS}
        try:
            builder.evaluate(lambda b: (None, model(**b)), given, name)
        except Exception as error:  # The user's code may raise anything.
            line = str(error).strip().partition("\n")[0]
            builder.no_predict = f"without labels, the model raises {type(error).__name__}: {line}"
    else:
        builder.no_predict = "the batch is one tensor, from which the model computes its loss"
