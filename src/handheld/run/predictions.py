"""What a model says about samples: classes with scores, or numbers; as a table, CSV, JSON or arrays."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from handheld.data.batches import Array
from handheld.data.dataset import DataFacts
from handheld.data.samples import Samples
from handheld.errors import DataError, HandheldError
from handheld.files import replace_file
from handheld.graph.graph import Graph
from handheld.run.metrics import class_axis
from handheld.run.trainer import Trainer

SUFFIXES = (".csv", ".json", ".npz")
#: A table with more numbers per sample helps nobody.
_MOST_VALUES = 1000


@dataclass(frozen=True)
class Predictions:
    """One row per sample. `scores` [n, classes] are probabilities; without classes, `values` [n, k] are the outputs."""

    names: Sequence[str]
    classes: tuple[str, ...]
    scores: Array | None
    values: Array | None
    labels: Array | None
    outputs: Mapping[str, Array]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """`accuracy` if there are labels of classes, `mean_squared_error` for numbers; else nothing."""
        if self.labels is None:
            return {}
        if self.scores is not None:
            if self.labels.dtype.kind not in "iu" or self.labels.shape != (len(self.names),):
                return {}
            known = self.labels >= 0
            right = (self.scores.argmax(1) == self.labels)[known]
            return {"accuracy": float(right.mean()), "labelled": float(known.sum())} if known.any() else {}
        if self.values is None or self.labels.dtype.kind != "f" or self.labels.size != self.values.size:
            return {}
        return {"mean_squared_error": float(np.mean((self.values.reshape(-1) - self.labels.reshape(-1)) ** 2))}

    def class_name(self, number: int) -> str:
        return self.classes[number] if 0 <= number < len(self.classes) else str(number)

    def rows(self, top: int) -> list[dict[str, Any]]:
        """One dictionary per sample, for JSON."""
        rows: list[dict[str, Any]] = []
        order = None if self.scores is None else np.argsort(-self.scores, axis=1, kind="stable")[:, :top]
        for i, name in enumerate(self.names):
            row: dict[str, Any] = {"sample": name}
            if order is not None and self.scores is not None:
                best = [(self.class_name(int(k)), float(self.scores[i, k])) for k in order[i]]
                row |= {"class": best[0][0], "score": best[0][1]}
                if top > 1:
                    row["top"] = [{"class": c, "score": s} for c, s in best]
            elif self.values is not None:
                row["values"] = self.values[i].tolist()
            row |= self._label(i)
            rows.append(row)
        return rows

    def _label(self, i: int) -> dict[str, Any]:
        if self.labels is None or self.labels.ndim > 2 or not self.metrics:
            return {}
        if self.scores is not None:
            number = int(self.labels[i])
            return {"label": self.class_name(number) if number >= 0 else None}
        return {"label": float(self.labels.reshape(len(self.names), -1)[i, 0])}

    def write(self, path: Path, top: int) -> Path:
        """Write `.csv`, `.json` or `.npz` (the raw outputs), completely or not at all."""
        text = {".csv": self._csv, ".json": self._json}.get(path.suffix)
        content = text(top).encode() if text is not None else self._npz()

        def fill(file: BinaryIO) -> None:
            file.write(content)

        try:
            replace_file(path, fill)
        except OSError as error:
            raise HandheldError(f"{path} cannot be written: {error.strerror or error}. Try: another --out") from None
        return path

    def _json(self, top: int) -> str:
        return json.dumps(self.rows(top), indent=1, ensure_ascii=False) + "\n"

    def _csv(self, top: int) -> str:
        lines: list[list[object]] = []
        names = ["sample"]
        for row in self.rows(top):
            if "values" in row:
                count = len(row["values"])
                names = ["sample", *(["value"] if count == 1 else [f"value_{k}" for k in range(count)])]
                cells: list[object] = [row["sample"], *row["values"]]
            else:
                best = row.get("top") or [{"class": row["class"], "score": row["score"]}]
                endings = ["", *(f"_{k + 2}" for k in range(len(best) - 1))]
                names = ["sample", *(f"{word}{ending}" for ending in endings for word in ("class", "score"))]
                cells = [row["sample"], *(cell for entry in best for cell in (entry["class"], entry["score"]))]
            if "label" in row:
                names.append("label")
                cells.append(row["label"])
            lines.append(cells)
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([names, *lines])
        return text.getvalue()

    def _npz(self) -> bytes:
        file = io.BytesIO()
        arrays: dict[str, Any] = dict(self.outputs)
        np.savez(file, **arrays)
        return file.getvalue()


def predict(trainer: Trainer, samples: Samples, facts: DataFacts | None, train: Graph | None) -> Predictions:
    """Run the model over the samples. `train` is a graph with labels, which tells classes from numbers."""
    parts: list[dict[str, Array]] = []
    for batch in samples.data.epoch(0):
        found = trainer.predict(*batch)
        parts.append(dict(found) if isinstance(found, Mapping) else {"output": found})
    if not parts[0]:
        raise HandheldError(
            "the prediction of this model has no outputs: it returned nothing that holds tensors. "
            "Try: return a tensor, a tuple or a dictionary, and package it again"
        )
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    first = next(iter(outputs.values()))
    facts = facts or DataFacts()
    notes = [f"the outputs {', '.join(list(outputs)[1:])} are only in a .npz file (--out)"] if len(outputs) > 1 else []
    scores = class_scores(first, facts, train)
    values = None
    if scores is None and first.size <= _MOST_VALUES * len(first):
        values = first.reshape(len(first), -1)
        if len(facts.classes) == 2 and values.shape[1] == 1:
            notes.append(
                f"the model has one output for two classes: large values mean {facts.classes[1]} (above 0 if it gives "
                "logits, above 0.5 if it gives probabilities)"
            )
    return Predictions(samples.names, facts.classes, scores, values, samples.labels, outputs, tuple(notes))


def class_scores(output: Array, facts: DataFacts, train: Graph | None) -> Array | None:
    """The outputs as probabilities [n, classes], or None if they are not scores of classes.

    Logits and logarithms of probabilities go through a softmax; probabilities stay as they are. A model that predicts
    a token for each position of a text gives the scores of the token after the last position.
    """
    if output.dtype.kind != "f" or output.ndim < 2 or output.shape[1] < 2:
        return None
    axis = 1 if output.ndim == 2 and output.shape[1] == len(facts.classes) else _axis_by_labels(output, train)
    if axis is None or (output.ndim == 3 and facts.kind != "text"):
        return None
    if output.ndim == 3:
        output = output[:, -1, :] if axis == 2 else output[:, :, -1]
    if output.ndim != 2:
        return None
    if (output >= 0).all() and np.allclose(output.sum(1), 1, atol=1e-3):
        return output
    exponents = np.exp(output.astype(np.float64) - output.max(1, keepdims=True))
    scores: Array = (exponents / exponents.sum(1, keepdims=True)).astype(np.float32)
    return scores


def _axis_by_labels(output: Array, train: Graph | None) -> int | None:
    """The axis of the classes, from the shape of the labels that the model was trained with."""
    if train is None or len(train.inputs) < 2:
        return None
    given = next((i for i in train.inputs if i.name in ("labels", "label")), train.inputs[-1])
    if "int" not in given.torch_dtype:
        return None
    labels = train.tensors[given.tensor].shape
    return class_axis((labels[0], *output.shape[1:]), labels) if labels else None


def check_out(path: Path | None) -> None:
    if path is not None and path.suffix not in SUFFIXES:
        raise DataError(f"--out {path} should end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
