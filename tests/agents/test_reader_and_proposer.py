"""The reader's and the proposer's rules, both ways: other figures give other answers."""

from __future__ import annotations

import agent_evidence as kit
import pytest

from kernelcrew.agents.evidence import BlockedChange
from kernelcrew.agents.experts.proposer import propose
from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.experts.writer import write_patch
from kernelcrew.agents.forms import problems_of
from kernelcrew.agents.nouns import ProposalSet, Question
from kernelcrew.tools.build_words import IN_ORDER
from kernelcrew.tools.nouns import LoopRemark, Profile, ShapeProfile


def kinds(profile: Profile) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for b in read_profile(kit.reader_evidence(profile)).bottlenecks:
        found.setdefault(b.shape_class, set()).add(b.kind)
    return found


def with_times(ns_per_row: float | None, *, n_from: int, level: str = "L3") -> Profile:
    """The serial profile with one time a row for all rows of at least `n_from` elements; None streams at 60 %."""
    shapes: list[ShapeProfile] = []
    for shape in kit.OPERATOR.timed():
        n = shape.axes["n"]
        streaming = 4 * (n + 1) / (kit.PEAK_GB_S[level] * 0.6)
        chosen = (ns_per_row or streaming) if n >= n_from else kit.fixed_and_chain(n)
        shapes.append(kit.row(shape.axes, chosen, level))
    return kit.serial_profile().model_copy(update={"shapes": tuple(shapes)})


def test_a_serial_chain_is_latency_and_one_column_is_overhead() -> None:
    summary = read_profile(kit.reader_evidence())
    assert kinds(kit.serial_profile()) == {
        "main": {"latency"},
        "short": {"latency"},
        "long": {"latency"},
        "tail": {"latency", "overhead"},
    }
    main = next(b for b in summary.bottlenecks if b.shape_class == "main")
    lines = kit.START.variants[-1].source.text.splitlines()
    assert lines[main.line_first - 1].strip().startswith("for (int i")
    assert any("rows=1024,n=1024" in c and "2.003 ns an element" in c and "2.00 ns" in c for c in main.cited)
    assert len([s for b in summary.bottlenecks for s in b.cited]) == len(kit.OPERATOR.timed())
    overhead = next(b for b in summary.bottlenecks if b.kind == "overhead")
    assert lines[overhead.line_first - 1].strip().startswith("for (int r")
    assert summary.grade == "remarks" and "no counters here" in summary.text


def test_a_kernel_at_its_peak_has_nothing_to_gain_and_gets_no_proposal() -> None:
    assert kinds(kit.peak_profile()) == {c: {"near_peak"} for c in ("main", "short", "long", "tail")}
    answer = propose(kit.proposer_evidence(kit.peak_profile()), 0)
    assert answer.proposals == [] and "near the measured peak" in answer.note


def test_streaming_rows_are_bandwidth_and_get_other_proposals() -> None:
    vectors = (LoopRemark(line=7, vectorized=True, vector_bytes=32),)
    streaming = with_times(None, n_from=100).model_copy(update={"loops": vectors})
    assert kinds(streaming)["main"] == {"bandwidth"} == kinds(streaming)["long"]
    before = propose(kit.proposer_evidence(), 0)
    after = propose(kit.proposer_evidence(streaming), 0)
    assert mechanisms(before)[0][0] == "vector_accumulators"
    assert mechanisms(before) != mechanisms(after)
    helped = {c.figure_class for p in after.proposals for c in p.changes if c.mechanism == "vector_accumulators"}
    assert helped.isdisjoint({"main", "long"})


def test_scalar_code_that_no_chain_explains_is_not_vectorized() -> None:
    fast = with_times(100.0, n_from=256)
    assert "not_vectorized" in kinds(fast)["main"] | kinds(fast)["long"]


def test_profile_figures_of_other_shapes_give_other_proposals() -> None:
    """A kernel that is slow to start a row and fast within it: what was the least becomes what matters."""
    serial = kit.serial_profile()
    shapes = tuple(kit.row(_axes(s), 40.0 + 0.2 * _axes(s)["n"], s.level) for s in serial.shapes)
    other = serial.model_copy(update={"shapes": shapes})
    assert kinds(other)["short"] == {"overhead"} and kinds(other)["long"] == {"near_peak"}
    first, second = propose(kit.proposer_evidence(), 0), propose(kit.proposer_evidence(other), 0)
    assert mechanisms(first)[0][0] == "vector_accumulators" == mechanisms(second)[0][0]
    assert first.proposals[0].changes[0].gain > 5 > second.proposals[0].changes[0].gain
    assert "prefetch" in str(mechanisms(first)) and "prefetch" not in str(mechanisms(second)[1:])
    copied = [
        next(c.gain for p in a.proposals for c in p.changes if c.id == "copy_single_column") for a in (first, second)
    ]
    assert copied[1] > copied[0]


def test_proposals_are_composite_with_gain_risk_window_and_reason() -> None:
    answer = propose(kit.proposer_evidence(), 0)
    assert 2 <= len(answer.proposals) <= 3
    assert len({tuple(m) for m in mechanisms(answer)}) == len(answer.proposals)
    first = answer.proposals[0]
    assert len(first.changes) >= 3
    for change in first.changes:
        assert {r.shape_class for r in change.risks} == {"main", "short", "long", "tail"}
        assert change.gain > 1 and change.figure_factor == pytest.approx(1 / change.gain, rel=0.01)
        assert any(ch.isdigit() for ch in change.why) and len(change.why) > 60
        assert all(k.value in k.window and k.window == sorted(k.window) for k in change.knobs)
    width = next(k for c in first.changes for k in c.knobs if k.name == "VEC")
    assert width.value == kit.MACHINE.vector_bytes // 4
    tail = next(c for c in first.changes if c.mechanism == "small_tail")
    assert tail.requires == ["vector_accumulators"]


def test_gains_stay_below_what_the_peak_leaves() -> None:
    evidence = kit.proposer_evidence()
    share = {b.id: b.share_of_peak for b in evidence.bottlenecks.bottlenecks}
    for proposal in propose(evidence, 0).proposals:
        least = min(share[b] for b in proposal.bottlenecks)
        assert all(c.gain <= 1 / least for c in proposal.changes)


def test_the_same_seed_gives_the_same_answer_and_seeds_move_first_values() -> None:
    evidence = kit.proposer_evidence()
    assert propose(evidence, 3) == propose(evidence, 3)
    values = {
        tuple(k.value for p in propose(evidence, s).proposals for c in p.changes for k in c.knobs) for s in range(8)
    }
    assert len(values) > 1


def test_what_is_refuted_is_left_out_and_said() -> None:
    first = propose(kit.proposer_evidence(), 0).proposals[0].changes[0]
    against = BlockedChange(kind="refuted", mechanism=first.mechanism, target=first.target, reason="r-1: main 0.80x")
    answer = propose(kit.proposer_evidence(blocked=(against,)), 0)
    assert all(first.mechanism not in m for m in mechanisms(answer))
    assert "small_tail" not in str(mechanisms(answer))
    assert "r-1: main 0.80x" in answer.note
    elsewhere = against.model_copy(update={"target": "another loop"})
    assert first.mechanism in str(mechanisms(propose(kit.proposer_evidence(blocked=(elsewhere,)), 0)))
    outrun = against.model_copy(update={"kind": "outrun"})
    assert first.mechanism in str(mechanisms(propose(kit.proposer_evidence(blocked=(outrun,)), 0)))


def test_later_rounds_turn_to_what_is_left_and_end_when_nothing_is() -> None:
    first = propose(kit.proposer_evidence(), 0).proposals[0]
    proposal = kit.proposal_of(first)
    kernel = kit.composed(proposal, write_patch(kit.writer_evidence(proposal)))
    inside = tuple(
        BlockedChange(kind="already_in", mechanism=c.mechanism, target=c.target, reason="r-1") for c in first.changes
    )
    second = propose(kit.proposer_evidence(with_times(None, n_from=0), kernel, inside, 2), 0)
    assert second.proposals and mechanisms(second)[0] == ["free"] * len(second.proposals[0].changes)
    tried = tuple(
        BlockedChange(kind="refuted", mechanism="free", target=f"knob {name}", reason="r-2")
        for name in kit.proposer_evidence(candidate=kernel).source.knobs
    )
    last = propose(kit.proposer_evidence(with_times(None, n_from=0), kernel, inside + tried, 3), 0)
    assert last.proposals == [] and last.note.startswith("Nothing is left to propose")


def test_a_missing_recipe_is_not_proposed() -> None:
    evidence = kit.proposer_evidence()
    fewer = evidence.model_copy(
        update={"recipes": tuple(r for r in evidence.recipes if r.name != "vector_accumulators")}
    )
    assert "vector_accumulators" not in str(mechanisms(propose(fewer, 0)))


def test_the_experts_answers_pass_the_forms() -> None:
    for seed in range(3):
        evidence = kit.proposer_evidence()
        question = Question(role="proposer", task="", prefix="", evidence=evidence.model_dump_json())
        assert problems_of(propose(evidence, seed), question) == []


def mechanisms(answer: ProposalSet) -> list[list[str]]:
    return [[c.mechanism for c in p.changes] for p in answer.proposals]


def _axes(shape: ShapeProfile) -> dict[str, int]:
    return next(s.axes for s in kit.OPERATOR.timed() if s.key == shape.shape)


def test_vector_loads_with_adds_in_source_order_are_still_one_chain() -> None:
    remark = LoopRemark(line=7, vectorized=True, vector_bytes=32, message=IN_ORDER)
    in_order = kit.serial_profile().model_copy(update={"loops": (remark,)})
    assert kinds(in_order) == kinds(kit.serial_profile())
    vectors = kit.serial_profile().model_copy(update={"loops": (remark.model_copy(update={"message": ""}),)})
    assert "latency" not in kinds(vectors)["main"]


def test_one_vector_accumulator_is_a_chain_over_its_lanes_but_vectors_by_hand_are_not_blamed() -> None:
    vectors = (LoopRemark(line=7, vectorized=True, vector_bytes=32),)
    shapes = tuple(kit.row(s.axes, 3 + kit.ADD_NS * s.axes["n"] / 8, "L1") for s in kit.OPERATOR.timed())
    one_chain = kit.serial_profile().model_copy(update={"loops": vectors, "shapes": shapes})
    assert kinds(one_chain)["main"] == {"latency"} == kinds(one_chain)["long"]
    proposal = kit.proposal_of(propose(kit.proposer_evidence(), 0).proposals[0])
    kernel = kit.composed(proposal, write_patch(kit.writer_evidence(proposal)))
    by_hand = read_profile(kit.reader_evidence(one_chain, kernel)).bottlenecks
    assert {b.kind for b in by_hand}.isdisjoint({"latency", "not_vectorized"})
