"""Which cases a verification runs: shapes, distributions, secret seeds, and how many of each a shape's size affords."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np

from kernelcrew.kernels.nouns import Distribution, Operator, Shape
from kernelcrew.record import Record
from kernelcrew.tools.verify_sweep import elements, sweep

__all__ = ["Group", "VerifyOptions", "elements", "groups", "new_seed"]

SMALL = 1 << 16
"""Up to so many input elements a shape is checked under every distribution, with two inputs each."""
MEDIUM = 1 << 20
"""Up to here under three distributions, above under two: the timed one, and others in turn."""


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
    swept: bool = False
    """Whether it is one of the many secret shapes: recorded only when something is wrong."""


def groups(operator: Operator, options: VerifyOptions) -> list[Group]:
    """All cases, the smallest shapes first. Secret choices come from the system's randomness."""
    random = np.random.default_rng(secrets.randbits(128))
    shapes: dict[str, Shape] = {}
    for shape in (*operator.shapes, *options.extra_shapes):
        shapes.setdefault(shape.key, shape)
    first = operator.distribution(operator.timing_distribution)
    exact = [d for d in operator.distributions if d.kind == "signs" and d.name != first.name]
    others = [d for d in operator.distributions if d.name != first.name and d not in exact]
    turn = [others[i] for i in random.permutation(len(others))]
    spikes = _spikes(operator, random)
    found = []
    for shape in shapes.values():
        size = elements(operator, shape.axes)
        if size <= SMALL:
            chosen = list(operator.distributions)
        else:
            some = 2 if size <= MEDIUM else 1
            chosen = [first, *turn[:some]]
            turn = turn[some:] + turn[:some]
            chosen += exact
            chosen += [operator.distribution(n) for n in options.everywhere if n not in {d.name for d in chosen}]
        # Exact sums see on the largest shapes whatever a spike would.
        if size <= MEDIUM or not exact:
            chosen.append(next(spikes))
        inputs = (2 if size <= SMALL else 1) * max(1, options.seeds)
        found.append(Group(shape=shape, distributions=tuple(chosen), inputs=inputs, twice=size <= SMALL))
    found += _swept(operator, random, [first, *exact[:1]])
    return sorted(found, key=lambda g: elements(operator, g.shape.axes))


def _swept(operator: Operator, random: np.random.Generator, turn: list[Distribution]) -> Iterator[Group]:
    """The secret shapes, under the timed distribution and an exact one in turn."""
    for number, shape in enumerate(sweep(operator, random)):
        yield Group(shape=shape, distributions=(turn[number % len(turn)],), inputs=1, twice=False, swept=True)


def _spikes(operator: Operator, random: np.random.Generator) -> Iterator[Distribution]:
    """Spikes in one input tensor after the other, the rest as timed. They need no line in the manifest."""
    named = [t.name for t in operator.tensors if t.role != "out" and not t.dtype.startswith("int")]
    made = [Distribution(name=f"spike in {name}", kind="spike", tensors=(name,)) for name in named]
    timed = operator.distribution(operator.timing_distribution)
    while True:
        yield from (made[i] for i in random.permutation(len(made))) if made else (timed,)


def new_seed() -> int:
    """A seed that nobody can foresee; recorded with its case, so that the case can be drawn again."""
    return secrets.randbits(63)
