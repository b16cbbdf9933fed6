"""Federated training on Flower: many devices train one model, and their data stays with them.

    client = handheld.federated.client(make_step, make_data)     # a flwr ClientApp
    server = handheld.federated.server(make_step, rounds=10)     # a flwr ServerApp

Flower is the engine: it connects devices, sends messages, samples clients and averages. Handheld trains on each
device, says what it cost, and checks what is averaged. docs/federated.md is the guide.

In the order in which a round uses them:

| file | what it does |
|---|---|
| `model` | what is exchanged: the arrays that training changes, and the mark of a model |
| `select` | which devices train this round, and how many steps each |
| `nodes` | what the server knows of each device, and which may take part |
| `client_app` | the ClientApp: a message of Flower to `local`, and its result back |
| `local` | trains and evaluates on one device, and measures it; knows nothing of Flower |
| `compress` | updates in 8 bits or as their largest values, with error feedback |
| `secure` | secure aggregation: masks updates on a device, and gives the server their mean |
| `privacy` | what differential privacy needs of updates |
| `rails` | divides the joules of a power rail among the devices that share it |
| `strategy` | stands before a strategy of Flower: refuses, drops and counts what must not be averaged |
| `settings` | what the run config may change, checked |
| `server_app` | the ServerApp: rounds, checkpoints, the record |
| `memory` | what a strategy remembers between rounds, for the checkpoint |
| `record` | what each round cost: a JSON file, and the cost to reach a target |
| `protocols` | cost to a target and quality under a budget, as tables |
| `page` | the record as a page |
| `keys` | certificates and keys for TLS and node authentication |
| `processes` | SuperLink and SuperNodes as processes of this machine |
| `connect` | registers devices, and stops what Flower left in the background |
| `clock` | compares a device's clock with the SuperLink's |
| `virtual` | devices that are not there: they answer what a round would cost |
| `app` | writes a small app to begin with (`template/`) |

Beside these: `flower` names everything of Flower that is used, `shared_step` keeps the captured step of a run for its
other processes, and `proximal_term` is the term of FedProx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handheld.federated.client_app import client
    from handheld.federated.proximal_term import proximal
    from handheld.federated.select import Select
    from handheld.federated.server_app import server

__all__ = ["Select", "client", "proximal", "server"]

#: What is imported when it is first used: Flower and PyTorch take seconds.
_LATER = {
    "Select": "handheld.federated.select",
    "client": "handheld.federated.client_app",
    "proximal": "handheld.federated.proximal_term",
    "server": "handheld.federated.server_app",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'handheld.federated' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
