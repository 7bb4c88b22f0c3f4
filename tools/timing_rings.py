"""How many distinct inputs one sample runs over: few for warm shapes; for cold ones twice the last cache, but 160 MiB
at most."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.tools.arena import DTYPES

LEAST_SLOTS = 2
MOST_WARM_SLOTS = 8
MOST_COLD_BYTES = 160 << 20
"""A cold ring is refreshed before each pair, so it stays below this unless two calls need more. Where half of the last
cache is larger than this (the 300 MiB of a server shared by many guests) a cold shape runs from that cache, and is held
against it: the level that a profile names follows from the ring's bytes, not from the word."""
SMALL_BYTES = 1 << 20
"""From this size on a warm ring has two slots: more would only cost time to refresh."""


def call_bytes(operator: Operator, shape: Shape) -> int:
    """Bytes of all tensors of one call."""
    total = 0
    for tensor in operator.tensors:
        extents = [max(0, int(parse(text).value(shape.axes))) for text in tensor.dims]
        total += math.prod(extents) * int(np.dtype(DTYPES[tensor.dtype]).itemsize)
    return total


def slots_for(shape: Shape, bytes_a_call: int, caches: Mapping[int, int]) -> int:
    """Slots of a ring. `caches` gives bytes by level (1, 2, 3).

    Cold: the ring is twice the largest cache, so that a call's data has been driven out when its turn comes again, but
    at most 160 MiB or two calls, whichever is more. Warm: as many as stay in the smallest cache that holds two calls
    with 10 % to spare, at most 8; two beyond 1 MiB a call.
    """
    size = max(bytes_a_call, 1)
    if shape.cache == "cold":
        wanted = min(2 * max(caches.values(), default=32 << 20), MOST_COLD_BYTES)
        return max(LEAST_SLOTS, math.ceil(wanted / size))
    if size > SMALL_BYTES:
        return LEAST_SLOTS
    homes = [room for _, room in sorted(caches.items()) if LEAST_SLOTS * size * 1.1 <= room]
    fitting = int(homes[0] / (1.1 * size)) if homes else LEAST_SLOTS
    return max(LEAST_SLOTS, min(MOST_WARM_SLOTS, fitting))
