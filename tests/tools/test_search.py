"""The search of the autotuner: stays in its space, repeats nothing, stops, and finds what is there to be found."""

from __future__ import annotations

from itertools import count

import pytest

from kernelcrew.kernels.nouns import Knob
from kernelcrew.tools.search import Search, Space, Values

SPACE = Space(
    knobs=(
        Knob(name="MR", window=(2, 4, 6, 8), value=4),
        Knob(name="NR", window=(1, 2, 3, 4), value=2),
        Knob(name="KC", window=(64, 128, 256, 512), value=256),
    ),
    constraints=("MR * NR <= 16",),
)


def peak_at(values: Values) -> float:
    """One hill: best at MR=6, NR=2, KC=128."""
    return 2.0 - 0.05 * abs(values["MR"] - 6) - 0.1 * abs(values["NR"] - 2) - 0.001 * abs(values["KC"] - 128) / 16


def run(search: Search, margin: float = 0.0) -> list[Values]:
    seen: list[Values] = []
    for _ in count():
        batch = search.ask(4)
        if not batch:
            return seen
        seen += batch
        search.tell([(v, peak_at(v)) for v in batch], margin)
    raise AssertionError


def test_begins_with_the_proposal_and_its_neighbours() -> None:
    search = Search(SPACE, 0, 64)
    assert search.ask(7) == [
        {"MR": 4, "NR": 2, "KC": 256},
        {"MR": 6, "NR": 2, "KC": 256},
        {"MR": 2, "NR": 2, "KC": 256},
        {"MR": 4, "NR": 3, "KC": 256},
        {"MR": 4, "NR": 1, "KC": 256},
        {"MR": 4, "NR": 2, "KC": 512},
        {"MR": 4, "NR": 2, "KC": 128},
    ]


@pytest.mark.parametrize("seed", range(5))
def test_repeats_nothing_keeps_constraints_and_finds_the_top(seed: int) -> None:
    search = Search(SPACE, seed, 40)
    seen = run(search)
    keys = [tuple(v.values()) for v in seen]
    assert len(set(keys)) == len(keys) <= 40
    assert all(v["MR"] * v["NR"] <= 16 for v in seen)
    assert search.best is not None and search.best[1] > 1.9


def test_exhausts_a_small_space() -> None:
    space = Space(knobs=(Knob(name="A", window=(1, 2, 3), value=2),))
    search = Search(space, 0, 64)
    asked = search.ask(10)
    assert sorted(v["A"] for v in asked) == [1, 2, 3]
    search.tell([(v, 1.0 * v["A"]) for v in asked], 0.0)
    assert search.ending == "exhausted" and search.ask(3) == []
    assert search.best == ({"A": 3}, 3.0)


def test_a_plateau_ends_it_and_a_gain_does_not() -> None:
    flat, rising = Search(SPACE, 0, 64), Search(SPACE, 0, 64)
    for number in range(3):
        flat.tell([(v, 1.0) for v in flat.ask(4)], 0.01)
        rising.tell([(v, 1.0 + number) for v in rising.ask(4)], 0.01)
    assert flat.ending == "plateau" and rising.ending == ""


def test_the_allowance_ends_it() -> None:
    search = Search(SPACE, 0, 6)
    assert len(run(search)) == 6 and search.ending in ("allowance", "plateau")


def test_what_failed_is_not_asked_again_and_never_best() -> None:
    space = Space(knobs=(Knob(name="A", window=(1, 2), value=1),))
    search = Search(space, 0, 8)
    search.tell([(v, None) for v in search.ask(1)], 0.0)
    assert search.best is None
    search.tell([(v, 1.0) for v in search.ask(8)], 0.0)
    assert search.ending == "exhausted" and search.best == ({"A": 2}, 1.0)


def test_the_same_seed_asks_the_same() -> None:
    assert run(Search(SPACE, 3, 24)) == run(Search(SPACE, 3, 24))


def test_a_constraint_over_other_knobs_is_not_broken() -> None:
    assert Space(knobs=SPACE.knobs, constraints=("MR * VEC <= 64",)).allows({"MR": 8, "NR": 4, "KC": 64})
