"""The patch writer's and the skeptic's rules."""

from __future__ import annotations

import agent_evidence as kit
import pytest

from kernelcrew.agents.evidence import AblationNote, SkepticEvidence
from kernelcrew.agents.experts.proposer import propose
from kernelcrew.agents.experts.skeptic import review
from kernelcrew.agents.experts.writer import write_patch
from kernelcrew.agents.nouns import Review
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.tools.nouns import Timing

PROPOSAL = kit.proposal_of(propose(kit.proposer_evidence(), 0).proposals[0])
CANDIDATE = kit.composed(PROPOSAL, write_patch(kit.writer_evidence(PROPOSAL)))


def ids(*problems: str) -> list[str]:
    return [e.change for e in write_patch(kit.writer_evidence(PROPOSAL, problems)).edits]


def test_each_change_becomes_one_edit_that_applies() -> None:
    answer = write_patch(kit.writer_evidence(PROPOSAL))
    assert ids() == [c.id for c in PROPOSAL.changes] and answer.note == ""
    text = CANDIDATE.variants[-1].source.text
    assert all(f"{c.mechanism}:" in text for c in PROPOSAL.changes)


def test_a_change_that_does_not_apply_is_left_out_with_what_needs_it() -> None:
    told = "change vector_accumulators cannot be applied: no loop of that form"
    left = ids(told)
    assert "vector_accumulators" not in left and "small_tail" not in left and "rows_together" in left
    note = write_patch(kit.writer_evidence(PROPOSAL, (told,))).note
    assert "no loop of that form" in note and "it needs vector_accumulators" in note


def test_a_compile_error_is_met_by_other_values_then_by_fewer_changes() -> None:
    words = "line 12: error: expected ';'"
    first = write_patch(kit.writer_evidence(PROPOSAL, (words,)))
    assert [e.change for e in first.edits] == ids()
    windows = {k.name: k.window for c in PROPOSAL.changes for k in c.knobs}
    assert all(k.value == min(windows[k.name]) for e in first.edits for k in e.knobs)
    assert len(ids(words, words)) == len(ids()) - 1
    named = "line 12: error: in rows_together: bad"
    assert "rows_together" not in ids(named) and len(ids(named)) == len(ids()) - 1
    assert "vector_accumulators" in ids(*[words] * 20)


def test_what_no_recipe_writes_is_left_out_but_knobs_of_the_source_are_set() -> None:
    free = PROPOSAL.changes[0].model_copy(update={"id": "idea", "mechanism": "free", "knobs": ()})
    proposal = PROPOSAL.model_copy(update={"changes": (*PROPOSAL.changes, free)})
    answer = write_patch(kit.writer_evidence(proposal))
    assert "idea" not in [e.change for e in answer.edits] and "idea left out" in answer.note
    knob = PROPOSAL.changes[0].knobs[1]
    step = free.model_copy(update={"id": "knob_acc", "knobs": (knob.model_copy(update={"value": 8}),), "requires": ()})
    moved = PROPOSAL.model_copy(update={"changes": (step,)})
    edits = write_patch(kit.writer_evidence(moved, candidate=CANDIDATE)).edits
    assert edits[0].recipe == "" and edits[0].knobs[0].value == 8
    after = kit.composed(moved, write_patch(kit.writer_evidence(moved, candidate=CANDIDATE)), CANDIDATE)
    assert kit.proposer_evidence(candidate=after).source.knobs["ACC"] == 8


def judged(timing: Timing, candidate: Candidate = CANDIDATE, **changes: object) -> Review:
    evidence = kit.skeptic_evidence(PROPOSAL, candidate, timing)
    return review(SkepticEvidence.model_validate({**evidence.model_dump(), **changes}))


def done(timing: Timing, **changes: object) -> Review:
    return judged(timing, tests_done=True, **changes)


def test_an_honest_gain_passes_with_its_spread_and_hypotheses() -> None:
    found = done(kit.timing({}))
    assert found.verdict == "pass" and found.objections == [] and found.tests == []
    assert [h.split(":")[0] for h in found.hypotheses] == [c.id for c in PROPOSAL.changes]
    assert "4.00x" in found.summary


def test_sizes_that_the_code_compares_with_are_tested_on_both_sides_once() -> None:
    found = judged(kit.timing({}))
    assert found.verdict == "more_tests"
    asked = {tuple((a.name, a.value) for a in t.axes) for t in found.tests}
    assert (("rows", 37), ("n", 63)) in asked and (("rows", 37), ("n", 65)) in asked
    assert all("compares n with" in t.why for t in found.tests)
    assert judged(kit.timing({}), candidate=kit.START).verdict == "pass"


def test_a_gain_beyond_the_peak_is_doubted_then_refused() -> None:
    wild = kit.timing({"rows=1024,n=1024": 90.0})
    assert judged(wild, candidate=kit.START).tests[0].kind == "seed"
    found = done(wild)
    assert found.verdict == "object" and "rows=1024,n=1024" in found.objections[0]
    above = kit.timing({"rows=1024,n=1024": 30.0})
    assert judged(above, candidate=kit.START).tests[0].kind == "seed"
    assert done(above).verdict == "pass" and "the peak was measured too low" in done(above).objections[0]


def test_a_gain_on_one_shape_alone_is_noted() -> None:
    alone = {s.key: 1.0 for s in kit.OPERATOR.timed() if s.shape_class == "short"}
    notes = done(kit.timing({**alone, "rows=65536,n=16": 3.0})).objections
    assert any("rests on rows=65536,n=16" in n for n in notes)
    assert not any("rests on" in n for n in done(kit.timing({})).objections)


def test_the_slowest_shape_gets_a_neighbour_tested() -> None:
    found = judged(kit.timing({"rows=4099,n=127": 0.99}), candidate=kit.START)
    assert found.verdict == "more_tests" and "rows=4099,n=127" in found.tests[0].why
    assert found.tests[0].axes[0].value == 4100


def test_gains_that_flags_alone_give_are_told_from_the_teams() -> None:
    same = {c: 3.9 for c in ("main", "short", "long", "tail")}
    assert any("flags alone" in n for n in done(kit.timing({}), flags_alone=same).objections)
    assert not any("flags alone" in n for n in done(kit.timing({}), flags_alone={"main": 2.0}).objections)


@pytest.mark.parametrize(
    ("effect", "high", "told"),
    [(1.0, 1.02, "does nothing"), (0.9, 0.93, "slower"), (1.3, 1.4, "")],
)
def test_changes_without_effect_are_named(effect: float, high: float, told: str) -> None:
    row = AblationNote(
        change="small_tail", separable=True, effect={"main": effect}, low={"main": 0.9}, high={"main": high}
    )
    notes = "".join(done(kit.timing({}), ablation=(row,)).objections)
    assert (told in notes and "small_tail" in notes) if told else "small_tail" not in notes


def test_a_case_near_its_limit_asks_for_seeds_and_is_noted_afterwards() -> None:
    near = {"status": "ok", "cases": 9, "nearest": 0.93, "nearest_case": "rows=1,n=7 wide"}
    assert judged(kit.timing({}), candidate=kit.START, verification=near).tests[0].kind == "seed"
    found = done(kit.timing({}), verification=near)
    assert found.verdict == "pass" and "93%" in found.objections[0]


def test_gains_far_beyond_the_promise_are_noted() -> None:
    small = PROPOSAL.changes[1].model_copy(update={"gain": 1.05})
    promise = PROPOSAL.model_copy(update={"changes": (small,)})
    notes = done(kit.timing({}), proposal=promise.model_dump(), kept=("small_tail",)).objections
    assert any("1.05x was promised" in n for n in notes)


def test_nothing_timed_is_said() -> None:
    assert done(kit.timing({}), confirmed=None).summary == "Nothing was timed."
