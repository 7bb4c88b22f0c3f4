"""What NumPy itself offers for this operator: the yardstick of `kernelcrew bench`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rival(inputs: dict[str, NDArray[np.float32]], outputs: dict[str, NDArray[np.float32]]) -> None:
    """`y = x.sum(axis=-1)` in float32, written in place; NumPy adds pairwise."""
    np.sum(inputs["x"], axis=-1, out=outputs["y"])
