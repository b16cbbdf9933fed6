"""What is known about a driver: one file per device and driver version in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from handheld import cache
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.plan.ways import described, parsed

VERSION = 1


@dataclass(frozen=True)
class Failure:
    """A result that was wrong: the problem, the op, the way ("" is the usual one) and what was seen."""

    problem: str
    op: str
    way: str
    error: str


@dataclass(frozen=True)
class Truth:
    """What a check found. `avoid` is what plans must do differently (plan/ways.py)."""

    device: str
    vendor: str
    driver: str
    #: A hash of everything that decides the result besides the driver: kernels, problems, workarounds.
    kernels: str
    date: str
    seconds: float
    problems: int
    #: Whether the problems had the sizes that matter. A simulator gets small ones.
    large: bool
    avoid: str
    failures: tuple[Failure, ...]
    #: Problems that were not run, because the driver's compiler is slow.
    left_out: tuple[str, ...] = ()
    #: Of a check in halves, `avoid` has only what differs from the check in float32.
    precision: str = "float32"

    @property
    def refused(self) -> list[str]:
        """The ops that are right in no way."""
        return [op for op, way in parsed(self.avoid).items() if way == "none"]

    def words(self) -> list[str]:
        """The result in a few lines."""
        first = f"{self.problems} problems of all kernel families"
        if self.precision != "float32":
            first = f"{self.problems} problems in precision {self.precision}"
        if not self.large:
            first += " (small ones, because the device only simulates)"
        if self.left_out:
            first += f" ({len(self.left_out)} more were left out, because the driver's compiler is slow)"
        if not self.avoid:
            return [f"{first}: all right"]
        wrong = {f.op: f"{f.op} in {f.problem}: {f.error}" for f in reversed(self.failures) if not f.way}
        return [
            f"{first}: {', '.join(wrong) or 'some'} computed wrongly with the usual kernels",
            *wrong.values(),
            *(f"avoided: {line}" for line in described(self.avoid)),
        ]

    def to_json(self) -> dict[str, object]:
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Truth:
        """Raises ValueError, KeyError or TypeError."""
        if data.pop("version") != VERSION:
            raise ValueError("another version")
        truth = Truth(
            **{**data, "failures": tuple(Failure(**f) for f in data["failures"]), "left_out": tuple(data["left_out"])}
        )
        parsed(truth.avoid)
        return truth


@once
def kernels_hash() -> str:
    """Changes with every kernel, problem and workaround, so that a new Handheld checks a driver again."""
    here = Path(__file__).parent
    files = [*(here.parent / "kernels").glob("*.*"), *here.glob("*.py"), here.parent / "plan" / "ways.py"]
    files.append(here.parent / "plan" / "quirks.py")
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.suffix in (".py", ".cl"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def path_of(caps: DeviceCaps, precision: str = "float32") -> Path:
    key = hashlib.sha256(f"{caps.name}\n{caps.vendor}\n{caps.driver}".encode()).hexdigest()[:12]
    kind = "" if precision == "float32" else f"-{precision}"
    return cache.folder() / "drivers" / f"{cache.slug(caps.name)}-{key}{kind}.json"


def known(caps: DeviceCaps, precision: str = "float32") -> Truth | None:
    """What an earlier check found; None if this driver was never checked with these kernels."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, HandheldError):
        truth = Truth.from_json(json.loads(path_of(caps, precision).read_text(encoding="utf-8")))
        if (truth.kernels, truth.driver, truth.precision) == (kernels_hash(), caps.driver, precision):
            return truth
    return None


def keep(truth: Truth, caps: DeviceCaps) -> None:
    """Store it. Without a writable cache, the next process checks again."""
    with contextlib.suppress(HandheldError):
        cache.write_json(path_of(caps, truth.precision), truth.to_json())
