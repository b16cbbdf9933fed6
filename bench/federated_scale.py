"""How the load of a server grows with the number of devices, in Flower's simulation.

    python bench/federated_scale.py --json results/federated.json        (needs handheld[simulation])

The devices are virtual (federated/virtual.py): they answer what a round would cost, by predictions for five described
phones and boards, and send back the model that they received. No kernel runs, so what is measured is Flower and
Handheld's server: the wall time of a round in which all devices take part, the peak memory of the server's process,
and the bytes that go up and down. Each size runs in a process of its own.

With --direct the devices answer in the server's process, without Flower's simulation (and without Ray): what is left
is the server itself. Flower's simulation looks through all messages for each device, so its time grows with the square
of the number of devices.
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from result_file import Row, device_id, save

from handheld.backends.base import describe
from handheld.federated.app import write_app
from handheld.federated.record import read_record

SIZES = (10, 100, 1_000, 10_000)
#: In Flower's simulation, a round of so many takes so long that there is only one, after the answers of all devices.
LONG = 10_000
KINDS = ("adreno-620", "adreno-740", "jetson-orin-nano", "mali-g78", "raspberry-pi-5")
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", metavar="N")
    parser.add_argument("--direct", action="store_true", help="the server alone, without Flower's simulation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="bring the figures into a result file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(simulate(options.one, options.direct)))
        return
    caps = describe("opencl")
    device = device_id(caps.name, caps.driver)
    for clients in options.clients or SIZES:
        command = [sys.executable, __file__, "--one", str(clients), *(["--direct"] if options.direct else [])]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found = json.loads(said.splitlines()[-1])
        which = "first" if found["rounds"] == 1 else "a"  # The first one includes the answers of all devices.
        row = Row(
            f"{which} round of {clients} virtual devices, {'the server alone' if options.direct else 'simulated'}",
            device,
            round(found["round_s"], 2),
            "s",
            command="python bench/federated_scale.py" + (" --direct" if options.direct else ""),
            details={
                "server peak MB": round(found["peak_bytes"] / 1e6),
                "MB down and up": round(found["bytes"] / 1e6, 1),
                "slowest device s": round(found["device_s"], 2),
                "updates": found["updates"],
            },
            figures={**found, "clients": clients, "direct": options.direct},
        )
        print(f"{row.what}: {row.value} s {row.details}", flush=True)
        if options.json:  # After each, because the largest takes minutes.
            save(options.json, "Federated training", [row])


def simulate(clients: int, direct: bool) -> dict[str, float]:
    """The figures of a training with this many devices."""
    from flwr.serverapp.strategy import FedAvg

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
        devices = virtual_client(mark(step), kinds, batch=BATCH)
        rounds = 1 if clients >= LONG and not direct else ROUNDS
        app = server(
            step,
            strategy=lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=clients, min_train_nodes=clients),
            rounds=rounds,
            timeout=6 * 3600.0,
            out=folder / "out",
        )
        before = _peak()
        if direct:
            run_directly(app, devices, clients)
        else:
            from flwr.simulation import run_simulation

            resources = {"client_resources": {"num_cpus": 1}}
            run_simulation(app, devices, num_supernodes=clients, backend_config=resources)
        record = read_record(folder / "out" / "1")
    done = [one for one in record.rounds if one.number]
    ends = [one.server_seconds or 0.0 for one in done]  # The clock of virtual devices is simulated.
    # The first round also asks every device about itself.
    times = [late - early for early, late in itertools.pairwise(ends)]
    return {
        "first_round_s": ends[0],
        "round_s": statistics.median(times) if times else ends[0],
        "rounds": len(done),
        "peak_bytes": _peak(),
        "before_bytes": before,
        "bytes": done[-1].bytes,
        "updates": sum(visit.trained for visit in done[-1].visits),
        "device_s": max(visit.seconds or 0.0 for visit in done[-1].visits),
        "at": time.time(),
    }


def run_directly(server: Any, devices: Any, clients: int) -> None:
    """Run a ServerApp with devices that answer in this process."""
    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    class Direct(Grid):
        def get_node_ids(self) -> Iterable[int]:
            return range(1, clients + 1)

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
            return [self.reply(message) for message in messages]

        def reply(self, message: Any) -> Any:
            node = message.metadata.dst_node_id
            place = {"partition-id": node - 1, "num-partitions": clients}
            context = Context(run_id=1, node_id=node, node_config=place, state=RecordDict(), run_config={})
            return devices(message, context)

        def get_nodes(self) -> Any:
            raise NotImplementedError("the server only calls get_node_ids and send_and_receive")

        set_run = create_message = push_messages = pull_messages = run = get_nodes

    server(Direct(), Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
