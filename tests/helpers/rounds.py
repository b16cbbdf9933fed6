"""Runs a ServerApp on a grid in this process, and reads what it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from handheld.federated.record import Record, Round, Visit, read_record
from handheld.federated.server_app import server
from helpers.federated import LoopGrid, make_step


def started(grid: LoopGrid, out: Path, step: Any = make_step, **options: Any) -> Record:
    """Run the ServerApp on a grid, and return its record."""
    options.setdefault("strategy", lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1))
    app = server(step, out=out, device="reference:cpu", wait_seconds=1.0, **options)
    app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}))
    return read_record(max(out.glob("[0-9]*"), key=lambda path: int(path.name)))


def state_in(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "state.checkpoint")


def outcomes(record: Record) -> list[list[str]]:
    """The outcomes of each round, in the order of the nodes: strategies ask them in random order."""
    return [[visit.outcome for visit in visits(one)] for one in record.rounds if one.number]


def visits(one: Round) -> list[Visit]:
    return sorted(one.visits, key=lambda visit: visit.node)
