"""git keeps kernels and touches nothing of the user's: operations are held against the bytes of the repository."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.errors import MissingTool, RepoError, StoreError, UserMistake
from kernelcrew.tools.git import Repo
from kernelcrew.tools.git_message import message, one_line

START = {"kernel.c": "int f(void) { return 0; }\n", "plan.toml": 'operator = "reduction"\n'}
BETTER = {**START, "kernel.c": "int f(void) { return 1; }\n"}
BEST = {**START, "kernel.c": "int f(void) { return 2; }\n", "kernel_v1.c": "int g;\n"}
WHY = (("Rationale", "fewer loads"), ("Expected", "time 0.8"), ("Risk", "none"), ("Measured", "short 1.2x"))
TARGET = ("reduction", "cpu-test", "c")
BRANCH = "kernelcrew/reduction/cpu-test/run1"
ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
    "GIT_AUTHOR_NAME": "U", "GIT_AUTHOR_EMAIL": "u@localhost",
    "GIT_COMMITTER_NAME": "U", "GIT_COMMITTER_EMAIL": "u@localhost",
}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of our own, so that no identity or setting of the machine's user reaches the tests."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def shipped(tmp_path: Path) -> Repo:
    return Repo.for_shipped(tmp_path / "work dir" / ".kernelcrew", "reduction", START)


def git(folder: Path, *words: str, ok: bool = True, stdin: str = "") -> str:
    """The user's own git."""
    done = proc.run(["git", *words], cwd=folder, env=ENV, stdin=stdin)
    assert done.ok or not ok, done.err
    return done.out.strip()


def make_user_repo(folder: Path) -> Path:
    """A repository with a stash, a staged and an unstaged edit, an untracked file, and hooks that would show."""
    operator = folder / "my ops" / "sum"
    operator.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    for name, text in {**START, "operator.toml": "name\n"}.items():
        (operator / name).write_text(text)
    (folder / "other.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    (folder / "other.txt").write_text("stashed\n")
    git(folder, "stash", "--quiet")
    (folder / "other.txt").write_text("staged\n")
    git(folder, "add", "other.txt")
    (folder / "other.txt").write_text("unstaged\n")
    (operator / "kernel.c").write_text("half an edit\n")
    (folder / "new.txt").write_text("untracked\n")
    for hook in ("reference-transaction", "post-checkout", "pre-commit", "post-index-change"):
        path = folder / ".git" / "hooks" / hook
        path.write_text("#!/bin/sh\necho touched >> \"$(git rev-parse --git-common-dir)/HOOKED\"\nexit 1\n")
        path.chmod(0o755)
    return operator


def snapshot(folder: Path) -> dict[str, str]:
    """Digest of every file of the user's: all but new objects and what stands under names of ours."""
    ours = ("objects/", "refs/kernelcrew/", "refs/heads/kernelcrew/", "logs/refs/heads/kernelcrew/", "worktrees/")
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(tuple(f".git/{name}" for name in ours)):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def everything(repo: Repo, tmp_path: Path) -> None:
    """Every operation that writes."""
    start = repo.current_commit()
    repo.trial("run1", "r1p1", BETTER)
    commits = repo.commit_changes(BRANCH, start, [(BETTER, "first", WHY), (BEST, "second", WHY)])
    assert repo.set_incumbent(*TARGET, commits[-1]).ref
    assert repo.incumbent(*TARGET).commit == commits[-1]
    assert repo.read(commits[0], "kernel.c") == BETTER["kernel.c"]
    assert "return 2" in repo.diff(start, commits[1])
    assert len(repo.log(BRANCH)) == 2
    folder = repo.add_worktree(tmp_path / "look here" / "run1", commits[0])
    repo.add_worktree(folder, commits[1])
    repo.remove_worktree(folder)
    repo.prune_worktrees(tmp_path)


def dirty(folder: Path) -> None:
    pass


def detached(folder: Path) -> None:
    git(folder, "-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "--detach")


def conflicted(folder: Path) -> None:
    for hook in (folder / ".git" / "hooks").iterdir():
        hook.rename(folder / hook.name)
    git(folder, "commit", "--quiet", "--all", "-m", "mine")
    git(folder, "checkout", "--quiet", "-b", "theirs", "HEAD~")
    (folder / "other.txt").write_text("theirs\n")
    git(folder, "commit", "--quiet", "--all", "-m", "theirs")
    git(folder, "merge", "trunk", ok=False)
    assert (folder / ".git" / "MERGE_HEAD").exists()
    assert git(folder, "ls-files", "--unmerged")


@pytest.mark.parametrize("prepare", [dirty, detached, conflicted])
def test_nothing_of_the_users_changes(prepare: Callable[[Path], None], tmp_path: Path) -> None:
    user = tmp_path / "a repo"
    operator = make_user_repo(user)
    prepare(user)
    before = snapshot(user)
    everything(Repo.at(operator), tmp_path)
    assert snapshot(user) == before
    git(user, "fsck", "--strict")


def test_the_snapshot_notices_a_checkout(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    make_user_repo(user)
    before = snapshot(user)
    (user / "other.txt").write_text("edited\n")
    assert snapshot(user) != before


def test_a_commit_in_a_users_repository_keeps_the_rest_of_the_tree(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    operator = make_user_repo(user)
    repo = Repo.at(operator)
    commits = repo.commit_changes(BRANCH, repo.current_commit(), [(BEST, "a", WHY), (BETTER, "b", WHY)])
    assert set(repo.files_at(commits[0])) == {"kernel.c", "kernel_v1.c", "operator.toml", "plan.toml"}
    assert set(repo.files_at(commits[1])) == {"kernel.c", "operator.toml", "plan.toml"}
    assert git(user, "show", f"{commits[1]}:other.txt") == "one"
    assert git(user, "show", f"{commits[1]}:my ops/sum/kernel.c") == BETTER["kernel.c"].strip()


def test_a_shipped_operator_gets_a_repository_once(tmp_path: Path) -> None:
    home = tmp_path / ".kernelcrew"
    first = Repo.for_shipped(home, "reduction", START).current_commit()
    assert Repo.for_shipped(home, "reduction", START).current_commit() == first
    repo = Repo.for_shipped(home, "reduction", {"kernel.c": "new\n"})
    second = repo.current_commit()
    assert second != first
    assert repo.descends(second, first)
    assert repo.files_at(second) == ("kernel.c",)
    assert git(home / "repos" / "reduction", "rev-parse", "main") == second


def test_trailers_are_read_by_git(shipped: Repo) -> None:
    nasty = "two\nlines\r\n\tand: a colon\x00\n\n---\nSigned-off-by: nobody " + "long " * 200
    steps = [(BETTER, "subject\nover two lines", (("Rationale", nasty), ("Measured", ""), ("Measured", "µs 1.2×")))]
    (commit,) = shipped.commit_changes(BRANCH, shipped.current_commit(), steps)
    body = git(shipped.git.git_dir, "log", "-1", "--format=%B", commit)
    parsed = git(shipped.git.git_dir, "interpret-trailers", "--parse", stdin=body + "\n").splitlines()
    assert parsed == [f"Rationale: {one_line(nasty)}", "Measured: none", "Measured: µs 1.2×"]
    (entry,) = shipped.log(BRANCH)
    assert entry.subject == "subject over two lines"
    assert entry.commit == commit
    assert entry.trailers == (("Rationale", one_line(nasty)), ("Measured", "none"), ("Measured", "µs 1.2×"))


def test_a_message_without_trailers_has_one_line() -> None:
    assert message("  a\nb ", ()) == "a b\n"
    assert message("", (("Not a key!", "x"),)) == "kernel\n\nNot-a-key: x\n"


def test_a_series_is_repeated_without_new_commits(shipped: Repo) -> None:
    start = shipped.current_commit()
    steps = [(BETTER, "first", WHY), (BEST, "second", WHY)]
    made = shipped.commit_changes(BRANCH, start, steps)
    assert shipped.commit_changes(BRANCH, start, steps) == made
    more = shipped.commit_changes(BRANCH, made[-1], [(START, "third", WHY)])
    assert [entry.commit for entry in shipped.log(BRANCH)] == [*more, *reversed(made)]
    assert shipped.commit_changes(BRANCH, start, ()) == ()


def test_a_branch_that_moved_is_refused(shipped: Repo) -> None:
    start = shipped.current_commit()
    shipped.commit_changes(BRANCH, start, [(BETTER, "first", WHY)])
    with pytest.raises(RepoError, match="not at"):
        shipped.commit_changes(BRANCH, start, [(BEST, "other", WHY)])


def test_a_ref_that_moved_under_us_is_refused(shipped: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    start = shipped.current_commit()
    other = shipped.trial("run1", "r1p1", BEST)
    commit = Repo._commit

    def meanwhile(repo: Repo, tree: str, parents: list[str], text: str) -> str:
        git(shipped.git.git_dir, "update-ref", f"refs/heads/{BRANCH}", other)
        return commit(repo, tree, parents, text)

    monkeypatch.setattr(Repo, "_commit", meanwhile)
    with pytest.raises(RepoError, match="update-ref"):
        shipped.commit_changes(BRANCH, start, [(BETTER, "first", WHY)])
    assert git(shipped.git.git_dir, "rev-parse", BRANCH) == other


def test_a_branch_that_is_checked_out_is_not_moved(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    operator = make_user_repo(user)
    repo = Repo.at(operator)
    (first,) = repo.commit_changes(BRANCH, repo.current_commit(), [(BETTER, "first", WHY)])
    git(user, "-c", "core.hooksPath=/dev/null", "worktree", "add", str(tmp_path / "mine"), BRANCH)
    with pytest.raises(RepoError, match="checked out"):
        repo.commit_changes(BRANCH, first, [(BEST, "second", WHY)])


def test_an_incumbent_holds_while_it_descends_from_the_source(tmp_path: Path) -> None:
    home = tmp_path / ".kernelcrew"
    repo = Repo.for_shipped(home, "reduction", START)
    assert repo.incumbent(*TARGET).commit is None
    (commit,) = repo.commit_changes(BRANCH, repo.current_commit(), [(BETTER, "first", WHY)])
    moved = repo.set_incumbent(*TARGET, commit)
    assert moved.ref == "refs/kernelcrew/incumbent/reduction/cpu-test/c"
    assert repo.incumbent(*TARGET).commit == commit
    assert repo.incumbent("reduction", "cpu-other", "c").commit is None
    newer = Repo.for_shipped(home, "reduction", {"kernel.c": "new source\n"})
    stale = newer.incumbent(*TARGET)
    assert stale.commit is None
    assert "does not descend" in stale.reason


def test_an_incumbent_survives_commits_elsewhere_in_the_users_repository(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    operator = make_user_repo(user)
    repo = Repo.at(operator)
    (commit,) = repo.commit_changes(BRANCH, repo.current_commit(), [(BETTER, "first", WHY)])
    repo.set_incumbent(*TARGET, commit)
    git(user, "-c", "core.hooksPath=/dev/null", "commit", "--quiet", "-m", "other file")
    assert repo.incumbent(*TARGET).commit == commit
    git(user, "-c", "core.hooksPath=/dev/null", "commit", "--quiet", "--all", "-m", "the kernel itself")
    assert repo.incumbent(*TARGET).commit is None


def test_an_incumbent_adopted_meanwhile_stays(shipped: Repo) -> None:
    start = shipped.current_commit()
    (one,) = shipped.commit_changes(BRANCH, start, [(BETTER, "first", WHY)])
    (two,) = shipped.commit_changes(BRANCH + "b", start, [(BEST, "other", WHY)])
    shipped.set_incumbent(*TARGET, one)
    kept = shipped.set_incumbent(*TARGET, two)
    assert (kept.commit, kept.ref) == (one, "")
    assert "meanwhile" in kept.reason
    assert shipped.incumbent(*TARGET).commit == one


def test_a_trial_is_kept_under_its_ref(shipped: Repo) -> None:
    shipped.trial("run1", "r1p1", BETTER)
    again = shipped.trial("run1", "r1p1", BEST)
    assert git(shipped.git.git_dir, "rev-parse", "refs/kernelcrew/trial/run1/r1p1") == again
    assert shipped.read(again, "kernel_v1.c") == BEST["kernel_v1.c"]


def test_text_comes_back_byte_for_byte(shipped: Repo) -> None:
    text = "/* µ */\r\nint a;\n\n\tno newline at the end"
    files = {"a folder/kernel one.c": text, "empty.h": ""}
    commit = shipped.trial("run1", "r1p1", files)
    assert shipped.read(commit, "a folder/kernel one.c") == text
    assert shipped.read(commit, "empty.h") == ""
    with pytest.raises(RepoError, match="absent"):
        shipped.read(commit, "absent.c")


@pytest.mark.parametrize("name", ["../kernel.c", "/etc/passwd", "", ".git/hooks/pre-commit"])
def test_a_file_outside_the_folder_is_refused(shipped: Repo, name: str) -> None:
    with pytest.raises(RepoError):
        shipped.trial("run1", "r1p1", {name: "x"})


@pytest.mark.parametrize("run", ["..", "a b", "x.lock", "-"])
def test_a_name_that_no_ref_can_have_is_refused(shipped: Repo, run: str) -> None:
    if run == "-":
        shipped.trial(run, "p", START)
        return
    with pytest.raises(RepoError, match="bad name"):
        shipped.trial(run, "p", START)


def test_a_worktree_with_edits_is_not_removed(shipped: Repo, tmp_path: Path) -> None:
    folder = shipped.add_worktree(tmp_path / "look here", shipped.current_commit())
    (folder / "kernel.c").write_text("a person's edit\n")
    with pytest.raises(RepoError, match="worktree remove"):
        shipped.remove_worktree(folder)
    assert (folder / "kernel.c").read_text() == "a person's edit\n"


def test_only_our_own_lost_worktrees_are_forgotten(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    repo = Repo.at(make_user_repo(user))
    git(user, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(tmp_path / "theirs"))
    ours = repo.add_worktree(tmp_path / "home" / "ours", repo.current_commit())
    for folder in (tmp_path / "theirs", ours):
        folder.rename(folder.with_name(folder.name + " away"))
    assert repo.prune_worktrees(tmp_path / "home") == (ours,)
    listed = git(user, "worktree", "list", "--porcelain")
    assert str(tmp_path / "theirs") in listed
    assert str(ours) not in listed


def test_the_author_is_the_user_where_git_knows_one(tmp_path: Path, nobody: Path) -> None:
    ours = Repo.for_shipped(tmp_path / "one", "reduction", START)
    assert git(ours.git.git_dir, "log", "-1", "--format=%an <%ae>") == "kernelcrew <kernelcrew@localhost>"
    (nobody / ".gitconfig").write_text('[user]\n\tname = Ada\n\temail = ada@localhost\n[commit]\n\tgpgSign = true\n')
    theirs = Repo.for_shipped(tmp_path / "two", "reduction", START)
    assert git(theirs.git.git_dir, "log", "-1", "--format=%an <%ae> %cn") == "Ada <ada@localhost> Ada"


def test_the_callers_git_variables_do_not_reach_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    everything(Repo.for_shipped(tmp_path / ".kernelcrew", "reduction", START), tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_shipped_repository_inside_a_users_one_leaves_it_alone(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    make_user_repo(user)
    before = snapshot(user)
    everything(Repo.for_shipped(user / ".kernelcrew", "reduction", START), tmp_path)
    after = {name: digest for name, digest in snapshot(user).items() if not name.startswith(".kernelcrew/")}
    assert after == before


def test_what_is_no_repository_says_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "--quiet", "--bare", str(bare))
    for folder in (tmp_path, bare, tmp_path / "absent"):
        with pytest.raises(UserMistake, match="fix:"):
            Repo.at(folder)


def test_a_repository_without_commits_says_what_to_do(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    with pytest.raises(UserMistake, match="no commit yet"):
        Repo.at(tmp_path)


def test_a_folder_that_was_never_committed_says_what_to_do(tmp_path: Path) -> None:
    user = tmp_path / "repo"
    make_user_repo(user)
    (user / "fresh").mkdir()
    with pytest.raises(UserMistake, match="no commit holds"):
        Repo.at(user / "fresh")


def test_no_git_is_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="apt-get install git"):
        Repo.for_shipped(tmp_path, "reduction", START)


def test_a_home_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="fix:"):
        Repo.for_shipped(tmp_path / "file", "reduction", START)
