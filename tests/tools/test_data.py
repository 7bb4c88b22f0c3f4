"""Input distributions and the refresh of timing rings."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcrew.errors import HarnessError, UnknownName
from kernelcrew.kernels.nouns import Distribution
from kernelcrew.tools.data import KINDS, SMALLEST_NORMAL, Pool, draw, fill, fill_large


def kind(name: str, low: float | None = None, high: float | None = None) -> Distribution:
    return Distribution(name=name, kind=name, low=low, high=high)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (7,), (64, 33)])
def test_fills_any_shape_from_its_seed(name: str, shape: tuple[int, ...]) -> None:
    one, two, other = (draw(kind(name), rng(seed), shape) for seed in (1, 1, 2))
    assert one.shape == shape and one.tobytes() == two.tobytes()
    assert name == "zeros" or one.size < 8 or one.tobytes() != other.tobytes()


def test_kinds_are_what_they_are_called() -> None:
    shape = (64, 512)
    x = {name: draw(kind(name), rng(), shape).astype(np.float64) for name in KINDS}
    assert abs(x["normal"].mean()) < 0.05 and 0.9 < x["normal"].std() < 1.1
    assert x["uniform"].min() >= 0 and x["uniform"].max() < 1
    assert np.abs(x["wide"]).min() < 1e-5 and np.abs(x["wide"]).max() > 1e5 and (x["wide"] < 0).any()
    assert 0 < np.abs(x["tiny"]).max() < 1e-13
    assert 1e11 < np.abs(x["huge"]).max() < 1e14
    assert 0 < np.abs(x["denormal"]).max() < SMALLEST_NORMAL
    assert not x["zeros"].any()
    assert np.isnan(x["special"]).any() and np.isinf(x["special"]).any()
    assert np.isfinite(x["special"]).all(axis=1).any()


def test_cancelling_rows_leave_a_residue_that_zeros_would_miss() -> None:
    x = draw(kind("cancelling"), rng(), (32, 1000)).astype(np.float64)
    share = np.abs(x.sum(axis=1)) / np.abs(x).sum(axis=1)
    assert (share < 0.02).all() and (share > 0.002).all()


def test_huge_sums_stay_finite() -> None:
    x = draw(kind("huge"), rng(), (1, 1 << 18))
    assert np.isfinite(np.abs(x).sum(dtype=np.float32))


def test_bounds_are_kept() -> None:
    x = draw(kind("uniform", -2.0, 3.0), rng(), (1000,))
    assert -2 <= x.min() < -1.5 and 2.5 < x.max() <= 3


def test_integers_and_views() -> None:
    wide = np.zeros((4, 10), dtype=np.float32)
    fill(kind("normal"), rng(), wide[:, ::2])
    assert wide[:, ::2].all() and not wide[:, 1::2].any()
    whole = np.zeros(100, dtype=np.int32)
    fill(kind("uniform", 5, 9), rng(), whole)
    assert whole.min() >= 5 and whole.max() < 9


def test_trivial_draws_and_unknown_kinds_are_refused() -> None:
    with pytest.raises(HarnessError, match="only zeros"):
        draw(kind("uniform", 0.0, 0.0), rng(), (64,))
    with pytest.raises(UnknownName, match="normal"):
        draw(kind("poisson"), rng(), (64,))


def test_large_arrays_are_as_random_as_drawn_ones() -> None:
    x = np.empty((1, 1 << 21), dtype=np.float32)
    fill_large(kind("normal"), rng(), x)
    again = np.empty_like(x)
    fill_large(kind("normal"), rng(), again)
    assert np.array_equal(x, again)
    assert 0.98 < x.std() < 1.02 and abs(x.sum(dtype=np.float64)) < 6 * np.sqrt(x.size)


def test_a_refresh_changes_contents_inside_and_keeps_the_kind() -> None:
    pool = Pool(kind("uniform"), rng(), 1009)
    ring = np.zeros((3, 400), dtype=np.float32)
    seen = set()
    for _ in range(8):
        pool.refresh([ring[0], ring[1], ring[2]], rng(len(seen) + 7))
        assert ring.min() >= 0 and ring.max() < 1 and ring.std() > 0.2
        seen |= {row.tobytes() for row in ring}
    assert len(seen) == 24


def test_a_refresh_reaches_every_element_and_takes_empty_arrays() -> None:
    pool = Pool(kind("normal"), rng(), 101)
    array = np.full(1000, np.nan, dtype=np.float32)
    pool.refresh([array, np.zeros(0, dtype=np.float32)], rng())
    assert np.isfinite(array).all()


def test_structured_kinds_cannot_be_rotated() -> None:
    with pytest.raises(HarnessError, match="cancelling"):
        Pool(kind("cancelling"), rng())
