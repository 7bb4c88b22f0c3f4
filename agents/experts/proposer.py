"""The proposer's rules: directions from the table of moves, without what is refuted, in already, or hopeless."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernelcrew.agents.evidence import BlockedChange, ProposerEvidence, RecipeNote
from kernelcrew.agents.experts.catalogue import DIRECTIONS, MOVES
from kernelcrew.agents.experts.moves import SMALL, Case, Direction, Move, cases_for
from kernelcrew.agents.nouns import ChangeIdea, KnobChoice, ProposalIdea, ProposalSet, RiskNote
from kernelcrew.kernels.nouns import CLASSES, ShapeClass

MOST = 3
"""Directions in an answer at most."""
ENOUGH = 2
"""Directions from which small steps on knobs are left out."""
MOST_KNOBS = 3
"""Knobs moved at once: more would not be told apart in the tuner's few screens."""


class Swept(NamedTuple):
    """What a sweep gave of one knob of the standing kernel."""

    best: int
    """The value with the best overall ratio."""
    overall: float
    """That ratio."""
    margin: float
    """Noise margin of the screen."""


def propose(
    evidence: ProposerEvidence, seed: int, hint: str = "", swept: Mapping[str, Swept] | None = None
) -> ProposalSet:
    """Two or three directions, the most expected first; none, with the reason, when nothing is left.

    `hint` is what a search of the memory gave; it is told in the note. `swept` are the sweeps that were ordered: a knob
    whose best value does not gain is not proposed. The same arguments give the same answer.
    """
    chance = random.Random(f"{seed}:{evidence.round}")
    left_out: list[str] = []
    made = [p for d in DIRECTIONS if (p := _direction(d, evidence, chance, seed, left_out))]
    chance.shuffle(made) if seed else None
    made.sort(key=lambda p: -round(max(c.gain for c in p.changes), 1))
    made = _distinct(made)
    if len(made) < ENOUGH:
        made += _steps(evidence, left_out, swept or {})
    return ProposalSet(proposals=made[:MOST], note=_note(made, evidence, left_out, hint))


def _direction(
    direction: Direction, evidence: ProposerEvidence, chance: random.Random, seed: int, left_out: list[str]
) -> ProposalIdea | None:
    moves = {m.mechanism: m for m in MOVES}
    notes = {r.name: r for r in evidence.recipes}
    changes: list[ChangeIdea] = []
    used: list[Case] = []
    for name in direction.moves:
        cases = cases_for(moves[name], evidence)
        if name not in notes or not cases:
            continue
        against = _against(notes[name], moves[name], evidence, {c.mechanism for c in changes})
        if against:
            left_out.append(against)
            continue
        used.append(cases[0])
        changes.append(_change(moves[name], cases[0], notes[name], changes, (chance, seed)))
    if not changes:
        return None
    whole = any(c.mechanism in direction.leads for c in changes)
    if not whole and direction.leads[0] not in _standing(evidence):
        return None
    title = direction.title if whole else "; ".join(_words(c.mechanism) for c in changes).capitalize()
    return ProposalIdea(
        title=title,
        direction=direction.strategy if whole else f"What the kernel still lacks of: {direction.title.lower()}.",
        bottlenecks=list(dict.fromkeys(c.bottleneck.id for c in used)),
        changes=changes,
    )


def _against(note: RecipeNote, move: Move, evidence: ProposerEvidence, chosen: set[str]) -> str:
    """Why a move is left out; empty when it is not."""
    blocked = _blocked(evidence.blocked, move.mechanism, move.target)
    if blocked is not None:
        word = "in the kernel already" if blocked.kind == "already_in" else "refuted"
        return f"{move.mechanism}: {word} ({blocked.reason})"
    if note.not_here and not set(note.requires) & chosen:
        return f"{move.mechanism}: {note.not_here}"
    return ""


def _blocked(blocked: Sequence[BlockedChange], mechanism: str, target: str) -> BlockedChange | None:
    """A try that was outrun is open; the others are not to be repeated."""
    return next(
        (b for b in blocked if b.kind != "outrun" and b.mechanism == mechanism and b.target in ("", target)), None
    )


def _change(
    move: Move, case: Case, note: RecipeNote, before: Sequence[ChangeIdea], chance: tuple[random.Random, int]
) -> ChangeIdea:
    gain = round(move.gain(case), 3)
    chosen = {c.mechanism for c in before}
    return ChangeIdea(
        id=move.mechanism,
        mechanism=move.mechanism,
        target=move.target,
        knobs=[_first_value(k, note, (move, case), chance) for k in note.knobs],
        requires=[r for r in note.requires if r in chosen],
        figure="time",
        figure_class=case.bottleneck.shape_class,
        figure_factor=round(1 / gain, 4),
        gain=gain,
        risks=_risks(note, case.bottleneck.shape_class),
        why=move.why(case),
    )


def _first_value(
    knob: KnobChoice, note: RecipeNote, answer: tuple[Move, Case], chance: tuple[random.Random, int]
) -> KnobChoice:
    """A width starts at the machine's own, others where the move says; else the recipe's value, or for a seed above 0
    one drawn from the window."""
    draw, seed = chance
    move, case = answer
    window = sorted(knob.window)
    allowed = note.allowed.get(knob.name, tuple(window))
    wanted = case.lanes if knob.name in ("VEC", "LANES") else move.first(case).get(knob.name)
    if wanted in allowed and (not seed or knob.name in ("VEC", "LANES")):
        return KnobChoice(name=knob.name, value=wanted, window=sorted({*window, wanted}))
    return KnobChoice(name=knob.name, value=draw.choice(window) if seed else knob.value, window=window)


def _risks(note: RecipeNote, helped: ShapeClass) -> list[RiskNote]:
    known = {r.shape_class: r for r in note.risks}
    found = []
    for shape_class in CLASSES:
        if shape_class in known:
            found.append(known[shape_class])
        elif shape_class == helped:
            found.append(RiskNote(shape_class=shape_class, level="none", why="this is the class it is meant for"))
        else:
            found.append(RiskNote(shape_class=shape_class, level="low", why="no known cause"))
    return found


def sweeps_wanted(evidence: ProposerEvidence, seed: int) -> dict[str, list[int]]:
    """Knobs worth a sweep before they are proposed, with the values to time: those of the small steps, if any."""
    steps = [c for p in propose(evidence, seed).proposals for c in p.changes if c.mechanism == "free"]
    return {k.name: [v for v in k.window if v != evidence.source.knobs.get(k.name)] for c in steps for k in c.knobs}


def _steps(evidence: ProposerEvidence, left_out: list[str], swept: Mapping[str, Swept]) -> list[ProposalIdea]:
    """Knobs of the kernel as it stands, moved beyond the window that they were tuned in, or one step to either side."""
    open_ = [b for b in evidence.bottlenecks.bottlenecks if b.kind != "near_peak"]
    if not open_:
        return []
    worst = min(open_, key=lambda b: b.share_of_peak)
    changes: list[ChangeIdea] = []
    for name, value in sorted(evidence.source.knobs.items(), key=lambda item: _within(item, evidence.recipes)):
        before = set(evidence.searched.get(name, ())) - {value}
        window = [v for v in _next_window(name, value, _owner(name, evidence.recipes)) if v not in before]
        blocked = _blocked(evidence.blocked, "free", f"knob {name}")
        if blocked is not None:
            left_out.append(f"knob {name}: refuted ({blocked.reason})")
        elif len(window) == 1 and before:
            left_out.append(f"knob {name}: {', '.join(map(str, sorted(before)))} were measured, a plateau")
        elif name in swept and swept[name].overall <= 1 + swept[name].margin:
            sweep = swept[name]
            left_out.append(f"knob {name}: swept, its best value {sweep.best} gives {sweep.overall:.3f}x, a plateau")
        elif len(window) > 1:
            first = swept[name].best if name in swept else next(v for v in reversed(window) if v != value)
            changes.append(_step(name, (value, first), window, worst.shape_class, worst.cited))
    changes = changes[:MOST_KNOBS]
    if not changes:
        return []
    return [
        ProposalIdea(
            title=f"Move {', '.join(c.knobs[0].name for c in changes)} of the kernel as it stands",
            direction="The mechanism stays; its parameters are moved to where the tuner has not been.",
            bottlenecks=[worst.id],
            changes=changes,
        )
    ]


def _owner(name: str, recipes: Sequence[RecipeNote]) -> RecipeNote | None:
    """The recipe that a knob comes from."""
    return next((r for r in recipes if name in {k.name for k in r.knobs}), None)


def _within(knob: tuple[str, int], recipes: Sequence[RecipeNote]) -> bool:
    """False for a value on the edge of its recipe's window: beyond it nothing was tried."""
    name, value = knob
    owner = _owner(name, recipes)
    window = next((k.window for k in owner.knobs if k.name == name), []) if owner else []
    return bool(window) and min(window) < value < max(window)


def _next_window(name: str, value: int, recipe: RecipeNote | None) -> list[int]:
    """Allowed values beside the one in force, those outside the recipe's own window first in mind."""
    if recipe is None:
        return sorted({max(value // 2, 1), value, value * 2}) if value > 0 else [value]
    allowed = sorted(recipe.allowed.get(name, ()))
    if value not in allowed:
        return [value]
    at = allowed.index(value)
    tuned = next((k.window for k in recipe.knobs if k.name == name), [value])
    beyond = 3 if value >= max(tuned) else 2
    return allowed[max(at - 1, 0) : at + beyond]


def _step(
    name: str, values: tuple[int, int], window: list[int], shape_class: ShapeClass, cited: list[str]
) -> ChangeIdea:
    """`values` are the one in force and the one to begin with."""
    value, first = values
    figure = cited[0] if cited else "no figure"
    why = (
        f"{name} is {value} in the kernel as it stands, and {shape_class} is still held back ({figure}). Other values "
        f"change how many loads are in flight and where paths part, without new code."
    )
    return ChangeIdea(
        id=f"knob_{name.lower()}",
        mechanism="free",
        target=f"knob {name}",
        knobs=[KnobChoice(name=name, value=first, window=window)],
        requires=[],
        figure="time",
        figure_class=shape_class,
        figure_factor=round(1 / SMALL, 4),
        gain=SMALL,
        risks=[
            RiskNote(shape_class=c, level="low", why="the value in force was chosen over all classes") for c in CLASSES
        ],
        why=why,
    )


def _standing(evidence: ProposerEvidence) -> set[str]:
    """Recipes that are in the kernel: by memory, or by the comment that each leaves in the source."""
    known = {b.mechanism for b in evidence.blocked if b.kind == "already_in"}
    return known | {r.name for r in evidence.recipes if f"{r.name}:" in evidence.source.text}


def _distinct(made: list[ProposalIdea]) -> list[ProposalIdea]:
    """Each set of mechanisms once, and none that is part of an earlier one."""
    kept: list[ProposalIdea] = []
    for proposal in made:
        names = {c.mechanism for c in proposal.changes}
        if not any(names <= {c.mechanism for c in k.changes} for k in kept):
            kept.append(proposal)
    return kept


def _note(made: list[ProposalIdea], evidence: ProposerEvidence, left_out: list[str], hint: str) -> str:
    out = f" Left out: {'; '.join(dict.fromkeys(left_out))}." if left_out else ""
    told = f" {hint}" if hint else ""
    if made:
        return f"{min(len(made), MOST)} directions for {len(evidence.bottlenecks.bottlenecks)} bottlenecks.{out}{told}"
    if all(b.kind == "near_peak" for b in evidence.bottlenecks.bottlenecks):
        return f"Nothing to propose: every class is near the measured peak.{out}{told}"
    return f"Nothing is left to propose: no recipe answers what still holds the kernel back.{out}{told}"


def _words(mechanism: str) -> str:
    return mechanism.replace("_", " ")
