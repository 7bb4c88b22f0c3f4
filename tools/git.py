"""git as the keeper of kernels: trials, commits of kept changes, incumbents.

Everything is written as objects and refs. The index, the working tree, HEAD, the stash and the configuration of the
repository are never written: trees are built in an index file of our own, and refs move only from the value they were
seen at.

    refs/heads/kernelcrew/<operator>/<platform>/<run>             the kept changes of a run, one commit each
    refs/kernelcrew/trial/<run>/<proposal>                        what was tried, kept or not
    refs/kernelcrew/incumbent/<operator>/<platform>/<backend>     the kernel that the next run starts from
"""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from kernelcrew import proc
from kernelcrew.errors import RepoError, StoreError, UserMistake
from kernelcrew.record import Record
from kernelcrew.tools.git_message import FORMAT, LogEntry, Trailers, message, parse_log
from kernelcrew.tools.git_program import LIMITS, Git, ask, environment, identity_of, options, program, refusal
from kernelcrew.version import VERSION

PLAN = "plan.toml"
OWNED = (PLAN, "kernel.*", "kernel_v*.*")
"""Files of a candidate: one that the next candidate lacks leaves the tree. All other files of the folder stay."""

COMMIT_IT = "git add and git commit the operator first"
SOURCES = ("operator.toml", "reference.py", "plan.toml", "kernel_v1.c", "kernel_v2.c")
"""Files of an operator of the user's own that make its current source, besides the kernel itself."""

Step = tuple[Mapping[str, str], str, Trailers]
"""Files of one kept change, the commit's subject, its trailers."""


class IncumbentRef(Record):
    """What git knows of the incumbent of one operator, platform and backend."""

    commit: str | None
    """The commit to start from; None when there is none that holds."""
    reason: str
    """Why there is none, or where this one comes from: one line for a person."""
    ref: str = ""
    """The ref that was moved to it, when it was moved."""


@dataclass(frozen=True)
class Repo:
    """One repository and the folder in it that holds the operator (`prefix`, '' for the root; ends with '/').

    `kernel` is the unconditional kernel's file seen from that folder, for an operator of the user's own; it may lie
    elsewhere in the repository (`../src/foo.c`). '' stands for a repository that holds a candidate's files alone.
    """

    git: Git
    source_ref: str
    prefix: str = ""
    kernel: str = ""

    @staticmethod
    def for_shipped(home: Path, operator: str, files: Mapping[str, str]) -> Repo:
        """The repository of a shipped operator: bare, under `home`/repos, with `files` as its branch main.

        A shipped source that changed is a new commit on main. Raises MissingTool, RepoError, StoreError.
        """
        folder = home / "repos" / operator
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}", fix="choose another --workdir") from error
        if not (folder / "HEAD").is_file():
            _init(folder)
        repo = _repo(Git(program(), folder), "refs/heads/main")
        old = repo._resolve("refs/heads/main")
        tree = repo._tree(None, files)
        if old is None or repo.git("rev-parse", f"{old}^{{tree}}").strip() != tree:
            text = message(f"{operator} as shipped with kernelcrew {VERSION}", ())
            new = repo._commit(tree, [old] if old else [], text)
            repo._move("refs/heads/main", new, old, "shipped source")
        return repo

    @staticmethod
    def at(path: Path, kernel: str = "") -> Repo:
        """The user's own repository that holds the folder `path`, with the kernel's file seen from there.

        Raises UserMistake when `path` is in no working tree, nothing in it is committed yet, or the kernel lies outside
        the repository; MissingTool, RepoError.
        """
        if not path.is_dir():
            raise UserMistake(f"{path} is not a folder", fix="name the folder that holds operator.toml")
        found = ask(path, "rev-parse", "--absolute-git-dir", "--is-inside-work-tree", "--show-prefix")
        lines = found.out.split("\n")
        if not found.ok and "not a git repository" not in found.err and "work tree" not in found.err:
            raise refusal(("rev-parse",), found)
        if not found.ok or lines[1] != "true":
            raise UserMistake(f"{path} is not in a git working tree", fix=f"git init there, then {COMMIT_IT}")
        repo = replace(_repo(Git(program(), Path(lines[0])), "HEAD"), prefix=lines[2], kernel=kernel)
        if kernel and posixpath.normpath(lines[2] + kernel).startswith("../"):
            fix = "move the kernel into the repository, or the operator's folder into the kernel's"
            raise UserMistake(f"{path / kernel} lies outside the repository of {path}", fix=fix)
        repo.current_commit()
        return repo

    def current_commit(self) -> str:
        """The user's current source: the last commit on HEAD's branch that touched the folder; with a `kernel`, the
        kernel, its contract or its plan. Raises UserMistake."""
        if self._resolve(self.source_ref) is None:
            raise UserMistake(f"{self.git.git_dir}: there is no commit yet", fix=COMMIT_IT)
        commit = self.git("rev-list", "-1", self.source_ref, *self._paths()).strip()
        if not commit:
            raise UserMistake(f"{self.prefix}: no commit holds this folder", fix=COMMIT_IT)
        return commit

    def trial(self, run: str, proposal: str, files: Mapping[str, str], parent: str = "") -> str:
        """Keep `files`, laid over `parent` (by default the current source), under the proposal's trial ref.

        Gives the commit. Raises RepoError.
        """
        base = parent or self.current_commit()
        commit = self._commit(self._tree(base, files), [base], message(f"trial {run} {proposal}", ()))
        ref = f"refs/kernelcrew/trial/{run}/{proposal}"
        self._move(ref, commit, self._resolve(ref), f"trial {proposal}")
        return commit

    def commit_changes(self, branch: str, parent: str, steps: Sequence[Step]) -> tuple[str, ...]:
        """Commit a series on `branch` (without refs/heads/) upon `parent`, one commit a step.

        Gives the commits, oldest first. A series that stands there already is given back as it is, so that a killed run
        can repeat this step. Raises RepoError when the branch is elsewhere than `parent`, or checked out somewhere.
        """
        if not steps:
            return ()
        ref = f"refs/heads/{branch}"
        old = self._resolve(ref)
        trees = [self._tree(parent, files) for files, _, _ in steps]
        messages = [message(subject, trailers) for _, subject, trailers in steps]
        if old is not None and (made := self._standing(old, parent, trees, messages)):
            return made
        if old not in (None, parent):
            raise RepoError(f"{branch} is at {old}, not at {parent}", fix="somebody moved it: start a new run")
        if f"branch {ref}" in self.git("worktree", "list", "--porcelain").splitlines():
            raise RepoError(f"{branch} is checked out", fix="switch to another branch there, then resume the run")
        commits: list[str] = []
        for tree, text in zip(trees, messages, strict=True):
            commits.append(self._commit(tree, [commits[-1] if commits else parent], text))
        self._move(ref, commits[-1], old, "kept changes")
        return tuple(commits)

    def incumbent(self, operator: str, platform: str, backend: str) -> IncumbentRef:
        """The incumbent that holds: it descends from the user's current source. Otherwise no commit, and the reason."""
        commit = self._resolve(self._incumbent_ref(operator, platform, backend))
        if commit is None:
            return IncumbentRef(commit=None, reason="")
        source = self.current_commit()
        if not self.descends(commit, source):
            reason = f"the adopted {commit[:12]} does not descend from the current source {source[:12]}"
            return IncumbentRef(commit=None, reason=reason)
        subject = self.git("log", "-1", "--format=%s", commit).strip()
        return IncumbentRef(commit=commit, reason=f"adopted {commit[:12]}: {subject}")

    def set_incumbent(self, operator: str, platform: str, backend: str, commit: str) -> IncumbentRef:
        """Move the incumbent to `commit`. One that holds and `commit` does not build on stays; `ref` is then ''."""
        ref = self._incumbent_ref(operator, platform, backend)
        old = self._resolve(ref)
        holds = self.incumbent(operator, platform, backend).commit
        if holds is not None and not self.descends(commit, holds):
            reason = f"{holds[:12]} was adopted meanwhile; {commit[:12]} does not build on it and stays on its branch"
            return IncumbentRef(commit=holds, reason=reason)
        self._move(ref, commit, old, "adopted")
        return IncumbentRef(commit=commit, reason=f"adopted {commit[:12]}", ref=ref)

    def reset_incumbent(self, operator: str, platform: str, backend: str, commit: str) -> str:
        """A person's move of the incumbent to any commit that grew from the current source; to the source itself the
        ref goes away. Gives the commit that the ref now names, '' for none."""
        ref = self._incumbent_ref(operator, platform, backend)
        old = self._resolve(ref)
        if commit == self.current_commit() or not self.descends(commit, self.current_commit()):
            if old is not None:
                self.git("update-ref", "--no-deref", "-m", "kernelcrew: taken back", "-d", ref, old)
            return ""
        self._move(ref, commit, old, "moved by a person")
        return commit

    def parent_of(self, commit: str) -> str:
        """The first parent of a commit. Raises RepoError when it has none."""
        return self.git("rev-parse", "--verify", f"{commit}^").strip()

    def commit_named(self, name: str) -> str | None:
        """The commit that a name or an abbreviated hash stands for."""
        return None if name.startswith("-") else self._resolve(name)

    def descends(self, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is `commit` itself or one of its ancestors."""
        return self.git.maybe("merge-base", "--is-ancestor", ancestor, commit) is not None

    def read(self, commit: str, path: str) -> str:
        """The text of one file of the operator's folder at a commit. Raises RepoError when it is not there."""
        return self.git("cat-file", "blob", f"{commit}:{self._place(path)}")

    def files_at(self, commit: str) -> tuple[str, ...]:
        """Names of all files of the operator's folder at a commit, relative to it."""
        where = f"{commit}:{self.prefix.rstrip('/')}" if self.prefix else commit
        listed = self.git("ls-tree", "-r", "-z", "--name-only", "--full-tree", where)
        return tuple(name for name in listed.split("\0") if name)

    def diff(self, old: str, new: str) -> str:
        """The unified diff of the operator's folder between two commits, '' when they agree."""
        plain = ("--no-color", "--no-ext-diff", "--no-textconv")
        return self.git("diff-tree", "-p", "-r", *plain, old, new, *self._paths())

    def log(self, branch: str) -> tuple[LogEntry, ...]:
        """The commits of a branch that the current source does not have, newest first."""
        ref = f"refs/heads/{branch}"
        return parse_log(self.git("log", f"--format={FORMAT}", ref, f"^{self.current_commit()}"))

    def add_worktree(self, folder: Path, commit: str) -> Path:
        """A working tree at `commit` for a person to look at, detached: nothing done there moves a branch of ours.

        One that is there already is moved to `commit`; git refuses when it holds edits.
        """
        if self._is_worktree(folder):
            self.remove_worktree(folder)
        self.git("worktree", "add", "--quiet", "--force", "--detach", str(folder.absolute()), commit)
        return folder

    def remove_worktree(self, folder: Path) -> None:
        """Remove a working tree of ours, or what is left of one. Raises RepoError when it holds edits."""
        if self._is_worktree(folder):
            self.git("worktree", "remove", str(folder.absolute()))

    def prune_worktrees(self, parent: Path) -> tuple[Path, ...]:
        """Forget the working trees under `parent` whose folders are gone. Those elsewhere are the user's and stay."""
        gone = [f for f in self._worktrees() if f.is_relative_to(parent.resolve()) and not f.exists()]
        for folder in gone:
            self.remove_worktree(folder)
        return tuple(gone)

    def _paths(self) -> list[str]:
        """What limits a command to the operator's folder, or to the files that make its source."""
        if self.kernel:
            return ["--", *(f":(top,literal){self._place(name)}" for name in (*SOURCES, self.kernel))]
        return ["--", f":(top,literal){self.prefix}"] if self.prefix else []

    def _place(self, name: str) -> str:
        """A file of the operator, seen from the root of the repository. Raises RepoError for what is none."""
        return posixpath.normpath(self.prefix + (name if name and name == self.kernel else _checked(name)))

    def _stale(self, parent: str, files: Mapping[str, str]) -> list[str]:
        """Files of the candidate at `parent` that the next one lacks. In a folder of the user's, only what the plan
        there names is a candidate's; all else is the user's."""
        found = [n for n in self.files_at(parent) if n not in files and _owned(n)]
        if not self.kernel or not found:
            return found
        plan = self.read(parent, PLAN) if PLAN in self.files_at(parent) else ""
        return [n for n in found if n == PLAN or f'"{n}"' in plan]

    def _worktrees(self) -> list[Path]:
        listed = self.git("worktree", "list", "--porcelain").splitlines()
        return [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]

    def _is_worktree(self, folder: Path) -> bool:
        return folder.resolve() in self._worktrees()

    def _incumbent_ref(self, operator: str, platform: str, backend: str) -> str:
        return f"refs/kernelcrew/incumbent/{operator}/{platform}/{backend}"

    def _resolve(self, ref: str) -> str | None:
        found = self.git.maybe("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return found.strip() if found is not None else None

    def _move(self, ref: str, new: str, old: str | None, why: str) -> None:
        """Move a ref from the value it was seen at; '' for the old value says that it must not be there yet."""
        self.git("update-ref", "--no-deref", "-m", f"kernelcrew: {why}", ref, new, old or "")

    def _tree(self, parent: str | None, files: Mapping[str, str]) -> str:
        """The tree of `parent` with `files` in the operator's folder, built in an index file of our own."""
        stale = self._stale(parent, files) if parent else []
        with tempfile.TemporaryDirectory(prefix="kernelcrew-index-") as scratch:
            index = Path(scratch) / "index"
            lines = [f"0 {'0' * len(parent or '')}\t{self._place(name)}\0" for name in stale]
            for name, blob in zip(files, self._blobs(Path(scratch), files.values()), strict=True):
                lines.append(f"100644 {blob}\t{self._place(name)}\0")
            self.git("read-tree", parent or "--empty", index=index)
            self.git("update-index", "-z", "--index-info", stdin="".join(lines), index=index)
            return self.git("write-tree", "--missing-ok", index=index).strip()

    def _blobs(self, scratch: Path, texts: Iterable[str]) -> list[str]:
        """Objects of the texts, byte for byte: no filter or line-end setting of the user's applies."""
        paths = []
        for number, text in enumerate(texts):
            paths.append(scratch / f"{number}.blob")
            paths[-1].write_bytes(text.encode())
        listed = "".join(f"{path}\n" for path in paths)
        return self.git("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listed).split()

    def _commit(self, tree: str, parents: Sequence[str], text: str) -> str:
        stands = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", "--no-gpg-sign", tree, *stands, "-F", "-", stdin=text).strip()

    def _standing(self, tip: str, parent: str, trees: Sequence[str], messages: Sequence[str]) -> tuple[str, ...]:
        """The commits up to `tip` if they are just this series upon `parent`, else none."""
        commits: list[str] = []
        at = tip
        for tree, text in zip(reversed(trees), reversed(messages), strict=True):
            found = self.git("log", "-1", "--format=%T%n%P%n%B", at).split("\n", 2)
            if found[0] != tree or found[2].strip() != text.strip():
                return ()
            commits.append(at)
            at = found[1]
            if not at or " " in at:
                return ()
        return tuple(reversed(commits)) if at == parent else ()


def _repo(git: Git, source_ref: str) -> Repo:
    return Repo(replace(git, identity=identity_of(git)), source_ref)


def _init(folder: Path) -> None:
    """A bare repository with no template, so no hook of the user's gets in."""
    argv = [program(), *options(), "init", "--quiet", "--bare", "--template=", "."]
    done = proc.run(argv, cwd=folder, env=environment({}), limits=LIMITS)
    if not done.ok:
        raise refusal(("init",), done)
    Git(program(), folder)("symbolic-ref", "HEAD", "refs/heads/main")


def _owned(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in OWNED)


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    parts = [part.lower() for part in path.parts]
    if path.is_absolute() or not parts or ".." in parts or ".git" in parts or "\0" in name:
        raise RepoError(f"'{name}' cannot be a file of the operator's folder", fix="use a plain relative path")
    return name
