"""The patch writer's rules: each change by its recipe; what fails is tried with other values once, then left out."""

from __future__ import annotations

import re

from kernelcrew.agents.evidence import WriterEvidence
from kernelcrew.agents.nouns import EditText, KnobValue, PatchAnswer
from kernelcrew.kernels.nouns import Change

FREE = "free"
NOT_APPLIED = re.compile(r"change (?P<id>\S+) cannot be applied")
"""How the round tells that one change does not fit; other problems are the compiler's or the policy's words."""


def write_patch(evidence: WriterEvidence) -> PatchAnswer:
    """One edit a change. Earlier problems decide which changes are left out and which values are tried."""
    changes = evidence.proposal.changes
    recipes = {r.name for r in evidence.recipes}
    notes: list[str] = []
    out: set[str] = set()
    for change in changes:
        if change.mechanism not in recipes and not (change.mechanism == FREE and change.knobs):
            _leave(change.id, changes, out, notes, "no recipe writes it")
    other_values = False
    for problem in evidence.problems:
        named = _named(problem, changes, out)
        if named is not None:
            _leave(named, changes, out, notes, problem.splitlines()[0][:160])
        elif not other_values and any(len(k.window) > 1 for c in changes for k in c.knobs):
            other_values = True
            notes.append("smallest values of all knobs, since the first ones did not pass")
        else:
            last = _droppable(changes, out)
            if last is not None:
                _leave(
                    last, changes, out, notes, "the compiler names no change; the last one that others can do without"
                )
    edits = [_edit(c, recipes, smallest=other_values) for c in changes if c.id not in out]
    return PatchAnswer(edits=edits, note="; ".join(notes))


def _edit(change: Change, recipes: set[str], *, smallest: bool) -> EditText:
    knobs = [
        KnobValue(name=k.name, value=min(k.window, default=k.value) if smallest else k.value) for k in change.knobs
    ]
    recipe = change.mechanism if change.mechanism in recipes else ""
    return EditText(change=change.id, recipe=recipe, knobs=knobs, blocks=[], add_flags=[])


def _named(problem: str, changes: tuple[Change, ...], out: set[str]) -> str | None:
    """The change that a problem speaks of: by the round's own words, or by its id among the compiler's."""
    told = NOT_APPLIED.search(problem)
    left = [c.id for c in changes if c.id not in out]
    if told and told["id"] in left:
        return told["id"]
    return next((id_ for id_ in left if re.search(rf"\b{re.escape(id_)}\b", problem)), None)


def _leave(change: str, changes: tuple[Change, ...], out: set[str], notes: list[str], why: str) -> None:
    """Leave out a change and all that cannot be applied without it."""
    gone = {change}
    while more := {c.id for c in changes if c.id not in gone and gone & set(c.requires)}:
        gone |= more
    notes.extend(f"{id_} left out: {why if id_ == change else f'it needs {change}'}" for id_ in sorted(gone - out))
    out |= gone


def _droppable(changes: tuple[Change, ...], out: set[str]) -> str | None:
    """The last change that nothing kept requires, unless it is the only one left."""
    left = [c for c in changes if c.id not in out]
    needed = {r for c in left for r in c.requires}
    return next((c.id for c in reversed(left) if c.id not in needed), None) if len(left) > 1 else None
