"""The repeat guard: what memory speaks against a proposal, decided on features, never on a model's word.

A change is refuted when a patch that was rolled back held the same mechanism on the same target, with the same knob
values or with all values of its window tried, under the same circumstances, contract and line of kernels. A set that
was rolled back refutes that set; a change in it only if the ablation said so. An inconclusive try refutes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernelcrew.kernels.nouns import Change, Proposal
from kernelcrew.memory.lexical import nearness
from kernelcrew.memory.nouns import UNJUDGED, Guarded, Refuted, Situation, TriedPatch

FREE = "free"
SAME_IDEA = 0.75
"""Cosine of terms from which two reasons of free changes on one target count as one idea."""
_CODE_GATES = frozenset(("policy", "build", "safety", "correctness", "bias", "warnings", "rationale"))
"""Gates at which free code failed, not its idea. A recipe writes the same code again, so it fails again."""


class _Match(NamedTuple):
    """A change of a tried patch that is the same idea as a proposed one."""

    tried: TriedPatch
    place: int


def guard(proposal: Proposal, situation: Situation, tried: Sequence[TriedPatch]) -> Guarded:
    """Sort a proposal's changes into those that may be tried and those that memory speaks against, each with why."""
    past = [t for t in tried if (t.operator, t.backend) == (situation.operator, situation.backend)]
    against: dict[str, Refuted] = {}
    inside: dict[str, Refuted] = {}
    reopened: list[Refuted] = []
    for change in proposal.changes:
        matches = _matches(change, past)
        adopted = [m for m in matches if _fate(m) == "adopted" and _in_line(m.tried, situation)]
        refuted = [m for m in matches if _fate(m) == "refuted"]
        same = [m for m in refuted if not changed(m.tried, situation)]
        if _covered(change, adopted):
            inside[change.id] = _case(change.id, adopted[-1].tried, "already in the incumbent")
        elif _covered(change, same):
            against[change.id] = _case(change.id, same[-1].tried, "refuted")
        elif _covered(change, refuted):
            latest = refuted[-1].tried
            why = " and ".join(changed(latest, situation))
            reopened.append(_case(change.id, latest, f"refuted before, open again because {why}"))
    against |= _dependents(proposal, against)
    keep = tuple(c for c in proposal.changes if c.id not in against and c.id not in inside)
    whole = _same_set(keep, past, situation)
    if whole is not None:
        against |= {c.id: _case(c.id, whole, "refuted as this set of changes") for c in keep}
        keep = ()
    return Guarded(
        keep=keep,
        refuted=tuple(against.values()),
        already_in=tuple(inside.values()),
        reopened=tuple(r for r in reopened if r.change in {c.id for c in keep}),
    )


def refuted(proposal: Proposal, situation: Situation, tried: Sequence[TriedPatch]) -> list[Refuted]:
    """The changes of a proposal that were refuted before under the same circumstances, each with its case."""
    return list(guard(proposal, situation, tried).refuted)


def already_in(proposal: Proposal, situation: Situation, tried: Sequence[TriedPatch]) -> list[Refuted]:
    """The changes of a proposal that the incumbent already has, each with the patch that brought it."""
    return list(guard(proposal, situation, tried).already_in)


def same_code(identity: str, situation: Situation, tried: Sequence[TriedPatch]) -> Refuted | None:
    """The rolled-back patch whose very code this is, if there is one under the same circumstances."""
    for t in reversed(tried):
        judged = t.decision == "rollback" and t.gate not in UNJUDGED
        if identity and t.candidate == identity and judged and not changed(t, situation):
            return _case("", t, "the same code was judged before")
    return None


def lineage_of(incumbent: str, tried: Iterable[TriedPatch], start: str = "") -> frozenset[str]:
    """Identities of the incumbent and of every kernel it grew from by adoptions that memory knows, and the start."""
    grew_from: dict[str, set[str]] = {}
    for t in tried:
        if t.result and t.result != t.incumbent:
            grew_from.setdefault(t.result, set()).add(t.incumbent)
    line = {identity for identity in (incumbent, start) if identity}
    open_ends = list(line)
    while open_ends:
        for parent in grew_from.get(open_ends.pop(), set()) - line:
            line.add(parent)
            open_ends.append(parent)
    return frozenset(line)


def changed(t: TriedPatch, situation: Situation) -> list[str]:
    """Which circumstances differ from those that a patch was tried under; empty when its verdict still stands."""
    differences = []
    if t.platform != situation.platform:
        differences.append(f"it was tried on {t.platform}")
    elif t.circumstances != situation.circumstances:
        differences.append("the compiler, cores or caches changed")
    if t.operator_version != situation.operator_version:
        differences.append(f"the contract was version {t.operator_version}")
    if t.incumbent not in situation.lineage:
        differences.append(f"it was tried on kernel {t.incumbent[:8]}, which the current one did not grow from")
    return differences


def _matches(change: Change, past: Sequence[TriedPatch]) -> list[_Match]:
    """Every earlier appearance of the same idea, oldest first; knob values are looked at later."""
    return [
        _Match(t, index)
        for t in sorted(past, key=lambda t: (t.created, t.id))
        for index, features in enumerate(t.features)
        if _same_idea(change, t, index, features)
    ]


def _same_idea(change: Change, t: TriedPatch, index: int, features: dict[str, str]) -> bool:
    if (features["mechanism"], features["target"]) != (change.mechanism, change.target):
        return False
    if change.mechanism != FREE:
        return True
    if change.diff and features.get("diff"):
        return change.diff == features["diff"]  # the code itself was judged: its words do not matter
    if t.gate in _CODE_GATES or index >= len(t.whys):
        return False
    return nearness(change.why, t.whys[index]) >= SAME_IDEA


def _fate(match: _Match) -> str:
    fates = match.tried.fates
    if fates:
        return fates[match.place]
    decision = match.tried.decision
    if match.tried.gate in UNJUDGED:
        return "open"
    if decision in ("adopt", "adopt_when"):
        return "adopted"
    return "refuted" if decision == "rollback" and len(match.tried.features) == 1 else "open"


def _in_line(t: TriedPatch, situation: Situation) -> bool:
    """Whether what this patch brought is part of the current incumbent."""
    return (t.result or t.incumbent) in situation.lineage


def _covered(change: Change, matches: Sequence[_Match]) -> bool:
    """Whether nothing about the change's knobs is new: its first values were tried together, or all of its windows."""
    if not matches:
        return False
    wanted = {k.name: k.value for k in change.knobs}
    if any(wanted == {name: _values(m).get(name) for name in wanted} for m in matches):
        return True
    known: dict[str, set[int]] = {}
    for match in matches:
        for name, value in _values(match).items():
            known.setdefault(name, set()).add(value)
        for name, values in match.tried.tried_knobs.items():
            known.setdefault(name, set()).update(values)
    return all({k.value, *k.window} <= known.get(k.name, set()) for k in change.knobs)


def _values(match: _Match) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in match.tried.features[match.place].get("knobs", "").split(";") if pair)
    return {name: int(value) for name, _, value in pairs}


def _dependents(proposal: Proposal, against: dict[str, Refuted]) -> dict[str, Refuted]:
    """Changes that cannot be applied without a refuted one, directly or by others."""
    found: dict[str, Refuted] = {}
    for _ in proposal.changes:
        for change in proposal.changes:
            needed = next((id_ for id_ in change.requires if id_ in against or id_ in found), None)
            if needed is not None and change.id not in against and change.id not in found:
                case = against.get(needed) or found[needed]
                found[change.id] = Refuted(change=change.id, tried=case.tried, reason=f"needs {needed}: {case.reason}")
    return found


def _same_set(keep: Sequence[Change], past: Sequence[TriedPatch], situation: Situation) -> TriedPatch | None:
    """The patch that was rolled back or split with exactly this set of changes, under the same circumstances."""
    for t in sorted(past, key=lambda t: (t.created, t.id), reverse=True):
        if len(keep) < 2 or len(t.features) != len(keep) or t.decision not in ("rollback", "split"):
            continue
        if t.gate in UNJUDGED or changed(t, situation):
            continue
        places = [[m for m in _matches(change, [t]) if _covered(change, [m])] for change in keep]
        if all(places) and len({m.place for found in places for m in found}) == len(keep):
            return t
    return None


def _case(change: str, t: TriedPatch, what: str) -> Refuted:
    ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in t.classes.items())
    gate = f", gate {t.gate}" if t.gate else ""
    figures = f" ({ratios})" if ratios else ""
    return Refuted(change=change, tried=t.id, reason=f"{what}: {t.id} was {_past(t.decision)}{gate}{figures}")


def _past(decision: str) -> str:
    words = {"adopt": "adopted", "adopt_when": "adopted for some shapes", "rollback": "rolled back", "split": "split"}
    return words.get(decision, decision)
