"""What opens a session: constraints, platform, current kernel and the tried patches that matter, in a token budget."""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.memory.lexical import scores
from kernelcrew.memory.nouns import Opening, Prefix, Situation, TriedPatch
from kernelcrew.memory.tokens import MARK, clip, count, counter_name

DEFAULT_BUDGET_TOKENS = 3000
_KERNEL_SHARE = 0.5
"""The current kernel may take this much of the budget when it and the summaries do not both fit."""
_SUMMARIES = 1200
"""Tokens that a long kernel leaves to the summaries while it has its share."""
_RESERVE = 90
"""Tokens kept for headings and for the sentence on what was left out."""


def build_prefix(
    opening: Opening, tried: Sequence[TriedPatch], situation: Situation, budget: int = DEFAULT_BUDGET_TOKENS
) -> Prefix:
    """Compose the prefix. It never exceeds `budget` tokens; what does not fit is left out by relevance, and said.

    Of `tried`, those of another operator or backend, or tried under another contract, do not matter here. A refuted
    patch whose summary does not fit still gets one line, as long as there is room.
    """
    head = _head(opening, budget)
    ordered = relevance(tried, situation, opening.focus)
    room = max(0, budget - count(head) - _RESERVE)
    full, short = _choose(ordered, room)
    left_out = len(tried) - len(full) - len(short)
    parts = [head]
    if full:
        parts.append("## Tried before\n" + "\n\n".join(t.text for t in full))
    if short:
        parts.append("## Also refuted, in short\n" + "\n".join(_line(t) for t in short))
    if not tried:
        parts.append("## Tried before\nNothing yet.")
    if left_out:
        parts.append(_left_out(left_out, len(tried) - len(ordered)))
    text = clip("\n\n".join(part for part in parts if part), budget)
    return Prefix(
        text=text,
        tokens=count(text),
        budget=budget,
        included=tuple(t.id for t in (*full, *short)),
        left_out=left_out,
        counter=counter_name(),
    )


def relevance(tried: Sequence[TriedPatch], situation: Situation, focus: str) -> list[TriedPatch]:
    """The tried patches that bear on this situation, the most relevant first.

    Near the focus counts most, then the same circumstances and line of kernels, then a clear outcome, then recency.
    """
    here = [
        t
        for t in tried
        if (t.operator, t.backend, t.operator_version)
        == (situation.operator, situation.backend, situation.operator_version)
    ]
    near = scores(focus, [t.text for t in here]) if focus else [0.0] * len(here)
    top = max(near, default=0.0) or 1.0

    def value(index: int) -> tuple[float, str, str]:
        t = here[index]
        same = (t.platform == situation.platform) + (t.circumstances == situation.circumstances)
        weight = 2 * near[index] / top + 0.5 * same + 0.5 * (t.incumbent in situation.lineage)
        return weight + 0.25 * (t.decision != "inconclusive"), t.created, t.id

    return [here[i] for i in sorted(range(len(here)), key=value, reverse=True)]


def _head(opening: Opening, budget: int) -> str:
    """Everything but the tried patches. Constraints come first and are the last to be cut."""
    rules = "## Constraints\n" + "\n".join(f"- {line}" for line in opening.constraints) if opening.constraints else ""
    machine = f"## Platform\n{opening.platform}" if opening.platform else ""
    fixed = "\n\n".join(part for part in (rules, machine) if part)
    room = max(0, int(budget * _KERNEL_SHARE), budget - count(fixed) - _RESERVE - _SUMMARIES)
    room = min(room, max(0, budget - count(fixed) - _RESERVE))
    kernel = clip(opening.kernel, room)
    cut = " (cut to fit)" if kernel.endswith(MARK) and kernel != opening.kernel else ""
    now = f"## Current kernel{cut}\n{kernel}" if kernel else "## Current kernel\n(left out: it does not fit)"
    return clip("\n\n".join(part for part in (fixed, now) if part), max(0, budget - _RESERVE))


def _choose(ordered: Sequence[TriedPatch], room: int) -> tuple[list[TriedPatch], list[TriedPatch]]:
    """Which get their whole summary and which, being refuted, one line."""
    lines = {t.id: count(_line(t)) + 1 for t in ordered if t.decision == "rollback"}
    full: list[TriedPatch] = []
    short: list[TriedPatch] = []
    for index, t in enumerate(ordered):
        owed = sum(lines.get(later.id, 0) for later in ordered[index + 1 :])
        cost = count(t.text) + 2
        # A whole summary may not push the one-line refusals of the rest out, unless it is the very first.
        if cost <= room and (cost + owed <= room or not full):
            full.append(t)
            room -= cost
        elif lines.get(t.id, room + 1) <= room:
            short.append(t)
            room -= lines[t.id]
    return full, short


def _line(t: TriedPatch) -> str:
    changes = " + ".join(
        f"{f['mechanism']} on {f['target']}{' ' + f['knobs'] if f.get('knobs') else ''}" for f in t.features
    )
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in t.classes.items())
    return f"- {t.id}: {changes}: rolled back{' by ' + t.gate if t.gate else ''}{' (' + ratios + ')' if ratios else ''}"


def _left_out(number: int, elsewhere: int) -> str:
    foreign = f", {elsewhere} of them of another operator, backend or contract" if elsewhere else ""
    return f"({number} earlier tries are left out{foreign}; the nearest to this session's subject were kept.)"
