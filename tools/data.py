"""Inputs: how tensors are filled, by distribution, and how timing rings get new contents at memory speed.

A distribution names the axis along which values are combined (the last one unless it says otherwise): `cancelling`
cancels along it, `special` scatters its NaN and infinities over whole rows of it. Another axis is moved to the end of a
view before a filler sees it, so fillers know of the last one alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcrew.errors import HarnessError, UnknownName
from kernelcrew.kernels.kinds import SYMMETRIC, TIMED
from kernelcrew.kernels.nouns import Distribution

Array = NDArray[Any]
Filler = Callable[[Distribution, np.random.Generator, Array], None]

HUGE = 1e12
TINY = 1e-15
DENORMAL = 1e-40
SMALLEST_NORMAL = 2.0**-126
WIDE_DECADES = 6.0
RESIDUE = 1.0 / 64.0
"""Share of the first half that cancelling halves leave over: exact cancellation would let an output of zeros pass."""
CHUNK = 1 << 18
STOCK = 131_101
SPIKES = 7
"""Kinds of places of the `spike` distribution."""


def fill(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """Fill `array` (float32, float64 or int32, any shape, in place) as `distribution` says.

    Raises UnknownName for a kind that is not in KINDS, HarnessError when what was drawn is trivial (all equal to zero
    where the kind is not `zeros`).
    """
    if distribution.kind not in KINDS:
        raise UnknownName("kind of distribution", distribution.kind, KINDS)
    if array.dtype.kind == "i":
        _integers(distribution, rng, array)
        return
    along = np.moveaxis(array, distribution.axis, -1) if array.ndim > 1 else array
    with np.errstate(over="ignore", under="ignore"):
        KINDS[distribution.kind](distribution, rng, along)
    if distribution.kind != "zeros" and array.size >= 8 and not array.any():
        raise HarnessError(f"distribution '{distribution.name}' drew only zeros", fix="mend its bounds")


def fill_large(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """As `fill`, but an array of more than 2^18 elements without structure along rows is tiled from a stock of
    drawn values, which costs a tenth of drawing it; reproducible from the generator's seed as well.

    Values of one sign are always drawn: the rounding errors of a repeated stock add up in a serial sum, and an honest
    kernel would be refused.
    """
    one_signed = distribution.kind == "uniform"
    if array.size <= CHUNK or array.dtype.kind == "i" or distribution.kind not in TIMED or one_signed:
        fill(distribution, rng, array)
    else:
        Pool(distribution, rng, STOCK).refresh([array], rng, mutations=1024)


def draw(distribution: Distribution, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A new float32 array filled by `fill`."""
    array = np.empty(shape, dtype=np.float32)
    fill(distribution, rng, array)
    return array


class Pool:
    """A stock of drawn values for rings that are refilled between samples.

    `refresh` copies from a secret random rotation of the stock, so that contents are new at memory speed, and then
    puts a few fresh values at random places, so that a fingerprint of the ends, or of a few samples, recognises
    nothing. The stock's size is no round number, so that tiles of a large array never lie a power of two apart.
    """

    def __init__(self, distribution: Distribution, rng: np.random.Generator, elements: int = 1_000_003) -> None:
        """Draw `elements` values. Raises HarnessError for kinds that have a structure along rows."""
        if distribution.kind not in TIMED:
            fix = "name another timing_distribution in operator.toml"
            raise HarnessError(f"'{distribution.kind}' cannot be drawn for timing", fix=fix)
        self._distribution = distribution
        self._stock = draw(distribution, rng, (elements,))

    def refresh(self, views: Iterable[Array], rng: np.random.Generator, mutations: int = 16) -> None:
        """Give every array of `views` new contents, in place. Integer arrays are drawn anew."""
        for view in views:
            if view.dtype.kind == "i":
                fill(self._distribution, rng, view)
                continue
            flat = view.reshape(-1)
            if flat.size and not np.shares_memory(flat, view):
                raise HarnessError("a ring's tensor is not contiguous", fix="report this as a defect")
            self._tile(flat, rng)
            if flat.size:
                flat[rng.integers(0, flat.size, mutations)] = draw(self._distribution, rng, (mutations,))

    def _tile(self, flat: Array, rng: np.random.Generator) -> None:
        size = self._stock.size
        # Repeats of one stock add up coherently; random signs keep the sums as small as those of fresh values.
        signed = self._distribution.kind in SYMMETRIC
        at = 0
        while at < flat.size:
            first = int(rng.integers(0, size))
            length = min(size - first, flat.size - at)
            sign = np.float32(1 - 2 * int(signed and rng.random() < 0.5))
            np.multiply(self._stock[first : first + length], sign, out=flat[at : at + length], casting="same_kind")
            at += length


def _bounds(distribution: Distribution, low: float, high: float) -> tuple[float, float]:
    return (
        low if distribution.low is None else distribution.low,
        high if distribution.high is None else distribution.high,
    )


def _normal(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    _unit_normal(rng, array)


def _unit_normal(rng: np.random.Generator, array: Array) -> None:
    if array.flags.c_contiguous and array.dtype == np.float32:
        rng.standard_normal(array.shape, dtype=np.float32, out=array)
    else:
        array[...] = rng.standard_normal(array.shape, dtype=np.float32)


def _uniform(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    low, high = _bounds(distribution, 0.0, 1.0)
    if array.flags.c_contiguous and array.dtype == np.float32:
        rng.random(array.shape, dtype=np.float32, out=array)
    else:
        array[...] = rng.random(array.shape, dtype=np.float32)
    if (low, high) != (0.0, 1.0):
        array *= high - low
        array += low


def _wide(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """Magnitudes spread evenly over twelve decades, signs at random."""
    decades = rng.random(array.shape, dtype=np.float32)
    decades *= np.float32(2 * WIDE_DECADES * math.log(10.0))
    decades -= np.float32(WIDE_DECADES * math.log(10.0))
    np.exp(decades, out=decades)
    array[...] = decades
    array *= _signs(rng, array)


def _signs(rng: np.random.Generator, array: Array) -> Array:
    return rng.integers(0, 2, array.shape, dtype=np.int8).astype(np.float32) * np.float32(2) - np.float32(1)


def _cancelling(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """The second half of each row is the first, negated and shuffled, less a residue: small sums of large terms."""
    array[...] = rng.random(array.shape, dtype=np.float32)
    array += 0.5
    if array.ndim == 0 or array.shape[-1] < 2:
        return
    half = array.shape[-1] // 2
    order = rng.permutation(half)
    array[..., half : 2 * half] = array[..., :half][..., order] * np.float32(RESIDUE - 1.0)


def _tiny(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    _unit_normal(rng, array)
    array *= TINY


def _huge(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """Up to 1e12 and less where a sum over the last axis could come near the largest float."""
    terms = max(array.shape[-1], 1) if array.ndim else 1
    _unit_normal(rng, array)
    array *= min(HUGE, 1e36 / terms)


def _denormal(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """Below the smallest normal float (1.2e-38): what flushes them to zero shows."""
    _unit_normal(rng, array)
    array *= DENORMAL


def _zeros(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    array[...] = 0.0


def _special(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """Normal values; about half of the rows hold one or two of NaN, +Inf and -Inf, and a few zeros of either sign."""
    _unit_normal(rng, array)
    if array.size == 0:
        return
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    count, terms = rows.shape
    chosen = rng.permutation(count)[: max(1, count // 2)]
    values = np.array([np.nan, np.inf, -np.inf], dtype=rows.dtype)
    for _ in range(2):
        some = chosen[rng.random(chosen.size) < 0.7] if chosen.size > 1 else chosen
        rows[some, rng.integers(0, terms, some.size)] = values[rng.integers(0, values.size, some.size)]
    spots = rng.integers(0, count, max(1, count // 8)), rng.integers(0, terms, max(1, count // 8))
    rows[spots] = np.where(rng.random(spots[0].size) < 0.5, 0.0, -0.0)
    if not np.shares_memory(rows, array):
        array[...] = rows.reshape(array.shape)


def _plus_minus(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """+1 or -1: sums and sums of products are exact in any order, so one term left out or added twice shows."""
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-array.size // 8)), np.uint8), count=array.size)
    np.multiply(bits.reshape(array.shape), 2.0, out=array, casting="same_kind")
    array -= 1.0


def _spike(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    """Zeros but for two or more values a row, at its ends, at random and beside edges of blocks: whatever a kernel does
    not read at all shows, however long the row."""
    array[...] = 0.0
    if array.size == 0:
        return
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    count, terms = rows.shape
    first, last = int(rng.integers(SPIKES)), terms - 1
    for spike in range(max(2, -(-SPIKES // count))):
        for kind in range(SPIKES):
            number = np.arange((kind + first + spike) % SPIKES, count, SPIKES)
            edge = (1 << rng.integers(2, 12, number.size)) * rng.integers(1, max(2, terms // 4), number.size)
            anywhere = rng.integers(0, terms, number.size)
            places = (last, 0, anywhere, edge - 1, edge, last - 1, last // 2)[kind]
            signs = 1 - 2 * rng.integers(0, 2, number.size)
            rows[number, places % terms] = signs * rng.uniform(1.0, 2.0, number.size)
    if not np.shares_memory(rows, array):
        array[...] = rows.reshape(array.shape)


def _integers(distribution: Distribution, rng: np.random.Generator, array: Array) -> None:
    low, high = _bounds(distribution, 0.0, 128.0)
    first, end = int(low), max(int(high), int(low) + 1)
    array[...] = 0 if distribution.kind == "zeros" else rng.integers(first, end, array.shape)


KINDS: dict[str, Filler] = {
    "normal": _normal, "uniform": _uniform, "wide": _wide, "cancelling": _cancelling, "tiny": _tiny, "huge": _huge,
    "denormal": _denormal, "zeros": _zeros, "special": _special, "signs": _plus_minus, "spike": _spike,
}
"""Every kind of distribution, by the name that operator.toml uses."""
