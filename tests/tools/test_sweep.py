"""The secret shapes of a verification: every remainder of every axis, whatever the operator."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import Distribution
from kernelcrew.tools.data import draw
from kernelcrew.tools.verify_cases import MEDIUM, VerifyOptions, groups
from kernelcrew.tools.verify_sweep import FEW, MANY, SMALL_VALUES, elements, sweep

OPERATORS = ("reduction", "reduction_batch", "gemm", "attention")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_value_and_every_remainder_of_each_axis_comes(name: str) -> None:
    operator = load_operator(name)
    shapes = sweep(operator, np.random.default_rng(7))
    for axis in operator.axes:
        values = {s.axes[axis.name] for s in shapes}
        if axis.maximum is not None:
            assert values <= set(range(axis.minimum, axis.maximum + 1))
            continue
        assert values >= set(range(1, SMALL_VALUES + 1)), axis.name
        unit = 64 if sum(a.maximum is None for a in operator.axes) <= 3 else 32
        assert {v % unit for v in values if v >= 1024} == set(range(unit)), axis.name
        assert {v % (unit // 2) for v in values if SMALL_VALUES < v < 1100} == set(range(unit // 2)), axis.name
        assert max(values) > 2000


@pytest.mark.parametrize("name", OPERATORS)
def test_its_cost_is_bounded(name: str) -> None:
    operator = load_operator(name)
    shapes = sweep(operator, np.random.default_rng(8))
    sizes = sorted(elements(operator, s.axes) for s in shapes)
    flops = [float(parse(operator.cost.flops).value(s.axes)) for s in shapes]
    assert sizes[-1] <= MANY[0] and sum(size > FEW[0] for size in sizes) <= 20
    assert sum(flops) < 1e9 and len(shapes) < 900


def test_two_verifications_do_not_see_the_same_shapes() -> None:
    operator = load_operator("reduction")
    first, second = ({g.shape.key for g in groups(operator, VerifyOptions()) if g.swept} for _ in range(2))
    assert len(first & second) < len(first) / 2


@pytest.mark.parametrize("name", OPERATORS)
def test_every_shape_of_the_manifest_sees_exact_sums_or_spikes(name: str) -> None:
    operator = load_operator(name)
    exact = any(d.kind == "signs" for d in operator.distributions)
    for group in groups(operator, VerifyOptions()):
        kinds = {d.kind for d in group.distributions}
        if not group.swept:
            assert {"normal", "signs" if exact else "spike"} <= kinds
            assert "spike" in kinds or elements(operator, group.shape.axes) > MEDIUM


@pytest.mark.parametrize("shape", [(1, 5), (1, 1 << 20), (200, 96), (9, 1)])
def test_spikes_stand_at_ends_and_edges_and_nothing_else_does(shape: tuple[int, int]) -> None:
    made = [draw(Distribution(name="s", kind="spike"), np.random.default_rng(seed), shape) for seed in range(8)]
    for x in made:
        held = (x != 0).sum(axis=1)
        assert held.min() >= 1 and held.max() <= 7
        assert np.abs(x[x != 0]).min() >= 1
    assert any((x[:, -1] != 0).any() for x in made) and any((x[:, 0] != 0).any() for x in made)


def test_signs_are_signs() -> None:
    x = draw(Distribution(name="s", kind="signs"), np.random.default_rng(1), (64, 1001))
    assert set(np.unique(x)) == {-1.0, 1.0} and abs(x.mean()) < 0.05
