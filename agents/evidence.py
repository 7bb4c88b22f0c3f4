"""What each role is shown: one frozen Record a role, sent as JSON inside the question.

Everything here is measured or read from files; nothing is a model's opinion except what an earlier role answered.
`kernelcrew.agents.facts` builds the parts from the nouns of the other rooms.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelcrew.agents.nouns import BottleneckSummary, KnobChoice, RiskNote
from kernelcrew.kernels.nouns import Contract, Proposal, ShapeClass
from kernelcrew.record import Record
from kernelcrew.tools.nouns import Profile, Timing


class ShapesOfClass(Record):
    """The shapes of one class, by role."""

    shape_class: ShapeClass
    """Which."""
    timed: tuple[str, ...]
    """Keys of the timed shapes."""
    held_out: tuple[str, ...] = ()
    """Keys of the shapes kept for testing rules."""


class OperatorFacts(Record):
    """What is to be computed, and what a change may touch."""

    name: str
    """The operator's name."""
    summary: str
    """One line."""
    backend: str
    """c, cuda or triton."""
    axes: tuple[str, ...]
    """Names of the axes, in the order of the parameters."""
    signature: str
    """Prototype of the entry, with the tensors' extents."""
    contract: Contract
    """The numerics that every candidate owes."""
    align_bytes: int
    """Alignment promised for the pointers, and no more."""
    shapes: tuple[ShapesOfClass, ...]
    """By class."""
    distributions: tuple[str, ...] = ()
    """Names of the input distributions of the correctness check."""
    flops: str
    """Floating-point operations of a call, over the axes."""
    bytes: str
    """Bytes of a call, over the axes."""
    base_flags: tuple[str, ...]
    """Flags of every build."""
    contract_flags: tuple[str, ...] = ()
    """Flags that keep the contract and may be added."""
    extra_flags: tuple[str, ...] = ()
    """Further flags a plan may name."""


class MachineFacts(Record):
    """What this machine can do."""

    id: str
    """Platform id."""
    readable: str
    """Vendor's or common name."""
    vector_bytes: int
    """Widest vector register."""
    features: tuple[str, ...] = ()
    """Instruction sets that matter."""
    caches: dict[str, int] = Field(default_factory=dict)
    """Bytes by level."""
    peaks: dict[str, float] = Field(default_factory=dict)
    """`read L2`, `copy memory` in GB/s, `fma core` in GFLOP/s, `add_latency core` in ns; measured on one core."""
    compiler: str = ""
    """Name, version and target."""


class LoopSpan(Record):
    """One loop of the source."""

    function: str
    """The function it stands in."""
    first: int
    """First line."""
    last: int
    """Last line."""
    depth: int
    """1 for an outermost loop."""
    innermost: bool
    """Whether it holds no other loop."""
    head: str = ""
    """Its first line's text."""


class SourceFacts(Record):
    """The kernel as it stands: the unconditional variant, which a patch edits."""

    identity: str
    """Identity of the candidate."""
    text: str
    """The source; search text must match it letter by letter."""
    flags: tuple[str, ...] = ()
    """The plan's flags beyond the base flags."""
    defines: dict[str, int] = Field(default_factory=dict)
    """The plan's knob values."""
    knobs: dict[str, int] = Field(default_factory=dict)
    """Knobs in the source with the value in force."""
    loops: tuple[LoopSpan, ...] = ()
    """Its loops in order."""
    rules: tuple[str, ...] = ()
    """Rules of the other variants, which stay as they are."""


class RecipeNote(Record):
    """One recipe of the catalogue, and whether it fits the kernel as it stands."""

    name: str
    """What a change's `mechanism` or an edit's `recipe` says."""
    label: str
    """rewrite, or template for a prepared kernel with parameters."""
    mechanism: str
    """What it does and why it may pay."""
    knobs: tuple[KnobChoice, ...] = ()
    """Its knobs with their windows."""
    allowed: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """By knob, every value that the code can be written with: a window stays inside."""
    requires: tuple[str, ...] = ()
    """Recipes that must come before it."""
    needs: str = ""
    """What must hold of source and contract."""
    risks: tuple[RiskNote, ...] = ()
    """What it usually risks, by class."""
    not_here: str = ""
    """Why it cannot be applied to this kernel alone; empty when it can."""


class BlockedChange(Record):
    """A change that is not to be proposed again."""

    kind: Literal["refuted", "already_in", "outrun"]
    """Refuted under these circumstances; in the kernel as it stands; or screened lower than another one."""
    mechanism: str
    """Its recipe, or `free`."""
    target: str = ""
    """What it worked on."""
    knobs: str = ""
    """`A=4;B=2`."""
    reason: str = ""
    """With figures and the run."""


class ReaderEvidence(Record):
    """For the profiler-reader."""

    operator: OperatorFacts
    """What is computed."""
    machine: MachineFacts
    """Where."""
    source: SourceFacts
    """The kernel that was profiled."""
    numbered: str
    """The same source with line numbers, to cite."""
    profile: Profile
    """Every timed shape."""
    noise: str = ""
    """What the host's noise allows to be seen."""


class ProposerEvidence(Record):
    """For the proposer."""

    operator: OperatorFacts
    """What is computed."""
    machine: MachineFacts
    """Where."""
    source: SourceFacts
    """The kernel to beat."""
    numbered: str
    """The same source with line numbers."""
    profile: Profile
    """Its profile."""
    bottlenecks: BottleneckSummary
    """The profiler-reader's answer."""
    recipes: tuple[RecipeNote, ...] = ()
    """The catalogue."""
    blocked: tuple[BlockedChange, ...] = ()
    """What is not to be proposed again."""
    flags_alone: dict[ShapeClass, float] = Field(default_factory=dict)
    """By class: what the contract flags alone give on the start kernel, screened."""
    over_start: dict[ShapeClass, float] = Field(default_factory=dict)
    """By class: this kernel over the start kernel, where they differ."""
    searched: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """By knob of the kernel as it stands: values that the autotuner measured in this run, up to a plateau."""
    tuned: dict[str, int] = Field(default_factory=dict)
    """Knob values that the autotuner chose before."""
    round: int = 1
    """The round."""


class WriterEvidence(Record):
    """For the patch writer."""

    operator: OperatorFacts
    """What is computed."""
    source: SourceFacts
    """The text to edit; a change sees what the changes before it left."""
    numbered: str
    """The same source with line numbers."""
    proposal: Proposal
    """What to write."""
    recipes: tuple[RecipeNote, ...] = ()
    """The catalogue."""
    problems: tuple[str, ...] = ()
    """What was wrong with each earlier try, oldest first: the compiler's or the policy's words."""


class AblationNote(Record):
    """The final set without one change."""

    change: str
    """The change left out."""
    separable: bool
    """False when the rest cannot be applied without it."""
    effect: dict[str, float] = Field(default_factory=dict)
    """By class: ratio with it over without it; above 1 it helps."""
    low: dict[str, float] = Field(default_factory=dict)
    """Lower ends."""
    high: dict[str, float] = Field(default_factory=dict)
    """Upper ends."""
    note: str = ""
    """Why it is not separable, or what stands out."""


class GateNote(Record):
    """One pass criterion."""

    name: str
    """Its name."""
    passed: bool
    """Whether it holds."""
    figure: str = ""
    """With its limit."""


class VerificationNote(Record):
    """Correctness in a few figures."""

    status: str
    """ok, unsafe or wrong."""
    cases: int
    """Cases that ran."""
    nearest: float
    """Largest share of an error limit that any case used."""
    nearest_case: str = ""
    """That case: shape and distribution."""
    bias: float = 0.0
    """Pooled signed mean, scaled."""
    bias_slope: float = 0.0
    """Slope of error on reference."""
    deterministic: bool = True
    """Whether repeated calls agreed bit for bit."""
    seeds: int = 0
    """Distinct seeds."""


class ShapeCeiling(Record):
    """How near its peak the incumbent runs one shape: the candidate's share is this one times the ratio."""

    shape: str
    """The shape's key."""
    shape_class: ShapeClass
    """Its class."""
    share: float
    """The incumbent's share of the measured peak."""
    level: str
    """Cache level of that peak."""


class SkepticEvidence(Record):
    """For the skeptic."""

    operator: OperatorFacts
    """What is computed."""
    proposal: Proposal
    """What was promised: expectations, gains and risks."""
    kept: tuple[str, ...]
    """Ids of the changes that are in the candidate."""
    diff: str
    """Unified diff of the source, and the plan's changes."""
    screen: Timing | None = None
    """Short blocks."""
    confirmed: Timing | None = None
    """New blocks; its intervals count."""
    ablation: tuple[AblationNote, ...] = ()
    """Which change paid, screen grade."""
    verification: VerificationNote | None = None
    """Correctness."""
    gates: tuple[GateNote, ...] = ()
    """Criteria already evaluated."""
    ceilings: tuple[ShapeCeiling, ...] = ()
    """By shape."""
    hypotheses: dict[str, str] = Field(default_factory=dict)
    """Change id to what the numbers say of its expectation."""
    flags_alone: dict[ShapeClass, float] = Field(default_factory=dict)
    """What the contract flags alone give on the start kernel."""
    over_start: dict[ShapeClass, float] = Field(default_factory=dict)
    """The candidate over the start kernel, where known."""
    incumbent_is_start: bool = True
    """Whether the ratios of `confirmed` are over the start kernel."""
    tests_done: bool = False
    """Whether more tests were asked for before: they are asked for once."""


Evidence = ReaderEvidence | ProposerEvidence | WriterEvidence | SkepticEvidence
