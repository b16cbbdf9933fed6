"""The phones that adb lists, for `handheld doctor`."""

from __future__ import annotations

import shutil
from typing import TypedDict

from handheld.errors import DeviceError
from handheld.targets import adb

PATIENCE_S = 2.0  # doctor does not wait longer for adb, which may have to start its server.


class PhoneFacts(TypedDict):
    """A phone that adb lists. `state` is `device` if it can be used."""

    name: str
    model: str
    state: str


def examine() -> list[PhoneFacts]:
    """The attached phones; none if there is no adb, or if it does not answer soon."""
    if shutil.which("adb") is None:
        return []
    try:
        return [
            {"name": f"adb:{phone.serial}", "model": phone.model, "state": phone.state}
            for phone in adb.phones(PATIENCE_S)
        ]
    except DeviceError:
        return []


def rows(phones: list[PhoneFacts]) -> list[tuple[str, str]]:
    """What is printed about the phones: how to use each, or what keeps it from being used."""
    lines = []
    for phone in phones:
        name = f"{phone['name']} ({phone['model']})" if phone["model"] else phone["name"]
        usable = phone["state"] == "device"
        what = (
            f"Try: handheld doctor --on {phone['name']}"
            if usable
            else adb.problem_of(phone["state"], phone["name"].removeprefix("adb:"))
        )
        lines.append(f"{name}: {what}" if usable else f"{name} {what}")
    return [("phones" if i == 0 else "", line) for i, line in enumerate(lines)]
