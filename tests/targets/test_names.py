"""The names of targets are read in one place, and wrong ones get the right forms."""

from __future__ import annotations

import pytest

from handheld.errors import DeviceError
from handheld.targets.names import TargetName, is_remote, is_target, parse


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("runner", TargetName("runner")),
        ("runner:pocl", TargetName("runner", device="pocl")),
        ("ssh:box", TargetName("ssh", "box")),
        ("ssh:me@box", TargetName("ssh", "me@box")),
        ("ssh:me@box:2222", TargetName("ssh", "me@box", 2222)),
        ("ssh:me@box/1", TargetName("ssh", "me@box", None, "1")),
        ("ssh:me@192.168.0.7:22/mali-g78", TargetName("ssh", "me@192.168.0.7", 22, "mali-g78")),
        ("ssh:me@[fe80::1%eth0]:22", TargetName("ssh", "me@[fe80::1%eth0]", 22)),
        ("adb", TargetName("adb")),
        ("adb/adreno", TargetName("adb", device="adreno")),
        ("adb:R5CT10XYZ", TargetName("adb", "R5CT10XYZ")),
        ("adb:192.168.0.7:5555/0", TargetName("adb", "192.168.0.7:5555", None, "0")),
    ],
)
def test_a_name_is_taken_apart_and_put_together(text: str, name: TargetName):
    assert parse(text) == name
    assert str(name) == text
    assert is_target(text) and is_remote(text) == (name.kind != "runner")


def test_the_runner_of_this_machine_takes_a_slash_too():
    assert parse("runner/0") == parse("runner:0") == TargetName("runner", device="0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ssh", "names no machine"),
        ("ssh:", "names no machine"),
        ("ssh:me@", "names no machine"),
        ("ssh:me@box:ssh", "port 'ssh'"),
        ("ssh:me@box:70000", "port '70000'"),
        ("ssh:fe80::1", "names no machine"),
        ("ssh:-oProxyCommand=x", "dash"),
        ("ssh:me@-oProxyCommand=x", "dash"),
        ("ssh:me@box/", "slash"),
        ("adb:", "names no phone"),
        ("adb:/0", "names no phone"),
        ("adb:-s", "names no phone"),
        ("adb/", "slash"),
    ],
)
def test_a_wrong_name_gets_the_right_forms(text: str, says: str):
    with pytest.raises(DeviceError, match=r"Try: (ssh|adb)") as error:
        parse(text)
    assert says in str(error.value) and repr(text) in str(error.value)


def test_other_devices_are_no_targets():
    assert not any(is_target(name) for name in ("opencl", "opencl:adb", "reference:cpu", "null", "adreno-740"))
