"""Shapes that cover every remainder: what works for the manifest's shapes alone, or for most remainders, shows.

Three sets, for any operator, from its axes alone:

    small    every value of each axis up to 130, all axes at once in random pairing, so that a remainder of one axis
             meets many sizes of the others
    large    every residue modulo 64 of each axis in turn at log-uniform sizes from 1024 to 4096, and modulo 32 from 131
             to 1024
    mixed    all axes log-uniform up to several thousand

Elements and operations of a call are bounded: axes other than those whose value counts are cut until it fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernelcrew.errors import UserMistake
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Axis, Operator, Shape

SMALL_VALUES = 130
"""Beyond twice the 64 lanes of the widest vector of bytes, four times the 32 of two float vectors."""
RESIDUES = 64
FEW_AXES = 3
"""Operators of more axes get half as many residues."""
LARGE_FROM, LARGE_VALUES = 1024, 4096
MIXED_VALUES = 8192
MIXED_SHAPES = 16
FEW, MANY = (1 << 15, 1 << 21), (1 << 18, 1 << 23)
"""Elements and operations of one call at most."""

Values = dict[str, int]


def sweep(operator: Operator, random: np.random.Generator) -> list[Shape]:
    """Secret shapes, each checked once on one input."""
    found: dict[str, Shape] = {}
    for values in (*_small(operator, random), *_large(operator, random), *_mixed(operator, random)):
        try:
            elements(operator, values)
        except UserMistake:
            continue
        shape = Shape(axes={a.name: values[a.name] for a in operator.axes}, shape_class="tail", role="edge")
        found.setdefault(shape.key, shape)
    return list(found.values())


def elements(operator: Operator, axes: Mapping[str, int]) -> int:
    """Elements of all tensors of one call."""
    return sum(math.prod(int(parse(text).value(axes)) for text in t.dims) for t in operator.tensors)


def _small(operator: Operator, random: np.random.Generator) -> Iterator[Values]:
    """Each value of each axis. Values that had to shrink are given again, two axes at a time, beside small others."""
    free = _free(operator)
    orders = {a.name: random.permutation(np.arange(_low(a), _low(a) + SMALL_VALUES)) for a in free}
    left: dict[str, list[int]] = {a.name: [] for a in free}
    for index in range(SMALL_VALUES):
        wanted = {name: int(order[index]) for name, order in orders.items()}
        values = _fitted(operator, _bounded(operator, random) | wanted, (), random)
        yield values
        for name, value in wanted.items():
            if values[name] != value:
                left[name].append(value)
    while any(left.values()):
        longest = sorted((name for name in left if left[name]), key=lambda name: -len(left[name]))[:2]
        kept = {name: left[name].pop() for name in longest}
        others = {a.name: _log_uniform(random, _low(a), _low(a) + SMALL_VALUES) for a in free}
        values = _fitted(operator, _bounded(operator, random) | others | kept, longest, random)
        if _fits(operator, values, FEW):
            yield values
            continue
        for name, value in kept.items():
            yield _fitted(operator, _bounded(operator, random) | others | {name: value}, (name,), random)


def _large(operator: Operator, random: np.random.Generator) -> Iterator[Values]:
    """The other axes are 2 and more where they may be: a single row or column is often a path of its own."""
    free = _free(operator)
    unit = RESIDUES if len(free) <= FEW_AXES else RESIDUES // 2
    for lead in free:
        for modulus, first, last in ((unit // 2, SMALL_VALUES + 1, LARGE_FROM), (unit, LARGE_FROM, LARGE_VALUES)):
            for residue in range(modulus):
                size = _log_uniform(random, first, last)
                value = max(_low(lead), size + (residue - size) % modulus)
                others = {a.name: _log_uniform(random, max(2, _low(a)), LARGE_VALUES) for a in free}
                wanted = _bounded(operator, random) | others | {lead.name: value}
                yield _fitted(operator, wanted, (lead.name,), random, least=2)


def _mixed(operator: Operator, random: np.random.Generator) -> Iterator[Values]:
    for _ in range(MIXED_SHAPES):
        values = {a.name: _log_uniform(random, _low(a), MIXED_VALUES) for a in _free(operator)}
        yield _fitted(operator, _bounded(operator, random) | values, (), random, MANY)


def _fitted(
    operator: Operator, values: Values, kept: Sequence[str], random: np.random.Generator, most: tuple[int, int] = FEW,
    least: int = 1,
) -> Values:
    """The values with axes that are not `kept` made smaller at random until a call fits, or none is left."""
    found = dict(values)
    low = {a.name: max(least, _low(a)) for a in _free(operator) if a.name not in kept}
    while not _fits(operator, found, most):
        left = [name for name, lowest in low.items() if found[name] > lowest]
        if not left and least > 1:
            return _fitted(operator, found, kept, random, most)
        if not left:
            break
        # The larger an axis, the likelier it shrinks; a random cut keeps its remainder random.
        weights = np.array([math.log(found[name] + 1.0) for name in left])
        name = left[int(random.choice(len(left), p=weights / weights.sum()))]
        found[name] = int(random.integers(low[name], max(low[name] + 1, found[name])))
    return found


def _fits(operator: Operator, values: Values, most: tuple[int, int]) -> bool:
    """Whether a call is small enough; one whose size has no value is left to the caller."""
    try:
        return elements(operator, values) <= most[0] and float(parse(operator.cost.flops).value(values)) <= most[1]
    except UserMistake:
        return True


def _free(operator: Operator) -> list[Axis]:
    return [a for a in operator.axes if a.maximum is None]


def _bounded(operator: Operator, random: np.random.Generator) -> Values:
    return {
        a.name: int(random.integers(a.minimum, a.maximum + 1)) for a in operator.axes if a.maximum is not None
    }


def _low(axis: Axis) -> int:
    return max(axis.minimum, 1)


def _log_uniform(random: np.random.Generator, low: int, high: int) -> int:
    return int(low * math.exp(random.random() * math.log(max(high / low, 1.0))))
