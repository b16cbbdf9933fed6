"""`handheld runner build` and `handheld runner list`, with a C program of one line in place of the real sources."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from handheld.cli.main import app
from handheld.runners import find, sources
from handheld.runners.platforms import PLATFORMS, this_machine

needs_gcc = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("gcc", "cc", "clang")), reason="needs a C compiler: apt install gcc"
)


@pytest.fixture(autouse=True)
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "main.c").write_text("const char *source = HANDHELD_SOURCE;\nint main(void) { return source[0] == 0; }\n")
    monkeypatch.setattr(sources, "NATIVE", folder)
    monkeypatch.setattr(sources, "PREBUILT", folder / "prebuilt")
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv(find.OVERRIDE, raising=False)
    return folder


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["runner", *words])
    return result.exit_code, result.stdout, result.stderr


@needs_gcc
def test_a_runner_is_built_where_commands_find_it():
    code, out, _ = run("build", "--with", "gcc")
    assert code == 0 and this_machine() in out and sources.source_hash() in out
    assert find.find(this_machine()) == find.built(this_machine())
    assert max(map(len, out.splitlines())) <= 80


@needs_gcc
def test_a_runner_is_built_to_a_file(tmp_path: Path):
    out = tmp_path / "some" / "handheld-runner"
    code, text, _ = run("build", "--for", this_machine(), "--out", str(out), "--with", "gcc", "--json")
    facts = json.loads(text)
    assert code == 0 and facts["path"] == str(out) and facts["bytes"] == out.stat().st_size
    assert facts["compiler"] == "gcc" and facts["source"] == sources.source_hash() and len(facts["sha256"]) == 64


def test_a_file_that_is_no_program_is_kept(tmp_path: Path):
    own = tmp_path / "mine.py"
    own.write_text("import torch")
    code, _, said = run("build", "--out", str(own), "--with", "gcc")
    assert code == 1 and "exists and is no program. Try: --out with another name" in " ".join(said.split())
    assert own.read_text() == "import torch"


@needs_gcc
def test_the_list_shows_what_there_is_and_what_is_old(native: Path):
    assert run("build", "--out", str(find.prebuilt(this_machine())), "--with", "gcc")[0] == 0
    code, out, err = run("list")
    assert code == 0 and all(name in out for name in PLATFORMS) and "prebuilt" in out and "these sources" in out
    assert "none yet" in out and "Try: handheld runner build --for android-arm64" in err
    assert max(map(len, out.splitlines())) <= 80
    (native / "new.h").touch()
    assert "older sources" in run("list")[1]
    (only,) = json.loads(run("list", "--json")[1])["runners"]
    assert (only["origin"], only["current"]) == ("prebuilt", False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "--for", "ios"], "there is no runner for the platform 'ios'. Try: android-arm64, linux-arm64"),
        (["build", "--for", "linux-arm64", "--with", "tcc"], "there is no compiler 'tcc'. Try: --with ndk, zig, gcc"),
        (["build", "--for", "linux-arm64", "--with", "ndk"], "the NDK builds for Android only"),
    ],
)
def test_bad_words_get_one_sentence(words: list[str], message: str):
    code, out, err = run(*words)
    assert code == 1 and message in err and out == ""
    assert message in json.loads(run(*words, "--json")[1])["error"]["message"]


@needs_gcc
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    code, _, err = run("build", "--out", str(tmp_path / "file" / "runner"), "--with", "gcc")
    assert code == 1 and "could not be built at" in err and "Try: --out with another file" in err


def test_the_group_alone_prints_its_help():
    code, out, _ = run()
    assert code == 0 and "build" in out and "list" in out
