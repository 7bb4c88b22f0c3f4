"""How an output is held against the float64 reference: scaled errors, classes of values, bias and its slope.

With u = 2^-24 and the condition scale s of an element (for a sum, the sum of magnitudes), the scaled error is
e = (y - reference) / (u s). Limits on e are expressions over the axes (`Tolerance`); where u s lies below the smallest
denormal, 2^-149 takes its place, since no float32 result can come closer.

The mean and the slope are pooled over many elements, since a bias far below the limit of any single one still shows
there. A mean is refused beyond max(limit, 5 standard errors), a slope beyond max(limit, 6). For the slope of e on
reference / scale the limit is 2 + E / 20 with E the limit on e, unless the tolerance gives another: for E = 4 + 3
sqrt(K) that is 2 + 0.15 sqrt(K), within 0.41 of which ten honest kernels stayed. Operators whose elements share an
error (all elements of a softmax row are divided by one sum) give their own, since the standard error takes elements to
be independent.

The slope's standard error allows for errors that are larger where the result is (White's estimator, with the effective
number of elements in place of their count): partial sums that end high were high on the way, and each rounding is of
the partial sum. Over 3000 products of 8 x 8 x 256 by a serial loop the slope over the textbook's standard error had a
deviation of 1.54 and passed 5 in 0.03 %; over White's 1.06, and never. A run checks thousands of batches, hence 6, and
where few elements fix the slope, as many as leave the same chance by Student's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator
from kernelcrew.record import Record

U = 2.0**-24
SMALLEST = 2.0**-149
FLOAT32_MAX = float(np.finfo(np.float32).max)
STANDARD_ERRORS = 5.0
SLOPE_ERRORS = 6.0
MIN_POOLED = 32
"""Fewest elements that a pooled statistic is judged on."""
MIN_EFFECTIVE = 4.0
"""Fewest elements of equal weight that a slope is judged on."""
Doubles = NDArray[np.float64]


class Limits(Record):
    """Limits for one distribution and shape, in units of u times the condition scale."""

    error: float
    """Of any single element."""
    bias: float
    """Of the pooled signed mean."""
    deviation: float
    """Of the standard deviation."""
    own_slope: float | None = None
    """Of the slope on reference / scale, where the tolerance gives one."""

    @property
    def slope(self) -> float:
        return 2.0 + self.error / 20.0 if self.own_slope is None else self.own_slope


class Compared(Record):
    """One output tensor against its reference."""

    reason: str = ""
    """'' when it is right; else element, what was there, what belongs there, limit."""
    worst: float = 0.0
    """Largest scaled error."""
    mean: float = 0.0
    """Signed mean of scaled errors."""
    deviation: float = 0.0
    """Their standard deviation."""
    count: int = 0
    """Elements that have a scaled error: finite ones with a positive scale."""
    trivial: bool = True
    """Whether an output of zeros would have passed."""


def limits_for(operator: Operator, distribution: str, axes: Mapping[str, int]) -> Limits:
    """The operator's limits: the tolerance of that distribution, else the one of `*`, else the last."""
    found = next((t for t in operator.tolerances if t.distribution == distribution), None)
    chosen = found or next((t for t in operator.tolerances if t.distribution == "*"), operator.tolerances[-1])
    error, bias, deviation = (float(parse(text).value(axes)) for text in (chosen.error, chosen.bias, chosen.deviation))
    own = float(parse(chosen.slope).value(axes)) if chosen.slope else None
    return Limits(error=error, bias=bias, deviation=deviation, own_slope=own)


def compare(got: NDArray[Any], value: Doubles, scale: Doubles, limits: Limits, pool: Pooled | None = None) -> Compared:
    """Hold `got` against `value` and its condition `scale` (all of one shape). NaN passes only where NaN belongs.

    Elements that pass are added to `pool`.
    """
    y = got.reshape(-1).astype(np.float64)
    ref, size = value.reshape(-1), scale.reshape(-1)
    if y.size == 0:
        return Compared()
    odd = _first_odd(y, ref)
    if odd is not None:
        what = f"{_at(got, odd)}: got {y[odd]:.9g}, expected {ref[odd]:.9g}"
        return Compared(reason=f"{what} (a value of another class)", trivial=False)
    regular = np.isfinite(ref) & np.isfinite(size)
    exact = regular & (size == 0.0)
    if exact.any() and (wrong := np.flatnonzero(exact & (y != ref))).size:
        at = int(wrong[0])
        return Compared(reason=f"{_at(got, at)}: got {y[at]:.9g}, expected exactly {ref[at]:.9g}", trivial=False)
    use = regular & (size > 0.0) & np.isfinite(y)
    if not use.any():
        return Compared(trivial=bool(np.all(ref == 0.0)))
    y, ref, size = (y, ref, size) if use.all() else (y[use], ref[use], size[use])
    unit = np.maximum(U * size, SMALLEST)
    errors = (y - ref) / unit
    at = int(np.argmax(np.abs(errors)))
    worst = float(abs(errors[at]))
    figures = Compared(
        worst=worst, mean=float(errors.mean()), deviation=float(errors.std()), count=errors.size,
        trivial=bool(use.all()) and bool((np.abs(ref) <= limits.error * unit).all()),
    )
    if not worst <= limits.error:
        where = _at(got, int(np.flatnonzero(use)[at]))
        what = f"got {y[at]:.9g}, expected {ref[at]:.9g}"
        text = f"{where}: {what}; error {worst:.4g} u of the scale, limit {limits.error:.4g}"
        return figures.model_copy(update={"reason": text})
    if errors.size >= MIN_POOLED and not figures.deviation <= limits.deviation:
        text = f"errors spread over {figures.deviation:.4g} u of the scale, limit {limits.deviation:.4g}"
        return figures.model_copy(update={"reason": text})
    if pool is not None:
        pool.add(errors, ref * (U / unit), limits)
    return figures


class Pooled:
    """Sums over the elements of many cases, from which mean and slope follow. One pool a distribution.

    Limits grow with the shape, so each element's error and abscissa are divided by their limit before they are pooled.
    """

    def __init__(self) -> None:
        self.count = 0
        self._plain = 0.0
        self._mean = _Moments()
        self._slopes: dict[float, _Line] = {}

    def add(self, errors: Doubles, shares: Doubles, limits: Limits) -> None:
        """Add scaled `errors` and the `shares` reference / scale that belong to them."""
        self.count += errors.size
        self._plain += float(errors.sum())
        self._mean.add(errors / max(limits.bias, 1e-300))
        self._slopes.setdefault(limits.slope, _Line()).add(shares, errors)

    @property
    def bias(self) -> float:
        """Pooled signed mean of scaled errors, in u of the scale."""
        return self._plain / self.count if self.count else 0.0

    @property
    def slope(self) -> float:
        """The slope of largest share of its limit, in u; 0 when none can be judged."""
        judged = [(abs(line.slope) / limit, line.slope) for limit, line in self._slopes.items() if line.judged]
        return max(judged)[1] if judged else 0.0

    def reason(self) -> str:
        """'' when mean and slopes keep their limits, else what does not, with its figure."""
        if self._mean.count >= MIN_POOLED:
            allowed = max(1.0, STANDARD_ERRORS * self._mean.error)
            if not abs(self._mean.mean) <= allowed:
                return (
                    f"signed mean error {self.bias:+.4g} u of the scale over {self.count} elements is "
                    f"{abs(self._mean.mean):.3g} of its limit"
                )
        for limit, line in self._slopes.items():
            allowed = max(limit, line.allowance)
            if line.judged and not abs(line.slope) <= allowed:
                figure = f"slope {line.slope:+.4g} u over {line.count} elements, limit {allowed:.4g}"
                return f"errors follow the result: {figure}"
        return ""


class _Moments:
    """Mean and standard error, without keeping the values."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, values: Doubles) -> None:
        self.count += values.size
        self._sum += float(values.sum())
        self._squares += _dot(values, values)

    @property
    def mean(self) -> float:
        return self._sum / self.count

    @property
    def error(self) -> float:
        variance = max(0.0, self._squares / self.count - self.mean**2)
        return math.sqrt(variance / self.count)


class _Line:
    """Least squares through the origin, so that data of one sign (share 1 everywhere) shows a bias as well."""

    def __init__(self) -> None:
        self.count = 0
        self._xx = self._xy = 0.0
        self._x4 = self._x3y = self._x2y2 = 0.0

    def add(self, x: Doubles, y: Doubles) -> None:
        self.count += x.size
        squares, products = x * x, x * y
        self._xx += float(squares.sum())
        self._xy += float(products.sum())
        self._x4 += _dot(squares, squares)
        self._x3y += _dot(squares, products)
        self._x2y2 += _dot(products, products)

    @property
    def effective(self) -> float:
        """How many elements of equal weight would fix the slope as well."""
        return self._xx**2 / self._x4 if self._x4 > 0.0 else 0.0

    @property
    def judged(self) -> bool:
        return self.count >= MIN_POOLED and self.effective >= MIN_EFFECTIVE

    @property
    def slope(self) -> float:
        return self._xy / self._xx if self._xx > 0.0 else 0.0

    @property
    def error(self) -> float:
        if not self.judged:
            return math.inf
        spread = self._x2y2 - 2.0 * self.slope * self._x3y + self.slope**2 * self._x4
        few = self.effective / (self.effective - 1.0)
        return math.sqrt(max(0.0, spread)) * few / self._xx

    @property
    def allowance(self) -> float:
        """A slope that chance alone exceeds as rarely as a normal deviate exceeds SLOPE_ERRORS; infinite where it
        cannot be judged."""
        return student(SLOPE_ERRORS, self.effective - 1.0) * self.error if self.judged else math.inf


def student(deviate: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees exceeds as rarely as a normal variable exceeds `deviate`.

    Wallace's approximation of 1959, inverted. At 6 deviates it is above the true value by 18 % with 5 degrees, 3 %
    with 10 and less than 1 % from 20 on.
    """
    z = deviate * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


def _dot(a: Doubles, b: Doubles) -> float:
    """Without the threads that a BLAS would start for it on cores where something else may be timed."""
    return float(np.einsum("i,i", a, b))


def _first_odd(y: Doubles, ref: Doubles) -> int | None:
    """First element that is NaN, +Inf, -Inf or finite where the reference is of another of these classes.

    A finite reference beyond the range of float32 may be met by the infinity of its sign.
    """
    if np.isfinite(y).all() and np.isfinite(ref).all() and bool((np.abs(ref) <= FLOAT32_MAX).all()):
        return None
    beyond = np.abs(ref) > FLOAT32_MAX
    wrong = np.isnan(y) != np.isnan(ref)
    wrong |= np.isinf(ref) & (y != ref) & ~np.isnan(ref)
    wrong |= np.isinf(y) & np.isfinite(ref) & ~(beyond & (np.sign(y) == np.sign(ref)))
    places = np.flatnonzero(wrong)
    return int(places[0]) if places.size else None


def _at(array: NDArray[Any], flat: int) -> str:
    index = np.unravel_index(flat, array.shape) if array.ndim else ()
    return f"element [{', '.join(str(int(i)) for i in index)}]"
