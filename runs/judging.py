"""From a screened trial to a decision: ablation, pruning, confirmation on new blocks, review, decision, and at most one
follow-up (a split, a rule, or a moved window)."""

from __future__ import annotations

from kernelcrew.agents.nouns import Answer, Review
from kernelcrew.kernels.nouns import Candidate, NotApplicable, Proposal
from kernelcrew.record import Record
from kernelcrew.runs.ablation import ablation_from, hypotheses, prune, row_from
from kernelcrew.runs.asking import Measured, options_from, skeptic_evidence
from kernelcrew.runs.crew import Crew, Lab, Standing
from kernelcrew.runs.decision import Evidence, decide, gains
from kernelcrew.runs.nouns import Ablation, AblationRow, Gate, Judged, Trial
from kernelcrew.runs.rules import find_rule, with_rule
from kernelcrew.runs.trying import composed, fresh, inspect, screened, unmeasured
from kernelcrew.runs.tuning import on_edge, score, tune
from kernelcrew.tools.nouns import Build, Decision, Timing, Verification
from kernelcrew.tools.workshop import BUILD, CONFIRM, VERIFY, BuildArgs, Builds, ConfirmArgs, VerifyArgs

SKEPTIC_TASK = "Review this change: object, ask for more tests, or let it pass."


class Case(Record):
    """One candidate on its way to a decision."""

    trial: Trial
    """The proposal, its patch, the candidate and the net's verdict so far."""
    ablation: Ablation | None = None
    """Which change paid."""
    hurting: tuple[str, ...] = ()
    """Changes with which the ablation found a class to be slower, whatever they give elsewhere."""
    note: str = ""
    """What pruning left out, for the reason of the decision."""
    confirmation: Timing | None = None
    """New blocks of this very candidate: a follow-up begins without."""
    review: Review | None = None
    """The skeptic's answer."""
    split_before: bool = False
    """A split was tried."""
    rule_before: bool = False
    """The candidate is a rule's variant."""
    adjusted_before: bool = False
    """The window was moved."""
    last: bool = False
    """This is the follow-up, after which there is no other: a split, rule or window that it asks for is not tried."""
    tests_done: bool = False
    """The skeptic's extra tests were run."""


def best_of(trials: list[Trial]) -> Trial | None:
    """The trial that screened best among those that gain somewhere."""
    fit = [t for t in trials if t.verdict.outcome == "accept" and t.verdict.timing and gains(t.verdict.timing)]
    return max(fit, key=lambda t: score(t.verdict.timing) if t.verdict.timing else 0.0, default=None)


def judge_unconfirmed(trial: Trial, winner: Judged | None) -> Judged:
    """A proposal that was not the round's best: its gates or its screen decide."""
    confirmed = winner is not None and winner.confirmation is not None
    outrun_by = winner.proposal if winner is not None and confirmed else ""
    gates = gates_of(trial, None, None)
    evidence = Evidence(gates=gates, screen=trial.verdict.timing, changes=_changes(trial), outrun_by=outrun_by)
    return _judged(Case(trial=trial), gates, decide(evidence))


def judge_best(crew: Crew, number: int, standing: Standing, trial: Trial) -> Judged:
    """Ablate, prune, confirm, review and decide; then one follow-up where the table asks for one."""
    case = ablate(crew, number, standing, trial)
    judged, case = _settle_case(crew, f"r{number}", standing, case)
    action = judged.decision.action
    if action == "split":
        case = _split(crew, number, standing, case, judged.decision)
    elif action == "adopt_when":
        ruled = _ruled(crew, number, standing, case, judged.decision)
        if ruled is None:
            why = f"{judged.decision.reason}, but the incumbent has variants of its own and takes no further rule"
            return judged.model_copy(update={"decision": _rolled_back(judged.decision, why)})
        case = ruled
    elif action == "adjust":
        case = _adjusted(crew, number, standing, case)
    else:
        return judged
    case = case.model_copy(update={"last": True})
    followed, case = _settle_case(crew, f"r{number}.{action}", standing, case)
    if case.rule_before and followed.decision.action == "adopt":
        rule = judged.decision.rule
        decision = followed.decision.model_copy(
            update={"action": "adopt_when", "rule": rule, "reason": f"where {rule}: {followed.decision.reason}"}
        )
        followed = followed.model_copy(update={"decision": decision})
    return followed


def ablate(crew: Crew, number: int, standing: Standing, trial: Trial) -> Case:
    """Leave each change out of the final set, time it against the set, and drop what does not pay."""
    whole = trial.verdict.build
    if whole is None or len(trial.proposal.changes) < 2:
        return Case(trial=trial)
    if not crew.may(f"r{number}.ablate.{trial.proposal.id}", crew.clock.reserve_s()):
        return Case(trial=trial, note="not ablated, the time was kept for the confirmation")
    crew.say(
        "ablate",
        f"each of {len(trial.proposal.changes)} changes left out",
        round_number=number,
        candidate=trial.proposal.id,
    )
    ids = tuple(c.id for c in trial.proposal.changes)
    rows: list[AblationRow] = []
    apart: list[tuple[AblationRow, Candidate]] = []
    for left_out in ids:
        gone = with_dependents(trial.proposal, left_out)
        rest = tuple(c for c in ids if c not in gone)
        together = ", ".join(c for c in gone if c != left_out)
        note = f"left out together with what needs it: {together}" if together else ""
        row = AblationRow(change=left_out, separable=False, effect={}, note=note or "nothing is left without it")
        made = composed(crew, standing, trial.proposal, trial.patch, rest) if rest else standing.candidate
        if isinstance(made, NotApplicable):
            rows.append(row.model_copy(update={"note": f"not separable: {made.because}"}))
        else:
            apart.append((row.model_copy(update={"note": note}), made))
    rows += _timed_rows(crew, number, trial, whole, apart)
    order = {change: index for index, change in enumerate(ids)}
    margin = trial.verdict.timing.margin if trial.verdict.timing else 0.02
    ablation = ablation_from(sorted(rows, key=lambda r: order[r.change]), margin)
    pruned = prune(ablation, trial.proposal, margin)
    hurting = tuple(dict.fromkeys(change for change, _ in ablation.hurts))
    case = Case(trial=trial, ablation=ablation, hurting=hurting)
    if set(pruned.keep) == set(ids):
        return case
    return _without(
        crew, f"r{number}.pruned.{trial.proposal.id}", standing, case, pruned.keep, (*pruned.hurting, *pruned.idle)
    )


def confirmed(lab: Lab, step: str, build: Build, against: tuple[Build, Build], held_out: bool) -> Timing:
    """The sequential test on new blocks, against the incumbent and the run's first baseline."""
    incumbent, start = against
    lab.say("confirm", "sequential test on new blocks")
    args = ConfirmArgs(
        candidate=build,
        incumbent=incumbent,
        start=start,
        plan=lab.alpha,
        deadline_s=max(lab.clock.left_s(), 0.0),
        held_out=held_out,
    )
    inputs = [build.artifact_hash, incumbent.artifact_hash, start.artifact_hash, held_out]
    return lab.journal.do(f"{step}.confirm", Timing, inputs, lambda: _confirm(lab, args))


def review(crew: Crew, step: str, standing: Standing, case: Case, gates: tuple[Gate, ...]) -> Case:
    """The skeptic looks for what numbers miss; it may order more tests once, and they can only add."""
    crew.say("review", "the skeptic reads the record", candidate=case.trial.proposal.id)
    answer = _ask_skeptic(crew, f"{step}.review.{case.trial.proposal.id}", standing, case, gates)
    found = answer.review
    build = case.trial.verdict.build
    if found is None or found.verdict != "more_tests" or build is None:
        return case.model_copy(update={"review": found})
    options = options_from(crew.operator, found.tests)
    crew.say("review", f"{len(found.tests)} more tests for the skeptic", candidate=case.trial.proposal.id)
    more = crew.journal.do(
        f"{step}.more_tests.{case.trial.proposal.id}",
        Verification,
        [build.artifact_hash, options],
        lambda: crew.bus.need(VERIFY, VerifyArgs(build=build, options=options)),
    ).slim()
    stage = {"ok": case.trial.verdict.stage, "unsafe": "safety", "wrong": "correctness"}[more.status]
    outcome = case.trial.verdict.outcome if more.status == "ok" else "reject"
    changes = {
        "verification": more,
        "stage": stage,
        "outcome": outcome,
        "reason": more.reason or case.trial.verdict.reason,
    }
    verdict = case.trial.verdict.model_copy(update=changes)
    trial = case.trial.model_copy(update={"verdict": verdict})
    case = case.model_copy(update={"trial": trial, "tests_done": True})
    second = _ask_skeptic(
        crew, f"{step}.review_again.{case.trial.proposal.id}", standing, case, gates_of(case.trial, None, None)
    )
    return case.model_copy(update={"review": second.review or found})


def gates_of(trial: Trial, incumbent: Build | None, skeptic: Review | None) -> tuple[Gate, ...]:
    """The pass criteria that do not need timing, as far as the candidate got."""
    verdict = trial.verdict
    if verdict.gate and verdict.outcome == "reject":
        return (Gate(name=verdict.gate, passed=False, figure=verdict.reason),)
    order = ("policy", "build", "safety", "correctness")
    gates: list[Gate] = []
    if trial.reasons:
        figure = "; ".join(f"{r.change} {r.found.figure}" for r in trial.reasons)
        gates.append(Gate(name="rationale", passed=True, figure=figure))
    for name in order:
        failed = verdict.stage == name and verdict.outcome == "reject"
        gates.append(Gate(name=name, passed=not failed, figure=verdict.reason if failed else "held"))
        if failed:
            return tuple(gates)
    if verdict.outcome == "reject":
        gates.append(Gate(name="correctness", passed=False, figure=f"timed outputs: {verdict.reason}"))
    if verdict.verification is not None:
        v = verdict.verification
        gates.append(
            Gate(name="bias", passed=v.status == "ok", figure=f"pooled mean {v.bias:+.3f} u of the condition scale")
        )
    if verdict.build is not None and incumbent is not None:
        new = len(verdict.build.warnings) - len(incumbent.warnings)
        gates.append(Gate(name="warnings", passed=new <= 0, figure=f"{max(new, 0)} new compiler warnings"))
    if skeptic is not None:
        objected = skeptic.verdict == "object"
        gates.append(Gate(name="review", passed=not objected, figure="; ".join(skeptic.objections) or skeptic.summary))
    return tuple(gates)


def _settle_case(crew: Crew, step: str, standing: Standing, case: Case) -> tuple[Judged, Case]:
    gates = gates_of(case.trial, standing.build, None)
    if all(g.passed for g in gates) and crew.may(f"{step}.{case.trial.proposal.id}.confirm", 0.0):
        build = case.trial.verdict.build
        assert build is not None
        timing = confirmed(
            crew, f"{step}.{case.trial.proposal.id}", build, (standing.build, crew.start_build()), case.rule_before
        )
        case = case.model_copy(update={"confirmation": timing})
        case = review(crew, step, standing, case, gates)
        gates = gates_of(case.trial, standing.build, case.review)
    found = case.confirmation
    evidence = Evidence(
        gates=gates,
        screen=case.trial.verdict.timing,
        confirmed=found,
        changes=_changes(case.trial),
        hurting=tuple(c for c in case.hurting if c in _changes(case.trial)),
        split_before=case.split_before or case.last,
        rule=find_rule(crew.operator, found) if found else "",
        rule_before=case.rule_before or case.last,
        edge_knobs=on_edge(case.trial),
        adjusted_before=case.adjusted_before or case.last,
    )
    decision = decide(evidence)
    if case.note:
        decision = decision.model_copy(update={"reason": f"{decision.reason}; {case.note}"})
    return _judged(case, gates, decision), case


def _judged(case: Case, gates: tuple[Gate, ...], decision: Decision) -> Judged:
    proposal = case.trial.proposal
    whole = case.confirmation or case.trial.verdict.timing
    return Judged(
        proposal=proposal.id,
        title=proposal.title,
        changes=tuple(c.id for c in proposal.changes),
        trial=case.trial,
        ablation=case.ablation,
        confirmation=case.confirmation,
        gates=gates,
        review=case.review,
        decision=decision,
        hypotheses=hypotheses(proposal, case.ablation, whole, {}),
    )


def _without(
    crew: Crew, step: str, standing: Standing, case: Case, keep: tuple[str, ...], dropped: tuple[str, ...]
) -> Case:
    made = composed(crew, standing, case.trial.proposal, case.trial.patch, keep)
    if isinstance(made, NotApplicable):
        return case.model_copy(
            update={"note": f"{', '.join(dropped)} pays nothing but cannot be taken out: {made.because}"}
        )
    verdict = inspect(crew, step, made, standing.build)
    trial = case.trial.model_copy(update={"candidate": made, "verdict": verdict})
    note = f"left out, pays nothing: {', '.join(dropped)}"
    return case.model_copy(update={"trial": trial, "note": note, "confirmation": None})


def _split(crew: Crew, number: int, standing: Standing, case: Case, decision: Decision) -> Case:
    step = f"r{number}.split.{case.trial.proposal.id}"
    return _without(crew, step, standing, case, decision.keep, decision.drop).model_copy(update={"split_before": True})


def _rolled_back(decision: Decision, why: str) -> Decision:
    return decision.model_copy(update={"action": "rollback", "rule": "", "reason": why})


def _ruled(crew: Crew, number: int, standing: Standing, case: Case, decision: Decision) -> Case | None:
    assert case.trial.candidate is not None
    made = with_rule(case.trial.candidate, standing.candidate, decision.rule)
    if made is None:
        return None
    verdict = inspect(crew, f"r{number}.rule.{case.trial.proposal.id}", made, standing.build)
    trial = case.trial.model_copy(update={"candidate": made, "verdict": verdict})
    return case.model_copy(update={"trial": trial, "rule_before": True, "confirmation": None})


def _adjusted(crew: Crew, number: int, standing: Standing, case: Case) -> Case:
    edges = set(on_edge(case.trial))
    changes = []
    for change in case.trial.proposal.changes:
        knobs = tuple(
            k.model_copy(update={"window": moved_window(k.window, case.trial.tuned[k.name])}) if k.name in edges else k
            for k in change.knobs
        )
        changes.append(change.model_copy(update={"knobs": knobs}))
    proposal = case.trial.proposal.model_copy(update={"changes": tuple(changes), "id": f"{case.trial.proposal.id}w"})
    trial = tune(crew, number, standing, case.trial.model_copy(update={"proposal": proposal}))
    return case.model_copy(update={"trial": trial, "adjusted_before": True, "confirmation": None})


def moved_window(window: tuple[int, ...], value: int) -> tuple[int, ...]:
    """A window of the same size beyond the edge that `value` sits on: doubled upwards, halved downwards."""
    if value == max(window):
        return (value, value * 2, value * 4)
    return tuple(v for v in (max(value // 4, 1), max(value // 2, 1), value) if v >= 1)


def _confirm(lab: Lab, args: ConfirmArgs) -> Timing:
    found = lab.bus.use(CONFIRM, args)
    return (
        found if isinstance(found, Timing) else unmeasured(args.candidate, args.incumbent, found.because, "confirmed")
    )


def with_dependents(proposal: Proposal, change: str) -> tuple[str, ...]:
    """A change and all that cannot stand without it, in the proposal's order."""
    gone = {change}
    while more := {c.id for c in proposal.changes if c.id not in gone and gone & set(c.requires)}:
        gone |= more
    return tuple(c.id for c in proposal.changes if c.id in gone)


def _timed_rows(
    crew: Crew, number: int, trial: Trial, whole: Build, apart: list[tuple[AblationRow, Candidate]]
) -> list[AblationRow]:
    if not apart:
        return []
    candidates = tuple(c for _, c in apart)
    step = f"r{number}.ablate.{trial.proposal.id}"
    builds = crew.journal.do(
        f"{step}.build",
        Builds,
        [c.identity for c in candidates],
        lambda: crew.bus.need(BUILD, BuildArgs(candidates=candidates)),
    ).builds
    rows: list[AblationRow] = []
    good: list[tuple[AblationRow, Build]] = []
    for (row, candidate), build in zip(apart, builds, strict=True):
        if build.status == "ok":
            good.append((row, fresh(crew, candidate, build)))
        else:
            rows.append(row.model_copy(update={"note": "the rest does not build without it"}))
    if good:
        timings = screened(crew, f"{step}.screen", tuple(b for _, b in good), whole)
        rows += [row_from(row.change, timing, row.note) for (row, _), timing in zip(good, timings, strict=True)]
    return rows


def _ask_skeptic(crew: Crew, step: str, standing: Standing, case: Case, gates: tuple[Gate, ...]) -> Answer:
    inputs = [case.trial.candidate, case.confirmation, case.trial.verdict.verification]
    foretold = hypotheses(case.trial.proposal, case.ablation, case.confirmation, {})
    found = Measured(
        ablation=case.ablation,
        confirmation=case.confirmation,
        gates=gates,
        hypotheses=foretold,
        tests_done=case.tests_done,
    )
    evidence = skeptic_evidence(crew, standing, case.trial, found)
    answer = crew.journal.do(step, Answer, inputs, lambda: crew.ask("skeptic", SKEPTIC_TASK, "", evidence, 0))
    crew.ledger.add("review", answer.usage)
    return answer


def _changes(trial: Trial) -> tuple[str, ...]:
    return trial.candidate.changes if trial.candidate else tuple(c.id for c in trial.proposal.changes)
