"""Ablation, pruning, hypotheses and rules: pure functions on small measured tables."""

from __future__ import annotations

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import Change, Expectation, Proposal
from kernelcrew.runs.ablation import ablation_from, hypotheses, prune, row_from
from kernelcrew.runs.judging import moved_window
from kernelcrew.runs.rules import find_rule
from kernelcrew.tools.nouns import ClassTiming, ShapeTiming, Timing


def change(name: str, requires: tuple[str, ...] = (), factor: float = 0.5) -> Change:
    return Change(
        id=name,
        mechanism=name,
        target="loop",
        requires=requires,
        gain=2.0,
        why="because",
        expects=Expectation(figure="time", shape_class="main", factor=factor),
    )


def proposal(*changes: Change) -> Proposal:
    return Proposal(id="r1p1", title="t", direction="d", bottlenecks=("b1",), changes=changes)


def without(ratio: float, spread: float = 0.005) -> Timing:
    one = ClassTiming(shape_class="main", answer="unknown", ratio=ratio, low=ratio - spread, high=ratio + spread)
    return Timing(
        grade="screen",
        status="decided",
        baseline="whole",
        candidate="part",
        margin=0.02,
        aa_sd=0.002,
        classes=(one,),
        shapes=(),
        blocks=3,
    )


def test_leaving_out_a_change_that_pays_shows_its_effect() -> None:
    row = row_from("vector", without(0.25))
    assert row.effect["main"] == 4.0
    assert not ablation_from([row], 0.02).hurts


def test_a_hurting_and_an_idle_change_are_pruned_and_a_needed_one_stays() -> None:
    rows = [
        row_from("vector", without(0.25)),
        row_from("prefetch", without(1.10)),
        row_from("unroll", without(1.0)),
        row_from("base", without(1.0)),
    ]
    ablation = ablation_from(rows, 0.02)
    found = prune(
        ablation,
        proposal(change("vector", requires=("base",)), change("prefetch"), change("unroll"), change("base")),
        0.02,
    )
    assert ablation.hurts == (("prefetch", "main"),)
    assert (found.keep, found.hurting, found.idle) == (("vector", "base"), ("prefetch",), ("unroll",))


def test_something_is_always_kept() -> None:
    rows = [row_from("a", without(1.0)), row_from("b", without(0.999))]
    assert prune(ablation_from(rows, 0.02), proposal(change("a"), change("b")), 0.02).keep == ("b",)


def test_a_hypothesis_is_read_from_the_change_itself_not_from_the_whole() -> None:
    rows = [row_from("vector", without(0.25)), row_from("idle", without(1.0))]
    found = hypotheses(proposal(change("vector"), change("idle")), ablation_from(rows, 0.02), without(4.0), {})
    assert found["vector"].startswith("confirmed")
    assert found["idle"].startswith("refuted")


def shape(key: str, ratio: float, answer: str) -> ShapeTiming:
    return ShapeTiming.model_validate(
        {
            "shape": key,
            "shape_class": "main",
            "ratio": ratio,
            "low": ratio - 0.01,
            "high": ratio + 0.01,
            "candidate_us": 1,
            "baseline_us": 1,
            "answer": answer,
        }
    )


def test_a_rule_separates_winners_from_losers_and_none_is_invented() -> None:
    operator = load_operator("reduction")
    timed = sorted(operator.timed(), key=lambda s: s.axes["n"])
    split = len(timed) // 2
    shapes = [
        shape(s.key, 2.0 if i >= split else 0.8, "not slower" if i >= split else "slower") for i, s in enumerate(timed)
    ]
    timing = without(1.0).model_copy(update={"shapes": tuple(shapes)})
    rule = find_rule(operator, timing)
    served = [bool(parse(rule).value(s.axes)) for s in timed]
    assert not any(served[:split])
    assert sum(served[split:]) >= (len(timed) - split) / 2
    assert (
        find_rule(operator, timing.model_copy(update={"shapes": tuple(s for s in shapes if s.answer != "slower")}))
        == ""
    )


def test_a_moved_window_goes_beyond_the_edge() -> None:
    assert moved_window((1, 2, 4), 4) == (4, 8, 16)
    assert moved_window((4, 8, 16), 4) == (1, 2, 4)
