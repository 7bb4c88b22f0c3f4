"""What NumPy itself offers for this operator: the yardstick of `kernelcrew bench`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rival(inputs: dict[str, NDArray[np.float32]], outputs: dict[str, NDArray[np.float32]]) -> None:
    """`y = x.sum(axis=0)` in float32, written in place; NumPy adds row after row."""
    np.sum(inputs["x"], axis=0, out=outputs["y"])
