"""Builds attention kernels and runs them against NumPy in float64. Started by the tests as a process of its own, so
that a kernel that reads or writes outside its buffers ends this process and no test run.

stdin: JSON {"folder": ..., "kernels": [{"name", "text", "flags"}], "shapes": [[heads, m, n, d, causal], ...]}.
stdout: JSON {name: {"warnings": text, "worst": largest error in u of the reference's scale, "where": shape and data}}.
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

from kernelcrew.kernels.attention.reference import reference

DATA = ("normal", "sharp", "saturated", "equal", "huge", "denormal", "infinite values", "infinite queries", "minus one")


def draw(kind: str, rng: np.random.Generator, arrays: dict[str, NDArray[Any]]) -> None:
    """Fill Q, K and V."""
    for array in arrays.values():
        array[...] = rng.standard_normal(array.shape, dtype=np.float32)
    q, k, v = (arrays[name] for name in "QKV")
    if kind in ("sharp", "saturated"):
        q *= 6 if kind == "sharp" else 1e4
    elif kind == "equal":
        q[...] = 0
    elif kind in ("huge", "denormal"):
        v *= 1e12 if kind == "huge" else 1e-40
    elif kind == "infinite values" and v.size:
        for value in (np.inf, -np.inf, np.nan):
            v.reshape(-1)[rng.integers(0, v.size, 1 + v.size // 400)] = value
    elif kind == "infinite queries" and q.size:
        for value in (np.inf, -np.inf, np.nan):
            q.reshape(-1)[rng.integers(0, q.size, 1 + q.size // 600)] = value
    elif kind == "minus one" and k.size:  # logits of -inf beside finite ones, whole blocks of them first
        q[...] = np.abs(q) + 0.5
        first = k[:, : 3 * k.shape[1] // 4]
        first[...] = np.where(rng.random(first.shape[:2])[..., None] < 0.9, -np.inf, 1)


def worst_error(o: NDArray[Any], inputs: dict[str, NDArray[Any]], axes: dict[str, int]) -> float:
    """The largest error in u of the scale; infinity where the class of a value is wrong."""
    value, scale = reference(inputs, axes)["O"]
    if not np.array_equal(np.isnan(o), np.isnan(value)) or not np.array_equal(o[np.isinf(o)], value[np.isinf(value)]):
        return float("inf")
    use = np.isfinite(value)
    # Below the normal numbers float32 has a fixed step, which n additions may each be half of off.
    step = 2.0**-149 * max(axes["n"], 1)
    errors = np.maximum(np.abs(o[use] - value[use]) - step, 0) / (U * np.maximum(scale[use], 1e-30 * step))
    return float(errors.max(initial=0.0))


def main() -> None:
    asked = json.load(sys.stdin)
    kernels = [{**kernel, "entry": "attention"} for kernel in asked["kernels"]]
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda kernel: build(Path(asked["folder"]), kernel), kernels))
    built = {kernel["name"]: entry for kernel, (entry, _) in zip(kernels, made, strict=True)}
    for entry in built.values():
        entry.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 5
    answer: dict[str, Any] = {
        kernel["name"]: {"warnings": words, "worst": 0.0, "where": ""}
        for kernel, (_, words) in zip(kernels, made, strict=True)
    }
    rng = np.random.default_rng(20)
    with np.errstate(all="ignore"):
        for number, shape in enumerate(asked["shapes"]):
            axes = dict(zip(("heads", "m", "n", "d", "causal"), shape, strict=True))
            heads, m, n, d = shape[:4]
            dims = {"Q": (heads, m, d), "K": (heads, n, d), "V": (heads, n, d), "O": (heads, m, d)}
            memory = {name: Guarded(int(np.prod(size))) for name, size in dims.items()}
            inputs = {name: memory[name].array.reshape(dims[name]) for name in "QKV"}
            for kind in asked.get("data") or [DATA[0], DATA[1 + number % (len(DATA) - 1)]]:
                draw(kind, rng, inputs)
                for name, entry in built.items():
                    memory["O"].array[:] = -7.0e30
                    entry(*(memory[tensor].address for tensor in "QKVO"), *shape)
                    error = worst_error(memory["O"].array.reshape(dims["O"]), inputs, axes)
                    if error > answer[name]["worst"]:
                        answer[name] = {**answer[name], "worst": error, "where": f"{shape} {kind}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
