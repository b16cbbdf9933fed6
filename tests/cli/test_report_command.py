"""`handheld report`: writes the page of a run, and says why if it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from handheld.cli.main import app
from helpers.run_files import MadeRun


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = MadeRun(tmp_path / "one.run")
    made.steps(30)
    made.open().close()
    return lambda *words: CliRunner().invoke(app, ["report", *words], prog_name="handheld")


def test_it_writes_the_page_beside_the_run(report, tmp_path):
    result = report("one.run")
    assert result.exit_code == 0 and "wrote" in result.stdout and "one.html" in result.stdout
    assert '"kind":"run"' in (tmp_path / "one.html").read_text()
    found = json.loads(report("one.run", "--out", "two.html", "--json").stdout)
    assert found == {"files": ["two.html"], "bytes": (tmp_path / "two.html").stat().st_size}
    assert report("one.run").exit_code == 0, "its own page is replaced"


def test_what_it_refuses(report, tmp_path):
    (tmp_path / "one.html").write_text("my own page")
    (tmp_path / "text.run").write_text("no run")
    for words, said in (
        (("one.run",), "one.html exists and is no page of Handheld. Try: --out"),
        (("one.run", "--out", "text.run"), "text.run exists and is no page of Handheld. Try: --out"),
        (("one.run", "--out", "one.run"), "would replace the run file itself. Try: --out"),
        (("one.run", "--out", "away/one.html"), "there is no folder away"),
        (("two.run",), "there is no run file two.run"),
        (("text.run",), "is not a run file"),
    ):
        result = report(*words)
        assert result.exit_code == 1 and said in " ".join(result.stderr.split()), result.stderr
    assert (tmp_path / "one.html").read_text() == "my own page"


def test_profile_writes_the_page_beside_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def profile(*words: str):
        return CliRunner().invoke(app, ["profile", "m1", "--no-ceilings", *words], prog_name="handheld")

    found = json.loads(profile("--steps", "12", "--json", "--out", "one.run").stdout)
    assert found["report"] == "one.html" and '"kind":"run"' in Path("one.html").read_text()
    assert profile("--steps", "3", "--no-report", "--out", "two.run").exit_code == 0
    assert not Path("two.html").exists()
    Path("three.html").write_text("my own page")
    result = profile("--steps", "3", "--out", "three.run")
    assert result.exit_code == 0 and Path("three.html").read_text() == "my own page"
    assert "three.html was not written" in result.stderr and "Try: handheld report three.run" in result.stderr
