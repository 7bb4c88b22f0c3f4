"""The boundary of an adoption: what was shown, what was not, where it loses."""

from __future__ import annotations

from kernelcrew.kernels.load import load_operator
from kernelcrew.runs.domain import domain_of
from kernelcrew.tools.nouns import ShapeTiming, Timing

OPERATOR = load_operator("reduction")


def timing(**ratios: float) -> Timing:
    first, second = OPERATOR.timed()[0], OPERATOR.timed()[3]
    shapes = tuple(
        ShapeTiming(
            shape=s.key, shape_class=s.shape_class, ratio=r, low=r - 0.01, high=r + 0.01, answer="not slower",
            answer_start="not slower", candidate_us=1.0, baseline_us=r,
        )
        for s, r in ((first, ratios["a"]), (second, ratios["b"]))
    )
    return Timing(
        grade="confirmed", status="decided", baseline="b", candidate="c", margin=0.02, aa_sd=0.01, classes=(), blocks=8,
        shapes=shapes,
    )  # fmt: skip


def test_names_the_ranges_and_what_lies_beyond() -> None:
    found = domain_of(OPERATOR, timing(a=1.5, b=1.2))
    assert "timed at 2 shapes (rows 1024 to 131072, n 5 to 1024)" in found.tested
    assert "rows above 131072, n above 1024" in found.untested
    assert found.loses == ""


def test_names_where_it_loses() -> None:
    found = domain_of(OPERATOR, timing(a=1.5, b=0.99))
    assert found.loses == "rows=131072,n=5 0.990x [0.980, 1.000]"
