"""Bringing a run's branch to the user's own branch: the one place that writes it, and only when a person asks.

The merge is tried in the object store first; when it conflicts, or when the files that it touches have edits that are
not committed, nothing is done.
"""

from __future__ import annotations

from pathlib import Path

from kernelcrew import proc
from kernelcrew.errors import UserMistake
from kernelcrew.tools.git import Repo
from kernelcrew.tools.git_program import LIMITS, ask, environment, options, program, refusal


def merge_into_head(repo: Repo, branch: str, folder: Path) -> str:
    """Merge `branch` (without refs/heads/) into the branch that is checked out where `folder` lies. Gives its commit.

    Raises UserMistake when there is no working tree, no branch is checked out, files in the way have edits, or it does
    not apply cleanly; RepoError for git's own refusals.
    """
    top = _top(repo, folder)
    ref = f"refs/heads/{branch}"
    if repo.git.maybe("symbolic-ref", "--quiet", "HEAD") is None:
        raise UserMistake("HEAD is detached: there is no branch to merge into", fix="git switch BRANCH, then again")
    base = repo.git("merge-base", "HEAD", ref).strip()
    touched = [n for n in repo.git("diff-tree", "-r", "--name-only", "-z", base, ref).split("\0") if n]
    if edited := _edited(top, touched):
        raise UserMistake(f"{edited[0]} has edits that are not committed", fix="commit or stash them, then again")
    tried = _run(top, "merge-tree", "--write-tree", "--name-only", "HEAD", ref)
    if tried.status == "failed" and tried.code == 1:
        clash = ", ".join(tried.out.split("\n")[1:2]) or branch
        fix = f"merge it by hand: git merge {branch}"
        raise UserMistake(f"{branch} does not apply cleanly ({clash} conflicts); nothing was changed", fix=fix)
    if not tried.ok:
        raise refusal(("merge-tree",), tried)
    done = _run(top, "merge", "--no-edit", "--no-verify", "--no-gpg-sign", ref)
    if not done.ok:
        _run(top, "merge", "--abort")
        raise refusal(("merge", branch), done)
    return repo.git("rev-parse", "HEAD").strip()


def _top(repo: Repo, folder: Path) -> Path:
    if repo.git.maybe("rev-parse", "--is-bare-repository") == "true\n":
        fix = "write the kernel's files with --out DIR, and put them where you want them"
        raise UserMistake("a shipped operator has no branch of yours to merge into", fix=fix)
    found = ask(folder, "rev-parse", "--show-toplevel")
    if not found.ok:
        raise refusal(("rev-parse",), found)
    return Path(found.out.rstrip("\n"))


def _edited(top: Path, touched: list[str]) -> list[str]:
    """Which of the touched files differ from HEAD, in the index or in the working tree, or are there untracked."""
    done = _run(top, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", *touched)
    if not done.ok:
        raise refusal(("status",), done)
    return [entry[3:] for entry in done.out.split("\0") if entry]


def _run(top: Path, *words: str) -> proc.ProcResult:
    """git in the user's working tree, hooks and signing off."""
    env = environment({})
    return proc.run([program(), *options(), *words], cwd=top, env=env, limits=LIMITS)
