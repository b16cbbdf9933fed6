"""Kills programs of a federated training in the middle, and says whether it ended well.

    python bench/federated_kills.py --json results/federated.json

A SuperLink and four SuperNodes run on this machine: two train on OpenCL, one through a native runner over ssh (a real
OpenSSH server on the loopback address), one on `torch:cpu`, PyTorch op by op. The app is that of `handheld federate
init`: digits, split unevenly by class. After the first round a SuperNode is killed with everything that it started,
after the second the runner, after the third the SuperLink, each by `kill -9`. The training must reach its last round
and 95% accuracy, and no device may be counted twice in a round.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from result_file import Row, device_id, save  # noqa: E402

from handheld.backends.base import describe  # noqa: E402
from handheld.errors import HandheldError  # noqa: E402
from handheld.federated.app import write_app  # noqa: E402
from handheld.federated.processes import Federation, Member  # noqa: E402
from handheld.federated.record import COMPLETE, Record, by_device, cost_to_target, read_record  # noqa: E402
from helpers.opencl_library import opencl_library  # noqa: E402
from helpers.ssh_server import ssh_server  # noqa: E402

TARGET = 0.95
RUNNER = "handheld-runner"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--no-kills", action="store_true", help="let the training run undisturbed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="bring the figures into a result file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # So that no program is left behind.
    with tempfile.TemporaryDirectory(prefix="handheld-federated-") as name:
        folder = Path(name)
        with ssh_server(folder / "server", {"HANDHELD_OPENCL": opencl_library()}) as server:
            os.environ["HANDHELD_SSH"] = server.client
            devices = ["opencl", "opencl", server.name, "torch:cpu"]
            record, killed = train(folder, devices, options.rounds, None if options.no_kills else server.home)
    rows = figures(record, killed, options)
    for row in rows:
        print(f"{row.what}: {row.value} {row.unit} {row.details}")
    if options.json:
        save(options.json, "Federated training", rows)


def train(folder: Path, devices: list[str], rounds: int, login: Path | None) -> tuple[Record, list[str]]:
    """The record of a training, and what was killed. `login` is the home folder of the runner; None kills nothing."""
    app, results = folder / "digits", folder / "results"
    write_app(app)
    killed: list[str] = []

    def done() -> int:
        path = results / "1" / "federated.json"
        return max((one.number for one in read_record(path).rounds), default=0) if path.exists() else 0

    def finished() -> bool:
        return done() > 0 and read_record(results / "1").status == COMPLETE

    with Federation(folder / "processes", devices, tell=say) as federation:
        plans = {
            "a SuperNode": lambda: kill_group(federation.nodes[0]),
            "the runner": lambda: login is not None and kill_runner(login),
            "the SuperLink": lambda: kill_group(federation.link),
        }

        def killer() -> None:
            for after, (what, act) in enumerate(plans.items(), 1):
                while done() < after or not act():  # The runner runs only while its device trains or evaluates.
                    if ended.wait(0.02):
                        return
                killed.append(what)
                say(f"killed {what} after round {done()}")

        ended = threading.Event()
        thread = threading.Thread(target=killer, daemon=True)
        if login is not None:
            thread.start()
        try:
            for line in federation.run(app, [f'out="{results.as_posix()}"', f"rounds={rounds}"], finished):
                if "accuracy" in line or "WARNING" in line:
                    say(line)
        finally:
            ended.set()
    return read_record(results / "1"), killed


def kill_group(member: Member) -> bool:
    assert member.process is not None
    os.killpg(member.process.pid, signal.SIGKILL)
    return True


def kill_runner(login: Path) -> bool:
    """Whether a runner that serves was found and killed. It runs from the home folder of the login."""
    found = [one for one in psutil.process_iter(["exe", "cmdline"]) if "serve" in (one.info["cmdline"] or ())]
    runners = [one for one in found if (one.info["exe"] or "").startswith(f"{login}/") and RUNNER in one.info["exe"]]
    for one in runners:
        one.kill()
    return bool(runners)


def figures(record: Record, killed: list[str], options: argparse.Namespace) -> list[Row]:
    twice = sum(
        len(nodes) - len(set(nodes))
        for nodes in ([visit.node for visit in one.visits if visit.trained] for one in record.rounds)
    )
    if record.status != COMPLETE:
        raise HandheldError("the training is not complete")
    seconds = max(one.seconds for one in record.rounds)
    accuracy = max(one.metrics.get("accuracy", 0.0) for one in record.rounds)
    cost = cost_to_target(record, "accuracy", TARGET)
    updates = [sum(visit.trained for visit in one.visits) for one in record.rounds if one.number]
    name = "undisturbed" if options.no_kills else f"with {len(killed)} kills"
    caps = describe("opencl")
    device = device_id(caps.name, caps.driver)
    command = "python bench/federated_kills.py" + (" --no-kills" if options.no_kills else "")
    details = {
        "rounds": len(updates),
        "updates per round": ", ".join(map(str, updates)),
        "rounds to 95%": None if cost is None else cost.rounds,
        "counted twice": twice,
        "seconds": round(seconds),
        "updates by device": ", ".join(f"{facts['updates']} {name}" for name, facts in by_device(record).items()),
    }
    return [
        Row(
            f"digits on four devices, {name}",
            device,
            round(100 * accuracy, 1),
            "% accuracy",
            command=command,
            goal="value >= 95",
            details=details,
            figures={"killed": killed, "notes": record.notes},
        )
    ]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    main()
