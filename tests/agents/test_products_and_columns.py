"""The experts on operators other than sums over rows: what binds each shape, and what is proposed for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import agent_evidence as kit
import pytest

from kernelcrew.agents.evidence import BlockedChange, ProposerEvidence, ReaderEvidence
from kernelcrew.agents.experts.figures import carries, inner_loop, sums_rows, times_round, updates
from kernelcrew.agents.experts.proposer import propose
from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.experts.writer import write_patch
from kernelcrew.agents.facts import numbered, operator_facts, recipe_notes, source_facts
from kernelcrew.agents.forms import problems_of
from kernelcrew.agents.nouns import ProposalSet, Question, to_patch
from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Edit, Operator, Patch
from kernelcrew.tools.nouns import LoopRemark, Profile, ShapeProfile

PEAK_GFLOP_S = 64.0
VECTORS = 32
Speed = Callable[[Mapping[str, int]], float]
"""Share of the nearer roof that a shape reaches, from its axes."""


def operator(name: str) -> Operator:
    return load_operator(name)


def shapes(of: Operator, speed: Speed, level: str = "L2") -> tuple[ShapeProfile, ...]:
    """Every timed shape at a share of the nearer of the two roofs."""
    found = []
    peak = kit.PEAK_GB_S[level]
    for shape in of.timed():
        flops, size = (float(parse(t).value(shape.axes)) for t in (of.cost.flops, of.cost.bytes))
        share = speed(shape.axes)
        time_ns = max(flops / PEAK_GFLOP_S, size / peak) / share
        counts = {t.name: _elements(t.dims, shape.axes) for t in of.tensors}
        ins = max(counts[t.name] for t in of.tensors if t.role == "in")
        outs = max(counts[t.name] for t in of.tensors if t.role == "out")
        found.append(
            ShapeProfile(
                shape=shape.key, shape_class=shape.shape_class, time_us=time_ns / 1e3, gb_s=size / time_ns,
                gflop_s=flops / time_ns, level=level, peak_gb_s=peak, peak_gflop_s=PEAK_GFLOP_S, share=share,
                ns_per_element=time_ns / max(ins, 1), ns_per_row=time_ns / max(outs, 1),
            )
        )
    return tuple(found)


def _elements(dims: tuple[str, ...], axes: Mapping[str, int]) -> int:
    size = 1
    for d in dims:
        size *= int(parse(d).value(axes))
    return size


def evidence(
    name: str, speed: Speed, candidate: Candidate | None = None, vector_bytes: int = VECTORS
) -> ReaderEvidence:
    """A kernel, the start unless another is given, whose deepest loop is made of vectors or, with 0 bytes, is not."""
    of = operator(name)
    kernel = candidate or start_candidate(of)
    source = source_facts(kernel)
    empty = Profile(grade="remarks", grade_reason="", shapes=(), loops=(), candidate=kernel.identity)
    inner = inner_loop(source, empty)
    assert inner is not None
    remark = LoopRemark(line=inner.first, vectorized=vector_bytes > 0, vector_bytes=vector_bytes)
    profile = empty.model_copy(update={"shapes": shapes(of, speed), "loops": (remark,)})
    text = kernel.variants[-1].source.text
    return ReaderEvidence(
        operator=operator_facts(of, "c"), machine=kit.MACHINE, source=source, numbered=numbered(text), profile=profile
    )


def for_proposer(
    name: str, speed: Speed, candidate: Candidate | None = None, blocked: tuple[BlockedChange, ...] = ()
) -> ProposerEvidence:
    seen = evidence(name, speed, candidate)
    of = operator(name)
    return ProposerEvidence(
        **{f: getattr(seen, f) for f in ("operator", "machine", "source", "numbered", "profile")},
        bottlenecks=read_profile(seen), recipes=recipe_notes(of, candidate or start_candidate(of)), blocked=blocked,
    )


def kinds(seen: ReaderEvidence) -> dict[str, str]:
    """Shape to kind."""
    return {c.partition(":")[0]: b.kind for b in read_profile(seen).bottlenecks for c in b.cited}


def mechanisms(answer: ProposalSet) -> list[list[str]]:
    return [[c.mechanism for c in p.changes] for p in answer.proposals]


def slow(axes: Mapping[str, int]) -> float:
    return 0.1


def test_rows_are_told_from_columns_and_products_by_the_extents() -> None:
    names = ("reduction", "reduction_batch", "gemm", "attention")
    told = {name: sums_rows(operator_facts(operator(name), "c")) for name in names}
    assert told == {"reduction": True, "reduction_batch": False, "gemm": False, "attention": False}


@pytest.mark.parametrize(
    ("name", "carried", "updated"),
    [("reduction", True, False), ("reduction_batch", False, True), ("gemm", False, True), ("attention", True, False)],
)
def test_a_chain_is_an_addition_to_a_variable_and_not_to_an_element(name: str, carried: bool, updated: bool) -> None:
    source = source_facts(start_candidate(operator(name)))
    profile = Profile(grade="remarks", grade_reason="", shapes=(), loops=(), candidate="c")
    loop = inner_loop(source, profile)
    assert (carries(source, loop), updates(source, loop)) == (carried, updated)


def test_a_loop_that_a_pragma_unrolls_is_no_innermost_loop() -> None:
    of = operator("gemm")
    edit = Edit(change="jam_terms", recipe="jam_terms", knobs={})
    jammed = compose(start_candidate(of), Patch(proposal="p", edits=(edit,), author="t"), None, operator=of)
    assert isinstance(jammed, Candidate)
    source = source_facts(jammed)
    loop = inner_loop(source, Profile(grade="remarks", grade_reason="", shapes=(), loops=(), candidate="c"))
    assert loop is not None and loop.head.startswith("for (int j")


def test_each_shape_of_a_product_is_read_by_what_binds_it() -> None:
    found = kinds(evidence("gemm", slow))
    assert found["M=512,N=512,K=512"] == found["M=64,N=64,K=2048"] == "compute"
    assert found["M=509,N=1,K=511"] == found["M=257,N=7,K=255"] == found["M=8,N=8,K=16384"] == "overhead"
    assert found["M=1,N=1021,K=509"] == "bandwidth"
    assert found["M=16,N=16,K=16"] == "overhead"
    assert len(found) == len(operator("gemm").timed())
    summary = read_profile(evidence("gemm", slow))
    main = next(b for b in summary.bottlenecks if b.shape_class == "main")
    assert main.share_of_peak == pytest.approx(0.1) and "6.4 of 64.0 GFLOP/s" in main.cited[0]
    assert "loads and stores its sum" in main.summary and "{" not in "".join(b.summary for b in summary.bottlenecks)
    rows = next(b for b in summary.bottlenecks if any("N=1," in c for c in b.cited))
    assert any("goes round 1 times" in c for c in rows.cited)


def test_other_figures_give_other_readings_of_a_product() -> None:
    assert set(kinds(evidence("gemm", lambda axes: 0.95)).values()) == {"near_peak"}
    scalar = kinds(evidence("gemm", slow, vector_bytes=0))
    assert scalar["M=512,N=512,K=512"] == "not_vectorized"
    fast = kinds(evidence("gemm", lambda axes: 0.6))
    assert fast["M=257,N=7,K=255"] == "compute" and fast["M=16,N=16,K=16"] == "compute"


def test_columns_are_never_blamed_on_a_chain() -> None:
    for share in (0.05, 0.1, 0.2, 0.3, 0.4):
        found = kinds(evidence("reduction_batch", lambda axes, share=share: share))  # type: ignore[misc]
        assert "latency" not in found.values()
        assert found["batch=65537,n=1"] == found["batch=65536,n=8"] == "overhead"
        assert found["batch=1024,n=1024"] == "bandwidth"


def test_the_scores_of_attention_are_a_chain() -> None:
    """Half of the multiply-adds wait for each other: one add's latency for each two."""
    share = 2 / (0.5 * kit.ADD_NS) / PEAK_GFLOP_S
    found = set(kinds(evidence("attention", lambda axes: share, vector_bytes=0)).values())
    assert "latency" in found and "compute" not in found


def test_times_round_reads_the_axis_that_bounds_the_loop() -> None:
    seen = evidence("gemm", slow)
    loop = inner_loop(seen.source, seen.profile)
    shape = next(s for s in seen.profile.shapes if s.shape == "M=257,N=7,K=255")
    assert times_round(shape, loop) == 7
    assert loop is not None and times_round(shape, loop.model_copy(update={"head": "for (;;)"})) == 0


def test_products_get_tiles_first_with_what_they_need_and_what_skinny_shapes_need() -> None:
    answer = propose(for_proposer("gemm", slow), 0)
    assert len(answer.proposals) == 3 and len({tuple(m) for m in mechanisms(answer)}) == 3
    first = answer.proposals[0].changes
    assert first[0].mechanism == "register_tile" and {"pack_b", "skinny_columns"} <= {c.mechanism for c in first}
    assert all(c.requires == ["register_tile"] for c in first if c.mechanism in ("pack_b", "block_k"))
    tile = {k.name: k.value for k in first[0].knobs}
    assert tile == {"VEC": 8, "MR": 6, "NR": 2}
    machine = kit.MACHINE.model_copy(update={"vector_bytes": 64})
    wide = for_proposer("gemm", slow).model_copy(update={"machine": machine})
    assert {k.name: k.value for k in propose(wide, 0).proposals[0].changes[0].knobs} == {"VEC": 16, "MR": 8, "NR": 3}
    assert ["jam_terms" in m for m in mechanisms(answer)] == [False, False, True]
    for proposal in answer.proposals:
        for change in proposal.changes:
            assert {r.shape_class for r in change.risks} == {"main", "short", "long", "tail"}
            assert change.gain > 1 and any(ch.isdigit() for ch in change.why) and "{" not in change.why


def test_gains_follow_the_room_that_a_product_leaves() -> None:
    near = propose(for_proposer("gemm", lambda axes: 0.5), 0)
    far = propose(for_proposer("gemm", lambda axes: 0.05), 0)
    assert far.proposals[0].changes[0].gain > 5 > near.proposals[0].changes[0].gain > 1
    none = propose(for_proposer("gemm", lambda axes: 0.95), 0)
    assert none.proposals == [] and "near the measured peak" in none.note
    alone = propose(for_proposer("gemm", lambda axes: 0.1 if axes["N"] == 1 else 0.95), 0)
    assert mechanisms(alone)[0] == ["skinny_columns"] and "pack_b" not in str(mechanisms(alone))


def test_later_rounds_bring_panels_nearer_to_tiles_that_stand() -> None:
    first = propose(for_proposer("gemm", slow), 0).proposals[0]
    proposal = kit.proposal_of(first)
    of = operator("gemm")
    seen = kit.writer_evidence(proposal).model_copy(
        update={"recipes": recipe_notes(of, start_candidate(of)), "operator": operator_facts(of, "c")}
    )
    made = compose(start_candidate(of), to_patch(write_patch(seen), proposal.id, "t"), None, operator=of)
    assert isinstance(made, Candidate)
    inside = tuple(
        BlockedChange(kind="already_in", mechanism=c.mechanism, target=c.target, reason="r-1") for c in first.changes
    )
    later = propose(for_proposer("gemm", lambda axes: 0.5, made, inside), 0)
    assert {"prefetch_panels", "unroll_terms"} <= {m for ms in mechanisms(later) for m in ms}
    assert "register_tile" not in str(mechanisms(later))


def test_columns_get_passes_strips_and_folds() -> None:
    answer = propose(for_proposer("reduction_batch", slow), 0)
    assert mechanisms(answer)[:2] == [["rows_per_pass", "fold_batch"], ["rows_per_pass", "column_strips"]]
    beyond = for_proposer("reduction_batch", slow)
    far = beyond.profile.model_copy(
        update={"shapes": tuple(s.model_copy(update={"level": "L3"}) for s in beyond.profile.shapes)}
    )
    told = propose(beyond.model_copy(update={"profile": far}), 0)
    assert "prefetch_rows" in str(mechanisms(told))


def test_answers_for_other_operators_pass_the_forms_and_name_no_foreign_recipe() -> None:
    for name in ("gemm", "reduction_batch"):
        seen = for_proposer(name, slow)
        assert {"rows_together", "copy_single_column"}.isdisjoint(r.name for r in seen.recipes)
        for seed in range(3):
            question = Question(role="proposer", task="", prefix="", evidence=seen.model_dump_json())
            answer = propose(seen, seed)
            assert problems_of(answer, question) == []
            assert "written for" not in answer.note
