"""The app of `handheld federate init` in Flower's simulation: four devices, digits split unevenly by class.

    python bench/federated_simulation.py --json results/federated.json        (needs handheld[simulation])

It is what `flwr run digits --stream` does. The devices train on OpenCL, in processes of Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from result_file import Row, device_id, save

from handheld.backends.base import describe
from handheld.errors import HandheldError
from handheld.federated.app import write_app
from handheld.federated.processes import environment, program
from handheld.federated.record import COMPLETE, cost_to_target, read_record

TARGET, DEVICES = 0.95, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE", help="bring the figures into a result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="handheld-federated-") as name:
        folder = Path(name)
        write_app(folder / "digits")
        out = folder / "out"
        command = [program("flwr"), "run", str(folder / "digits"), "--stream"]
        command += ["--run-config", f'out="{out.as_posix()}"', "--run-config", f"rounds={options.rounds}"]
        command += ["--federation-config", f"num-supernodes={DEVICES} client-resources-num-cpus=1"]
        begun = time.monotonic()
        home = {"FLWR_HOME": str(folder / "flower")}
        try:
            subprocess.run(command, env={**environment(), **home}, check=True)
        finally:
            stop(home)
        seconds = time.monotonic() - begun
        record = read_record(out / "1")
    if record.status != COMPLETE:
        raise HandheldError("the training is not complete")
    cost = cost_to_target(record, "accuracy", TARGET)
    caps = describe("opencl")
    row = Row(
        "digits on four simulated devices",
        device_id(caps.name, caps.driver),
        round(100 * max(one.metrics.get("accuracy", 0.0) for one in record.rounds), 1),
        "% accuracy",
        command="python bench/federated_simulation.py",
        goal="value >= 95",
        details={
            "rounds": options.rounds,
            "updates per round": ", ".join(
                str(sum(visit.trained for visit in one.visits)) for one in record.rounds if one.number
            ),
            "rounds to 95%": None if cost is None else cost.rounds,
            "seconds": round(seconds),
        },
    )
    print(f"{row.what}: {row.value} {row.unit} {row.details}")
    if options.json:
        save(options.json, "Federated training", [row])


def stop(home: dict[str, str]) -> None:
    """End what Flower keeps for the next simulation."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if home.items() <= process.environ().items():
                process.kill()


if __name__ == "__main__":
    main()
