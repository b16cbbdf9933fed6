"""How the load of a server grows with the number of devices, in Flower's simulation.

    python bench/federated_scale.py --json results/federated.json        (needs handheld[simulation])

The devices are virtual (federated/virtual.py): they answer what a round would cost, by predictions for five described
phones and boards, and send back the model that they received. No kernel runs, so what is measured is Flower and
Handheld's server: the wall time of a round in which all devices take part, the peak memory of the server's process,
and the bytes that go up and down. Each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from result_file import Row, device_id, save

from handheld.backends.base import describe
from handheld.federated.app import write_app
from handheld.federated.record import read_record

SIZES = (10, 100, 1_000, 10_000)
KINDS = ("adreno-620", "adreno-740", "jetson-orin-nano", "mali-g78", "raspberry-pi-5")
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="bring the figures into a result file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(simulate(options.one)))
        return
    caps = describe("opencl")
    device = device_id(caps.name, caps.driver)
    for clients in options.clients:
        command = [sys.executable, __file__, "--one", str(clients)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found = json.loads(said.splitlines()[-1])
        row = Row(
            f"a round of {clients} virtual devices",
            device,
            round(found["round_s"], 2),
            "s",
            command="python bench/federated_scale.py",
            notes="the server's wall time in Flower's simulation; devices run no kernels",
            details={
                "server peak MB": round(found["peak_bytes"] / 1e6),
                "MB down and up": round(found["bytes"] / 1e6, 1),
                "slowest device s": round(found["device_s"], 2),
                "updates": found["updates"],
            },
            figures={**found, "clients": clients},
        )
        print(f"{row.what}: {row.value} s {row.details}", flush=True)
        if options.json:  # After each, because the largest takes minutes.
            save(options.json, "Federated training", [row])


def simulate(clients: int) -> dict[str, float]:
    """The figures of a training with this many devices."""
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from handheld.federated import server
    from handheld.federated.model import mark
    from handheld.federated.virtual import predicted_kind, virtual_client

    with tempfile.TemporaryDirectory(prefix="handheld-federated-") as name:
        folder = Path(name)
        write_app(folder / "digits")
        sys.path.insert(0, str(folder / "digits"))
        from digits.app import BATCH, make_step  # type: ignore[import-not-found]

        step = make_step()
        kinds = [predicted_kind(step, BATCH, kind) for kind in KINDS]
        before = _peak()
        run_simulation(
            server(
                step,
                strategy=lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=clients, min_train_nodes=clients),
                rounds=ROUNDS,
                out=folder / "out",
            ),
            virtual_client(mark(step), kinds, batch=BATCH),
            num_supernodes=clients,
            backend_config={"client_resources": {"num_cpus": 1}},
        )
        record = read_record(folder / "out" / "1")
    rounds = [one for one in record.rounds if one.number]
    ends = [one.seconds for one in rounds]
    # The first round also asks every device about itself.
    times = [late - early for early, late in itertools.pairwise(ends)]
    return {
        "first_round_s": ends[0],
        "round_s": statistics.median(times),
        "peak_bytes": _peak(),
        "before_bytes": before,
        "bytes": rounds[-1].bytes,
        "updates": sum(visit.trained for visit in rounds[-1].visits),
        "device_s": max(visit.seconds or 0.0 for visit in rounds[-1].visits),
        "at": time.time(),
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
