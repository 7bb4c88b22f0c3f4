"""A profile with its figures in the wrong places: the control that shows whether reading the profile is worth anything.

Only `kernelcrew bench --search` asks for it, and the run's first step records it. Reader and proposer see the shuffled
profile; whatever verifies, measures, reviews and decides sees the true one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from kernelcrew.tools.nouns import Profile

T = TypeVar("T")
PLACE = ("shape", "shape_class")
"""What stays with a shape; every figure goes elsewhere."""


def shuffled(profile: Profile, seed: int) -> Profile:
    """The figures permuted among the shapes, the compiler's remarks among the loops, the counts among the lines.

    All figures of one shape stay together, so that each row is one that was measured, at another shape. Of two or more
    different things at least one moves. The same seed gives the same places.
    """
    rng = random.Random(f"shuffled profile {seed}")
    figures = _moved([s.model_dump(exclude=set(PLACE)) for s in profile.shapes], rng)
    remarks = _moved([loop.model_dump(exclude={"line"}) for loop in profile.loops], rng)
    shares = _moved([share for _, share in profile.hot_lines], rng)
    return profile.model_copy(
        update={
            "shapes": tuple(s.model_copy(update=f) for s, f in zip(profile.shapes, figures, strict=True)),
            "loops": tuple(loop.model_copy(update=r) for loop, r in zip(profile.loops, remarks, strict=True)),
            "hot_lines": tuple((line, s) for (line, _), s in zip(profile.hot_lines, shares, strict=True)),
        }
    )


def _moved(things: Sequence[T], rng: random.Random) -> list[T]:
    found = list(things)
    while found == list(things) and any(thing != things[0] for thing in things):
        rng.shuffle(found)
    return found
