"""Builds kernels of `gemm` and `reduction_batch` and runs them against NumPy in float64, in a process of its own.

stdin: JSON {"folder": ..., "kernels": [{"name", "text", "entry", "flags"}], "shapes": [[M, N, K] or [batch, n], ...]}.
stdout: JSON {name: {"warnings": text, "worst": largest error in u of the scale, "where": shape}}.
Inputs end right before a page without access, at addresses that are multiples of 4 alone, and so does the output, of
which every element is poisoned before a call.
"""

from __future__ import annotations

import ctypes
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from child import Guarded, U, build
from numpy.typing import NDArray

Values = NDArray[Any]
POISON = -7.0e30


def product(shape: list[int], rng: np.random.Generator) -> tuple[list[Values], Values, Values]:
    """A and B, their product in float64, and its scale; an infinity and a NaN among the values of larger shapes."""
    m, n, k = shape
    a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    if m > 3 and n > 3 and k > 1:
        a[m // 2, rng.integers(0, k)] = np.inf
        b[k - 1, n - 1] = np.nan
    wide = a.astype(np.float64) @ b.astype(np.float64)
    return [a, b], wide, np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)


def columns(shape: list[int], rng: np.random.Generator) -> tuple[list[Values], Values, Values]:
    """x, its column sums in float64, and their scale."""
    batch, n = shape
    x = rng.standard_normal((batch, n), dtype=np.float32)
    if batch > 1 and n > 3:
        x[batch // 2, n // 2], x[batch - 1, n - 1] = np.inf, np.nan
    return [x], x.astype(np.float64).sum(axis=0), np.abs(x).astype(np.float64).sum(axis=0)


def worst_error(got: Values, value: Values, scale: Values) -> float:
    """The largest error in u of the scale; infinity where the class of a value is wrong."""
    if not np.array_equal(np.isnan(got), np.isnan(value)):
        return float("inf")
    infinite = np.isinf(got) | np.isinf(value)
    if not np.array_equal(got[infinite], value[infinite]):
        return float("inf")
    use = np.isfinite(value)
    return float((np.abs(got[use] - value[use]) / (U * np.maximum(scale[use], 1e-30))).max(initial=0.0))


def main() -> None:
    asked = json.load(sys.stdin)
    with ThreadPoolExecutor(2) as pool:
        entries = list(pool.map(lambda kernel: build(Path(asked["folder"]), kernel), asked["kernels"]))
    names = [kernel["name"] for kernel in asked["kernels"]]
    told = zip(names, entries, strict=True)
    answer: dict[str, Any] = {name: {"warnings": w, "worst": 0.0, "where": ""} for name, (_, w) in told}
    rng = np.random.default_rng(21)
    with np.errstate(invalid="ignore", over="ignore"):
        for shape in asked["shapes"]:
            inputs, value, scale = (product if len(shape) == 3 else columns)(shape, rng)
            held = [Guarded(i.size) for i in inputs]
            for place, data in zip(held, inputs, strict=True):
                place.array[:] = data.ravel()
            out = Guarded(value.size)
            for name, (entry, _) in zip(names, entries, strict=True):
                entry.argtypes = [ctypes.c_void_p] * (len(held) + 1) + [ctypes.c_int] * len(shape)
                out.array[:] = POISON
                entry(*(h.address for h in held), out.address, *shape)
                error = worst_error(out.array.reshape(value.shape), value, scale)
                changed = any(h.array.tobytes() != i.tobytes() for h, i in zip(held, inputs, strict=True))
                error = float("inf") if changed else error
                if error > answer[name]["worst"]:
                    answer[name] = {**answer[name], "worst": error, "where": "x".join(map(str, shape))}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
