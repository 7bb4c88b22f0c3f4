"""Every row of the decision table, each with the neighbour that must not match it."""

from __future__ import annotations

import pytest

from kernelcrew.runs.decision import Evidence, decide, gains
from kernelcrew.runs.nouns import Gate
from kernelcrew.tools.nouns import Answer, ClassTiming, ShapeTiming, Timing


def klass(name: str, ratio: float, answer: Answer) -> ClassTiming:
    return ClassTiming(shape_class=name, answer=answer, ratio=ratio, low=ratio * 0.99, high=ratio * 1.01)  # type: ignore[arg-type]


def shape(key: str, ratio: float, answer: Answer, start: Answer = "not slower") -> ShapeTiming:
    return ShapeTiming(
        shape=key,
        shape_class="main",
        ratio=ratio,
        low=ratio * 0.99,
        high=ratio * 1.01,
        candidate_us=1.0,
        baseline_us=ratio,
        answer=answer,
        answer_start=start,
    )


def timing(classes: list[ClassTiming], shapes: list[ShapeTiming], **more: object) -> Timing:
    base = {
        "grade": "confirmed",
        "status": "decided",
        "baseline": "b",
        "candidate": "c",
        "margin": 0.01,
        "aa_sd": 0.001,
        "classes": tuple(classes),
        "shapes": tuple(shapes),
        "blocks": 12,
    }
    return Timing.model_validate({**base, **more})


HELD = (Gate(name="policy", passed=True, figure="held"),)
GOOD = timing(
    [klass("main", 1.5, "faster"), klass("short", 1.0, "not slower")],
    [shape("a", 1.5, "not slower"), shape("b", 1.0, "not slower")],
)
MIXED = timing(
    [klass("main", 1.5, "faster"), klass("short", 0.8, "slower")],
    [shape("a", 1.5, "not slower"), shape("b", 0.8, "slower")],
)


@pytest.mark.parametrize(
    "gate", ["policy", "build", "safety", "correctness", "bias", "warnings", "rationale", "review"]
)
def test_a_failed_gate_is_never_promoted_however_fast(gate: str) -> None:
    evidence = Evidence(gates=(*HELD, Gate(name=gate, passed=False, figure="7 of 3")), confirmed=GOOD, changes=("x",))
    found = decide(evidence)
    assert (found.action, found.gate) == ("rollback", gate)
    assert "7 of 3" in found.reason


def test_faster_somewhere_and_nowhere_slower_is_adopted() -> None:
    assert decide(Evidence(gates=HELD, confirmed=GOOD, changes=("x",))).action == "adopt"


def test_a_shape_not_shown_not_slower_forbids_adoption() -> None:
    unknown = timing(
        list(GOOD.classes), [shape("a", 1.5, "not slower"), shape("b", 1.0, "unknown")], status="undecided"
    )
    assert decide(Evidence(gates=HELD, confirmed=unknown)).action == "inconclusive"


def test_tolerated_losses_cannot_add_up_against_the_start() -> None:
    worn = timing(list(GOOD.classes), [shape("a", 1.5, "not slower"), shape("b", 1.0, "not slower", "slower")])
    assert decide(Evidence(gates=HELD, confirmed=worn)).action == "rollback"


def test_a_wrong_timed_output_is_a_rollback_even_when_faster() -> None:
    wrong = GOOD.model_copy(update={"status": "invalid", "reason": "slot 3 of rows=8,n=8"})
    found = decide(Evidence(gates=HELD, confirmed=wrong))
    assert (found.action, found.gate) == ("rollback", "correctness")


def test_a_noisy_host_is_inconclusive_not_refuted() -> None:
    assert decide(Evidence(gates=HELD, confirmed=GOOD.model_copy(update={"status": "noisy"}))).action == "inconclusive"


def test_a_hurting_change_is_split_off_once() -> None:
    first = decide(Evidence(gates=HELD, confirmed=MIXED, changes=("x", "y"), hurting=("y",)))
    assert (first.action, first.drop, first.keep) == ("split", ("y",), ("x",))
    assert (
        decide(Evidence(gates=HELD, confirmed=MIXED, changes=("x",), hurting=("y",), split_before=True)).action
        == "rollback"
    )


def test_a_separating_rule_adopts_for_some_shapes_once() -> None:
    first = decide(Evidence(gates=HELD, confirmed=MIXED, rule="n > 64"))
    assert (first.action, first.rule) == ("adopt_when", "n > 64")
    assert decide(Evidence(gates=HELD, confirmed=MIXED, rule="n > 64", rule_before=True)).action == "rollback"


def test_a_knob_on_the_edge_moves_its_window_once() -> None:
    assert decide(Evidence(gates=HELD, confirmed=MIXED, edge_knobs=("ACC",))).action == "adjust"
    assert decide(Evidence(gates=HELD, confirmed=MIXED, edge_knobs=("ACC",), adjusted_before=True)).action == "rollback"


def test_ties_go_to_the_incumbent() -> None:
    tie = timing([klass("main", 1.0, "not slower")], [shape("a", 1.0, "not slower")])
    assert decide(Evidence(gates=HELD, confirmed=tie)).action == "rollback"


def test_a_screen_alone_never_adopts() -> None:
    screen = GOOD.model_copy(update={"grade": "screen"})
    assert decide(Evidence(gates=HELD, screen=screen)).action == "inconclusive"
    flat = timing([klass("main", 1.0, "unknown")], [shape("a", 1.0, "unknown")], grade="screen")
    assert decide(Evidence(gates=HELD, screen=flat)).action == "rollback"
    assert gains(screen) and not gains(flat)


def test_without_any_timing_nothing_is_refuted() -> None:
    assert decide(Evidence(gates=HELD)).action == "inconclusive"
