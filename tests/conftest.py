"""The environment and the options of the test suite."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tuning records of this machine must not decide which kernels are tested.
os.environ["HANDHELD_CACHE"] = tempfile.mkdtemp(prefix="handheld-test-")

# A new cache folder knows no driver; tests of the check (tests/drivers) turn it on.
os.environ.setdefault("HANDHELD_DRIVER_CHECK", "off")

# The cores are busy with tests. One process per core would compile kernels for each of them, and each would start anew.
os.environ.setdefault("HANDHELD_COMPILE_AHEAD", "off")

# PyTorch's idle threads sleep instead of spinning. With one process per core, spinning would take most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The filter of pyproject.toml, for the processes that tests start.
os.environ["PYTHONWARNINGS"] = "error:programs built separately"


# A background job of a shell ignores Ctrl-C, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests are imported without Python's garbage collector, which would look at all of PyTorch again and again.
gc.disable()


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one process more than cores, because many tests wait for a process that they started."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """From now on the collector leaves alone what was imported. None of it is garbage."""
    gc.freeze()
    gc.enable()


#: Tests that depend on clocks and signals, on machines that are shared. A failed test here runs again, at
#: most twice, and is shown as R. Op cases, kernels, passes and whole models are never run again.
REAL_TIME = (
    "bench/",
    "cli/",
    "measure/",
    "profile/",
    "run/test_loop.py",
    "scripts/",
    "sensors/test_sampler.py",
    "store/",
    "studies/test_das2022.py",
    "studies/test_liu2019.py",
)


#: Folders and files with long tests. They begin first: at the end there are only short ones left, and no process waits
#: for a long test of another.
LONG = ("test_examples.py", "scripts/", "cli/", "bench/", "profile/", "suite/", "browser/", "studies/")


#: Folders whose tests build kernels for many parameters. Of each test one in SAMPLE runs, and at least one, always the
#: same ones; `--all-cases` runs all.
SAMPLED, SAMPLE = ("kernels/",), 5


def left_out(items: list[pytest.Item], where: dict[pytest.Item, str]) -> list[pytest.Item]:
    """The items that a sample leaves out."""
    of: dict[str, list[pytest.Item]] = {}
    for item in items:
        if where[item].startswith(SAMPLED):
            of.setdefault(item.nodeid.partition("[")[0], []).append(item)
    picks = {name: sorted(same, key=lambda item: zlib.crc32(item.nodeid.encode())) for name, same in of.items()}
    return [item for same in picks.values() for item in same[-(-len(same) // SAMPLE) :]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    where = {item: item.path.relative_to(here).as_posix() for item in items}
    if not config.getoption("--all-cases") and not any("::" in name for name in config.args):
        dropped = set(left_out(items, where))
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]
    for item, path in where.items():
        if path.startswith(REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=2))
    items.sort(key=lambda item: next((i for i, long in enumerate(LONG) if where[item].startswith(long)), len(LONG)))


@pytest.fixture(autouse=True)
def _handlers_of_signals() -> Iterator[None]:
    """A command that ends ignores Ctrl-C. One that ran inside a test would leave that to the tests after it, and to
    the processes they start."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-cases", action="store_true", help="run every op case and kernel test on OpenCL, not a sample"
    )
    parser.addoption(
        "--all-variants",
        action="store_true",
        help="run every op case on OpenCL with every variant of its kernels, not a sample; takes hours",
    )
    parser.addoption("--shard", default="1/1", help="run one part of the op cases on OpenCL, such as 1/4")
