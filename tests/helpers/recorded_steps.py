"""Runs steps of a step file in each way that is named, and prints what they computed: `python -m` this module.

    recorded_steps FILE WAY...     prints {way: {"losses", "replays", "launches", "state", "warnings"}}

tests/backends/test_record.py starts it with an OpenCL layer, which a process loads only when it starts.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings

import numpy as np

import handheld
from handheld.backends.opencl.devices import find
from handheld.backends.opencl.record import submitter_for

STEPS = 5


def batch(step: handheld.Step) -> list[np.ndarray]:
    random, graph = np.random.default_rng(0), step.graphs["train"]
    shapes = [(graph.tensors[given.tensor].shape, given.torch_dtype) for given in graph.inputs]
    return [
        random.standard_normal(shape).astype(np.float32) if "float" in kind else random.integers(0, 5, shape)
        for shape, kind in shapes
    ]


def run(step: handheld.Step, way: str) -> dict[str, object]:
    data = batch(step)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        submitter = submitter_for(find("opencl").device, way)
        with step.copy().plan("opencl", tuning=False).start(submitter=submitter) as trainer:
            losses = [float(trainer.step(*data)) for _ in range(STEPS)]
            with trainer.session.record() as notes:  # Commands that keep times are launched one by one.
                losses.append(float(trainer.step(*data)))
                noted = len(notes)
            losses.append(float(trainer.step(*data)))
            state = hashlib.sha256(b"".join(value.tobytes() for value in trainer.state().values())).hexdigest()
    return {
        "losses": losses,
        "replays": getattr(submitter, "replays", 0),
        "noted": noted,
        "state": state,
        "warnings": [str(one.message) for one in said],
    }


if __name__ == "__main__":
    captured = handheld.load(sys.argv[1])
    print(json.dumps({way: run(captured, way) for way in sys.argv[2:]}))
