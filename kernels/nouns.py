"""What is to be computed and what may be changed: the nouns of this room.

Expressions (strings such as `rows * max(n - 1, 0)`) are the small subset of Python that `kernelcrew.kernels.expr`
reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kernelcrew.record import Record, hash_of

ShapeClass = Literal["main", "short", "long", "tail"]
CLASSES: tuple[ShapeClass, ...] = ("main", "short", "long", "tail")
ShapeRole = Literal["timed", "edge", "held_out"]
CacheState = Literal["warm", "cold"]
Language = Literal["c", "cuda", "triton"]


class Axis(Record):
    """One integer that a shape gives a value to."""

    name: str
    """The C parameter's name."""
    minimum: int = 0
    """Smallest value the contract allows."""
    maximum: int | None = None
    """Largest value the contract allows, for an axis that is no extent (a flag: 1); None: any int."""
    note: str = ""
    """What it counts."""


class Tensor(Record):
    """One pointer argument."""

    name: str
    """The C parameter's name."""
    role: Literal["in", "out", "inout"]
    """Read only, overwritten, or both."""
    dtype: Literal["float32", "float64", "int32"] = "float32"
    """Element type."""
    dims: tuple[str, ...]
    """Expressions over the axes, slowest first; row-major."""
    align_bytes: int = 4
    """The alignment that the contract promises, and no more."""


class Shape(Record):
    """Values for the axes, with what the shape is for."""

    axes: dict[str, int]
    """A value for each axis."""
    shape_class: ShapeClass
    """`main`, `short`, `long` or `tail`."""
    role: ShapeRole = "timed"
    """`timed`; `edge` for correctness only; `held_out` for testing rules."""
    cache: CacheState = "warm"
    """Whether a sample's ring of buffers stays in a cache (warm) or is made large (cold): up to twice the last level,
    at most 160 MiB or two calls. The level that a shape is held against follows from the ring's bytes."""
    weight: float = 1.0
    """Share of the user's traffic, relative to the other shapes."""

    @property
    def key(self) -> str:
        """`rows=64,n=1024`: how records and tables name this shape."""
        return ",".join(f"{name}={value}" for name, value in self.axes.items())


class Distribution(Record):
    """How inputs are drawn. A kind of `kernelcrew.kernels.kinds.DRAWN` and its parameters."""

    name: str
    """Unique in the operator."""
    kind: str
    """normal, uniform, wide, cancelling, tiny, huge, denormal, zeros, special, signs, spike."""
    low: float | None = None
    """Lower bound where the kind has one."""
    high: float | None = None
    """Upper bound where the kind has one."""
    tensors: tuple[str, ...] = ()
    """The tensors that are drawn so, the others as `timing_distribution` says; empty: all of them."""
    axis: int = -1
    """The axis of each tensor along which the operator combines values: where `cancelling` cancels."""


class Tolerance(Record):
    """Limits for one distribution (or `*`), in units of u = 2^-24 of the condition scale that `reference()` returns."""

    distribution: str = "*"
    """The distribution's name, or `*` for the rest."""
    error: str
    """Expression: the largest |y - reference| / (u * scale) of any element."""
    bias: str
    """Expression: the largest |pooled mean of (y - reference) / (u * scale)|."""
    deviation: str
    """Expression: the largest standard deviation of the same."""
    slope: str = ""
    """Expression: the largest |slope of the same on reference / scale|; empty: 2 + error / 20."""
    reason: str
    """Which honest kernels gave these limits, with what margin."""


class Cost(Record):
    """What one call must do, as expressions over the axes."""

    flops: str
    """Floating-point operations."""
    bytes: str
    """Bytes of memory, each input read once and each output written once."""


class Contract(Record):
    """The numerics that every candidate owes."""

    input: str = "float32"
    """Precision of the inputs as read: no downcast below it."""
    accumulator: str = "float32"
    """Least precision of sums."""
    output: str = "float32"
    """Precision of the results."""
    summation: Literal["any order", "in order"] = "any order"
    """Whether sums may be reordered."""
    emulation: bool = False
    """Whether a lower precision with correction (tf32x3) may stand in."""
    deterministic: bool = False
    """Whether two calls on one input must agree bit for bit."""
    denormals: Literal["kept", "may flush"] = "kept"
    """Whether denormal inputs and outputs count."""
    note: str = ""
    """Anything else a caller may rely on."""


class KernelSource(Record):
    """One translation unit."""

    language: Language = "c"
    """c, cuda or triton."""
    text: str
    """The source itself."""
    name: str = "kernel.c"
    """File name in the branch and in messages."""


class LaunchPlan(Record):
    """How one translation unit is built and called: data, never code."""

    entry: str
    """The function that is called."""
    flags: tuple[str, ...] = ()
    """Compiler flags beyond the backend's base flags; each is in the backend's `allowed_flags`."""
    defines: dict[str, int] = Field(default_factory=dict)
    """Knobs, given as `-DNAME=VALUE`."""
    threads: int = 1
    """Threads that the kernel may use."""
    scratch_bytes: str | None = None
    """Expression; when given, the entry takes a trailing `void *scratch` that is poisoned before each call."""


class Variant(Record):
    """One source and plan, and the shapes it serves."""

    source: KernelSource
    """The translation unit."""
    plan: LaunchPlan
    """How it is built."""
    when: str | None = None
    """Rule over the axes; None is unconditional and stands last."""


class Candidate(Record):
    """What the net judges: one to three variants of one operator; the first whose rule holds serves a call."""

    operator: str
    """The operator's name."""
    backend: str = "c"
    """Builder and worker that take it."""
    variants: tuple[Variant, ...]
    """First match wins; the last has no rule."""
    changes: tuple[str, ...] = ()
    """Ids of the changes in it, relative to the incumbent."""
    rationale: str = ""
    """Why it works: the comment or `--why` that the policy gate reads."""
    author: str = ""
    """`team:recipes`, `team:openai:NAME`, `person:NAME`, `start`."""

    @property
    def identity(self) -> str:
        """Hash of what runs: sources, plans and rules; not file names, not authors."""
        return hash_of([[v.when, v.source.language, v.source.text, v.plan] for v in self.variants])


class Backend(Record):
    """How an operator is built for one backend."""

    entry: str
    """Function name."""
    args: tuple[str, ...]
    """Parameters in order: tensors and axes by name."""
    source: str
    """Start kernel: a file beside the manifest, or elsewhere in the source tree (`../src/foo.c`)."""
    base_flags: tuple[str, ...]
    """Flags of every build, the start included."""
    contract_flags: tuple[str, ...] = ()
    """Flags that keep the contract: a change may add them, and the report shows what they alone give."""
    extra_flags: tuple[str, ...] = ()
    """Further flags a plan may name."""

    @property
    def allowed_flags(self) -> frozenset[str]:
        return frozenset((*self.base_flags, *self.contract_flags, *self.extra_flags))


class Operator(Record):
    """One folder: operator.toml, reference.py, sources, recipes."""

    name: str
    """Unique; the folder's name for shipped operators."""
    version: int
    """Rises when contract, shapes or tolerances change."""
    summary: str
    """One line."""
    folder: Path
    """Where the manifest lies."""
    axes: tuple[Axis, ...]
    """In the order of the C parameters."""
    tensors: tuple[Tensor, ...]
    """Likewise."""
    contract: Contract
    """The numerics."""
    backends: dict[str, Backend]
    """By backend name."""
    cost: Cost
    """Flops and bytes."""
    distributions: tuple[Distribution, ...]
    """Input distributions of the correctness check."""
    timing_distribution: str
    """The one that timed inputs are drawn from."""
    tolerances: tuple[Tolerance, ...]
    """First match by distribution, then `*`."""
    shapes: tuple[Shape, ...]
    """All shapes, every role."""
    calls_per_day: float | None = None
    """How often it is called in a day, over all shapes by their weights; None: not known. Decides nothing."""

    def timed(self) -> tuple[Shape, ...]:
        return tuple(s for s in self.shapes if s.role == "timed")

    def held_out(self) -> tuple[Shape, ...]:
        return tuple(s for s in self.shapes if s.role == "held_out")

    def classes(self) -> tuple[ShapeClass, ...]:
        """The classes that timed shapes have, in the fixed order."""
        present = {s.shape_class for s in self.timed()}
        return tuple(c for c in CLASSES if c in present)

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def distribution(self, name: str) -> Distribution:
        return next(d for d in self.distributions if d.name == name)

    def drawn(self, distribution: Distribution, tensor: str) -> Distribution:
        """How one tensor is drawn under a distribution, which may leave it to the timed one."""
        theirs = not distribution.tensors or tensor in distribution.tensors
        return distribution if theirs else self.distribution(self.timing_distribution)

    def contract_hash(self) -> str:
        """Hash of all that decides a verdict: not the folder, not the start source, not the traffic."""
        return hash_of(self.model_dump(mode="json", exclude={"folder", "summary", "calls_per_day"}))


class Knob(Record):
    """One integer that a source takes as `#ifndef NAME / #define NAME value`, and the window it may move in."""

    name: str
    """The macro's name."""
    window: tuple[int, ...]
    """Values to try, in order."""
    value: int
    """The value proposed first."""


class Expectation(Record):
    """The figure a change expects to move, so that the hypothesis can be confirmed or refuted apart from the speed."""

    figure: Literal["time", "gb_s", "gflop_s", "instructions", "vector_loops"]
    """What moves."""
    shape_class: ShapeClass
    """Where it is read."""
    factor: float
    """New over old; below 1 for a time or a count that should fall."""


class Risk(Record):
    """What a change may cost in one class."""

    shape_class: ShapeClass
    """Where."""
    level: Literal["none", "low", "medium", "high"]
    """How likely a regression is."""
    why: str
    """What would cause it."""


class Change(Record):
    """One idea. Identity: operator, backend, mechanism, target, knob values. Platform, toolchain are circumstances."""

    id: str
    """Unique in the proposal: a short slug."""
    mechanism: str
    """A name in the recipes table, or `free` for a model's or person's own edit."""
    target: str
    """Function, loop or symbol it works on."""
    knobs: tuple[Knob, ...] = ()
    """Its knobs and their windows."""
    requires: tuple[str, ...] = ()
    """Ids of changes in this proposal without which it cannot be applied."""
    expects: Expectation
    """The hypothesis."""
    gain: float
    """Expected speed-up of the expectation's class, as a ratio (1.2 is 20 % faster)."""
    risks: tuple[Risk, ...] = ()
    """By shape class."""
    why: str
    """The rationale: mechanism and the evidence it relies on. Becomes the comment and the commit's trailer."""
    diff: str = ""
    """Hash of the normalised edit where the code is given with the change: a person's patch."""

    def features(self, operator: str, backend: str) -> dict[str, str]:
        """What memory and the no-go list match on."""
        knobs = ";".join(f"{k.name}={k.value}" for k in sorted(self.knobs, key=lambda k: k.name))
        where = {"operator": operator, "backend": backend}
        code = {"diff": self.diff} if self.diff else {}
        return {**where, "mechanism": self.mechanism, "target": self.target, "knobs": knobs, **code}


class Proposal(Record):
    """A direction: a set of independent changes."""

    id: str
    """Unique in the run: `r1p2`."""
    title: str
    """One line."""
    direction: str
    """The strategy in a sentence or two."""
    bottlenecks: tuple[str, ...]
    """Ids of the bottlenecks it answers."""
    changes: tuple[Change, ...]
    """At least one."""


class Block(Record):
    """Replace `search` (must occur exactly once) by `replace`."""

    search: str
    """Text of the source as it stands when this change is applied."""
    replace: str
    """What stands there afterwards."""


class Edit(Record):
    """How one change is written: a recipe by name, or search/replace blocks, or flags; knobs in any case."""

    change: str
    """Id of the change."""
    recipe: str = ""
    """A name in the recipes table, or empty."""
    knobs: dict[str, int] = Field(default_factory=dict)
    """Values for the recipe's or source's knobs."""
    blocks: tuple[Block, ...] = ()
    """Edits of the source text."""
    add_flags: tuple[str, ...] = ()
    """Flags to add to the plan."""


class Patch(Record):
    """All edits of one proposal, in order. A subset is re-applied from the incumbent, never reverted as text."""

    proposal: str
    """The proposal's id."""
    edits: tuple[Edit, ...]
    """One a change, in the order of application."""
    author: str
    """Who wrote it."""


class NotApplicable(Record):
    """A recipe or edit that cannot be applied here, and why."""

    change: str
    """The change or recipe."""
    because: str
    """For a person and for the patch writer's next try."""
