"""What a step file says about itself, for people: its model, inputs, data and the versions that made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handheld import package
from handheld.cli import output
from handheld.data.dataset import DataFacts, listed
from handheld.step import Step


def facts_json(step: Step) -> dict[str, object]:
    """The facts of a step file. A fact that the file does not have is null."""
    facts = DataFacts.of(step.meta)
    return {
        "name": step.meta.get("name", ""),
        "version": package.VERSION,
        "parameters": step.parameter_count(),
        "graphs": {
            name: [
                {"name": i.name, "shape": list(graph.tensors[i.tensor].shape), "dtype": i.torch_dtype}
                for i in graph.inputs
            ]
            for name, graph in step.graphs.items()
        },
        "data": None if facts is None else facts.to_meta(),
        "captured": step.meta.get("captured"),
        "written": step.meta.get("written"),
    }


def facts_rows(step: Step) -> list[tuple[str, str]]:
    """The facts as rows of a grid."""
    parameters = output.count(step.parameter_count(), "parameter")
    rows = [("model", f"{step.meta.get('name') or 'without a name'}, {parameters}")]
    for i, (name, graph) in enumerate(step.graphs.items()):
        inputs = ", ".join(f"{g.name} {g.torch_dtype}{list(graph.tensors[g.tensor].shape)}" for g in graph.inputs)
        rows.append(("graphs" if i == 0 else "", f"{name}({inputs})".replace("[", r"\[")))
    facts = DataFacts.of(step.meta)
    rows.append(("data", "not known: the file holds no facts about data" if facts is None else describe(facts)))
    if facts is not None and facts.classes:
        rows.append(("classes", f"{len(facts.classes)}: {listed(facts.classes)}".replace("[", r"\[")))
    for word in ("captured", "written"):
        made = step.meta.get(word)
        rows.append((word, made_by(made) if isinstance(made, Mapping) else "not known"))
    return rows


def describe(facts: DataFacts) -> str:
    """The form of the data in words."""
    parts = [facts.kind or "data"]
    if facts.image_size:
        parts.append(f"{'×'.join(map(str, facts.image_size))} {'gray' if facts.gray else 'RGB'}")
    if facts.features:
        parts.append(f"columns {listed(facts.features)}; label {facts.label}")
    if facts.tokens:
        parts.append(f"a {facts.tokens} per token, windows of {facts.length}")
    if facts.normalise is not None:
        parts.append(f"normalised with {facts.normalise}")
    return ", ".join(parts).replace("[", r"\[")


def made_by(made: Mapping[str, Any]) -> str:
    names = (("handheld", "Handheld"), ("torch", "PyTorch"), ("python", "Python"))
    versions = ", ".join(f"{title} {made[key]}" for key, title in names if key in made)
    return f"{versions} on {made.get('time', 'an unknown day')}".replace("[", r"\[")


def print_facts(path: Path, json: bool) -> None:
    """Print what a step file says about itself."""
    step = package.load(path)
    if json:
        output.print_json(facts_json(step))
    else:
        output.out.print(output.grid(facts_rows(step)))
