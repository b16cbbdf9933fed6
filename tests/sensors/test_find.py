"""Plug-ins: found by entry point, and reported when they fail."""

from __future__ import annotations

import sys

import pytest

from handheld.sensors import Where, find
from handheld.sensors.find import SOURCES

POINTS = """[handheld.sensors]
steered = helpers.sensor_plugins:Steered
wrong = helpers.sensor_plugins:Broken
gone = no_such_package.meter:Meter
typo = helpers.sensor_plugins:Lines
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with four plug-ins, installed as pip does it."""
    folder = tmp_path / "site" / "meters-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: meters\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(POINTS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])


def test_plug_ins(installed, tmp_path):
    (tmp_path / "value").write_text("42")
    found = {one.name: one for one in find(Where(tmp_path))}
    assert found["steered"].first == (42.0, 21.0) and found["steered"].cost_s > 0
    assert found["broken"].reason == "it cannot be opened: ZeroDivisionError: of the plug-in"
    assert found["gone"].reason.startswith("it cannot be imported: ModuleNotFoundError")
    assert "not a subclass of handheld.sensors.Sensor" in found["typo"].reason
    assert len(found) == len(SOURCES) + 4


def test_a_plug_in_that_reads_garbage_is_reported(installed, tmp_path):
    (tmp_path / "value").write_text("forty-two")
    found = {one.name: one for one in find(Where(tmp_path))}
    assert found["steered"].reason.startswith("it cannot be read: ValueError")


def test_names_are_different():
    assert len({source.name for source in SOURCES}) == len(SOURCES)
