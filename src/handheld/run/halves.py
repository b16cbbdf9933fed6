"""What half precision saves in a plan, beside the same plan in float32."""

from __future__ import annotations

import warnings

from handheld.errors import OutOfMemory
from handheld.plan.plan import Plan
from handheld.run.planning import plan_again
from handheld.units import size


def half_text(plan: Plan) -> str:
    """The bytes of a plan in halves and of the same plan in float32, and what halves cost. "" for float32."""
    if plan.options.get("precision", "float32") == "float32":
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The plan itself has shown them.
        try:
            # What the plan does to fit belongs to its halves.
            before: int | None = plan_again(plan, precision="float32", memory_limit_bytes=None).bytes
        except OutOfMemory as error:
            before = error.needed_bytes
    # Arithmetic in halves is faster on some devices.
    cost = ", and a step usually takes longer" if plan.options["precision"] == "half" else ""
    if before is None:
        return f"{size(plan.bytes)}: it fits, as float32 does not{cost}"
    what = "it saves memory" if plan.bytes < before else "it saves no memory here"
    return f"{size(plan.bytes)} instead of {size(before)} in float32: {what}{cost}"
