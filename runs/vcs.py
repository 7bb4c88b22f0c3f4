"""Which repository a run works in: a copy of our own for shipped operators, the user's for an operator of their own.

Nothing but objects and refs is written to a repository of the user's, and a run stands on what is committed there: on
anything else it could neither say what it started from nor hand its result back as commits that fit.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kernelcrew.errors import CrewError, RepoError, UserMistake
from kernelcrew.kernels.load import is_shipped, kernel_file, start_candidate
from kernelcrew.kernels.nouns import Operator
from kernelcrew.kernels.planfile import to_files
from kernelcrew.record import hash_of
from kernelcrew.settings import Settings
from kernelcrew.tools.git import SOURCES, Repo
from kernelcrew.tools.git_program import ask, refusal

ANYWAY = "--anyway works on a copy under .kernelcrew/repos instead"


class Trouble(NamedTuple):
    """Why a run cannot work in the user's repository."""

    what: str
    """With the folder or files."""
    fix: str
    """What to type."""


def repo_for(settings: Settings, operator: Operator, backend: str, *, anyway: bool = False) -> Repo:
    """The repository that holds an operator's kernels.

    `anyway`: where the user's repository is missing or does not hold the operator as it stands, work in a bare copy
    under `.kernelcrew/repos`. Raises UserMistake with the fix otherwise; MissingTool, RepoError, StoreError.
    """
    if not anyway:
        require_committed(operator)
    if not is_shipped(operator) and trouble_of(operator) is None:
        repo = Repo.at(operator.folder, kernel_file(operator, backend))
        return replace(repo, source_ref=repo.current_commit())  # what the user commits meanwhile is the next run's
    return copy_of(settings, operator, backend)


def copy_of(settings: Settings, operator: Operator, backend: str) -> Repo:
    """The bare copy under `.kernelcrew/repos`: of a shipped operator, or of one that no repository holds."""
    return Repo.for_shipped(settings.home, operator.name, to_files(start_candidate(operator, backend)))


def require_committed(operator: Operator) -> None:
    """Refuse a run that could not work in the user's repository. Raises UserMistake with what to type."""
    if trouble := trouble_of(operator):
        raise UserMistake(trouble.what, fix=f"{trouble.fix}\n       or: {ANYWAY}")


def vcs_trouble(operator: Operator) -> str:
    """'' when a run can work in the repository that holds the operator, else what is wrong and what to do."""
    found = trouble_of(operator)
    return f"{found.what}\n  fix: {found.fix}" if found else ""


def trouble_of(operator: Operator) -> Trouble | None:
    """What stands in the way of working in the user's repository; None for shipped operators and when all is well."""
    if is_shipped(operator):
        return None
    try:
        for backend in operator.backends:
            Repo.at(operator.folder, kernel_file(operator, backend))
        states = _states(operator)
    except (UserMistake, RepoError) as error:
        return Trouble(error.what, _first_steps(operator, error))
    if not states:
        return None
    here = f"git -C {shlex.quote(str(operator.folder))}"
    names, force = shlex.join(states), "-f " if "!!" in states.values() else ""
    commit = f"{here} add {force}-- {names} && {here} commit -m 'Operator {operator.name}' -- {names}"
    if {"??", "!!", "A "} & set(states.values()):
        return Trouble(f"operator {operator.name} has files that are in no commit: {', '.join(states)}", commit)
    put_back = f"or take the changes back: {here} restore --staged --worktree -- {names}"
    what = f"operator {operator.name} has changes that are not committed: {', '.join(states)}"
    return Trouble(what, f"{commit}\n       {put_back}")


def standing_apart(operator: Operator, repo: Repo) -> str:
    """One line for a person when the files of an operator of their own are used apart from their repository."""
    trouble = None if repo.kernel or is_shipped(operator) else trouble_of(operator)
    if trouble is None:
        return ""
    return f"{trouble.what}: the files as they stand are used, in a copy under .kernelcrew/repos"


def lock_file(settings: Settings, operator: Operator) -> Path:
    """One run an operator at a time: beside the copy of a shipped one; for one of the user's own, whatever the workdir,
    in the system's folder for temporary files, since nothing of ours lies in their repository."""
    if is_shipped(operator):
        return settings.home / "repos" / f"{operator.name}.lock"
    name = f"kernelcrew-{os.getuid()}-operator-{hash_of(str(operator.folder.resolve()))[:16]}.lock"
    return Path(tempfile.gettempdir()) / name


def _states(operator: Operator) -> dict[str, str]:
    """File to git's two letters, for each file that a run reads and that is not as HEAD has it."""
    kernels = [kernel_file(operator, backend) for backend in operator.backends]
    states: dict[str, str] = {}
    for name in dict.fromkeys((*SOURCES, *kernels)):
        words = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames", "--", name)
        done = ask(operator.folder, "--literal-pathspecs", "status", *words)
        if not done.ok:
            raise refusal(("status",), done)
        if done.out:
            states[name] = done.out[:2]
    return states


def _first_steps(operator: Operator, error: CrewError) -> str:
    """What makes a repository that holds the operator, as commands where they are known."""
    folder = shlex.quote(str(operator.folder))
    commit = f"git -C {folder} add . && git -C {folder} commit -m 'Operator {operator.name}'"
    if any(kernel_file(operator, backend).startswith("../") for backend in operator.backends):
        if "no commit" not in error.what and "git working tree" not in error.what:
            return error.fix
        return "git init where there is none yet, above operator and kernel; then git add and git commit both"
    if "git working tree" in error.what:
        return f"git init {folder} && {commit}"
    return commit if "no commit" in error.what else error.fix
