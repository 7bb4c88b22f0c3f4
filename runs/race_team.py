"""The process in which the team searches for `kernelcrew bench --search`: a run as `kernelcrew run` makes it.

`python -m kernelcrew.runs.race_team JOB.json` plays one run in a working directory of its own. Its journal says what
was screened when; the sources of what was built, which a journal holds in parts only, are written beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kernelcrew.event import silent
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.record import Record
from kernelcrew.runs.preflight import preflight
from kernelcrew.runs.run import play
from kernelcrew.runs.session import Asked, open_run
from kernelcrew.settings import resolve
from kernelcrew.tools.bus import Call, Next, Wrapper
from kernelcrew.tools.workshop import BuildArgs

BUILT = "built.jsonl"


class TeamJob(Record):
    """What one process is told."""

    asked: Asked
    """The run."""
    workdir: Path
    """Its own, empty."""


def keep_sources(path: Path) -> Wrapper:
    """A wrapper of the bus that writes every candidate down before it is built."""
    known: set[str] = set()

    def wrap(call: Call, go_on: Next) -> Record:
        if isinstance(call.arguments, BuildArgs):
            new = [c for c in call.arguments.candidates if c.identity not in known]
            known.update(c.identity for c in new)
            with open(path, "a", encoding="utf-8") as handle:
                handle.write("".join(c.model_dump_json() + "\n" for c in new))
        return go_on(call)

    return wrap


def read_sources(path: Path) -> dict[str, Candidate]:
    """By identity; a line that a kill has torn is left out."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [Candidate.model_validate(json.loads(line)) for line in lines if line.endswith("\n")]
    return {candidate.identity: candidate for candidate in found}


def main(path: Path) -> None:
    """One job from its file, to the end of its run or until it is stopped."""
    job = TeamJob.model_validate(json.loads(path.read_text(encoding="utf-8")))
    settings = resolve(job.workdir)
    overridden = preflight(settings, job.asked, silent)
    crew = open_run(settings, job.asked.model_copy(update={"overridden": overridden}), silent)
    crew.bus.wrappers = (*crew.bus.wrappers, keep_sources(path.parent / BUILT))
    try:
        play(crew)
    finally:
        crew.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
