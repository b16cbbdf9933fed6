"""Runs the programs of examples/ and the commands and code of docs/tutorial.md, as a user would."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.known_ceilings import store_ceilings

ROOT = Path(__file__).resolve().parent.parent
#: What the last lines of each program must say.
SAYS = {
    "custom_loop": r"accuracy 9[0-9]\.\d%",
    "gan": r"radius of the generated points: (0\.9|1\.0)\d ±",
    "hugging_face": r"test accuracy (8|9)\d\.\d%",
    "lora": r"after merging: 0\.00\d\d",
    "resume": r"same bits: True",
}
#: This program runs in a process of its own, which may start others that compile; the others run in the process of the
#: tests, which has PyTorch already.
ALONE = "custom_loop"
#: Programs that other tests run.
OTHERS = {"draw_shapes", "photos"}


def test_every_program_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SAYS) | OTHERS


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name, tmp_path, monkeypatch, capsys):
    if name == "hugging_face":
        pytest.importorskip("transformers")
    path = ROOT / "examples" / f"{name}.py"
    monkeypatch.chdir(tmp_path)
    if name == ALONE:
        monkeypatch.delenv("HANDHELD_COMPILE_AHEAD")
        command = [sys.executable, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed = done.stdout
    else:
        runpy.run_path(str(path), run_name="__main__")
        printed = capsys.readouterr().out
    assert re.search(SAYS[name], printed), printed


def test_the_cookbook_names_every_program():
    page = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(\.\./examples/(\w+)\.py\)", page)) == set(SAYS)


#: Runs commands of Handheld and Python files one after another, as their own processes would, but imports PyTorch only
#: once. Each line of its input is a command; it answers with a line that begins with MARK and holds what was printed.
MARK = "printed:"
SHELL = f"""
import contextlib, io, json, runpy, sys
from typer.testing import CliRunner
from handheld.cli.main import app

for line in sys.stdin:
    program, *words = json.loads(line)
    if program == "python":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(words[0], run_name="__main__")
        printed = out.getvalue()
    else:
        done = CliRunner().invoke(app, words, prog_name="handheld")
        if done.exit_code:
            sys.exit(f"{{words}}: {{done.output}}")
        printed = done.stdout
    print({MARK!r} + json.dumps(printed), flush=True)
"""


class Shell:
    """A folder in which commands run, `handheld …` or `python FILE`."""

    def __init__(self, folder: Path) -> None:
        self._errors = (folder / "errors.txt").open("w+", encoding="utf-8")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen([sys.executable, "-c", SHELL], cwd=folder, text=True, **pipes)

    def __call__(self, *words: str) -> str:
        """What the command printed."""
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self._errors.seek(0)
        pytest.fail(f"{words}\n{self._errors.read()[-4000:]}")

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


#: The same commands in less time: the largest batch is not searched as long, and a profile is shorter.
SHORTER = {"plan": ["--seconds", "1"], "profile": ["--steps", "60"]}


def test_the_tutorial_as_it_is_written(tmp_path, monkeypatch):
    """All of its commands, in order, and then its Python, in one folder."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    store_ceilings()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    draw, *others = (line.split() for line in re.findall(r"^    ((?:handheld|python) .+)$", page, re.MULTILINE))
    assert draw[0] == "python" and len(others) >= 6 and all(words[0] == "handheld" for words in others)
    *_, prepare, code = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    subprocess.run([sys.executable, *draw[1:]], cwd=tmp_path, check=True)
    with Shell(tmp_path) as shell:
        printed = [(words, shell(*words, *SHORTER.get(words[1], []))) for words in others]
        trained = next(text for words, text in printed if "--export" in words)
        assert re.search(r"test accuracy  (9\d|100)\.\d\d%  \(\d+ of 60\)", trained)
        _check_same_scores(prepare, shell, tmp_path)
        normal = ["train", "examples/photos.py:make", "--data", "photos", "--epochs", "1", "--normalise"]
        shell("handheld", *normal, "--export", "shapes.step", "--force", "--no-page")
        shell("handheld", "export", "shapes.step", "--out", "shapes.pt")
        _check_same_scores(prepare, shell, tmp_path)
        load = (
            "import torch; from examples.photos import Net; "
            "Net().load_state_dict(torch.load('shapes.pt', weights_only=True))"
        )
        (tmp_path / "tutorial.py").write_text(f"{code}\n{load}\n", encoding="utf-8")
        shell("python", "tutorial.py")


def _check_same_scores(code: str, shell: Shell, folder: Path) -> None:
    """The tutorial's preparation of a picture gives the scores of `handheld predict`, also for a normalised model."""
    assert '["handheld", "show"' in code
    code = code.replace('["handheld", "show"', f'[{sys.executable!r}, "-m", "handheld", "show"')
    (folder / "prepare.py").write_text(code, encoding="utf-8")
    asked = ("predict", "shapes.step", "--data", "photos/circle/000.png", "--top", "3", "--json")
    theirs = json.loads(shell("handheld", *asked))["predictions"][0]["top"]
    ours = ast.literal_eval(shell("python", "prepare.py"))
    assert ours == pytest.approx({each["class"]: each["score"] for each in theirs}, abs=1e-4)
