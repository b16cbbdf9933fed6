"""The program texts of contractions: which files they consist of, and their defines."""

from __future__ import annotations

from collections.abc import Mapping

from handheld.kernels.base import read_cl, with_defines
from handheld.kernels.contract_problem import Problem
from handheld.kernels.expr import Epilogue

#: The same numbers as in contract_maps.cl.
MODES = {"MATMUL": 0, "CONV": 1, "WEIGHT": 2}
#: A define that selects a kernel, and the file of that kernel. Without any of them it is contract_register.cl.
FILES = {
    "COMBINE": "contract_combine.cl",
    "LOCAL": "contract_local.cl",
    "DIRECT": "direct.cl",
    "FEW": "few.cl",
    "WINOGRAD": "winograd.cl",
    "DOTS": "dots.cl",
}


def program_text(problem: Problem, end: Epilogue | None, tile: Mapping[str, int]) -> str:
    """The program text. Without an epilogue the program writes partial sums, or combines them."""
    defines: dict[str, object] = {"MODE": MODES[problem.mode], **tile}
    if problem.mode == "MATMUL":
        defines["BATCH"] = problem.batch
    if problem.phased:
        defines["PHASED"] = 1
    kernel = next((v for k, v in FILES.items() if k in tile), "contract_register.cl")
    if "COMBINE" in tile and problem.mode == "WEIGHT":
        kernel = "combine.cl"
    register = ("contract_register.cl", "direct.cl", "few.cl", "winograd.cl", "dots.cl")
    before = ("wide.cl",) if kernel in register else ()
    region = ("region.cl",) if kernel in ("direct.cl", "few.cl") else ()
    units = ("matrix.cl", "contract_matrix.cl") if "MATRIX" in tile else ()
    text = "".join(map(read_cl, (*before, "contract_maps.cl", *units, *region, kernel)))
    if "COMBINE" not in tile:
        defines |= {f"{name}_HALF": 1 for name, half in zip("AB", problem.halves, strict=True) if half}
        defines |= {"ARITH_HALF": 1} if problem.half_products else {}
    if any(name.endswith("_HALF") and name != "ARITH_HALF" for name in defines):
        text = read_cl("half.cl") + text
    if end is None:
        defines["SPLIT"] = int("COMBINE" not in tile)
        return with_defines(defines, text)
    defines["EPILOGUE_PARAMS"] = end.params
    defines["EPILOGUE"] = end.body.replace("\n", " ")
    return with_defines(defines, end.helpers + text)
