"""Generated docs are up to date, and commands, options, errors, ops and findings are documented."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer

import handheld
from handheld.passes.pack import pack_updates
from handheld.passes.pipeline import PASSES

ROOT = Path(__file__).resolve().parent.parent


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")  # The script sets it too; the patch restores it.
        yield load_script()


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["commands.md", "errors.md", "ops.md", "measurement.md", "idioms.md"])
def test_generated_pages_are_fresh(script, name):
    made, kept = script.PAGES[name](), page(name)
    if name == "commands.md" and f"<!-- typer {typer.__version__} -->" not in kept:
        pytest.skip("another typer lays help out differently; its content is tested below")
    if name == "ops.md":  # The number of PyTorch's decompositions depends on its version.
        version = ".".join(torch.__version__.split(".")[:2])
        if f"PyTorch\n{version}" not in kept and f"PyTorch {version}" not in kept:
            made, kept = (re.sub(r"\(PyTorch [\d.]+ has \d+ more\)", "", t) for t in (made, kept))
    assert made == kept, f"docs/{name} is stale. Run: python scripts/make_docs.py"


def test_every_command_and_option_is_documented(script):
    from handheld.cli.main import app

    text = page("commands.md")
    for name in script.command_names():
        assert f"## handheld {name}\n" in text
        command = typer.main.get_command(app)
        for word in name.split():
            command = command.commands[word]
        for parameter in command.params:
            shown = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
            for option in shown:
                assert option in text, f"{name} {option} is not in docs/commands.md"
            if "--on" in shown:
                help = parameter.help or ""
                assert "adb" in help and "ssh:user@host" in help, f"{name} --on does not name targets"
        assert "Examples:" in (command.help or ""), f"{name} --help has no example"


def test_every_error_is_documented(script):
    from handheld import errors

    for error in script.error_classes():
        assert f"`{error.__name__}`" in page("errors.md")
        assert re.search(rf"[├└]── {error.__name__} |^    {error.__name__}$", errors.__doc__, re.MULTILINE), (
            f"{error.__name__} is missing in the tree of errors.py"
        )


def test_every_op_is_documented(script):
    from handheld.graph.ops import OPS

    text = page("ops.md")
    for name in script.lowerings():
        assert f"`{name.removesuffix('.default')}`" in text
    for name in OPS:
        assert f"- `{name}` (" in text


def test_every_workload_is_in_the_table_of_the_suite(script):
    """Only names are checked: counting the sizes takes too long here, and tests/suite/test_published.py does it."""
    from handheld.suite import WORKLOADS

    text = page("suite.md")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(WORKLOADS)
    for name in WORKLOADS:
        assert f"\n{script.workload_row(name)} " in text, "Run: python scripts/make_docs.py"


def test_the_example_of_the_suite_runs(capsys):
    code = re.search(r"```python\n(.*?)```", page("suite.md"), re.DOTALL).group(1)
    exec(compile(code, "docs/suite.md", "exec"), {})
    assert capsys.readouterr().out == "train [(8, 3, 32, 32), (8,)]\n"


def test_the_passes_are_listed_in_their_order():
    order = re.findall(r"^\| `(\w+)` \| `\w+` \|", page("architecture.md"), re.MULTILINE)
    assert order == [step.__name__ for step in (*PASSES, pack_updates)]


def test_the_architecture_names_every_folder_of_the_package():
    for path in Path(handheld.__file__).parent.glob("*/__init__.py"):
        assert f"{path.parent.name}/" in page("architecture.md")
    assert "container.py" in page("architecture.md")


def test_the_example_of_measurement_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page("measurement.md"), re.DOTALL)
    exec(compile(code, "docs/measurement.md", "exec"), {})
    assert "forward" in capsys.readouterr().out
    for name, steps in (("mine.run", 40), ("loop.run", 23), ("plain.run", 40)):
        with handheld.open_run(name) as run:
            assert len(run.steps()) == steps and run.complete


def test_every_finding_and_table_of_a_run_is_documented():
    from handheld.analyse import findings, machine
    from handheld.analyse.run import Run

    text = page("measurement.md")
    code = "".join(Path(module.__file__).read_text() for module in (findings, machine))
    kinds = set(re.findall(r'\bfinding\(\s*"([a-z ]+)"', code))
    assert len(kinds) > 5
    for kind in kinds | {"own load", "other load"}:
        assert f"| `{kind}` |" in text, kind
    for name, method in vars(Run).items():
        if not name.startswith("_") and callable(method) and name not in ("close", "span", "warm"):
            assert f"`{name}(" in text, name


#: words of the code that have one meaning there
WORDS = (
    *("node", "op", "launch", "command", "variant", "choice", "slot", "segment", "target"),
    *("plan", "step", "run file", "finding", "window", "device", "backend", "session", "submitter"),
    *("family", "epilogue", "pack", "phase", "source"),
)


def test_the_glossary_explains_each_word_once_in_one_line():
    entries = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", page("glossary.md"), re.MULTILINE)
    words = [word for word, _ in entries]
    assert len(words) == len(set(words)) and set(WORDS) <= set(words)
    assert all(meaning[0].isupper() and meaning.endswith((".", ")")) for _, meaning in entries)
    for linking in (ROOT / "README.md", ROOT / "docs" / "architecture.md"):
        assert "glossary.md" in linking.read_text(encoding="utf-8")
    for path in re.findall(r"`(\w+(?:/\w+)*(?:/|\.py))`", page("glossary.md")):
        assert (ROOT / "src" / "handheld" / path).exists(), f"the glossary names {path}"


def test_no_page_has_a_placeholder() -> None:
    found = {
        page.name: lines
        for page in (ROOT / "docs").glob("*.md")
        if (lines := re.findall(r"^(?:[A-Z]+_)*[A-Z]{4,}$", page.read_text(encoding="utf-8"), re.MULTILINE))
    }
    assert found == {}
