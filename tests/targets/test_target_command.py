"""`handheld target`: what is on a phone, and how it gets off. These tests use the real runner."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from handheld.cli import attached
from handheld.cli.main import app
from helpers.commands import fails
from helpers.phones import AddPhone


@pytest.fixture(autouse=True)
def real(monkeypatch: pytest.MonkeyPatch, runner: object) -> None:
    monkeypatch.delenv("HANDHELD_RUNNER")


def handheld(*words: str):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})


def test_info_and_clean(phones: AddPhone):
    phone = phones()
    shown = handheld("target", "info", "--on", "adb")
    assert shown.exit_code == 0, shown.output
    for word in ("adb:R5CT10XYZ", "linux-x86_64", "handheld-runner", "device"):
        assert word in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    facts = json.loads(handheld("target", "info", "--on", "adb", "--json").stdout)
    assert facts["target"] == "adb:R5CT10XYZ" and facts["protocol"] == 1
    assert facts["bytes"] == sum(facts["files"].values()) and facts["bytes"] < 200_000
    removed = json.loads(handheld("target", "clean", "--on", "adb", "--json").stdout)
    assert removed["removed"] == facts["files"] and list(phone.storage.iterdir()) == []
    assert "was empty" in handheld("target", "clean", "--on", "adb").stdout.replace("\n", " ")


def test_a_target_without_opencl_says_which_libraries_were_tried(phones: AddPhone, monkeypatch: pytest.MonkeyPatch):
    phones()
    monkeypatch.setenv("HANDHELD_TARGET_OPENCL", "/vendor/lib64/nosuch.so")
    text = "no OpenCL device was found (not there: /vendor/lib64/nosuch.so). Try: use a phone whose vendor ships OpenCL"
    way = "or name the library that it has: HANDHELD_TARGET_OPENCL=/vendor/lib64/NAME.so"
    fails(handheld("train", "lenet5", "--data", "digits", "--on", "adb"), f"adb: {text}", way)
    shown = " ".join(handheld("target", "info", "--on", "adb").stdout.split())
    assert text in shown and way in shown


def test_bad_names(phones: AddPhone):
    fails(handheld("target", "clean", "--on", "opencl"), "'opencl' is no target. Try: --on adb")
    fails(handheld("target", "info", "--on", "adb"), "no phone is attached. Try: plug it in")
    fails(handheld("target", "info", "--on", "ssh:"), "names no machine. Try: ssh:user@host")


def test_doctor_names_the_attached_phones(phones: AddPhone):
    phones("AAA"), phones("BBB", state="unauthorized")
    shown = " ".join(handheld("doctor").stdout.split())
    assert "adb:AAA (Pixel 7): Try: handheld doctor --on adb:AAA" in shown
    assert "adb:BBB has not allowed this computer yet. Try: unlock it" in shown
    facts = json.loads(handheld("doctor", "--json").stdout)
    assert [(phone["name"], phone["state"]) for phone in facts["phones"]] == [
        ("adb:AAA", "device"),
        ("adb:BBB", "unauthorized"),
    ]


def test_doctor_does_not_wait_for_adb(phones: AddPhone, monkeypatch: pytest.MonkeyPatch, tmp_path):
    slow = tmp_path / "tools" / "adb"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(attached, "PATIENCE_S", 0.2)
    assert attached.examine() == []
