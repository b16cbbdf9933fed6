"""The environment and the options of the test suite."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

# Tuning records of this machine must not decide which kernels are tested.
os.environ["HANDHELD_CACHE"] = tempfile.mkdtemp(prefix="handheld-test-")

# PyTorch's idle threads sleep instead of spinning. With one process per core, spinning would take most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The filter of pyproject.toml, for the processes that tests start.
os.environ["PYTHONWARNINGS"] = "error:programs built separately"


# A background job of a shell ignores Ctrl-C, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="run every op case on OpenCL, not a sample")
    parser.addoption(
        "--all-variants",
        action="store_true",
        help="run every op case on OpenCL with every variant of its kernels, not a sample; takes hours",
    )
    parser.addoption("--shard", default="1/1", help="run one part of the op cases on OpenCL, such as 1/4")
