"""How git is called: plumbing only, with an environment of our own, and its refusals as RepoError.

Needs git 2.22 or newer (the long-term distributions of 2022 have 2.34), the first with all of `worktree remove`
and `%(trailers:only=true,unfold=true)`.

The caller's `GIT_*` variables do not reach git, hooks and signing are off, nothing opens a pager or an editor or asks
for a password, and no command refreshes the index of the repository it works in.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelcrew import proc
from kernelcrew.errors import MissingTool, RepoError
from kernelcrew.settings import child_environment

AUTHOR = ("kernelcrew", "kernelcrew@localhost")
LIMITS = proc.Limits(time_s=120.0, output_bytes=1 << 30)

OURS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.splitIndex=false",
    "core.quotePath=false",
    "index.sparse=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "log.showSignature=false",
    "submodule.recurse=false",
    "maintenance.auto=false",
    "gc.auto=0",
)
"""What wins over the user's configuration in our own calls: all that could run a program, rewrite text or clean up."""


@dataclass(frozen=True)
class Git:
    """One repository. `git_dir` is given with every call, so git never looks for another one above it."""

    program: str
    git_dir: Path
    identity: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *words: str, stdin: str = "", index: Path | None = None) -> str:
        """Run one command and return what it printed. Raises RepoError with git's own words."""
        done = self._run(words, stdin, index)
        if not done.ok:
            raise refusal(words, done)
        return done.out

    def maybe(self, *words: str) -> str | None:
        """As a call, but an exit status of 1 is an answer: None."""
        done = self._run(words, "", None)
        if done.status == "failed" and done.code == 1:
            return None
        if not done.ok:
            raise refusal(words, done)
        return done.out

    def _run(self, words: Sequence[str], stdin: str, index: Path | None) -> proc.ProcResult:
        env = environment(self.identity)
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        argv = [self.program, *options(), f"--git-dir={self.git_dir}", *words]
        return proc.run(argv, cwd=self.git_dir, env=env, limits=LIMITS, stdin=stdin)


def program() -> str:
    """The full path of git. Raises MissingTool."""
    found = shutil.which("git")
    if found is None:
        raise MissingTool("git is not on the PATH", fix="install it: apt-get install git")
    return found


def ask(where: Path, *words: str) -> proc.ProcResult:
    """One command before the repository is known: git looks for it from the folder `where` upwards."""
    return proc.run([program(), *options(), *words], cwd=where, env=environment({}), limits=LIMITS)


def options() -> list[str]:
    """The options of every call."""
    return ["--no-pager", *(word for setting in OURS for word in ("-c", setting))]


def environment(identity: Mapping[str, str]) -> dict[str, str]:
    """All that git gets. The user's home is in it: `safe.directory` and the identity are read from there."""
    ours = {
        "HOME": str(Path.home()),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_EDITOR": "false",
    }
    return {**child_environment(), **ours, **identity}


def identity_of(git: Git) -> dict[str, str]:
    """The user's name and address where git knows both, and our own where it does not."""
    name, mail = (git.maybe("config", "--get", key) for key in ("user.name", "user.email"))
    who = (name.strip(), mail.strip()) if name and mail and name.strip() and mail.strip() else AUTHOR
    return {
        "GIT_AUTHOR_NAME": who[0], "GIT_AUTHOR_EMAIL": who[1],
        "GIT_COMMITTER_NAME": who[0], "GIT_COMMITTER_EMAIL": who[1],
    }


def refusal(words: Sequence[str], done: proc.ProcResult) -> RepoError:
    """git's refusal as an exception: the command, its words, and what to do where that is known."""
    said = " ".join(done.err.split()) or done.status
    return RepoError(f"git {' '.join(words[:3])}: {said}", fix=_fix(said))


def _fix(said: str) -> str:
    if "bad name" in said:
        return "use letters, digits, dots and dashes in the names of operators, platforms and runs"
    if "dubious ownership" in said:
        return "the repository belongs to another user: work on a clone of your own"
    if any(words in said for words in ("No space left", "failed to write", "Read-only", "Permission denied")):
        return "the disk is full or cannot be written: make room, or choose another --workdir"
    if "could not set" in said:
        return "the disk is full or cannot be written: make room, or choose another --workdir"
    if ".lock" in said:
        return "another git command is at work here, or one was killed: wait, or remove the lock file it names"
    if "cannot lock ref" in said and "exists; cannot create" in said:
        return "a branch named as one of our folders is in the way: rename it"
    if "No space left" in said or "Read-only" in said or "Permission denied" in said:
        return "make room, or choose a folder that can be written with --workdir"
    return ""
