"""What a round leaves behind: a tried-patch summary a proposal and a rationale a change, idempotent by id."""

from __future__ import annotations

from datetime import UTC, datetime

from kernelcrew.kernels.nouns import Proposal
from kernelcrew.memory.nouns import Conditions, Fate, Findings, Rationale, TriedPatch
from kernelcrew.memory.summary import rationales, tried_patch
from kernelcrew.record import Record
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.nouns import Judged, Settled
from kernelcrew.runs.tuning import values_of


class Remembered(Record):
    """What went into memory: kept in the journal too, so that memory can be rebuilt from it."""

    tried: tuple[TriedPatch, ...]
    """One a proposal."""
    rationale: tuple[Rationale, ...]
    """One a change."""


def remember(crew: Crew, number: int, standing: Standing, judged: list[Judged], settled: list[Settled]) -> Remembered:
    """Write both kinds to the journal first, then to the store (again on a resume: ids make that harmless)."""
    crew.say("remember", f"{len(judged)} summaries", round_number=number)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    inputs = [[j.proposal, j.decision] for j in judged]
    people = [j.trial.patch.author for j in judged if j.trial.patch.author.startswith("person:")]
    kept = crew.journal.do(
        f"r{number}.remember",
        Remembered,
        inputs,
        lambda: entries(judged, settled, conditions(crew, standing, now, people[0] if people else "")),
    )
    for tried in kept.tried:
        crew.memory.remember(tried)
    for rationale in kept.rationale:
        crew.memory.explain(rationale)
    return kept


def conditions(crew: Crew, standing: Standing, now: str, person: str = "") -> Conditions:
    """Where, on what and by whom: the team's model, or the person whose patch had the round."""
    tool = crew.machine.toolchain
    return Conditions(
        run=crew.start.run,
        operator=crew.operator.name,
        operator_version=crew.operator.version,
        backend=crew.start.backend,
        platform=crew.machine.platform.id,
        compiler=f"{tool.name} {tool.version}",
        circumstances=crew.machine.circumstances(),
        incumbent=standing.candidate.identity,
        author=person or ("recipe" if crew.start.model == "recipes" else crew.start.model),
        created=now,
    )


def entries(judged: list[Judged], settled: list[Settled], where: Conditions) -> Remembered:
    """Pure: the entries of one round."""
    results = {s.proposal: s for s in settled}
    pairs = [(as_tuned(one), findings(one, results.get(one.proposal))) for one in judged]
    return Remembered(
        tried=tuple(tried_patch(proposal, found, where) for proposal, found in pairs),
        rationale=tuple(r for proposal, found in pairs for r in rationales(proposal, found, where)),
    )


def as_tuned(one: Judged) -> Proposal:
    """The proposal with the knob values that were judged."""
    tuned = one.trial.tuned
    changes = tuple(
        c.model_copy(
            update={"knobs": tuple(k.model_copy(update={"value": tuned.get(k.name, k.value)}) for k in c.knobs)}
        )
        for c in one.trial.proposal.changes
    )
    return one.trial.proposal.model_copy(update={"changes": changes})


def findings(one: Judged, settled: Settled | None) -> Findings:
    """What the round found out, in memory's nouns."""
    rows = one.ablation.rows if one.ablation else ()
    candidate = one.trial.candidate
    return Findings(
        decision=one.decision,
        verdict=one.trial.verdict,
        timing=one.confirmation,
        hypotheses=one.hypotheses,
        effects={r.change: r.effect for r in rows if r.separable and r.effect},
        fates=fates_of(one),
        tried_knobs=tried_knobs(one),
        candidate=candidate.identity if candidate else "",
        result=settled.candidate.identity if settled and settled.candidate else "",
        commit=settled.commits[-1] if settled and settled.commits else "",
    )


def fates_of(one: Judged) -> dict[str, Fate]:
    """A change that the ablation left out of an adopted set is refuted, whatever became of the set."""
    if one.decision.action not in ("adopt", "adopt_when") or one.trial.candidate is None:
        return {}
    return {c: "refuted" for c in one.changes if c not in one.trial.candidate.changes}


def tried_knobs(one: Judged) -> dict[str, tuple[int, ...]]:
    """Knob name to every value that was screened, from the labels of the autotuner and the first values."""
    found: dict[str, set[int]] = {k.name: {k.value} for c in one.trial.proposal.changes for k in c.knobs}
    for text, _ in one.trial.tried_values:
        for name, value in values_of(text).items():
            found.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values)) for name, values in found.items()}


def fate(one: Judged, change: str) -> str:
    """What became of one change, for a person: the proposal's decision, or left out of an adopted one."""
    if change in fates_of(one):
        return "rollback (the ablation shows it pays nothing)"
    return one.decision.action
