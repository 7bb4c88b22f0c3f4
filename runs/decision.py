"""What is done with a proposal: a pure function of measured evidence. The first matching row wins.

No model is asked here. The skeptic's veto is one of the gates; a failed gate is never promoted.
"""

from __future__ import annotations

from kernelcrew.record import Record
from kernelcrew.runs.nouns import Gate
from kernelcrew.tools.nouns import Decision, Timing


class Evidence(Record):
    """All that a decision may rest on."""

    gates: tuple[Gate, ...]
    """Policy, build, safety, correctness, bias, warnings, rationale, review."""
    screen: Timing | None = None
    """Short blocks; decides only that nothing is to be gained."""
    confirmed: Timing | None = None
    """New blocks after the screen."""
    changes: tuple[str, ...] = ()
    """Ids of the changes in the candidate."""
    hurting: tuple[str, ...] = ()
    """Changes that the ablation found to make a class slower."""
    split_before: bool = False
    """Whether a split was already tried."""
    rule: str = ""
    """A rule over the axes that separates winners from losers; empty when none does."""
    rule_before: bool = False
    """Whether the candidate already is a rule's variant."""
    edge_knobs: tuple[str, ...] = ()
    """Knobs whose chosen value sits on the edge of its window."""
    adjusted_before: bool = False
    """Whether the window was already moved."""
    outrun_by: str = ""
    """Another proposal of the round, which screened better and had the confirmation."""


def decide(e: Evidence) -> Decision:
    """The table of the design, row by row."""
    failed = next((g for g in e.gates if not g.passed), None)
    if failed:
        return Decision(
            action="rollback", gate=failed.name, reason=f"gate {failed.name}: {failed.figure}", keep=e.changes
        )
    timing = e.confirmed or e.screen
    if timing is None:
        return Decision(action="inconclusive", reason="nothing was timed: the budget ran out", keep=e.changes)
    if timing.status == "invalid":
        return Decision(action="rollback", gate="correctness", reason=f"timed outputs: {timing.reason}", keep=e.changes)
    if e.confirmed is None:
        return _screened(e, timing)
    if e.confirmed.status == "noisy":
        return Decision(
            action="inconclusive", reason=f"the host could not decide: {e.confirmed.reason}", keep=e.changes
        )
    return _confirmed(e, e.confirmed)


def _screened(e: Evidence, screen: Timing) -> Decision:
    if screen.status == "noisy":
        return Decision(action="inconclusive", reason=f"the host could not decide: {screen.reason}", keep=e.changes)
    if not gains(screen):
        return Decision(action="rollback", reason=f"no gain in the screen: {figures(screen)}", keep=e.changes)
    if e.outrun_by:
        why = f"{e.outrun_by} screened better and had the round's one confirmation; screen: {figures(screen)}"
        return Decision(action="inconclusive", reason=why, keep=e.changes)
    return Decision(
        action="inconclusive", reason=f"not confirmed, the budget ran out; screen: {figures(screen)}", keep=e.changes
    )


def _confirmed(e: Evidence, timing: Timing) -> Decision:
    faster = [c for c in timing.classes if c.answer == "faster"]
    bad = [s for s in timing.shapes if s.answer == "slower" or s.answer_start == "slower"]
    unknown = [s for s in timing.shapes if "unknown" in (s.answer, s.answer_start)]
    if faster and not bad and not unknown and timing.status == "decided":
        return Decision(
            action="adopt", reason=f"faster: {figures(timing)}; every shape shown not slower", keep=e.changes
        )
    keep = tuple(c for c in e.changes if c not in e.hurting)
    if bad and e.hurting and keep and not e.split_before:
        why = f"without {', '.join(e.hurting)}: the ablation shows a class slower with it"
        return Decision(action="split", reason=why, drop=e.hurting, keep=keep)
    if faster and bad and e.rule and not e.rule_before:
        return Decision(
            action="adopt_when", reason=f"faster where {e.rule}: {figures(timing)}", rule=e.rule, keep=e.changes
        )
    if faster and e.edge_knobs and not e.adjusted_before and bad:
        why = f"{', '.join(e.edge_knobs)} sits on the edge of its window; {figures(timing)}"
        return Decision(action="adjust", reason=why, keep=e.changes)
    if not bad and (unknown or timing.status == "undecided") and (faster or gains(timing)):
        what = f"{len(unknown)} shapes not shown not slower" if unknown else timing.reason
        return Decision(action="inconclusive", reason=f"{what}; {figures(timing)}", keep=e.changes)
    if bad:
        worst = min(bad, key=lambda s: s.ratio)
        why = f"slower at {worst.shape} ({worst.ratio:.3f}x) and no rule separates; {figures(timing)}"
        return Decision(action="rollback", reason=why, keep=e.changes)
    return Decision(
        action="rollback", reason=f"no gain confirmed, the incumbent wins ties: {figures(timing)}", keep=e.changes
    )


def gains(timing: Timing) -> bool:
    """Whether any class looks faster by more than the margin."""
    return any(c.ratio > 1 + timing.margin for c in timing.classes)


def figures(timing: Timing) -> str:
    """`main 9.81x [9.6, 10.0], short 2.10x [2.0, 2.2]`."""
    return ", ".join(f"{c.shape_class} {c.ratio:.2f}x [{c.low:.2f}, {c.high:.2f}]" for c in timing.classes)
