"""What `gemm` must compute, in float64, and the scale by which errors are measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def reference(inputs: Mapping[str, NDArray[np.float32]], axes: Mapping[str, int]) -> dict[str, tuple[Doubles, Doubles]]:
    """`C` of shape (M, N): the float64 product of the float32 `A` (M, K) and `B` (K, N); the scale is |A| |B|.

    Products of two float32 values are exact in float64, so a sum of K of them is wrong by less than K 2^-53 of the
    scale: for K below 2^20 under 1/500 of a float32 rounding. Where a row of A and a column of B meet in a NaN or an
    infinity the value has the class that IEEE arithmetic in any order gives (0 times infinity is NaN) and the scale
    is NaN or infinity: such elements are compared by class alone. With K = 0 value and scale are zeros.
    """
    m, n, k = axes["M"], axes["N"], axes["K"]
    a = np.asarray(inputs["A"], dtype=np.float64).reshape(m, k)
    b = np.asarray(inputs["B"], dtype=np.float64).reshape(k, n)
    with np.errstate(invalid="ignore", over="ignore"):
        return {"C": (a @ b, np.abs(a) @ np.abs(b))}
