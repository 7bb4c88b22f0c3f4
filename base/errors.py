"""Every exception that stops a command, drawn as a tree.

    CrewError                     exit status 1 unless said otherwise
    ├── UserMistake               exit status 2: what was asked cannot be done as asked
    │   ├── UnknownName           no operator, platform, model, run or option of that name; lists the known ones
    │   ├── BadManifest           an operator.toml, plan or source that cannot be read as one; names file and field
    │   ├── Unfit                 the preflight refuses: a run would be wasted or could show nothing
    │   └── NotPermitted          the permission ladder: the team's level does not reach as far as a run needs
    ├── MissingTool               gcc, git or an optional package is not here; names what installs it
    ├── StoreError                the disk is full or read-only, a journal or the memory store cannot be written or read
    ├── RepoError                 git refused; carries git's own words
    ├── HarnessError              our own trusted worker or reference failed: never a candidate's fault
    ├── ModelError                the model's server is down, refuses, or keeps answering in bad form
    └── Busy                      another run holds this repository or device

An expected failure (a kernel that does not compile, hangs, is wrong or slow) is no exception: it is a value.
"""

from __future__ import annotations

from collections.abc import Iterable


class CrewError(Exception):
    """Stops a command. The message says what went wrong and where; `fix` says what to do about it."""

    exit_status = 1

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(f"{what}\n  fix: {fix}" if fix else what)
        self.what = what
        self.fix = fix


class UserMistake(CrewError):
    """What was asked cannot be done as asked."""

    exit_status = 2


class UnknownName(UserMistake):
    """A name that is not in its registry. Lists the known names, so that the next try works."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, fix: str = "") -> None:
        names = sorted(known)
        listed = ", ".join(names) if names else "none"
        super().__init__(f"unknown {kind} '{name}'. Known: {listed}", fix=fix)
        self.known = names


class BadManifest(UserMistake):
    """A file that cannot be read as what it should be. `where` is file, and line or field."""

    def __init__(self, where: str, what: str, *, fix: str) -> None:
        super().__init__(f"{where}: {what}", fix=fix)


class Unfit(UserMistake):
    """The preflight refuses: a run would be wasted, or what it shows could not be trusted."""


class NotPermitted(UserMistake):
    """The team's level for this operator and platform does not reach as far as this needs."""


class MissingTool(CrewError):
    """A program or package that this command needs is not on this machine."""


class StoreError(CrewError):
    """The disk, a journal or the memory store cannot be written or read."""


class RepoError(CrewError):
    """git refused. Carries the command and git's own words."""


class HarnessError(CrewError):
    """Our own trusted worker, generator or reference failed. Never blamed on a candidate."""


class ModelError(CrewError):
    """The model's server is down, refuses, or keeps answering in bad form."""


class Busy(CrewError):
    """Another run holds this repository or this device."""
