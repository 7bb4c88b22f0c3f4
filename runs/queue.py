"""The queue that people's patches wait in: the same rounds try them, one a round, oldest first.

A submission is a file under `.kernelcrew/queue/`. Taking one is a step of the journal; its file goes away afterwards,
so that a kill in between loses nothing and tries nothing twice.
"""

from __future__ import annotations

import difflib
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from kernelcrew.errors import StoreError
from kernelcrew.kernels.cparse import parse_c
from kernelcrew.kernels.diffs import Group, Piece, edits_from, pieces_of
from kernelcrew.kernels.nouns import Candidate, Change, Expectation, Patch, Proposal
from kernelcrew.record import Record, hash_of
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.settings import Settings


class Submission(Record):
    """A person's patch, as handed in."""

    id: str
    """Unique: time and a random part."""
    operator: str
    """For which operator."""
    backend: str
    """And backend."""
    author: str
    """`person:NAME`."""
    why: str
    """The reason, judged for substance as the team's is."""
    diff: str
    """Unified diff against the kernel as it stands."""
    groups: tuple[Group, ...]
    """Hunks by change."""
    flags: tuple[str, ...] = ()
    """Compiler flags that the first change adds."""
    expects: Expectation
    """What it should move, and how far."""
    submitted: str
    """ISO time."""


class Taken(Record):
    """What the queue gave to a round."""

    submission: Submission | None
    """None when nothing waits."""


class Given(Record):
    """A submission as the round's own nouns."""

    proposal: Proposal
    """One change a group."""
    patch: Patch
    """With the person as author; without edits when it does not fit."""
    trouble: str = ""
    """Why it does not fit the kernel as it stands."""


def new_id() -> str:
    """A name that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def enqueue(settings: Settings, submission: Submission) -> Path:
    """Put a submission into the queue. Raises StoreError."""
    path = _folder(settings) / f"{submission.id}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        draft.write_text(submission.model_dump_json(indent=1), encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", fix="free space there or choose another --workdir") from error
    return path


def waiting(settings: Settings, operator: str, backend: str) -> tuple[Submission, ...]:
    """What waits for one operator and backend, oldest first. A file that cannot be read is left where it is."""
    found = []
    for path in sorted(_folder(settings).glob("*.json")):
        try:
            one = Submission.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError, UnicodeDecodeError):
            continue
        if (one.operator, one.backend) == (operator, backend):
            found.append(one)
    return tuple(found)


def queued(crew: Crew, number: int, standing: Standing) -> Given | None:
    """The submission that this round tries, if one waits."""
    taken = crew.journal.do(
        f"r{number}.queue", Taken, standing.candidate.identity, lambda: Taken(submission=_oldest(crew))
    )
    if taken.submission is None:
        return None
    (_folder(crew.settings) / f"{taken.submission.id}.json").unlink(missing_ok=True)
    crew.say("propose", f"a patch by {taken.submission.author} has this round", round_number=number)
    return given(taken.submission, standing.candidate, number)


def given(submission: Submission, standing: Candidate, number: int) -> Given:
    """Pure: the submission as a proposal and a patch on the kernel as it stands."""
    source = standing.variants[-1].source
    pieces = pieces_of(submission.diff, source.text, source.name)
    found: list[Piece] = [] if isinstance(pieces, str) else pieces
    edits = pieces if isinstance(pieces, str) else edits_from(pieces, submission.groups)
    proposal = Proposal(
        id=f"r{number}p1",
        title=f"A patch by {submission.author.removeprefix('person:')}",
        direction=submission.why,
        bottlenecks=(),
        changes=tuple(_change(submission, group, source.text, found) for group in submission.groups),
    )
    if isinstance(edits, str):
        return Given(
            proposal=proposal, patch=Patch(proposal=proposal.id, edits=(), author=submission.author), trouble=edits
        )
    if submission.flags:
        edits = (edits[0].model_copy(update={"add_flags": submission.flags}), *edits[1:])
    return Given(proposal=proposal, patch=Patch(proposal=proposal.id, edits=edits, author=submission.author))


def _change(submission: Submission, group: Group, text: str, pieces: list[Piece]) -> Change:
    lines = [pieces[n - 1].line for n in group.hunks if 1 <= n <= len(pieces)]
    functions = parse_c(text).functions
    inside = next((f.name for f in functions if lines and f.span.line_first <= lines[0] <= f.span.line_last), "")
    return Change(
        id=group.name,
        mechanism="free",
        target=inside or "the kernel",
        expects=submission.expects,
        gain=round(1 / submission.expects.factor, 4),
        why=group.why or submission.why,
        diff=_edit_hash([pieces[n - 1] for n in group.hunks if 1 <= n <= len(pieces)]),
    )


def _edit_hash(pieces: list[Piece]) -> str:
    """Of what is taken out and put in, white space apart; not of the lines around it, which the kernel's age moves."""
    changed = []
    for piece in pieces:
        old, new = piece.block.search.splitlines(), piece.block.replace.splitlines()
        lines = [line for line in difflib.ndiff(old, new) if line[:2] in ("- ", "+ ")]
        changed.append(["".join(line.split()) for line in lines])
    return hash_of(changed) if changed else ""


def _oldest(crew: Crew) -> Submission | None:
    return next(iter(waiting(crew.settings, crew.operator.name, crew.start.backend)), None)


def _folder(settings: Settings) -> Path:
    return settings.home / "queue"
