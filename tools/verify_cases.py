"""Which cases a verification runs: shapes, distributions, secret seeds, and how many of each a shape's size affords."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence

import numpy as np

from kernelcrew.errors import UserMistake
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Distribution, Operator, Shape
from kernelcrew.record import Record

SMALL = 1 << 16
"""Up to so many input elements a shape is checked under every distribution, with two inputs each."""
MEDIUM = 1 << 20
"""Up to here under three distributions, above under two: the timed one, and others in turn."""
SECRET_SHAPES = 3


class VerifyOptions(Record):
    """More evidence than the standard cases; nothing can be taken away."""

    extra_shapes: tuple[Shape, ...] = ()
    """Checked for correctness as well."""
    seeds: int = 1
    """Factor on the number of inputs drawn for each shape and distribution."""
    everywhere: tuple[str, ...] = ()
    """Names of distributions to be run on every shape, the largest too."""


class Group(Record):
    """One shape with the distributions it is checked under."""

    shape: Shape
    """The shape."""
    distributions: tuple[Distribution, ...]
    """In order."""
    inputs: int
    """Inputs drawn for each distribution, each with a seed of its own."""
    twice: bool
    """Whether every distribution runs on a second poison too; otherwise the first one does."""


def groups(operator: Operator, options: VerifyOptions) -> list[Group]:
    """All cases, the smallest shapes first. Secret choices come from the system's randomness."""
    random = np.random.default_rng(secrets.randbits(128))
    shapes: dict[str, Shape] = {}
    for shape in (*operator.shapes, *options.extra_shapes, *_secret_shapes(operator, random)):
        shapes.setdefault(shape.key, shape)
    ordered = sorted(shapes.values(), key=lambda s: elements(operator, s.axes))
    first = operator.distribution(operator.timing_distribution)
    others = [d for d in operator.distributions if d.name != first.name]
    turn = [others[i] for i in random.permutation(len(others))]
    found = []
    for shape in ordered:
        size = elements(operator, shape.axes)
        if size <= SMALL:
            chosen = list(operator.distributions)
        else:
            some = 2 if size <= MEDIUM else 1
            chosen = [first, *turn[:some]]
            turn = turn[some:] + turn[:some]
            chosen += [operator.distribution(n) for n in options.everywhere if n not in {d.name for d in chosen}]
        inputs = (2 if size <= SMALL else 1) * max(1, options.seeds)
        found.append(Group(shape=shape, distributions=tuple(chosen), inputs=inputs, twice=size <= SMALL))
    return found


def elements(operator: Operator, axes: Mapping[str, int]) -> int:
    """Elements of all tensors of one call."""
    return sum(math.prod(int(parse(text).value(axes)) for text in t.dims) for t in operator.tensors)


def new_seed() -> int:
    """A seed that nobody can foresee; recorded with its case, so that the case can be drawn again."""
    return secrets.randbits(63)


def _secret_shapes(operator: Operator, random: np.random.Generator) -> Sequence[Shape]:
    """Small shapes that no manifest lists: what works for the listed ones alone shows."""
    most = SMALL ** (1.0 / len(operator.axes))
    found = []
    for _ in range(SECRET_SHAPES):
        axes = {}
        for axis in operator.axes:
            low = max(axis.minimum, 1)
            axes[axis.name] = int(low * math.exp(random.random() * math.log(max(most / low, 1.0))))
        try:
            if 0 < elements(operator, axes) <= 4 * SMALL:
                found.append(Shape(axes=axes, shape_class="tail", role="edge"))
        except UserMistake:
            continue
    return found
