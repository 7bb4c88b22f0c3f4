"""What is remembered: the nouns of this room."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelcrew.kernels.nouns import Change
from kernelcrew.record import Record
from kernelcrew.tools.nouns import Decision, Timing, Verdict

Fate = Literal["adopted", "refuted", "open"]


class Conditions(Record):
    """Where, on what and by whom a proposal was tried: the same for all proposals of a round."""

    run: str
    """The run."""
    operator: str
    """Its operator."""
    operator_version: int
    """The contract's version."""
    backend: str
    """c, cuda or triton."""
    platform: str
    """Platform id."""
    compiler: str
    """Name and version, for a person."""
    circumstances: str
    """`Machine.circumstances()`."""
    incumbent: str
    """Identity of the kernel that the proposal was tried on."""
    author: str = "recipe"
    """recipe, model name, or person."""
    created: str
    """ISO time."""


class Findings(Record):
    """What the round found out about one proposal."""

    decision: Decision
    """What was done with it."""
    verdict: Verdict | None = None
    """The net's word, where it was asked."""
    timing: Timing | None = None
    """Confirmation if there was one; else the screen of the verdict counts."""
    hypotheses: dict[str, str] = Field(default_factory=dict)
    """Change id to confirmed, refuted or unread, with the figure."""
    effects: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Change id to its own ratio by shape class, from the ablation."""
    fates: dict[str, Fate] = Field(default_factory=dict)
    """Change id to what became of it, where that differs from what the decision says of the whole."""
    tried_knobs: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Knob name to every value that was screened."""
    candidate: str = ""
    """Identity of the code that was judged."""
    result: str = ""
    """Identity of the new incumbent, if the decision made one."""
    commit: str = ""
    """Its commit."""

    def measured(self) -> Timing | None:
        """The best figures there are: the confirmation, else the screen."""
        return self.timing or (self.verdict.timing if self.verdict else None)


UNJUDGED = frozenset(("nogo", "rationale"))
"""Gates that say nothing of the code: with a better reason, or once the entry is gone, the same change may be tried."""


class TriedPatch(Record):
    """One proposal as tried: at most 400 tokens of text, plus what it is found and matched by."""

    id: str
    """`RUN:PROPOSAL`."""
    run: str
    """The run."""
    operator: str
    """Its operator."""
    operator_version: int
    """The contract's version it was tried under."""
    backend: str
    """c, cuda or triton."""
    platform: str
    """Platform id."""
    circumstances: str
    """Hash of compiler, cores and caches; a refuted change stays refuted only under the same."""
    incumbent: str
    """Identity of the kernel it was tried on."""
    features: tuple[dict[str, str], ...]
    """`Change.features` of each change."""
    whys: tuple[str, ...] = ()
    """Each change's own reason, in the order of `features`: what a free change is recognised by."""
    fates: tuple[Fate, ...] = ()
    """What became of each change, in the order of `features`; empty where only the whole was judged."""
    tried_knobs: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Knob name to every value that was screened."""
    candidate: str = ""
    """Identity of the code that was judged: the same code need not be judged twice."""
    result: str = ""
    """Identity of the kernel that became the incumbent, if one did."""
    decision: str
    """adopt, adopt_when, adjust, split, rollback or inconclusive."""
    gate: str = ""
    """The gate that a rollback failed at."""
    classes: dict[str, float] = Field(default_factory=dict)
    """Ratio by shape class, where it was measured."""
    hypothesis: str
    """confirmed, refuted or unread: did the expected figure move as foretold."""
    text: str
    """The summary: change, figures, conclusion, conditions."""
    commit: str = ""
    """The adopted commit, if any."""
    author: str = "recipe"
    """recipe, model name, or person."""
    created: str
    """ISO time."""


class Rationale(Record):
    """Why one decision was taken."""

    id: str
    """`RUN:PROPOSAL:CHANGE`."""
    run: str
    """The run it rests on."""
    commit: str = ""
    """The commit, if adopted."""
    operator: str
    """Its operator."""
    backend: str
    """Backend."""
    platform: str
    """Platform id: unproven elsewhere."""
    mechanism: str
    """The recipe or idea."""
    decision: str
    """What became of it."""
    shape_classes: tuple[str, ...]
    """Classes it was measured on."""
    classes: dict[str, float] = Field(default_factory=dict)
    """Ratio by shape class."""
    why: str
    """The reason as the change gave it."""
    evidence: str
    """The measured figures in a sentence."""
    text: str
    """What is embedded and searched: title, why, evidence, decision."""
    author: str = "recipe"
    """Who gave the reason."""
    created: str
    """ISO time."""


class Hit(Record):
    """One answer of a query."""

    entry: Rationale
    """What was found."""
    score: float
    """Higher is nearer; only comparable within one answer."""
    proven_here: bool
    """False for another platform's entry."""
    how: str
    """vector, lexical or both."""


class Prefix(Record):
    """What opens a session: within its token budget, with what was left out said."""

    text: str
    """Tried summaries that matter, current kernel, constraints, platform."""
    tokens: int
    """Counted size."""
    budget: int
    """Its limit."""
    included: tuple[str, ...]
    """Ids of tried patches in it."""
    left_out: int
    """How many did not fit or did not matter."""
    counter: str
    """Which tokenizer counted."""


class Opening(Record):
    """What a session must know besides what was tried."""

    kernel: str
    """The current kernel's source, with its identity and where it came from."""
    constraints: tuple[str, ...] = ()
    """What no change may break: contract, allowed flags, no-go entries; one line each."""
    platform: str = ""
    """The machine's parameters."""
    focus: str = ""
    """What this session is about (the bottleneck summary): tried patches near it come first."""


class Situation(Record):
    """What the repeat guard holds a proposal against: where, under what, and on what line of kernels."""

    operator: str
    """The operator."""
    operator_version: int
    """The contract's version."""
    backend: str
    """c, cuda or triton."""
    platform: str
    """Platform id."""
    circumstances: str
    """`Machine.circumstances()`."""
    lineage: frozenset[str]
    """Identities of the current incumbent and of all kernels it grew from, the start included."""


class Refuted(Record):
    """A proposed change that memory speaks against, and by what."""

    change: str
    """Its id."""
    tried: str
    """Id of the tried patch."""
    reason: str
    """One line with figures."""


class Guarded(Record):
    """What the repeat guard says of one proposal."""

    keep: tuple[Change, ...]
    """Changes that may be tried, in their order; empty when nothing is left."""
    refuted: tuple[Refuted, ...] = ()
    """Refuted before under these circumstances."""
    already_in: tuple[Refuted, ...] = ()
    """Adopted before: the incumbent has them."""
    reopened: tuple[Refuted, ...] = ()
    """Refuted before but kept, because the circumstances changed; the reason says which."""
