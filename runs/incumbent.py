"""The incumbent: the adopted kernel that a run starts from, if it descends from the user's current source."""

from __future__ import annotations

from kernelcrew.kernels.nouns import Candidate
from kernelcrew.kernels.planfile import from_files
from kernelcrew.record import Record
from kernelcrew.runs.crew import Lab
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
    names = crew.repo.files_at(found.commit)
    files = {
        name: crew.repo.read(found.commit, name)
        for name in names
        if name in ("plan.toml",) or name.startswith("kernel")
    }
    candidate = from_files(files, f"commit {found.commit[:12]}")
    return Incumbent(
        # It passed the rationale gate when it was adopted; its commits carry the words.
        candidate=candidate.model_copy(update={"author": START}),
        commit=found.commit,
        source=found.reason or f"commit {found.commit[:12]}",
    )
