"""A person's patch at the door: read, checked against the kernel as it stands, and put into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernelcrew.errors import UserMistake
from kernelcrew.files import read_text
from kernelcrew.kernels.diffs import Group, diff_of, edits_from, parse_group, pieces_of
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import CLASSES, Candidate, Expectation, Operator
from kernelcrew.platforms.detect import detect
from kernelcrew.record import Record
from kernelcrew.runs.deeds import author
from kernelcrew.runs.incumbent import adopted_candidate
from kernelcrew.runs.queue import Submission, enqueue, new_id, waiting
from kernelcrew.runs.vcs import repo_for
from kernelcrew.settings import Settings


class SubmitAsked(Record):
    """The words of `kernelcrew submit`."""

    operator: str
    """A shipped operator, or a folder."""
    backend: str = "c"
    """Backend."""
    patch: Path
    """A unified diff, or the whole changed source."""
    why: str
    """The reason."""
    changes: tuple[str, ...] = ()
    """`NAME=1,3[:reason]`: hunks that make up a change."""
    flags: tuple[str, ...] = ()
    """Compiler flags to add."""
    expects: str = "main=1.05"
    """Class and ratio that it should reach."""
    author: str = ""
    """Who; the login name otherwise."""


def submission_from(settings: Settings, asked: SubmitAsked) -> Submission:
    """The submission, once it fits the kernel as it stands. Raises UserMistake, UnknownName, BadManifest."""
    operator = load_operator(asked.operator)
    standing = standing_kernel(settings, operator, asked.backend)
    text = _text(asked.patch)
    source = standing.variants[-1].source
    diff = text if _is_diff(text) else diff_of(source.text, text, source.name)
    pieces = pieces_of(diff, source.text, source.name)
    if isinstance(pieces, str):
        raise UserMistake(f"{asked.patch}: {pieces}", fix=_where(operator, standing))
    groups = _groups(asked.changes, len(pieces))
    edits = edits_from(pieces, groups)
    if isinstance(edits, str):
        raise UserMistake(f"--changes: {edits}", fix="name each hunk of the diff in one change")
    return Submission(
        id=new_id(),
        operator=operator.name,
        backend=asked.backend,
        author=f"person:{asked.author or author()}",
        why=asked.why.strip(),
        diff=diff,
        groups=groups,
        flags=asked.flags,
        expects=_expectation(asked.expects, operator),
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def hand_in(settings: Settings, asked: SubmitAsked) -> tuple[Submission, int]:
    """Put it into the queue. Gives it and how many now wait, itself included."""
    submission = submission_from(settings, asked)
    enqueue(settings, submission)
    return submission, len(waiting(settings, submission.operator, submission.backend))


def standing_kernel(settings: Settings, operator: Operator, backend: str) -> Candidate:
    """The kernel that a patch is made against: the incumbent of this platform, else the start."""
    start = start_candidate(operator, backend)
    repo = repo_for(settings, operator, backend)
    platform = detect(settings.cc).platform.id
    found = repo.incumbent(operator.name, platform, backend)
    return adopted_candidate(repo, found.commit) if found.commit else start


def _text(path: Path) -> str:
    return read_text(path, str(path), fix="give a unified diff against the kernel, or the whole C source")


def _is_diff(text: str) -> bool:
    return any(line.startswith("@@ ") for line in text.splitlines())


def _groups(changes: Sequence[str], hunks: int) -> tuple[Group, ...]:
    if not changes:
        return (Group(name="patch", hunks=tuple(range(1, hunks + 1))),)
    groups = []
    for text in changes:
        group = parse_group(text)
        if isinstance(group, str):
            raise UserMistake(f"--changes {group}", fix="write NAME=HUNKS or NAME=HUNKS:REASON")
        groups.append(group)
    return tuple(groups)


def _expectation(text: str, operator: Operator) -> Expectation:
    name, _, ratio = text.partition("=")
    known = operator.classes()
    try:
        gain = float(ratio)
    except ValueError:
        gain = 0.0
    if name not in CLASSES or name not in known or not 0.1 <= gain <= 1000:
        raise UserMistake(f"--expects {text}", fix=f"write CLASS=RATIO with a class of {', '.join(known)}: main=1.2")
    return Expectation(figure="time", shape_class=name, factor=round(1 / gain, 4))


def _where(operator: Operator, standing: Candidate) -> str:
    how = "the start kernel" if standing.author == "start" else "the adopted kernel"
    return f"make the diff against {how}: kernelcrew show {operator.name} prints it"
