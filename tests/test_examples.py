"""Runs the programs of examples/ and the commands and code of docs/tutorial.md, as a user would."""

from __future__ import annotations

import ast
import json
import re
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
#: Programs that other tests run.
OTHERS = {"draw_shapes", "photos"}


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_every_program_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SAYS) | OTHERS


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name, tmp_path):
    if name == "hugging_face":
        pytest.importorskip("transformers")
    printed = run([sys.executable, str(ROOT / "examples" / f"{name}.py")], tmp_path)
    assert re.search(SAYS[name], printed), printed


def test_the_cookbook_names_every_program():
    page = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(\.\./examples/(\w+)\.py\)", page)) == set(SAYS)


#: Runs commands of Handheld one after another, as their own processes would, but starts Python and PyTorch only once.
IN_TURN = """
import json, sys
from typer.testing import CliRunner
from handheld.cli.main import app

for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words, prog_name="handheld")
    if done.exit_code:
        sys.exit(f"{words}: {done.output}")
    print(json.dumps(done.stdout))
"""


def in_turn(commands: list[list[str]], folder: Path) -> list[str]:
    """What each command printed."""
    printed = run([sys.executable, "-c", IN_TURN, json.dumps(commands)], folder)
    return [json.loads(line) for line in printed.splitlines()]


#: The same commands in less time: the largest batch is not searched as long, and a profile is shorter.
SHORTER = {"plan": ["--seconds", "1"], "profile": ["--steps", "60"]}


def test_the_tutorial_as_it_is_written(tmp_path, monkeypatch):
    """All of its commands, in order, and then its Python, in one folder."""
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    store_ceilings()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    draw, *others = re.findall(r"^    ((?:handheld|python) .+)$", page, re.MULTILINE)
    assert draw.startswith("python ") and len(others) >= 6
    run([sys.executable, *draw.split()[1:]], tmp_path)
    commands = [[*words, *SHORTER.get(words[0], [])] for words in (command.split()[1:] for command in others)]
    asked = ["predict", "shapes.step", "--data", "photos/circle/000.png", "--top", "3", "--json"]
    *printed, scores = in_turn([*commands, asked], tmp_path)
    trained = next(text for words, text in zip(commands, printed, strict=True) if "--export" in words)
    assert re.search(r"test accuracy  (9\d|100)\.\d\d%  \(\d+ of 60\)", trained)
    *_, prepare, code = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    _check_same_scores(prepare, scores, tmp_path)
    normal = ["train", "examples/photos.py:make", "--data", "photos", "--epochs", "1", "--normalise"]
    normal += ["--export", "shapes.step", "--force", "--no-page"]
    *_, scores = in_turn([normal, ["export", "shapes.step", "--out", "shapes.pt"], asked], tmp_path)
    _check_same_scores(prepare, scores, tmp_path)
    load = (
        "import torch; from examples.photos import Net; "
        "Net().load_state_dict(torch.load('shapes.pt', weights_only=True))"
    )
    (tmp_path / "tutorial.py").write_text(f"{code}\n{load}\n", encoding="utf-8")
    run([sys.executable, "tutorial.py"], tmp_path)


def _check_same_scores(code: str, scores: str, folder: Path) -> None:
    """The tutorial's preparation of a picture gives the scores of `handheld predict`, also for a normalised model."""
    assert '["handheld", "show"' in code
    code = code.replace('["handheld", "show"', f'[{sys.executable!r}, "-m", "handheld", "show"')
    (folder / "prepare.py").write_text(code, encoding="utf-8")
    theirs = json.loads(scores)["predictions"][0]["top"]
    ours = ast.literal_eval(run([sys.executable, "prepare.py"], folder))
    assert ours == pytest.approx({each["class"]: each["score"] for each in theirs}, abs=1e-4)
