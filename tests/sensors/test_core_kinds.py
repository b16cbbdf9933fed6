"""The kinds of a machine's cores, from its files."""

from __future__ import annotations

from handheld.sensors.base import Where
from handheld.sensors.cpu import core_kinds


def tree(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Where(root=root)


def blocks(*cores):
    """The text of /proc/cpuinfo on ARM, from one (implementer, part) per core."""
    return (
        "\n\n".join(
            f"processor\t: {n}\nBogoMIPS\t: 62.50\nCPU implementer\t: {who}\nCPU part\t: {part}"
            for n, (who, part) in enumerate(cores)
        )
        + "\n\n"
    )


def test_the_cores_of_a_tx2_differ(tmp_path):
    a57, denver = ("0x41", "0xd07"), ("0x4e", "0x003")
    where = tree(tmp_path, proc__cpuinfo=blocks(a57, denver, denver, a57, a57, a57))
    kinds = core_kinds(where)
    assert [kinds[f"cpu{n}"] for n in range(3)] == ["Cortex-A57", "Denver 2", "Denver 2"]
    assert set(kinds.values()) == {"Cortex-A57", "Denver 2"}


def test_a_part_without_a_name_is_a_kind_of_its_own(tmp_path):
    where = tree(tmp_path, proc__cpuinfo=blocks(("0x51", "0x804"), ("0x41", "0xd05")))
    assert core_kinds(where) == {"cpu0": "0x51 0x804", "cpu1": "Cortex-A55"}


def test_equal_parts_of_different_capacity_differ(tmp_path):
    files = {f"sys__devices__system__cpu__cpu{n}__cpu_capacity": value for n, value in enumerate(("1024\n", "871\n"))}
    where = tree(tmp_path, proc__cpuinfo=blocks(*[("0x41", "0xd0b")] * 2), **files)
    assert core_kinds(where) == {"cpu0": "Cortex-A76 (capacity 1024)", "cpu1": "Cortex-A76 (capacity 871)"}


def test_two_kinds_under_one_model_name(tmp_path):
    text = "".join(f"processor\t: {n}\nmodel name\t: Some Core i5\n\n" for n in range(3))
    where = tree(tmp_path, proc__cpuinfo=text, sys__devices__cpu_core__cpus="0-1\n", sys__devices__cpu_atom__cpus="2\n")
    assert core_kinds(where) == {
        "cpu0": "Some Core i5 (core)",
        "cpu1": "Some Core i5 (core)",
        "cpu2": "Some Core i5 (atom)",
    }


def test_cores_that_are_alike_and_a_machine_that_says_nothing(tmp_path):
    assert core_kinds(Where(root=tmp_path)) == {}
    where = tree(tmp_path, proc__cpuinfo=blocks(*[("0x41", "0xd07")] * 2))
    assert set(core_kinds(where).values()) == {"Cortex-A57"}
