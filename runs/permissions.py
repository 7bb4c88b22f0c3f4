"""The permission ladder as data: what a team has earned for an operator and platform, and why. Pure functions.

The record (what runs did, `kernelcrew.runs.deeds`) and a person's grants and revocations are read in the order of time;
thresholds and their reasons stand in `permissions.toml` beside this file. The bus enforces what comes out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.record import Record
from kernelcrew.tools.bus import Level

WORDS = {
    Level.OBSERVE: "observe",
    Level.MEASURE: "measure",
    Level.WRITE_SCRATCH: "write in scratch",
    Level.COMMIT: "commit on the run's branch",
    Level.MERGE: "merge",
}
"""How a rung is called to a person."""
ROLES = {
    "runs": Level.COMMIT,
    "person": Level.COMMIT,
    "profiler_reader": Level.MEASURE,
    "proposer": Level.MEASURE,
    "patch_writer": Level.WRITE_SCRATCH,
    "skeptic": Level.OBSERVE,
}
"""What each caller of the bus needs for its work, and no more; the team's level is a ceiling over it."""


class Violation(Record):
    """One thing that no honest kernel does."""

    kind: str
    """As in `permissions.toml`."""
    step: str
    """The journal's step that shows it."""
    what: str
    """The gate's own words."""


class Deed(Record):
    """What one run of a team came to."""

    run: str
    """Its id."""
    team: str
    """The model client: `recipes`, `openai:NAME`, `replay`."""
    operator: str
    """Name."""
    platform: str
    """Id."""
    shipped: bool
    """Whether the operator comes with kernelcrew."""
    at: str
    """ISO time of its start."""
    finished: bool
    """Whether it came to its end."""
    passed: int
    """Trials of the team that passed policy, build, safety and correctness."""
    violations: tuple[Violation, ...] = ()
    """In order."""


class Override(Record):
    """A person's word on a team's level."""

    verb: Literal["grant", "revoke"]
    """A grant sets the level; a revocation is a ceiling until the next grant."""
    who: str
    """The team."""
    level: str
    """`observe`, `measure`, `write_scratch` or `commit`."""
    why: str
    """The reason."""
    operator: str = ""
    """Only for this operator; empty: for all."""
    platform: str = ""
    """Only on this platform; empty: on all."""
    author: str
    """Who said so."""
    at: str
    """ISO time."""


class Newcomer(Record):
    """Where a team without a record begins."""

    shipped: str
    """Level for shipped operators."""
    own: str
    """Level for the user's own."""
    reason: str
    """Why."""


class AfterViolation(Record):
    """What a violation costs."""

    falls_to: str
    """Level from then on."""
    reason: str
    """Why."""


class Clean(Record):
    """What a clean run is, and how many regain what was lost."""

    passed_trials: int
    """Trials that must have passed every hard gate."""
    runs_to_regain: int
    """Clean runs in a row after the first violating run."""
    more_each_time: int
    """Factor on that number for each further violating run."""
    reason: str
    """Why."""


class Hostile(Record):
    """One kind of violation and how it is recognised."""

    kind: str
    """Its name."""
    rules: tuple[str, ...] = ()
    """Rules of the policy gate."""
    words: tuple[str, ...] = ()
    """Words of a verification's or timing's reason."""
    at_least: int = 1
    """How often it must be seen in one run."""
    reason: str
    """Why it counts."""


class Rules(Record):
    """All of `permissions.toml`."""

    newcomer: Newcomer
    """Where a team begins."""
    violation: AfterViolation
    """What a violation costs."""
    clean: Clean
    """What regains it."""
    hostile: tuple[Hostile, ...]
    """Kinds of violations."""


class Where(Record):
    """What a level is held for."""

    team: str
    """The team."""
    operator: str
    """The operator."""
    platform: str
    """The platform."""
    shipped: bool
    """Whether the operator comes with kernelcrew."""


class Held(Record):
    """A team's level for one operator on one platform, and why."""

    team: str
    """The team."""
    operator: str
    """The operator."""
    platform: str
    """The platform."""
    level: str
    """`observe`, `measure`, `write_scratch` or `commit`."""
    why: tuple[str, ...]
    """What gave it, raised it or cost it, in the order of time, each with its run or author."""
    clean_runs: int
    """Clean runs on record."""
    violating_runs: int
    """Runs with violations on record."""
    clean_left: int = 0
    """Clean runs in a row that would regain what was lost; 0 when nothing was."""

    @property
    def rung(self) -> Level:
        return Level[self.level.upper()]


@cache
def shipped_rules() -> Rules:
    """The rules that come with kernelcrew."""
    text = resources.files("kernelcrew.runs").joinpath("permissions.toml").read_text(encoding="utf-8")
    return Rules.model_validate(tomllib.loads(text))


def team_of(model: str) -> str:
    """The team behind a model option; what replays is one team, whatever it replays."""
    return "replay" if model.startswith("replay:") else model


def level_named(name: str) -> Level:
    """The rung a person names. Raises UnknownName; UserMistake for merging, which no team is given."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_").replace("write_in_scratch", "write_scratch")
    known = {level.name.lower(): level for level in Level} | {"scratch": Level.WRITE_SCRATCH}
    if plain not in known:
        raise UnknownName("level", name, ("observe", "measure", "write_scratch", "commit"))
    if known[plain] is Level.MERGE:
        fix = "grant commit at most, and merge the run's branch yourself"
        raise UserMistake("merging is a person's: no team can be given it", fix=fix)
    return known[plain]


def role_level(caller: str, team: Level) -> Level:
    """A caller's rung on the bus: what its role needs, under the team's ceiling; a stranger may only look."""
    needs = ROLES.get(caller, Level.OBSERVE)
    return needs if caller == "person" else min(needs, team)


def held(where: Where, deeds: Sequence[Deed], overrides: Sequence[Override], rules: Rules) -> Held:
    """The level that record and overrides come to."""
    start = Level[(rules.newcomer.shipped if where.shipped else rules.newcomer.own).upper()]
    state = _State(level=start, newcomer=start, ceiling=Level.COMMIT)
    state.why.append(f"{WORDS[start]}: where a newcomer begins")
    mine = [d for d in deeds if (d.team, d.operator, d.platform) == (where.team, where.operator, where.platform)]
    said = [o for o in overrides if _speaks_of(o, where)]
    both: list[Deed | Override] = [*mine, *said]
    for item in sorted(both, key=lambda one: one.at):
        if isinstance(item, Deed):
            state.saw(item, rules)
        else:
            state.told(item)
    return Held(
        team=where.team,
        operator=where.operator,
        platform=where.platform,
        level=state.level.name.lower(),
        why=tuple(state.why),
        clean_runs=state.clean,
        violating_runs=state.violating,
        clean_left=max(state.owed - state.row, 0) if state.owed else 0,
    )


class _State:
    """The ladder while the record is read."""

    def __init__(self, level: Level, newcomer: Level, ceiling: Level) -> None:
        self.level = level
        self.newcomer = newcomer
        self.ceiling = ceiling
        self.why: list[str] = []
        self.clean = self.violating = self.row = self.owed = 0

    def saw(self, deed: Deed, rules: Rules) -> None:
        """One run."""
        if deed.violations:
            self.violating += 1
            self.row = 0
            self.owed = rules.clean.runs_to_regain * rules.clean.more_each_time ** (self.violating - 1)
            self.level = min(self.level, Level[rules.violation.falls_to.upper()])
            first = deed.violations[0]
            more = f" and {len(deed.violations) - 1} more" if len(deed.violations) > 1 else ""
            self.why.append(
                f"{WORDS[self.level]}: cost by run {deed.run}, {first.kind} in {first.step} ({first.what}){more}; "
                f"{self.owed} clean runs in a row or a person's grant regain it"
            )
        elif deed.finished and deed.passed >= rules.clean.passed_trials:
            self.clean += 1
            self.row += 1
            if self.owed and self.row >= self.owed:
                self.owed = 0
                self.level = min(max(self.level, self.newcomer), self.ceiling)
                self.why.append(f"{WORDS[self.level]}: regained with run {deed.run}, clean run {self.row} in a row")
            else:
                self.why.append(f"run {deed.run} was clean: {deed.passed} trials passed every hard gate")

    def told(self, said: Override) -> None:
        """A person's word."""
        level = Level[said.level.upper()]
        if said.verb == "grant":
            self.level, self.ceiling, self.owed, self.row = level, max(level, self.newcomer), 0, 0
        else:
            self.level, self.ceiling = min(self.level, level), level
        verb = "granted" if said.verb == "grant" else "held to it"
        self.why.append(f"{WORDS[self.level]}: {verb} by {said.author} on {said.at[:10]} ({said.why})")


def _speaks_of(said: Override, where: Where) -> bool:
    return (
        said.who == where.team
        and said.operator in ("", where.operator)
        and said.platform in ("", where.platform)
    )
