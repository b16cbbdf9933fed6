"""The metadata of the package, and that the README's commands install the tested versions."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import handheld

ROOT = Path(__file__).resolve().parent.parent


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_any_newer_pytorch_may_be_installed():
    assert re.findall(r'"(torch\b[^"]*)"', text("pyproject.toml")) == ["torch>=2.9"]


def test_both_commands_of_the_readme_use_the_constraints():
    assert 'pip install -c constraints.txt -e ".[capture,data]" && handheld train lenet5 --data digits' in text(
        "README.md"
    )
    assert '-c constraints.txt -e ".[test]"' in text("scripts/test")


def test_constraints_pin_what_the_test_command_depends_on():
    lines = [line for line in text("constraints.txt").splitlines() if line and not line.startswith("#")]
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    assert {"torch", "ruff", "mypy", "pytest"} <= pinned
    wanted = set(re.findall(r'^  "([a-z-]+)(?=[>;"])', text("pyproject.toml"), re.MULTILINE))
    wanted |= {"torch", "scikit-learn", "pillow"}
    constrained = {re.split(r"[=<>]", line)[0] for line in lines}
    assert wanted - constrained == set(), "a dependency has no line in constraints.txt"


def test_no_text_suggests_the_unpublished_package():
    """`pip install handheld` finds nothing: the package is not published."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for path in files:
        joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))  # one text over several lines
        found = re.search(r"pip3? install (-\S+ )*['\"]?handheld\b(?!-|\S*\.whl)", joined)
        assert found is None, f"{path}: {found and found[0]}"


def test_the_version_is_stated_once():
    assert 'version = { attr = "handheld.__version__" }' in text("pyproject.toml")
    assert not re.search(r'^version = "', text("pyproject.toml"), re.MULTILINE)
    assert len(re.findall(r'^__version__ = "\d+\.\d+\.\d+"$', text("src/handheld/__init__.py"), re.MULTILINE)) == 1
    assert metadata.version("handheld") == handheld.__version__


def test_hooks_run_what_the_test_command_runs():
    """Hooks run the same tools from the active environment and download nothing."""
    hooks = text(".pre-commit-config.yaml")
    entries = re.findall(r"entry: (.*)", hooks)
    assert entries == ["ruff check", "ruff format", "mypy"]
    for entry in entries:
        assert re.search(rf"^{entry}\b", text("scripts/test"), re.MULTILINE)
    assert hooks.count("language: system") == len(entries)
    assert re.findall(r"repo: (\S+)", hooks) == ["local"]
