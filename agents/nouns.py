"""What the four roles are asked and what they answer. Answers hold no free-form mappings, so that every model's
structured output can carry them."""

from __future__ import annotations

from typing import Literal

from kernelcrew.kernels.nouns import Block, Change, Edit, Expectation, Knob, Patch, Proposal, Risk, ShapeClass
from kernelcrew.record import Record

Role = Literal["profiler_reader", "proposer", "patch_writer", "skeptic"]


class Question(Record):
    """One question to one role: composed fresh from prefix and evidence, so context never grows with the rounds."""

    role: Role
    """Who is asked."""
    task: str
    """What is wanted, in a paragraph (from the role's prompt file)."""
    prefix: str
    """What memory says."""
    evidence: str
    """JSON text of the evidence for this question."""
    round: int = 1
    """The round."""


class Usage(Record):
    """What one question cost."""

    prompt_tokens: int = 0
    """Tokens sent."""
    completion_tokens: int = 0
    """Tokens received."""
    calls: int = 0
    """Requests, repairs included."""
    seconds: float = 0.0
    """Wall clock."""
    money_usd: float | None = None
    """Where a price is known."""


class Bottleneck(Record):
    """What holds one shape class back, and where it sits."""

    id: str
    """`b1`, ..."""
    shape_class: ShapeClass
    """The class."""
    kind: Literal["latency", "bandwidth", "overhead", "compute", "not_vectorized", "near_peak"]
    """latency: a serial chain; overhead: cost a row or call; near_peak: nothing to gain."""
    line_first: int
    """First source line of the loop it sits in; 0 when unknown."""
    line_last: int
    """Last line."""
    share_of_peak: float
    """How near the ceiling it is, 0 to 1."""
    cited: list[str]
    """The figures it rests on, each with the shape's key and unit."""
    summary: str
    """One or two sentences."""


class BottleneckSummary(Record):
    """The profiler-reader's answer."""

    bottlenecks: list[Bottleneck]
    """At least one a class."""
    grade: str
    """The profile's grade."""
    text: str
    """A short paragraph for the report."""


class KnobChoice(Record):
    """A knob and the window for the autotuner."""

    name: str
    """The macro's name."""
    value: int
    """First value."""
    window: list[int]
    """Values to try."""


class RiskNote(Record):
    """Regression risk in one class."""

    shape_class: ShapeClass
    """Where."""
    level: Literal["none", "low", "medium", "high"]
    """How likely."""
    why: str
    """What would cause it."""


class ChangeIdea(Record):
    """One change as proposed."""

    id: str
    """Short slug, unique in the proposal."""
    mechanism: str
    """A recipe's name, or `free`."""
    target: str
    """Function or loop."""
    knobs: list[KnobChoice]
    """Its knobs."""
    requires: list[str]
    """Ids of changes it needs."""
    figure: Literal["time", "gb_s", "gflop_s", "instructions", "vector_loops"]
    """The figure expected to move."""
    figure_class: ShapeClass
    """Where."""
    figure_factor: float
    """New over old."""
    gain: float
    """Expected speed-up there."""
    risks: list[RiskNote]
    """By class."""
    why: str
    """Mechanism and evidence."""


class ProposalIdea(Record):
    """One direction as proposed."""

    title: str
    """One line."""
    direction: str
    """The strategy."""
    bottlenecks: list[str]
    """Ids answered."""
    changes: list[ChangeIdea]
    """Independent changes."""


class ProposalSet(Record):
    """The proposer's answer: two or three directions, or none with the reason."""

    proposals: list[ProposalIdea]
    """In order of expected gain."""
    note: str
    """What was considered and left out, or why there is nothing to propose."""


class KnobValue(Record):
    """One knob's value."""

    name: str
    """The macro's name."""
    value: int
    """Its value."""


class BlockText(Record):
    """A search/replace block."""

    search: str
    """Must occur exactly once."""
    replace: str
    """What stands there afterwards."""


class EditText(Record):
    """How one change is written."""

    change: str
    """Id of the change."""
    recipe: str
    """A recipe's name, or empty."""
    knobs: list[KnobValue]
    """Values."""
    blocks: list[BlockText]
    """Edits of the text, empty with a recipe."""
    add_flags: list[str]
    """Flags to add."""


class PatchAnswer(Record):
    """The patch writer's answer."""

    edits: list[EditText]
    """One a change, in the order of application."""
    note: str
    """Anything the reviewer should know."""


class TestRequest(Record):
    """More evidence the skeptic wants: data, never code; it can only add."""

    kind: Literal["shape", "seed", "distribution"]
    """What to add."""
    axes: list[KnobValue]
    """For a shape: its axes."""
    distribution: str
    """For a distribution or shape: its name; empty for all."""
    why: str
    """What it would show."""


class Review(Record):
    """The skeptic's answer. It can object or ask for more; it can never promote what a gate refused."""

    verdict: Literal["pass", "object", "more_tests"]
    """The verdict."""
    objections: list[str]
    """Each names what the numbers miss, with its figure."""
    tests: list[TestRequest]
    """Extra evidence wanted, for more_tests."""
    hypotheses: list[str]
    """For each change: confirmed, refuted or unread, with the figure."""
    summary: str
    """A sentence for the report."""


class Answer(Record):
    """A role's typed answer with what it cost."""

    role: Role
    """Who answered."""
    status: Literal["ok", "bad_form"]
    """bad_form: repairs ran out; the round is recorded as failed."""
    bottlenecks: BottleneckSummary | None = None
    """From the profiler-reader."""
    proposals: ProposalSet | None = None
    """From the proposer."""
    patch: PatchAnswer | None = None
    """From the patch writer."""
    review: Review | None = None
    """From the skeptic."""
    usage: Usage
    """What it cost."""
    exchanges: list[str] = []
    """Content hashes of the recorded prompts and replies."""
    problem: str = ""
    """What was wrong with the form."""


def to_proposals(answer: ProposalSet, round_number: int) -> tuple[Proposal, ...]:
    """The proposer's answer in the kernels' nouns, with ids `r1p1`, `r1p2`, ..."""
    def change(idea: ChangeIdea) -> Change:
        return Change(
            id=idea.id, mechanism=idea.mechanism, target=idea.target,
            knobs=tuple(Knob(name=k.name, window=tuple(k.window), value=k.value) for k in idea.knobs),
            requires=tuple(idea.requires),
            expects=Expectation(figure=idea.figure, shape_class=idea.figure_class, factor=idea.figure_factor),
            gain=idea.gain, risks=tuple(Risk(**r.model_dump()) for r in idea.risks), why=idea.why,
        )

    return tuple(
        Proposal(
            id=f"r{round_number}p{index}", title=idea.title, direction=idea.direction,
            bottlenecks=tuple(idea.bottlenecks), changes=tuple(change(c) for c in idea.changes),
        )
        for index, idea in enumerate(answer.proposals, 1)
    )


def to_patch(answer: PatchAnswer, proposal: str, author: str) -> Patch:
    """The patch writer's answer in the kernels' nouns."""
    return Patch(
        proposal=proposal, author=author,
        edits=tuple(
            Edit(
                change=e.change, recipe=e.recipe, knobs={k.name: k.value for k in e.knobs},
                blocks=tuple(Block(search=b.search, replace=b.replace) for b in e.blocks), add_flags=tuple(e.add_flags),
            )
            for e in answer.edits
        ),
    )
