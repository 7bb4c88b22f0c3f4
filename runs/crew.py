"""The crew of one run: the concrete parts, joined in `session.py` and handed to every step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from kernelcrew.agents.nouns import Answer, Question, Role, Usage
from kernelcrew.errors import HarnessError
from kernelcrew.event import Event, Listener, silent
from kernelcrew.kernels.nouns import Candidate, Operator
from kernelcrew.memory.store import Memory
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.runs.bars import Bars
from kernelcrew.runs.journal import Journal
from kernelcrew.runs.nouns import Baseline, Start
from kernelcrew.runs.permissions import Held
from kernelcrew.settings import Settings
from kernelcrew.tools.bus import Bus, CallNote
from kernelcrew.tools.git import Repo
from kernelcrew.tools.nouns import AlphaPlan, Build, Profile

if TYPE_CHECKING:
    # What only reads a run's journal need not wait for AutoGen.
    from kernelcrew.agents.team import Team


class Standing(Record):
    """The kernel that is to be beaten, and what is known of it."""

    candidate: Candidate
    """The incumbent."""
    build: Build
    """Its build."""
    profile: Profile
    """Its profile."""
    commit: str
    """Where git holds it."""
    searched: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Knob to the values that this run's autotuner has measured around it."""


class TimeCheck(Record):
    """Whether there was time for a step. Journalled, so that a resumed run takes the same turns."""

    go: bool
    """Whether it was begun."""
    left_s: float
    """Seconds that were left."""
    needs_s: float
    """Seconds that must be left for it and for what comes after it."""


TOKENS_A_PRICE = 1_000_000
"""Prices of models are per million tokens."""
RESERVE_SHARE = 0.3
RESERVE_S = 30.0
"""Time kept for the confirmation and the final figures: a share of the budget, and so many seconds at least."""


@dataclass
class Clock:
    """The time budget of this sitting: what earlier sittings of a resumed run spent counts too. Time spent waiting for
    another kernelcrew to leave the core does not count."""

    budget_s: float
    spent_before_s: float = 0.0
    started: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0

    def elapsed_s(self) -> float:
        return self.spent_before_s + time.monotonic() - self.started - self.waited_s

    def left_s(self) -> float:
        return self.budget_s - self.elapsed_s()

    def reserve_s(self) -> float:
        """What must stay for the confirmation and the final figures."""
        return max(RESERVE_SHARE * self.budget_s, RESERVE_S)


@dataclass
class Ledger:
    """What was spent: seconds by tool, and seconds, tokens and money by stage."""

    stage: str = "baseline"
    tool_s: dict[str, float] = field(default_factory=dict)
    waited_s: float = 0.0
    stage_s: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    prices: tuple[float | None, float | None] = (None, None)

    def note(self, call: CallNote) -> None:
        """Count one call of the bus, less what it waited for the core."""
        self.tool_s[call.tool] = self.tool_s.get(call.tool, 0.0) + max(call.seconds - self.waited_s, 0.0)
        self.waited_s = 0.0

    def spend(self, stage: str, seconds: float) -> None:
        self.stage_s[stage] = self.stage_s.get(stage, 0.0) + seconds

    def add(self, stage: str, usage: Usage) -> None:
        """Count one question's tokens and money. One of unknown cost makes the sum unknown, never 0."""
        old = self.usage.get(stage)
        money = self.money_of(usage)
        if old is None:
            self.usage[stage] = usage.model_copy(update={"money_usd": money})
            return
        both = old.money_usd is not None and money is not None
        self.usage[stage] = Usage(
            prompt_tokens=old.prompt_tokens + usage.prompt_tokens,
            completion_tokens=old.completion_tokens + usage.completion_tokens,
            calls=old.calls + usage.calls,
            seconds=old.seconds + usage.seconds,
            money_usd=(old.money_usd or 0.0) + (money or 0.0) if both else None,
        )

    def money_of(self, usage: Usage) -> float | None:
        """What a question cost in USD: as its client says, else its tokens at the given prices; None: unknown."""
        read, written = self.prices
        if usage.money_usd is not None or read is None or written is None:
            return usage.money_usd
        return (usage.prompt_tokens * read + usage.completion_tokens * written) / TOKENS_A_PRICE


@dataclass(kw_only=True)
class Lab:
    """What it takes to judge one candidate: the operator, this machine, the bus and the journal. No team."""

    settings: Settings
    operator: Operator
    machine: Machine
    alpha: AlphaPlan
    journal: Journal
    bus: Bus
    repo: Repo
    clock: Clock
    ledger: Ledger
    bars: Bars
    listener: Listener = silent
    on_close: list[Callable[[], None]] = field(default_factory=list)

    def say(
        self, stage: str, message: str, *, round_number: int = 0, candidate: str = "", status: str = "info"
    ) -> None:
        """Tell the display."""
        self.ledger.stage = stage
        self.listener(
            Event(
                stage=stage,
                message=message,
                round=round_number,
                candidate=candidate,
                status=status,
                elapsed_s=self.clock.elapsed_s(),
                left_s=self.clock.left_s(),
            )
        )

    def may(self, step: str, needs_s: float) -> bool:
        """Whether at least `needs_s` are left, asked once a step."""
        left_s = self.clock.left_s()
        check = self.journal.do(
            f"{step}.time", TimeCheck, step, lambda: TimeCheck(go=left_s > needs_s, left_s=left_s, needs_s=needs_s)
        )
        return check.go

    def has_artifact(self, build: Build) -> bool:
        """Whether the built object still lies in the cache."""
        return Path(build.artifact).is_file()

    def close(self) -> None:
        """End what was started: children, locks."""
        for end in reversed(self.on_close):
            end()


@dataclass(kw_only=True)
class Crew(Lab):
    """All parts of one run. Steps take it and return typed results; they keep nothing of their own."""

    start: Start
    memory: Memory
    team: Team
    baseline: Baseline | None = None
    standing: Standing | None = None
    held: Held | None = None
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def ask(self, role: Role, task: str, prefix: str, evidence: Record, round_number: int) -> Answer:
        """One question to one role, composed fresh. Raises ModelError when its server is down."""
        question = Question(
            role=role, task=task, prefix=prefix, evidence=evidence.model_dump_json(), round=round_number
        )
        return self.runner.run(self.team.ask(question))

    def stands(self) -> Standing:
        """The kernel to beat. Raises HarnessError before the baseline is measured."""
        if self.standing is None:
            raise HarnessError("no kernel stands yet")
        return self.standing

    def start_build(self) -> Build:
        """The build of the run's first baseline."""
        if self.baseline is None:
            raise HarnessError("the baseline was not measured yet")
        return self.baseline.start_build

    def close(self) -> None:
        """End what the crew started, the event loop last."""
        super().close()
        self.runner.close()
