"""What tools say: the nouns of this room. An expected failure is one of these values with a status."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelcrew.kernels.nouns import ShapeClass
from kernelcrew.record import Record

Stage = Literal["policy", "build", "safety", "correctness", "timing"]
Outcome = Literal["accept", "reject", "inconclusive"]
Answer = Literal["faster", "not slower", "slower", "unknown"]
Action = Literal["adopt", "adopt_when", "adjust", "split", "rollback", "inconclusive"]
Grade = Literal["counters", "simulated", "remarks"]


class Diagnostic(Record):
    """One message of the compiler, or one broken rule of the policy gate."""

    kind: str
    """error, warning, note, or the policy rule's name."""
    line: int
    """From 1; 0 where none is known."""
    message: str
    """The words."""
    option: str = ""
    """`-Wunused` and the like; the rule of a rationale, or the entry of the no-go list."""

    @property
    def at(self) -> str:
        """`line 7: ` before a message, or nothing where no line is known: a rationale and a plan have none."""
        return f"line {self.line}: " if self.line else ""


class LoopRemark(Record):
    """What the compiler says of one loop."""

    line: int
    """Source line of the loop."""
    vectorized: bool
    """Whether vector code was made."""
    vector_bytes: int = 0
    """Width when vectorised."""
    message: str = ""
    """The compiler's reason when it was not."""


class Build(Record):
    """One candidate as a shared object, or why there is none."""

    status: Literal["ok", "failed", "refused"]
    """ok; the compiler failed; the policy refused source or object."""
    stage: Stage = "build"
    """Where it stopped: policy or build."""
    identity: str
    """The candidate's identity hash."""
    artifact: str = ""
    """Path of the shared object in the cache; empty when not ok."""
    artifact_hash: str = ""
    """SHA-256 (16 digits) of the object's bytes."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Errors, warnings and broken rules."""
    loops: tuple[LoopRemark, ...] = ()
    """Vectorisation remarks of the first variant."""
    commands: tuple[str, ...] = ()
    """The compiler's command lines, paths shortened."""
    text_bytes: int = 0
    """Size of the machine code."""
    scratch_bytes: str = ""
    """Expression over the axes: bytes of the entry's trailing `void *scratch`; empty when it takes none."""
    seconds: float = 0.0
    """Compile time; 0 when it came from the cache."""

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.kind == "warning")


class CaseResult(Record):
    """Errors of one shape under one distribution and seed, in units of u times the condition scale."""

    shape: str
    """The shape's key."""
    distribution: str
    """Its name."""
    seed: int
    """The input seed (from the system's randomness, recorded)."""
    status: Literal["ok", "wrong", "unsafe", "crashed", "timeout"]
    """How the case ended."""
    worst: float = 0.0
    """Largest scaled error."""
    limit: float = 0.0
    """Its limit."""
    mean: float = 0.0
    """Signed mean of scaled errors."""
    deviation: float = 0.0
    """Their standard deviation."""
    detail: str = ""
    """What went wrong, for a person."""


KEPT_CASES = 24
"""Cases that a slim verification keeps: the nearest to their limits."""


class Verification(Record):
    """Safety and correctness of one build."""

    status: Literal["ok", "unsafe", "wrong"]
    """unsafe: guards, canaries, inputs, crash or time limit; wrong: numbers."""
    cases: tuple[CaseResult, ...]
    """The cases that ran, the first bad one ending the check; those nearest to their limits once it is slim."""
    cases_run: int = 0
    """How many ran."""
    seeds_run: int = 0
    """Distinct input seeds among them."""
    bias: float = 0.0
    """Pooled signed mean over all cases, scaled."""
    bias_slope: float = 0.0
    """Least-squares slope of error on reference, in u."""
    deterministic: bool = True
    """Whether repeated calls agreed bit for bit: a fact, not a gate."""
    reason: str = ""
    """The first thing that was wrong."""
    sandbox: str = ""
    """Which containment was used."""
    seconds: float = 0.0
    """Wall clock."""

    def slim(self) -> Verification:
        """The same with only the cases nearest to their limits: the verifier's own step in the journal has all."""
        near = sorted(self.cases, key=lambda c: (c.status == "ok", -(c.worst / c.limit if c.limit else 0.0)))
        return self.model_copy(
            update={
                "cases": tuple(near[:KEPT_CASES]),
                "cases_run": self.cases_run or len(self.cases),
                "seeds_run": self.seeds_run or len({c.seed for c in self.cases}),
            }
        )


class ShapeTiming(Record):
    """One shape's ratios (baseline time over candidate time; above 1 the candidate is faster)."""

    shape: str
    """The shape's key."""
    shape_class: ShapeClass
    """Its class."""
    ratio: float
    """Geometric mean of the block medians used for the estimate."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end."""
    candidate_us: float
    """Median time of one call of the candidate."""
    baseline_us: float
    """Median time of one call of the baseline."""
    answer: Answer
    """not slower, slower or unknown (screen grade: by the interval alone)."""
    answer_start: Answer = "unknown"
    """The same against the run's first baseline."""
    blocks: tuple[float, ...] = ()
    """Block medians of log ratios, in order."""


class ClassTiming(Record):
    """One shape class."""

    shape_class: ShapeClass
    """Which."""
    answer: Answer
    """faster, not slower, slower or unknown."""
    ratio: float
    """Geometric mean over its shapes."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end."""
    e_value: float = 0.0
    """Evidence for faster; accepted at the threshold of the plan."""


class Timing(Record):
    """What timing says of one candidate against one baseline."""

    grade: Literal["screen", "confirmed"]
    """A screen is short and never decides."""
    status: Literal["decided", "undecided", "noisy", "invalid"]
    """noisy: the host could not decide; invalid: a timed output was wrong or the ceiling was broken."""
    baseline: str
    """Identity of the candidate it was held against."""
    candidate: str
    """Identity of the candidate."""
    margin: float
    """Smallest gain that counts, as a ratio minus 1."""
    aa_sd: float
    """Spread of the baseline against its own copy (log ratio)."""
    classes: tuple[ClassTiming, ...]
    """By class."""
    shapes: tuple[ShapeTiming, ...]
    """By shape."""
    blocks: int
    """Blocks used."""
    threshold: float = 0.0
    """E-value at which faster is accepted: confirmations x classes / alpha."""
    host: dict[str, float] = Field(default_factory=dict)
    """What the host did meanwhile: load, steal, discarded pairs."""
    reason: str = ""
    """Why it is undecided, noisy or invalid."""
    samples: str = ""
    """Content hash of the raw samples in the run's blobs."""
    input_seed: str = ""
    """Entropy of the generator that drew inputs, placements and orders of slots, hexadecimal: one for a bench."""
    seconds: float = 0.0
    """Wall clock."""

    def of(self, shape_class: ShapeClass) -> ClassTiming | None:
        return next((c for c in self.classes if c.shape_class == shape_class), None)


class AlphaPlan(Record):
    """How the false-accept rate is spent, fixed and journalled before the first block."""

    alpha: float = 0.01
    """Chance that a run adopts anything that is not faster by the margin."""
    confirmations: int
    """Confirmations this run may make."""
    classes: int
    """Shape classes of the operator."""
    max_blocks: int = 40
    """Blocks at most in one confirmation."""

    @property
    def threshold(self) -> float:
        return self.confirmations * self.classes / self.alpha


class Noise(Record):
    """Pre-flight: the baseline against its own copy."""

    aa_sd: float
    """Standard deviation over blocks of the class statistic (log ratio)."""
    worst_shape_sd: float
    """Largest one of a shape."""
    quiet: bool
    """Whether the host can decide at all."""
    reason: str
    """One line for a person."""
    samples: str = ""
    """Content hash of the raw samples in the run's blobs: every margin is computed from them."""
    input_seed: str = ""
    """As in `Timing`."""


class ShapeProfile(Record):
    """One shape as measured, against the peaks of the level its bytes fit in."""

    shape: str
    """The shape's key."""
    shape_class: ShapeClass
    """Its class."""
    time_us: float
    """Median time of one call."""
    gb_s: float
    """Bytes of the cost formula over the time."""
    gflop_s: float
    """Flops of the cost formula over the time."""
    level: str
    """L1, L2, L3 or memory: where the bytes of one sample's ring fit."""
    peak_gb_s: float
    """Measured read peak there."""
    peak_gflop_s: float
    """Measured FMA peak."""
    share: float
    """The larger of the two shares of a peak."""
    ns_per_element: float
    """Time over elements of the largest input; the latency of a serial chain shows here."""
    ns_per_row: float
    """Time over elements of the output: overhead a row shows here."""
    instructions: float | None = None
    """Instructions a call, where a counter or simulator gave them."""
    cycles: float | None = None
    """Core cycles a call, where a counter gave them."""
    counted_on: str = ""
    """The axes that were counted and how; where they are smaller, `instructions` is scaled up by flops plus bytes."""


class Profile(Record):
    """The profile of one build over all timed shapes, and how good its grade is."""

    grade: Grade
    """counters: hardware counters read; simulated: counts by callgrind or single steps; remarks: time and compiler
    remarks only."""
    grade_reason: str
    """Why no better grade was to be had."""
    shapes: tuple[ShapeProfile, ...]
    """Every timed shape."""
    loops: tuple[LoopRemark, ...]
    """The compiler's remarks."""
    hot_lines: tuple[tuple[int, float], ...] = ()
    """Source line and share of instructions, where the simulator gave them."""
    candidate: str
    """Identity of what was profiled."""


class Verdict(Record):
    """What the net says of one candidate."""

    outcome: Outcome
    """accept, reject or inconclusive."""
    stage: Stage
    """The last stage it reached."""
    reason: str
    """One line."""
    build: Build | None = None
    """If it got that far."""
    verification: Verification | None = None
    """If it got that far."""
    timing: Timing | None = None
    """If it got that far."""
    gate: str = ""
    """`nogo` or `rationale` where one of these refused it at the stage `policy`."""
    despite: tuple[str, ...] = ()
    """Entries of the no-go list that a person set aside to judge it."""


class Decision(Record):
    """What is done with one proposal."""

    action: Action
    """See design: the first matching row of the table wins."""
    gate: str = ""
    """The gate that failed, for a rollback by a gate."""
    reason: str
    """With the figure."""
    rule: str = ""
    """For adopt_when: the rule over the axes."""
    drop: tuple[str, ...] = ()
    """For split: ids of the changes to leave out."""
    keep: tuple[str, ...] = ()
    """Ids of the changes that are in what was decided on."""
