"""The incumbent: the adopted kernel that a run starts from, if it descends from the user's current source."""

from __future__ import annotations

from kernelcrew.kernels.nouns import Candidate
from kernelcrew.kernels.planfile import PLAN, files_named, from_files
from kernelcrew.record import Record
from kernelcrew.runs.crew import Lab
from kernelcrew.tools.git import Repo
from kernelcrew.tools.policy import START


class Incumbent(Record):
    """What git says of it."""

    candidate: Candidate | None
    """None when nothing was adopted, or the source has moved on."""
    commit: str
    """The incumbent's commit, or the start's."""
    source: str
    """One line for a person: `start`, or the run and commit it comes from."""


def find_incumbent(crew: Lab, start: Candidate, backend: str) -> Incumbent:
    """Read the incumbent's ref; say why it does not hold when it does not."""
    base = crew.repo.current_commit()
    found = crew.repo.incumbent(crew.operator.name, crew.machine.platform.id, backend)
    if found.commit is None:
        return Incumbent(candidate=None, commit=base, source=f"start ({found.reason})" if found.reason else "start")
    return Incumbent(
        candidate=adopted_candidate(crew.repo, found.commit),
        commit=found.commit,
        source=found.reason or f"commit {found.commit[:12]}",
    )


def adopted_candidate(repo: Repo, commit: str) -> Candidate:
    """The candidate that a commit of ours holds. Raises BadManifest when its plan or a file it names is damaged."""
    where = f"commit {commit[:12]}"
    plan = repo.read(commit, PLAN)
    files = {name: repo.read(commit, name) for name in files_named(plan, where)}
    # It passed the rationale gate when it was adopted; its commits carry the words.
    return from_files({PLAN: plan, **files}, where).model_copy(update={"author": START})
