"""What NumPy itself offers for this operator: the yardstick of `kernelcrew bench`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rival(inputs: dict[str, NDArray[np.float32]], outputs: dict[str, NDArray[np.float32]]) -> None:
    """`C = A @ B` in float32, written in place; NumPy hands it to OpenBLAS."""
    np.matmul(inputs["A"], inputs["B"], out=outputs["C"])
