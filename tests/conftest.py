"""Options of the test suite."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

# what was tuned on this machine must not decide which kernels are tested
os.environ["HANDHELD_CACHE"] = tempfile.mkdtemp(prefix="handheld-test-")

# PyTorch's idle threads sleep instead of spinning: with a process per core, spinning takes most of the time
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# the filter of pyproject.toml, for the processes that tests start
os.environ["PYTHONWARNINGS"] = "error:programs built separately"


# a shell's job in the background ignores Ctrl-C, and so would all that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

#: What runs here runs in real time, against clocks and signals, on machines that are shared: a
#: test that fails is run again, at most twice, and shown as R. Op cases, kernels, passes and whole
#: models never are.
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="every op case on OpenCL, not a sample")
    parser.addoption(
        "--all-variants",
        action="store_true",
        help="every op case on OpenCL with every variant of its kernels, not a sample: hours",
    )
    parser.addoption("--shard", default="1/1", help="of the op cases on OpenCL: which part of how many, as 1/4")
