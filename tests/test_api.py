"""docs/api.md: its signatures are those of the code, nothing public is missing, and its examples run."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import handheld
from handheld.data import DataSet
from handheld.plan.plan import Plan
from handheld.run.trainer import Trainer

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
CLASSES = {
    "Capture": handheld.Capture,
    "DataSet": DataSet,
    "DeviceCaps": handheld.DeviceCaps,
    "Plan": Plan,
    "Step": handheld.Step,
    "Trainer": Trainer,
}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def shown() -> dict[str, str]:
    """Name -> signature, as on the page."""
    calls = re.findall(r"^([\w.]+)\((.*?)\)$", "\n".join(blocks("text")), re.MULTILINE | re.DOTALL)
    return {name: " ".join(inside.split()) for name, inside in calls}


def found(name: str) -> object:
    owner, _, member = name.rpartition(".")
    if owner in CLASSES:
        return getattr(CLASSES[owner], member)
    return getattr(importlib.import_module(owner), member)


def real(name: str) -> str:
    """The parameters and defaults in the code, without types and without self."""
    signature = inspect.signature(found(name))
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    owner = name.rpartition(".")[0]
    if owner in CLASSES and not isinstance(
        inspect.getattr_static(CLASSES[owner], name.rpartition(".")[2]), staticmethod
    ):
        plain = plain[1:]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))[1:-1]


@pytest.mark.parametrize("name", shown())
def test_signatures_are_those_of_the_code(name: str) -> None:
    assert shown()[name] == real(name)
    assert inspect.getdoc(found(name)), f"{name} has no docstring"


def test_nothing_public_is_missing() -> None:
    names = shown()
    for name in set(handheld.__all__) - set(CLASSES) - {"HandheldError", "Profiler"}:
        assert f"handheld.{name}" in names
    for owner, cls in CLASSES.items():
        for member, value in vars(cls).items():
            if not member.startswith("_") and callable(getattr(value, "__func__", value)):
                assert f"{owner}.{member}" in names


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    space: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(blocks("python")):
        place = f"docs/api.md, example {number + 1}"
        exec(compile(textwrap.dedent(block), place, "exec"), space)
    assert (tmp_path / "model.step").exists() and (tmp_path / "run.checkpoint").exists()
    assert space["made"].shape == (32, 8) and space["scores"].shape == (32, 3)
    assert len(space["history"].epochs) == 3


def test_plan_profile_has_the_parameters_of_the_function_it_calls() -> None:
    from handheld.plan.plan import Plan
    from handheld.profile.run import profile

    def plain(function: object) -> list[tuple[str, object]]:
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values()][1:]

    assert plain(Plan.profile) == plain(profile)
