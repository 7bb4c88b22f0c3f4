"""What `reduction` must compute, in float64, and the scale by which errors are measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

BLOCK = 1 << 20
"""Elements converted to float64 at a time, so that the longest rows need no second copy in double precision."""


def reference(inputs: Mapping[str, NDArray[np.float32]], axes: Mapping[str, int]) -> dict[str, tuple[Doubles, Doubles]]:
    """`y` of shape (rows,): the float64 sums of the float32 rows of `x`, and the condition scale sum |x|.

    A sum of 2^24 float32 values in float64 is wrong by less than 2^-29 of the scale: 1/32 of a float32 rounding at
    worst. Where a row holds NaN or infinities the value has the class that IEEE addition in any order gives (NaN for
    NaN or for infinities of both signs) and the scale is NaN or infinity: such rows are compared by class alone.
    """
    rows, n = axes["rows"], axes["n"]
    x = np.asarray(inputs["x"], dtype=np.float32).reshape(rows, n)
    value = np.zeros(rows, dtype=np.float64)
    scale = np.zeros(rows, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, rows, step := max(1, BLOCK // max(n, 1))):
            for left in range(0, n, BLOCK):
                part = x[first : first + step, left : left + BLOCK].astype(np.float64)
                value[first : first + step] += part.sum(axis=1)
                scale[first : first + step] += np.abs(part).sum(axis=1)
    return {"y": (value, scale)}
