"""Which change paid: the final set held against itself with each change left out. Screen grade, labelled so.

`rows_from` and `prune` are pure; the timing comes from the bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelcrew.kernels.nouns import Proposal
from kernelcrew.record import Record
from kernelcrew.runs.nouns import Ablation, AblationRow
from kernelcrew.tools.nouns import Timing

NOTHING = 1.01
"""A change whose best class gains less than this over the set without it pays nothing: the simpler code wins ties."""


class Pruned(Record):
    """What the ablation leaves of a set."""

    keep: tuple[str, ...]
    """Changes that stay."""
    hurting: tuple[str, ...]
    """Changes that make a class slower and no other one faster."""
    idle: tuple[str, ...]
    """Changes without effect beyond the noise."""


def row_from(change: str, without: Timing, note: str = "") -> AblationRow:
    """One row. `without` times the set without the change as candidate against the whole set as baseline, so the
    change's own effect is the inverse of each ratio. What could not be timed cannot be told apart."""
    if not without.classes:
        return AblationRow(change=change, separable=False, effect={}, note=f"not timed: {without.reason}")
    return AblationRow(
        change=change,
        separable=True,
        note=note,
        effect={c.shape_class: 1 / c.ratio for c in without.classes},
        low={c.shape_class: 1 / c.high for c in without.classes},
        high={c.shape_class: 1 / c.low for c in without.classes},
    )


def ablation_from(rows: Sequence[AblationRow], margin: float) -> Ablation:
    """Rows with the (change, class) pairs where leaving the change out was faster beyond noise and margin."""
    hurts = tuple((r.change, c) for r in rows if r.separable for c, high in r.high.items() if high < 1 / (1 + margin))
    return Ablation(rows=tuple(rows), hurts=hurts)


def prune(ablation: Ablation, proposal: Proposal, margin: float) -> Pruned:
    """Changes to keep: those that help somewhere, those that others require, those that cannot be judged apart."""
    needed = {needs for change in proposal.changes for needs in change.requires}
    hurt = {change for change, _ in ablation.hurts}
    hurting: list[str] = []
    idle: list[str] = []
    for row in ablation.rows:
        if not row.separable or row.change in needed:
            continue
        helps = any(low > 1 and row.effect[c] > max(NOTHING, 1 + margin / 2) for c, low in row.low.items())
        if row.change in hurt and not helps:
            hurting.append(row.change)
        elif not helps:
            idle.append(row.change)
    dropped = {*hurting, *idle}
    keep = tuple(row.change for row in ablation.rows if row.change not in dropped)
    if not keep:
        best = max(ablation.rows, key=lambda r: max(r.effect.values(), default=0.0))
        keep = (best.change,)
        hurting = [c for c in hurting if c != best.change]
        idle = [c for c in idle if c != best.change]
    return Pruned(keep=keep, hurting=tuple(hurting), idle=tuple(idle))


def hypotheses(
    proposal: Proposal, ablation: Ablation | None, whole: Timing | None, moved: Mapping[str, float]
) -> dict[str, str]:
    """Each change's hypothesis apart from the speed: did the figure it named move as foretold.

    A time or rate is read from the ablation's effect in the named class (or from the whole set when it is the only
    change); `moved` holds new-over-old factors of other figures (instructions, vector_loops).
    """
    found: dict[str, str] = {}
    for change in proposal.changes:
        want = change.expects
        factor = _measured(
            change.id, want.figure, want.shape_class, ablation, whole if len(proposal.changes) == 1 else None
        )
        factor = moved.get(want.figure) if factor is None else factor
        if factor is None:
            found[change.id] = f"unread: no {want.figure} for {want.shape_class}"
            continue
        goes_down = want.factor < 1
        halfway = (1 + want.factor) / 2
        met = factor <= halfway if goes_down else factor >= halfway
        word = "confirmed" if met else "refuted"
        found[change.id] = (
            f"{word}: {want.figure} of {want.shape_class} went to {factor:.2f} of it, expected {want.factor:.2f}"
        )
    return found


def _measured(
    change: str, figure: str, shape_class: str, ablation: Ablation | None, whole: Timing | None
) -> float | None:
    if figure not in ("time", "gb_s", "gflop_s"):
        return None
    speed: float | None = None
    row = next((r for r in ablation.rows if r.change == change and r.separable), None) if ablation else None
    if row is not None:
        speed = row.effect.get(shape_class)
    elif whole is not None:
        speed = next((c.ratio for c in whole.classes if c.shape_class == shape_class), None)
    if speed is None:
        return None
    return 1 / speed if figure == "time" else speed
