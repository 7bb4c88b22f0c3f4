"""Builds kernels of three operators that no recipe knows and runs them against NumPy, in a process of its own.

stdin: JSON {"folder": ..., "kernels": [{"name", "text", "entry", "flags"}], "sizes": [[a, b, c], ...]}.
stdout: JSON {name: {"warnings": text, "worst": largest error over the scale of its terms in u, "where": sizes}}.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from child import Guarded, U, build
from numpy.typing import NDArray

Array = NDArray[Any]
Sizes = tuple[int, int, int]


def layernorm(t: list[Array], s: Sizes) -> tuple[Array, Array]:
    x, gamma, beta = (a.astype(np.float64) for a in t)
    x = x.reshape(s[0], s[1])
    value = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma + beta
    return value, 4 * (1 + np.abs(value) + np.abs(x) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * np.abs(gamma))


def product(t: list[Array], s: Sizes) -> tuple[Array, Array]:
    a, b = t[0].reshape(s[0], s[2]).astype(np.float64), t[1].reshape(s[2], s[1]).astype(np.float64)
    return a @ b, np.abs(a) @ np.abs(b)


def columns(t: list[Array], s: Sizes) -> tuple[Array, Array]:
    x = t[0].reshape(s[0], s[1]).astype(np.float64)
    return x.sum(0), np.abs(x).sum(0)


OPERATORS: dict[str, tuple[Callable[[Sizes], list[int]], Callable[[list[Array], Sizes], tuple[Array, Array]], int]] = {
    "layernorm": (lambda s: [s[0] * s[1], s[1], s[1], s[0] * s[1]], layernorm, 2),
    "product": (lambda s: [s[0] * s[2], s[2] * s[1], s[0] * s[1]], product, 3),
    "columns": (lambda s: [s[0] * s[1], s[1]], columns, 2),
}
"""By entry: elements of each tensor, the output last; the reference; how many sizes the entry takes."""


def main() -> None:
    asked = json.load(sys.stdin)
    rng = np.random.default_rng(7)
    answer: dict[str, Any] = {}
    for kernel in asked["kernels"]:
        entry, words = build(Path(asked["folder"]), kernel)
        counts, reference, taken = OPERATORS[kernel["entry"]]
        worst, where = 0.0, ""
        for sizes in asked["sizes"]:
            memory = [Guarded(count) for count in counts(tuple(sizes))]
            for tensor in memory[:-1]:
                tensor.array[:] = rng.standard_normal(tensor.array.size, dtype=np.float32) + 0.5
            memory[-1].array[:] = -7.0e30
            entry.argtypes = [ctypes.c_void_p] * len(memory) + [ctypes.c_int] * taken
            entry(*(tensor.address for tensor in memory), *sizes[:taken])
            with np.errstate(all="ignore"):
                value, scale = reference([tensor.array for tensor in memory[:-1]], tuple(sizes))
            off = np.abs(memory[-1].array - value.reshape(-1)) / (U * np.maximum(scale.reshape(-1), 1e-30))
            error = float(off.max(initial=0.0))
            if not error <= worst:
                worst, where = error, str(sizes)
        answer[kernel["name"]] = {"warnings": words, "worst": worst, "where": where}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
