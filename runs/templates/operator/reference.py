"""What my_op must compute, in float64, and the scale by which errors are measured.

kernelcrew runs `reference` in a process of its own; it may use NumPy and whatever else is installed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def reference(inputs: Mapping[str, NDArray[np.float32]], axes: Mapping[str, int]) -> dict[str, tuple[Doubles, Doubles]]:
    """For each output its value and its condition scale, both in float64 and in the output's shape.

    The scale is what the rounding errors of an honest kernel are proportional to: for a sum, the sum of magnitudes; for
    a product, the magnitude of the product; where a result must be exact, such as an integer, 0. Where the value is NaN
    or infinite, only that is compared.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        x = inputs["x"].astype(np.float64)
        factor = inputs["factor"].astype(np.float64)
        return {"y": (factor * x.sum(axis=1), np.abs(factor) * np.abs(x).sum(axis=1))}
