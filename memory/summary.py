"""What is written down about one proposal: at most 400 tokens that say change, figures, conclusion and conditions."""

from __future__ import annotations

from collections.abc import Mapping

from kernelcrew.kernels.nouns import Change, Proposal
from kernelcrew.memory.nouns import UNJUDGED, Conditions, Fate, Findings, Rationale, TriedPatch
from kernelcrew.memory.tokens import clip, count
from kernelcrew.tools.nouns import Action, Timing

LONGEST_TOKENS = 400
_SHARES = {"title": 40, "change": 140, "figures": 110, "conclusion": 65, "conditions": 40}
"""Tokens that each part may keep when the whole is too long; together with the line ends they stay under 400."""
_WORDS = {
    "adopt": "adopted",
    "adopt_when": "adopted for some shapes",
    "adjust": "to be tried again with another window",
    "split": "to be tried again without what hurts",
    "rollback": "rolled back",
    "inconclusive": "inconclusive, not refuted",
}
_NO_GAIN = 0.01
"""Where no timing names its margin: an effect below 1 % counts as none."""


def summarise(proposal: Proposal, findings: Findings, conditions: Conditions) -> str:
    """The summary that later sessions read. Never more than 400 tokens."""
    parts = {
        "title": f"{conditions.run}:{proposal.id} {proposal.title}",
        "change": "Change: " + "; ".join(_change(c) for c in proposal.changes) + ".",
        "figures": "Figures: " + _figures(findings) + ".",
        "conclusion": "Conclusion: " + _conclusion(findings) + ".",
        "conditions": "Conditions: " + _where(conditions) + ".",
    }
    text = "\n".join(parts.values())
    if count(text) <= LONGEST_TOKENS:
        return text
    return clip("\n".join(clip(part, _SHARES[name]) for name, part in parts.items()), LONGEST_TOKENS)


def tried_patch(proposal: Proposal, findings: Findings, conditions: Conditions) -> TriedPatch:
    """The record that memory keeps of one proposal, and that the repeat guard matches."""
    timing = findings.measured()
    return TriedPatch(
        id=f"{conditions.run}:{proposal.id}",
        run=conditions.run,
        operator=conditions.operator,
        operator_version=conditions.operator_version,
        backend=conditions.backend,
        platform=conditions.platform,
        circumstances=conditions.circumstances,
        incumbent=conditions.incumbent,
        features=tuple(c.features(conditions.operator, conditions.backend) for c in proposal.changes),
        whys=tuple(c.why for c in proposal.changes),
        fates=fates(proposal, findings),
        tried_knobs=findings.tried_knobs,
        candidate=findings.candidate,
        result=findings.result,
        decision=findings.decision.action,
        gate=findings.decision.gate,
        classes=_ratios(timing),
        hypothesis=_hypothesis(findings),
        text=summarise(proposal, findings, conditions),
        commit=findings.commit,
        author=conditions.author,
        created=conditions.created,
    )


def rationales(proposal: Proposal, findings: Findings, conditions: Conditions) -> list[Rationale]:
    """One entry of the knowledge base a change: why it should work, what was measured, what became of it."""
    timing = findings.measured()
    kept: list[Rationale] = []
    for change in proposal.changes:
        ratios = findings.effects.get(change.id) or _ratios(timing)
        evidence = _evidence(change, findings, len(proposal.changes) > 1)
        action = _action(change, findings)
        why = findings.decision.reason if action == findings.decision.action else "left out of the set, it pays nothing"
        what = f"{change.mechanism} on {change.target} ({proposal.title}). {change.why.rstrip('. ')}."
        kept.append(
            Rationale(
                id=f"{conditions.run}:{proposal.id}:{change.id}",
                run=conditions.run,
                commit=findings.commit if action == findings.decision.action else "",
                operator=conditions.operator,
                backend=conditions.backend,
                platform=conditions.platform,
                mechanism=change.mechanism,
                decision=action,
                shape_classes=tuple(ratios),
                classes=ratios,
                why=change.why,
                evidence=evidence,
                text=f"{what} {evidence} Decision: {_WORDS[action]}, {why}",
                author=conditions.author,
                created=conditions.created,
            )
        )
    return kept


def _action(change: Change, findings: Findings) -> Action:
    """What became of this change: the decision of its set, unless it was taken out of an adopted one."""
    adopted = findings.decision.action in ("adopt", "adopt_when")
    return "rollback" if adopted and findings.fates.get(change.id) == "refuted" else findings.decision.action


def fates(proposal: Proposal, findings: Findings) -> tuple[Fate, ...]:
    """What became of each change: as the findings say, else as decision and ablation imply; () where only the whole
    was judged."""
    implied = {change.id: _implied(change, proposal, findings) for change in proposal.changes}
    said = [findings.fates.get(id_) or fate for id_, fate in implied.items()]
    return tuple(fate or "open" for fate in said) if any(said) else ()


def _implied(change: Change, proposal: Proposal, findings: Findings) -> Fate | None:
    decision = findings.decision
    if decision.gate in UNJUDGED:
        return "open"
    if decision.action in ("adopt", "adopt_when"):
        return "adopted" if change.id in decision.keep or not decision.keep else "open"
    if decision.action == "split":
        return "refuted" if change.id in decision.drop else "open"
    if decision.action != "rollback":
        return None
    if len(proposal.changes) == 1:
        return "refuted"
    effect = findings.effects.get(change.id)
    if not effect:
        return None
    timing = findings.measured()
    margin = timing.margin if timing else _NO_GAIN
    return "refuted" if max(effect.values()) < 1 + margin else "open"


def _change(change: Change) -> str:
    knobs = ", ".join(f"{k.name}={k.value} of {'/'.join(str(v) for v in k.window)}" for k in change.knobs)
    return f"{change.mechanism} on {change.target}{f' ({knobs})' if knobs else ''}: {change.why.rstrip('. ')}"


def _figures(findings: Findings) -> str:
    timing = findings.measured()
    if timing is None:
        verdict = findings.verdict
        return f"none, stopped at {verdict.stage}: {verdict.reason.rstrip('. ')}" if verdict else "none, not measured"
    ranges = "; ".join(f"{c.shape_class} {c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}] {c.answer}" for c in timing.classes)
    worst = min(timing.shapes, key=lambda s: s.ratio, default=None)
    tail = f"; worst shape {worst.shape} {worst.ratio:.3f} [{worst.low:.3f}, {worst.high:.3f}]" if worst else ""
    return f"incumbent's time over its own, 95 % intervals, {timing.grade}: {ranges}{tail}"


def _conclusion(findings: Findings) -> str:
    decision = findings.decision
    head = _WORDS[decision.action] + (f" by the gate {decision.gate}" if decision.gate else "")
    rule = f" when {decision.rule}" if decision.rule else ""
    foretold = "; ".join(f"{id_} {word}" for id_, word in findings.hypotheses.items())
    said = f". Expected figures: {foretold}" if foretold else ""
    return f"{head}{rule}, {decision.reason.rstrip('. ')}{said}"


def _where(conditions: Conditions) -> str:
    return (
        f"{conditions.operator} contract {conditions.operator_version}, {conditions.backend}, {conditions.platform}, "
        f"{conditions.compiler}, on kernel {conditions.incumbent[:8]}, by {conditions.author}"
    )


def _evidence(change: Change, findings: Findings, composite: bool) -> str:
    effect = findings.effects.get(change.id)
    foretold = findings.hypotheses.get(change.id)
    said = f" The expected figure: {foretold}." if foretold else ""
    if effect:
        return f"Its own share of the set (ablation, screen): {_pairs(effect)}.{said}"
    timing = findings.measured()
    if timing is None:
        return f"Not timed.{said}"
    whose = "As part of a set, the figures are the whole set's" if composite else "Measured"
    return f"{whose} ({timing.grade}): {_pairs(_ratios(timing))}.{said}"


def _pairs(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ratio:.3f}x" for name, ratio in ratios.items()) or "no class"


def _ratios(timing: Timing | None) -> dict[str, float]:
    return {c.shape_class: c.ratio for c in timing.classes} if timing else {}


def _hypothesis(findings: Findings) -> str:
    """refuted if any change's figure did not move as foretold, confirmed if all did, else unread."""
    words = [word.split()[0].strip(".,:;") for word in findings.hypotheses.values() if word]
    if "refuted" in words:
        return "refuted"
    return "confirmed" if words and all(word == "confirmed" for word in words) else "unread"
