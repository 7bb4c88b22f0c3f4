"""The proposer beyond sums over rows: attention has its own directions, an unknown operator the generic ones."""

from __future__ import annotations

import agent_evidence as kit

from kernelcrew.agents.evidence import ProposerEvidence
from kernelcrew.agents.experts.proposer import propose
from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.facts import numbered, operator_facts, recipe_notes, source_facts
from kernelcrew.agents.nouns import ProposalSet
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, KernelSource, LaunchPlan, NotApplicable, Operator, Tolerance, Variant
from kernelcrew.tools.build_words import IN_ORDER
from kernelcrew.tools.nouns import LoopRemark, Profile, ShapeProfile

NORM = """\
#include <math.h>
void layernorm(const float *x, const float *gamma, const float *beta, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        const float *row = x + (long)r * n;
        float mean = 0.0f, var = 0.0f;
        for (int i = 0; i < n; i++)
            mean += row[i];
        mean /= n;
        for (int i = 0; i < n; i++)
            var += (row[i] - mean) * (row[i] - mean);
        const float dev = sqrtf(var / n + 1e-5f);
        for (int i = 0; i < n; i++)
            y[(long)r * n + i] = (row[i] - mean) / dev * gamma[i] + beta[i];
    }
}
"""


def profile_of(operator: Operator, candidate: Candidate, share: float) -> Profile:
    """Every timed shape at the same share of its peak."""
    shapes = tuple(
        ShapeProfile(
            shape=s.key, shape_class=s.shape_class, time_us=100.0, gb_s=2.0, gflop_s=64.0 * share, level="L2",
            peak_gb_s=60.0, peak_gflop_s=64.0, share=share, ns_per_element=2.0, ns_per_row=2000.0,
        )
        for s in operator.timed()
    )
    return Profile(
        grade="remarks", grade_reason="no counters here", shapes=shapes, loops=kit.SCALAR, candidate=candidate.identity
    )


def evidence_of(operator: Operator, candidate: Candidate, share: float = 0.03) -> ProposerEvidence:
    profile = profile_of(operator, candidate, share)
    seen = kit.reader_evidence(profile, candidate).model_copy(update={"operator": operator_facts(operator, "c")})
    return ProposerEvidence(
        operator=seen.operator, machine=kit.MACHINE, source=source_facts(candidate),
        numbered=numbered(candidate.variants[-1].source.text), profile=profile, bottlenecks=read_profile(seen),
        recipes=recipe_notes(operator, candidate), flags_alone={"main": 3.0},
    )


def unknown() -> tuple[Operator, Candidate]:
    """An operator that no recipe names, and a naive kernel."""
    limits = (Tolerance(error="8 + sqrt(n)", bias="1", deviation="2", reason="for a test"),)
    operator = load_operator("reduction").model_copy(update={"name": "layernorm", "tolerances": limits})
    variant = Variant(source=KernelSource(text=NORM), plan=LaunchPlan(entry="layernorm"))
    return operator, start_candidate(operator).model_copy(update={"operator": "layernorm", "variants": (variant,)})


def mechanisms(answer: ProposalSet) -> list[set[str]]:
    return [{c.mechanism for c in p.changes} for p in answer.proposals]


def test_attention_gets_its_own_directions_with_gains_that_the_peak_leaves() -> None:
    operator = load_operator("attention")
    answer = propose(evidence_of(operator, start_candidate(operator)), 0)
    found = mechanisms(answer)
    assert 2 <= len(found) <= 3 and len({frozenset(f) for f in found}) == len(found)
    assert {"query_lanes", "vector_scores", "poly_exp", "value_registers"} == found[0]
    assert any("query_lanes" not in f and "vector_scores" in f for f in found)
    changes = {c.mechanism: c for c in answer.proposals[0].changes}
    assert changes["query_lanes"].gain > changes["poly_exp"].gain > 1
    assert changes["query_lanes"].figure_class == "main" and changes["vector_scores"].figure_class == "long"
    assert "prefetch_keys" not in set().union(*found) and "apply vector_scores first" in answer.note
    near = propose(evidence_of(operator, start_candidate(operator), share=0.4), 0)
    assert all(c.gain <= 2.0 for p in near.proposals for c in p.changes)


def test_an_unknown_operator_gets_generic_directions_and_they_can_be_written() -> None:
    operator, candidate = unknown()
    answer = propose(evidence_of(operator, candidate), 0)
    found = mechanisms(answer)
    assert 2 <= len(found) <= 3
    assert any({"split_sums", "reciprocal_division"} <= f for f in found)
    assert any({"contract_flags", "independent_rounds"} <= f for f in found)
    notes = {r.name: r for r in recipe_notes(operator, candidate)}
    assert notes["threads_outside"].not_here and notes["split_sums"].not_here == ""
    assert not isinstance(notes["split_sums"], NotApplicable)


def test_two_chains_after_each_other_are_read_as_chains_though_a_loop_beside_them_is_in_vectors() -> None:
    operator, candidate = unknown()
    hot = (
        LoopRemark(line=7, vectorized=True, vector_bytes=32, message=IN_ORDER),
        LoopRemark(line=10, vectorized=True, vector_bytes=32, message=IN_ORDER),
        LoopRemark(line=13, vectorized=True, vector_bytes=32),
    )
    base = profile_of(operator, candidate, share=0.05)
    shapes = tuple(s.model_copy(update={"ns_per_element": 2 * 1.05 * kit.ADD_NS}) for s in base.shapes)
    profile = base.model_copy(update={"loops": hot, "hot_lines": ((11, 0.6),), "shapes": shapes})
    facts = operator_facts(operator, "c").model_copy(
        update={"signature": "void layernorm(const float *x, ...); x[rows][n], gamma[n], beta[n], y[rows][n]"}
    )
    seen = kit.reader_evidence(profile, candidate).model_copy(update={"operator": facts})
    found = read_profile(seen)
    chained = [b for b in found.bottlenecks if b.kind != "overhead"]
    assert {b.kind for b in chained} == {"latency"} and {b.shape_class for b in chained} >= {"main", "long"}
    assert all("1.05 of one add" in cited for b in chained for cited in b.cited)
    vectors = tuple(r.model_copy(update={"message": ""}) for r in hot)
    wide = read_profile(seen.model_copy(update={"profile": profile.model_copy(update={"loops": vectors})}))
    assert "latency" not in {b.kind for b in wide.bottlenecks}


def test_generic_moves_keep_silent_where_recipes_name_the_operator() -> None:
    generic = {"split_sums", "keep_in_register", "independent_rounds", "unroll_inner", "wide_vectors"}
    for name in ("reduction", "attention"):
        operator = load_operator(name)
        answer = propose(evidence_of(operator, start_candidate(operator)), 0)
        assert all(not generic & f for f in mechanisms(answer))
        assert not any(g in answer.note for g in generic)
