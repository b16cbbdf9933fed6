"""What the planner says about less memory, for advice: the bytes and the time of a plan that computes values again."""

from __future__ import annotations

import warnings
from typing import Any

from handheld.analyse.rules.activations import FILLED
from handheld.errors import HandheldError, OutOfMemory
from handheld.plan.fit import fits_of
from handheld.plan.plan import Plan

SHARES = (0.5, 0.75)  # of the plan's bytes: limits that are tried until one can be met
#: Options of a plan that a plan within a limit has too.
SAME = ("tuning", "precision", "growth_steps", "state_bits")


def less_memory(plan: Plan) -> dict[str, Any] | None:
    """None if the plan fills too little of the memory for advice, does something to fit already, or cannot be smaller.

    Else the limit in bytes, the bytes of the plan within it, and its additional time as a share of the step's.
    """
    options, caps = plan.options, plan.caps
    memory = min(options.get("memory_limit_bytes") or caps.global_mem_bytes, caps.global_mem_bytes)
    busy = any(options.get(name) for name in ("fit", "parts", "moves", "isolate", "naive", "stream"))
    if plan.bytes < FILLED * memory or busy or not caps.takes_launches:
        return None
    same = {name: options[name] for name in SAME if name in options}
    for share in SHARES:
        limit = int(share * plan.bytes)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # They are about a plan that nobody asked for.
                smaller = plan.step.plan(
                    plan.device, caps=caps, graphs=list(plan.graphs), memory_limit_bytes=limit, micro_batches=1, **same
                )
        except OutOfMemory:
            continue
        except HandheldError:
            return None
        more = max((fit.more for fit in fits_of(smaller.options).values()), default=0.0)
        return {"limit_bytes": limit, "bytes": smaller.bytes, "more": more}
    return None
