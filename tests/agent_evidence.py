"""Evidence of `reduction` for the tests of the agents: the shipped operator and start kernel, with made-up figures of a
machine of 2 GHz whose adds take 4 cycles (2 ns), with vectors of 32 bytes."""

from __future__ import annotations

from collections.abc import Mapping

from kernelcrew.agents.evidence import (
    BlockedChange,
    MachineFacts,
    ProposerEvidence,
    ReaderEvidence,
    SkepticEvidence,
    VerificationNote,
    WriterEvidence,
)
from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.facts import (
    ceilings,
    class_ratios,
    diff_of,
    numbered,
    operator_facts,
    recipe_notes,
    source_facts,
)
from kernelcrew.agents.nouns import PatchAnswer, ProposalIdea, ProposalSet, to_patch, to_proposals
from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, NotApplicable, Proposal
from kernelcrew.tools.nouns import ClassTiming, LoopRemark, Profile, ShapeProfile, ShapeTiming, Timing

OPERATOR = load_operator("reduction")
START = start_candidate(OPERATOR)
PEAK_GB_S = {"L1": 100.0, "L2": 60.0, "L3": 40.0, "memory": 20.0}
ADD_NS = 2.0
MACHINE = MachineFacts(
    id="cpu-test-1-1",
    readable="A test machine",
    vector_bytes=32,
    features=("avx2", "fma"),
    caches={"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20},
    peaks={
        **{f"read {level}": value for level, value in PEAK_GB_S.items()},
        "fma core": 64.0,
        "add_latency core": ADD_NS,
    },
    compiler="gcc 12.2.0",
)
SCALAR = (LoopRemark(line=7, vectorized=False, message="relevant stmt not supported: reduction"),)


def row(axes: Mapping[str, int], ns_per_row: float, level: str = "L2") -> ShapeProfile:
    """One shape's profile from its time a row."""
    rows, n = axes["rows"], axes["n"]
    shape = next(s for s in OPERATOR.timed() if s.axes == dict(axes))
    gb_s = 4 * (n + 1) / ns_per_row
    return ShapeProfile(
        shape=shape.key,
        shape_class=shape.shape_class,
        time_us=ns_per_row * rows / 1e3,
        gb_s=gb_s,
        gflop_s=max(n - 1, 0) / ns_per_row,
        level=level,
        peak_gb_s=PEAK_GB_S[level],
        peak_gflop_s=64.0,
        share=gb_s / PEAK_GB_S[level],
        ns_per_element=ns_per_row / n,
        ns_per_row=ns_per_row,
    )


def serial_profile() -> Profile:
    """The start kernel: every add waits for the one before it; rows of up to a few elements overlap."""
    times = {shape.key: fixed_and_chain(shape.axes["n"]) for shape in OPERATOR.timed()}
    levels = {"long": "memory", "main": "L3", "short": "L3", "tail": "L2"}
    shapes = tuple(row(s.axes, times[s.key], levels[s.shape_class]) for s in OPERATOR.timed())
    return Profile(
        grade="remarks", grade_reason="no counters here", shapes=shapes, loops=SCALAR, candidate=START.identity
    )


def fixed_and_chain(n: int) -> float:
    """3 ns for a row, and one add's latency an element."""
    return 3.0 + ADD_NS * n


def peak_profile() -> Profile:
    """A kernel that streams every shape at 95 % of its peak."""
    shapes = tuple(row(s.axes, 4 * (s.axes["n"] + 1) / (PEAK_GB_S["L3"] * 0.95), "L3") for s in OPERATOR.timed())
    return Profile(grade="remarks", grade_reason="no counters here", shapes=shapes, loops=(), candidate=START.identity)


def reader_evidence(profile: Profile | None = None, candidate: Candidate = START) -> ReaderEvidence:
    text = candidate.variants[-1].source.text
    return ReaderEvidence(
        operator=operator_facts(OPERATOR, "c"),
        machine=MACHINE,
        source=source_facts(candidate),
        numbered=numbered(text),
        profile=profile or serial_profile(),
        noise="quiet",
    )


def proposer_evidence(
    profile: Profile | None = None,
    candidate: Candidate = START,
    blocked: tuple[BlockedChange, ...] = (),
    number: int = 1,
) -> ProposerEvidence:
    seen = reader_evidence(profile, candidate)
    return ProposerEvidence(
        operator=seen.operator,
        machine=MACHINE,
        source=seen.source,
        numbered=seen.numbered,
        profile=seen.profile,
        bottlenecks=read_profile(seen),
        recipes=recipe_notes(OPERATOR, candidate),
        blocked=blocked,
        flags_alone={"main": 7.0, "short": 1.4, "long": 6.0, "tail": 2.0},
        round=number,
    )


def proposal_of(idea: ProposalIdea) -> Proposal:
    return to_proposals(ProposalSet(proposals=[idea], note=""), 1)[0]


def writer_evidence(proposal: Proposal, problems: tuple[str, ...] = (), candidate: Candidate = START) -> WriterEvidence:
    return WriterEvidence(
        operator=operator_facts(OPERATOR, "c"),
        source=source_facts(candidate),
        numbered=numbered(candidate.variants[-1].source.text),
        proposal=proposal,
        recipes=recipe_notes(OPERATOR, candidate),
        problems=problems,
    )


def composed(proposal: Proposal, answer: PatchAnswer, candidate: Candidate = START) -> Candidate:
    """The candidate of a patch, which must apply."""
    made = compose(candidate, to_patch(answer, proposal.id, "test"), None)
    assert not isinstance(made, NotApplicable), made.because
    return made


def timing(ratios: Mapping[str, float], default: float = 4.0) -> Timing:
    """A confirmed timing with the ratios of some shapes given by key."""
    shapes = tuple(
        ShapeTiming(
            shape=s.key,
            shape_class=s.shape_class,
            ratio=ratios.get(s.key, default),
            low=ratios.get(s.key, default) * 0.98,
            high=ratios.get(s.key, default) * 1.02,
            candidate_us=10.0,
            baseline_us=10.0 * ratios.get(s.key, default),
            answer="not slower",
            blocks=(0.1, 0.2),
        )
        for s in OPERATOR.timed()
    )
    classes = []
    for name in OPERATOR.classes():
        mine = [s.ratio for s in shapes if s.shape_class == name]
        mean = sum(mine) / len(mine)
        classes.append(
            ClassTiming(shape_class=name, answer="faster", ratio=mean, low=mean * 0.98, high=mean * 1.02, e_value=1e5)
        )
    return Timing(
        grade="confirmed",
        status="decided",
        baseline="a",
        candidate="b",
        margin=0.01,
        aa_sd=0.003,
        classes=tuple(classes),
        shapes=shapes,
        blocks=12,
        samples="blob",
    )


def skeptic_evidence(proposal: Proposal, candidate: Candidate, confirmed: Timing) -> SkepticEvidence:
    return SkepticEvidence(
        operator=operator_facts(OPERATOR, "c"),
        proposal=proposal,
        kept=tuple(c.id for c in proposal.changes),
        diff=diff_of(START, candidate),
        confirmed=confirmed,
        verification=VerificationNote(status="ok", cases=120, nearest=0.2, nearest_case="rows=1,n=7 wide", seeds=3),
        ceilings=ceilings(serial_profile()),
        hypotheses={c.id: f"confirmed: time went to {c.expects.factor:.2f}" for c in proposal.changes},
        flags_alone={"main": 2.0},
        over_start=class_ratios(confirmed),
    )
