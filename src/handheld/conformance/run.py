"""Runs all op cases on a device, in child processes, and keeps every result as it comes, so that it can be resumed."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import handheld
from handheld.backends.runner import connect
from handheld.cache import write_json
from handheld.child import SILENCE_S, Child, python_module
from handheld.conformance.report import Result, Summary, write_pages
from handheld.device import DeviceCaps
from handheld.drivers.check import described
from handheld.drivers.store import kernels_hash, known
from handheld.errors import DeviceError, HandheldError, TargetLost
from handheld.plan.quirks import quirks_of, simulated
from handheld.targets.names import is_remote, parse

RESULTS = "cases.jsonl"
ABOUT = "about.json"
#: A child runs this many cases at most: drivers leak memory.
PER_CHILD = 60

#: Is told the number of cases that are done, how many there are, and the case that runs now.
Progress = Callable[[int, int, str], None]


@dataclass
class Run:
    """The run of the cases on one device in one folder."""

    device: str
    folder: Path
    caps: DeviceCaps
    names: list[str]
    facts: dict[str, Any]  # what the results depend on
    done: dict[str, Result]

    def results(self) -> list[Result]:
        return [self.done[name] for name in self.names if name in self.done]


def conformance(device: str, folder: Path, sample: int | None = None, progress: Progress | None = None) -> Summary:
    """Run the cases that are not in the folder yet, and write the report. Raises DeviceError or HandheldError;
    after TargetLost, the same call continues."""
    if importlib.util.find_spec("torch") is None:
        raise HandheldError(
            "the op cases are compared with PyTorch, which is not installed on this machine. Try: pip install torch; "
            "handheld doctor checks the driver without it"
        )
    from handheld.conformance.cases import CASES

    caps = described(device)
    if not caps.takes_launches:
        raise DeviceError(f"{device} runs PyTorch or nothing, so its driver cannot be checked. Try: --on opencl")
    names = list(CASES)
    if sample is not None:
        names = sorted(random.Random(0).sample(names, min(sample, len(names))))
    facts = about(device, caps)
    run = Run(device, folder, caps, names, facts, _resumed(folder, facts))
    try:
        for result in _run(run, progress):
            run.done[result["case"]] = result
            with (folder / RESULTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    finally:  # Also after Ctrl-C there is a report, of what was run so far.
        summary = finish(run)
    return summary


def finish(run: Run) -> Summary:
    """Write the report of what was run so far."""
    truth, facts = known(run.caps), run.facts
    summary: Summary = {
        "device": run.device,
        "caps": facts["caps"],
        "handheld": facts["handheld"],
        "kernels": facts["kernels"],
        "system": facts["system"],
        "date": facts["date"],
        "cases": len(run.names),
        "check": truth.words() if truth else ["the driver was not checked"],
        "quirks": [f"{q.name}: {q.why} ({q.source})" for q in quirks_of(run.caps)],
        "results": run.results(),
    }
    write_pages(summary, run.folder)
    return summary


def about(device: str, caps: DeviceCaps) -> dict[str, Any]:
    """What the results depend on."""
    return {
        "device": device,
        "caps": {k: v for k, v in caps.to_json().items() if k != "global_mem_bytes"},
        "handheld": handheld.__version__,
        "kernels": kernels_hash(),
        "system": _system(device),
        "date": time.strftime("%Y-%m-%d"),
    }


def _system(device: str) -> str:
    """The system of the machine that computes, which may be a target."""
    if not is_remote(device):
        return f"{platform.system()} {platform.machine()}"
    with connect.borrowed(parse(device)) as link:
        system = connect.system(link)
    return f"{system['system']} {system['machine']}"


def _resumed(folder: Path, now: dict[str, Any]) -> dict[str, Result]:
    """The results of an interrupted run with the same driver and kernels. Raises HandheldError if they differ."""
    path = folder / ABOUT
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise HandheldError(f"{folder} has other files. Try: --out with a new folder")
        write_json(path, now)
        return {}
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise HandheldError(f"{path} is damaged. Try: --out with a new folder") from None
    changed = [key for key in ("caps", "kernels", "handheld") if before.get(key) != now[key]]
    if changed:
        raise HandheldError(
            f"{folder} holds results of another {'driver' if 'caps' in changed else 'version of Handheld'}: "
            f"{', '.join(changed)} changed. Try: --out with a new folder"
        )
    done: dict[str, Result] = {}
    if (folder / RESULTS).exists():
        for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines():
            try:
                result: Result = json.loads(line)
            except ValueError:  # The last line of an interrupted run may be incomplete.
                continue
            done[result["case"]] = result
        text = "".join(json.dumps(result) + "\n" for result in done.values())
        temporary = folder / f".{RESULTS}.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, folder / RESULTS)
    return done


def _run(run: Run, progress: Progress | None) -> Iterator[Result]:
    left = [name for name in run.names if name not in run.done]
    while left:
        for result in _child(run, left[:PER_CHILD], progress):
            left.remove(result["case"])
            yield result


def _child(run: Run, names: Sequence[str], progress: Progress | None) -> Iterator[Result]:
    """The results of one child. If it crashes or hangs, that is the result of the case that it had begun."""
    current = names[0]
    with Child(python_module("handheld.conformance.worker")) as child:
        child.send(_request(run, names))
        try:
            while (message := child.receive(SILENCE_S)) is not None:
                if "begin" in message:
                    current = str(message["begin"])
                    if progress is not None:
                        progress(len(run.done), len(run.names), current)
                    continue
                if "lost" in message:
                    done = f"{len(run.results())} of {len(run.names)} cases are done"
                    raise TargetLost(f"{message['lost']}. {done}. Run the same command to continue")
                yield Result(**message)  # type: ignore[typeddict-item]
                if message["case"] == names[-1]:
                    return
            problem = child.ending().describe("the process")
        except TimeoutError:
            problem = f"nothing was reported for {SILENCE_S:.0f} s"
    if current not in run.done:
        problems = [problem, _blamed(run, current)]
        yield {"case": current, "status": "crashed", "problems": problems, "ops": [], "shapes": [], "fallbacks": []}


def _request(run: Run, names: Sequence[str], blame: bool = False) -> dict[str, Any]:
    facts = {"device": run.device, "caps": run.caps.to_json(), "simulator": simulated(run.caps)}
    return {**facts, "names": list(names), "blame": blame}


def _blamed(run: Run, name: str) -> str:
    """Which kernel crashes or hangs: the case runs again in another process, one op after the other."""
    what = "before a kernel was built"
    with Child(python_module("handheld.conformance.worker")) as child:
        child.send(_request(run, [name], blame=True))
        try:
            while (message := child.receive(SILENCE_S)) is not None:
                what = str(message["what"])
        except TimeoutError:
            return f"op by op, it hangs {what}"
        ending = child.ending()
    if ending.code == 0:
        return "op by op, it does not crash"
    return f"op by op, it ends {what}: {ending.describe('the process')}"
