"""What `reduction_batch` must compute, in float64, and the scale by which errors are measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

BLOCK = 1 << 18
"""Elements converted to float64 at a time: they stay in the cache, and long batches need no second copy of x."""


def reference(inputs: Mapping[str, NDArray[np.float32]], axes: Mapping[str, int]) -> dict[str, tuple[Doubles, Doubles]]:
    """`y` of shape (n,): the float64 sums of the float32 columns of `x` (batch, n), and the condition scale sum |x|.

    A sum of 2^20 float32 values in float64 is wrong by less than 2^-33 of the scale: 1/512 of a float32 rounding at
    worst. Where a column holds NaN or infinities the value has the class that IEEE addition in any order gives (NaN
    for NaN or for infinities of both signs) and the scale is NaN or infinity: such columns are compared by class alone.
    """
    batch, n = axes["batch"], axes["n"]
    x = np.asarray(inputs["x"], dtype=np.float32).reshape(batch, n)
    value = np.zeros(n, dtype=np.float64)
    scale = np.zeros(n, dtype=np.float64)
    step = max(1, BLOCK // max(n, 1))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, batch, step):
            part = x[first : first + step].astype(np.float64)
            value += part.sum(axis=0)
            scale += np.abs(part, out=part).sum(axis=0)
    return {"y": (value, scale)}
