"""The evidence of each question, composed fresh from what was measured; the skeptic's wishes as verifier options."""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.agents.evidence import (
    AblationNote,
    BlockedChange,
    GateNote,
    ProposerEvidence,
    ReaderEvidence,
    SkepticEvidence,
    WriterEvidence,
)
from kernelcrew.agents.facts import (
    ceilings,
    class_ratios,
    diff_of,
    machine_facts,
    numbered,
    operator_facts,
    recipe_notes,
    slim,
    source_facts,
    verification_note,
)
from kernelcrew.agents.nouns import BottleneckSummary, TestRequest
from kernelcrew.kernels.nouns import Operator, Proposal, Shape
from kernelcrew.memory.nouns import TriedPatch
from kernelcrew.memory.repeat import changed
from kernelcrew.record import Record
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.nouns import Ablation, Gate, Trial
from kernelcrew.runs.recalling import situation
from kernelcrew.runs.shuffling import shuffled
from kernelcrew.tools.nouns import Profile, Timing
from kernelcrew.tools.verify import VerifyOptions

MOST_EXTRA = 8
"""Extra shapes that the skeptic may order at once."""
MOST_ELEMENTS = 1 << 22
"""Elements of an extra shape's largest axis product: a wish cannot exhaust the machine."""


class Measured(Record):
    """What is known of one trial when the skeptic is asked."""

    ablation: Ablation | None
    """Which change paid."""
    confirmation: Timing | None
    """New blocks."""
    gates: tuple[Gate, ...]
    """Criteria so far."""
    hypotheses: dict[str, str]
    """Change id to confirmed, refuted or unread."""
    tests_done: bool
    """Whether more tests were asked for before."""


def reader_evidence(crew: Crew, standing: Standing) -> ReaderEvidence:
    """For the profiler-reader: the profile of every shape and the numbered source."""
    return ReaderEvidence(
        operator=operator_facts(crew.operator, crew.start.backend),
        machine=machine_facts(crew.machine),
        source=source_facts(standing.candidate),
        numbered=numbered(standing.candidate.variants[-1].source.text),
        profile=profile_shown(crew, standing),
        noise=crew.baseline.noise.reason if crew.baseline else "",
    )


def proposer_evidence(crew: Crew, number: int, standing: Standing, summary: BottleneckSummary) -> ProposerEvidence:
    """For the proposer: bottlenecks, recipes, and what memory speaks against."""
    baseline = crew.baseline
    return ProposerEvidence(
        operator=operator_facts(crew.operator, crew.start.backend),
        machine=machine_facts(crew.machine),
        source=source_facts(standing.candidate),
        numbered=numbered(standing.candidate.variants[-1].source.text),
        profile=profile_shown(crew, standing),
        bottlenecks=summary,
        recipes=recipe_notes(crew.operator, standing.candidate),
        blocked=blocked(crew, standing),
        flags_alone=class_ratios(baseline.flags_alone) if baseline else {},
        over_start=class_ratios(baseline.incumbent_over_start) if baseline else {},
        searched=standing.searched,
        tuned=dict(source_facts(standing.candidate).knobs),
        round=number,
    )


def profile_shown(crew: Crew, standing: Standing) -> Profile:
    """The profile that reader and proposer work from: the true one, but for the control of `bench --search`."""
    seed = crew.start.shuffled
    return standing.profile if seed is None else shuffled(standing.profile, seed)


def writer_evidence(crew: Crew, standing: Standing, proposal: Proposal, problems: Sequence[str]) -> WriterEvidence:
    """For the patch writer: the proposal, the source, and the words of earlier failed tries."""
    return WriterEvidence(
        operator=operator_facts(crew.operator, crew.start.backend),
        source=source_facts(standing.candidate),
        numbered=numbered(standing.candidate.variants[-1].source.text),
        proposal=proposal,
        recipes=recipe_notes(crew.operator, standing.candidate),
        problems=tuple(problems),
    )


def skeptic_evidence(crew: Crew, standing: Standing, trial: Trial, found: Measured) -> SkepticEvidence:
    """For the skeptic: the whole measured record of one candidate."""
    rows = found.ablation.rows if found.ablation else ()
    verification = trial.verdict.verification
    candidate = trial.candidate
    baseline = crew.baseline
    return SkepticEvidence(
        operator=operator_facts(crew.operator, crew.start.backend),
        proposal=trial.proposal,
        kept=candidate.changes if candidate else (),
        diff=diff_of(standing.candidate, candidate) if candidate else "",
        screen=slim(trial.verdict.timing),
        confirmed=slim(found.confirmation),
        ablation=tuple(AblationNote.model_validate(r.model_dump()) for r in rows),
        verification=verification_note(verification) if verification else None,
        gates=tuple(GateNote.model_validate(g.model_dump()) for g in found.gates),
        ceilings=ceilings(standing.profile),
        hypotheses=found.hypotheses,
        flags_alone=class_ratios(baseline.flags_alone) if baseline else {},
        incumbent_is_start=baseline is not None and standing.candidate.identity == baseline.start.identity,
        tests_done=found.tests_done,
    )


def blocked(crew: Crew, standing: Standing) -> tuple[BlockedChange, ...]:
    """What memory speaks against, under the circumstances of now, told to the proposer before it answers."""
    now = situation(crew, standing)
    tried = crew.memory.tried(crew.operator.name, crew.machine.platform.id)
    found = []
    for patch in tried:
        if patch.backend != now.backend or changed(patch, now):
            continue
        found += [b for index in range(len(patch.features)) if (b := _blocked(patch, index))]
    return tuple(found)


def options_from(operator: Operator, tests: Sequence[TestRequest]) -> VerifyOptions:
    """The skeptic's wishes, bounded: extra shapes (as edge shapes), seeds and distributions; nothing can be removed."""
    names = {a.name: a.minimum for a in operator.axes}
    shapes: list[Shape] = []
    for test in tests:
        axes = {k.name: k.value for k in test.axes}
        size = 1
        for value in axes.values():
            size *= max(value, 1)
        fits = axes.keys() == names.keys() and all(v >= names[k] for k, v in axes.items()) and size <= MOST_ELEMENTS
        if test.kind == "shape" and fits and len(shapes) < MOST_EXTRA:
            shapes.append(Shape(axes={name: axes[name] for name in names}, shape_class="tail", role="edge"))
    seeds = 1 + sum(test.kind == "seed" for test in tests)
    known = {d.name for d in operator.distributions}
    wanted = tuple(sorted({t.distribution for t in tests if t.kind == "distribution" and t.distribution in known}))
    return VerifyOptions(extra_shapes=tuple(shapes), seeds=min(seeds, 4), everywhere=wanted)


def _blocked(patch: TriedPatch, index: int) -> BlockedChange | None:
    features = patch.features[index]
    alone = "refuted" if patch.decision == "rollback" and len(patch.features) == 1 else "open"
    fate = patch.fates[index] if patch.fates else alone
    kinds = {"refuted": "refuted", "adopted": "already_in"}
    kind = kinds.get(fate) or ("outrun" if patch.decision == "inconclusive" else None)
    if kind is None:
        return None
    ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in patch.classes.items())
    reason = f"{patch.id}: {patch.decision}{' (' + ratios + ')' if ratios else ''}"
    return BlockedChange.model_validate(
        {
            "kind": kind,
            "mechanism": features["mechanism"],
            "target": features["target"],
            "knobs": features.get("knobs", ""),
            "reason": reason,
        }
    )
