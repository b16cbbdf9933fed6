"""Options of the test suite."""

from __future__ import annotations

import os
import tempfile

import pytest

# what was tuned on this machine must not decide which kernels are tested
os.environ["HANDHELD_CACHE"] = tempfile.mkdtemp(prefix="handheld-test-")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-cases", action="store_true", help="every op case on OpenCL, not a sample"
    )
    parser.addoption(
        "--all-variants", action="store_true",
        help="every op case on OpenCL with every variant of its kernels, not a sample: hours",
    )
    parser.addoption(
        "--shard", default="1/1", help="of the op cases on OpenCL: which part of how many, as 1/4"
    )
