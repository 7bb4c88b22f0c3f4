"""What an operator may say of its axes, distributions and slopes, and what is done with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelcrew.errors import BadManifest
from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import Distribution
from kernelcrew.tools.data import draw
from kernelcrew.tools.numerics import limits_for
from kernelcrew.tools.verify_cases import VerifyOptions, groups


def test_secret_shapes_keep_to_the_range_of_a_flag() -> None:
    operator = load_operator("attention")
    listed = {s.key for s in operator.shapes}
    seen = set()
    for _ in range(20):
        secret = [g.shape.axes for g in groups(operator, VerifyOptions()) if g.shape.key not in listed]
        assert secret and all(axes["d"] >= 1 for axes in secret)
        seen |= {axes["causal"] for axes in secret}
    assert seen == {0, 1}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("d = 64, causal = 0", "d = 64, causal = 2", ("causal", "2 is out of range", "from 0 to 1")),
        ('kind = "wide", tensors = ["V"]', 'kind = "wide", tensors = ["W"]', ("no tensor 'W'", "Q, K, V, O")),
        ('"normal", kind = "normal"', '"normal", kind = "normal", tensors = ["Q"]', ("timed distribution",)),
        ('slope = "300 + 0.3 * n"', 'slope = "30 * k"', ("tolerances[1].slope", "'k'")),
    ],
)
def test_a_manifest_that_breaks_them_is_refused(tmp_path: Path, old: str, new: str, told: tuple[str, ...]) -> None:
    shipped = load_operator("attention").folder
    for name in ("operator.toml", "reference.py", "start.c"):
        (tmp_path / name).write_text((shipped / name).read_text())
    assert load_operator(str(tmp_path)).name == "attention"
    text = (tmp_path / "operator.toml").read_text()
    assert old in text
    (tmp_path / "operator.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(BadManifest) as found:
        load_operator(str(tmp_path))
    assert all(word in str(found.value) for word in told), str(found.value)


def test_a_distribution_of_one_tensor_leaves_the_others_to_the_timed_one() -> None:
    operator = load_operator("attention")
    equal = operator.distribution("equal")
    assert operator.drawn(equal, "Q").kind == "zeros" and operator.drawn(equal, "K").kind == "normal"
    assert operator.drawn(operator.distribution("uniform"), "K").kind == "uniform"


def test_the_axis_of_a_distribution() -> None:
    rows, columns = (Distribution(name="c", kind="cancelling", axis=axis) for axis in (-1, 0))
    for distribution, along, across in ((rows, 1, 0), (columns, 0, 1)):
        x = draw(distribution, np.random.default_rng(1), (600, 400)).astype(np.float64)
        share = np.abs(x.sum(axis=along)) / np.abs(x).sum(axis=along)
        assert share.max() < 0.02
        assert (np.abs(x.sum(axis=across)) / np.abs(x).sum(axis=across)).max() > 0.02


def test_a_slope_of_its_own_or_the_one_that_follows_the_error() -> None:
    axes = {"heads": 1, "m": 1, "n": 100, "d": 8, "causal": 0}
    own = limits_for(load_operator("attention"), "normal", axes)
    usual = limits_for(load_operator("gemm"), "normal", {"M": 1, "N": 1, "K": 1000})
    assert own.slope == 24.0 and usual.slope == 2.0 + usual.error / 20
