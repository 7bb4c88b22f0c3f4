"""How a run goes: the nouns of this room."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kernelcrew.agents.nouns import BottleneckSummary, Review, Usage
from kernelcrew.kernels.nouns import Candidate, Patch, Proposal
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.runs.domain import Domain
from kernelcrew.tools.bus import Refusal
from kernelcrew.tools.nouns import AlphaPlan, Build, Decision, Noise, Profile, Timing, Verdict, Verification
from kernelcrew.tools.rationale import Reasoned


class Step(Record):
    """One line of the journal."""

    schema_version: int = 1
    """Raised when a payload changes shape; older ones have upgraders."""
    seq: int
    """From 0."""
    step: str
    """`baseline`, `r1.read`, `r1.trial.r1p1`, ..."""
    key: str
    """Hash of inputs, toolchain and code version; resume skips a step whose key is there."""
    parents: tuple[str, ...] = ()
    """Keys of the steps whose results went in."""
    status: str
    """`ok`, or the payload's own status."""
    kind: str
    """Name of the payload's type."""
    started: str
    """ISO time."""
    seconds: float
    """Wall clock of the step."""
    tool_s: dict[str, float] = Field(default_factory=dict)
    """Seconds spent in each tool of the bus during the step."""
    payload: dict[str, Any]
    """The result."""


class Lock(Record):
    """Everything that must be equal for an odd result to be reproduced."""

    kernelcrew: str
    """Version, and hash of its verification code."""
    operator: str
    """Name."""
    operator_hash: str
    """Contract hash."""
    baseline: str
    """Identity of the start kernel."""
    machine: Machine
    """Platform, fingerprint, toolchain."""
    model: str
    """recipes, openai:NAME."""
    prompts: dict[str, str]
    """Hash of each prompt file."""
    packages: dict[str, str]
    """Versions of what can change an answer."""
    seed: int
    """The team's choices."""
    sandbox: str
    """Containment in use."""
    code: dict[str, str] = Field(default_factory=dict)
    """Hashes of the verification and timing code."""
    python: str = ""
    """Version of the interpreter."""
    reference: str = ""
    """Hash of the operator's reference.py."""
    worker: str = ""
    """Hash of the C sources that run candidates."""


class Start(Record):
    """The run's first step: what was asked, and the plan that bounds its error rate."""

    run: str
    """The run's id."""
    operator: str
    """Its name."""
    operator_path: str
    """Registry name or folder."""
    backend: str
    """c."""
    platform: str
    """Platform id."""
    model: str
    """Model option."""
    base_url: str = ""
    """Model server."""
    price_in: float | None = None
    """USD per million tokens read; None: unknown."""
    price_out: float | None = None
    """The same per million tokens written."""
    rounds: int
    """Rounds at most."""
    budget_min: float
    """Minutes at most."""
    seed: int
    """For the team's choices."""
    alpha: AlphaPlan
    """Fixed here, before the first block."""
    lock: Lock
    """The lock."""
    started: str
    """ISO time."""
    overridden: tuple[str, ...] = ()
    """What the preflight refused and `--anyway` overrode."""
    anyway: bool = False
    """Whether the run works in a copy when the user's repository does not hold the operator as it stands."""
    shuffled: int | None = None
    """The seed by which the profile was shuffled before reader and proposer saw it, for a run that is the control of
    `bench --search`; None: they see it as it was measured."""


class Baseline(Record):
    """Where the run starts from."""

    start: Candidate
    """The user's current source."""
    incumbent: Candidate
    """The adopted kernel this run starts from; the start itself if there is none."""
    incumbent_from: str
    """Run and commit of the incumbent, or `start`."""
    start_build: Build
    """Built."""
    incumbent_build: Build
    """Built; the same when there is no earlier adoption."""
    verification: Verification
    """Of the incumbent."""
    noise: Noise
    """A/A of the incumbent."""
    profile: Profile
    """Of the incumbent."""
    flags_alone: Timing | None = None
    """The start with all contract flags against the start: nobody takes a flag's gain for the team's."""
    incumbent_over_start: Timing | None = None
    """When they differ."""


class ReasonGiven(Record):
    """The rationale gate's word on one change."""

    change: str
    """Its id."""
    found: Reasoned
    """Rules it breaks, or what it names and rests on."""


class Trial(Record):
    """One proposal through the cheap gates and the screen."""

    proposal: Proposal
    """What was proposed."""
    patch: Patch
    """How it was written."""
    candidate: Candidate | None
    """All changes together, after the autotuner; None when it could not be composed."""
    verdict: Verdict
    """The net up to the screen."""
    attempts: int = 1
    """Patch writer's tries."""
    tuned: dict[str, int] = Field(default_factory=dict)
    """Knob values the autotuner chose."""
    tried_values: tuple[tuple[str, float], ...] = ()
    """Every configuration screened and its overall ratio."""
    tuning: str = ""
    """Why the autotuner stopped: exhausted, allowance, plateau or time; empty when it had nothing to search."""
    reasons: tuple[ReasonGiven, ...] = ()
    """The rationale gate, a change each; empty in journals from before it."""
    replayed: int = 0
    """Configurations whose figures were read from the cache of an earlier search."""


class AblationRow(Record):
    """The final set without one change, held against the final set."""

    change: str
    """The change left out."""
    separable: bool
    """False when the rest cannot be applied without it."""
    effect: dict[str, float]
    """By class: ratio of the whole set over the set without the change (above 1 the change helps)."""
    low: dict[str, float] = Field(default_factory=dict)
    """Lower ends."""
    high: dict[str, float] = Field(default_factory=dict)
    """Upper ends."""
    note: str = ""
    """Why it is not separable, or what stands out."""


class Ablation(Record):
    """Which change paid. Screen grade, labelled so."""

    rows: tuple[AblationRow, ...]
    """One a change."""
    hurts: tuple[tuple[str, str], ...] = ()
    """(change, class) where leaving it out was faster beyond the noise."""


class Gate(Record):
    """One pass criterion and how it went."""

    name: str
    """nogo, rationale, policy, build, safety, correctness, bias, warnings, registers, not slower, review."""
    passed: bool
    """Whether it holds."""
    figure: str
    """With its limit."""


class Judged(Record):
    """One proposal to its end."""

    proposal: str
    """Its id."""
    title: str
    """One line."""
    changes: tuple[str, ...]
    """Ids of its changes."""
    trial: Trial
    """Cheap gates and screen."""
    ablation: Ablation | None = None
    """For the screen's winners."""
    confirmation: Timing | None = None
    """On new blocks."""
    gates: tuple[Gate, ...] = ()
    """All criteria."""
    review: Review | None = None
    """The skeptic's."""
    decision: Decision
    """The outcome."""
    hypotheses: dict[str, str] = Field(default_factory=dict)
    """Change id to confirmed, refuted or unread, with the figure."""


class Settled(Record):
    """What git holds afterwards."""

    proposal: str
    """Which one."""
    branch: str = ""
    """The run's branch."""
    commits: tuple[str, ...] = ()
    """One a kept change, oldest first."""
    incumbent_ref: str = ""
    """The ref that was moved."""
    candidate: Candidate | None = None
    """The new incumbent."""
    refused: Refusal | None = None
    """Why an adopted proposal was not committed: the team's level does not reach that far."""
    domain: Domain | None = None
    """What the adoption was shown for, what it was not, and where it loses."""


class RoundRecord(Record):
    """One round as told in the report."""

    number: int
    """From 1."""
    summary: BottleneckSummary | None
    """The profiler-reader's answer."""
    judged: tuple[Judged, ...]
    """Each proposal."""
    settled: tuple[Settled, ...]
    """What was committed."""
    note: str = ""
    """The proposer's note, or why the round failed."""
    blocked: tuple[str, ...] = ()
    """Changes that memory refutes and the guard took out, each with its reason."""
    barred: tuple[str, ...] = ()
    """Changes, or values of their knobs, that the no-go list forbids, each with entry, reason and evidence."""
    given_by: str = ""
    """Whose patch had the round; empty for a round of the team."""


class StageCost(Record):
    """Cost of one stage."""

    stage: str
    """As in events."""
    seconds: float
    """Wall clock."""
    usage: Usage
    """Tokens and money."""


class RunRecord(Record):
    """A run to its end."""

    run: str
    """Id."""
    operator: str
    """Name."""
    platform: str
    """Id."""
    backend: str
    """c."""
    status: str
    """finished, stopped (budget, Ctrl-C) or failed."""
    stop_reason: str
    """Which stop condition."""
    baseline: Baseline
    """Start."""
    rounds: tuple[RoundRecord, ...]
    """The story."""
    final: Candidate
    """The incumbent at the end."""
    final_timing: Timing | None
    """The final kernel against the run's incumbent at its start, confirmed blocks."""
    final_over_start: Timing | None
    """And against the user's start kernel."""
    costs: tuple[StageCost, ...]
    """By stage."""
    report: str
    """Path of the HTML file."""
    overridden: tuple[str, ...] = ()
    """What the preflight refused and `--anyway` overrode."""
