"""A run on an operator of the user's own, in their repository: what it writes, and what it must leave alone."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import flow_kit as kit
import own_kit as own
import pytest

from kernelcrew.agents.nouns import (
    BlockText,
    ChangeIdea,
    EditText,
    PatchAnswer,
    ProposalIdea,
    ProposalSet,
    Question,
    Review,
)
from kernelcrew.errors import CrewError, UserMistake
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.runs.crew import Clock
from kernelcrew.runs.session import Asked, open_run
from kernelcrew.runs.vcs import repo_for, vcs_trouble
from kernelcrew.settings import resolve
from kernelcrew.tools.nouns import Timing
from kernelcrew.tools.workshop import ConfirmArgs

ANCHOR = "void "
"""Stands once in each start kernel; the mark goes before it."""
ALWAYS = "sim(n >= 0)=0.5"


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    own.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), work(tmp_path))


def work(tmp_path: Path) -> Path:
    """The working directory, apart from the user's repository."""
    return tmp_path / "work"


def marks(patch: pytest.MonkeyPatch, mark: str = ALWAYS) -> None:
    """A team that proposes one change: a comment that the simulated clock takes for a faster kernel."""
    why = "independent accumulators hide the latency of the addition chain that the profile shows"
    change = ChangeIdea(
        id="marked", mechanism="free", target=f"loop {mark}", knobs=[], requires=[], figure="time", figure_class="main",
        figure_factor=0.5, gain=2.0, risks=[], why=why,
    )  # fmt: skip
    idea = ProposalIdea(title="as told", direction="as told", bottlenecks=["b1"], changes=[change])

    def propose(question: Question) -> ProposalSet:
        return ProposalSet(proposals=[idea], note="as told")

    def write(question: Question) -> PatchAnswer:
        block = BlockText(search=ANCHOR, replace=f"/* {mark} */\n{ANCHOR}")
        return PatchAnswer(
            edits=[EditText(change="marked", recipe="", knobs=[], blocks=[block], add_flags=[])], note=""
        )

    def review(question: Question) -> Review:
        return Review(verdict="pass", objections=[], tests=[], hypotheses=[], summary="nothing found")

    kit.script(patch, {"proposer": propose, "patch_writer": write, "skeptic": review})


def run(tmp_path: Path, folder: Path) -> kit.Finished:
    return kit.run(work(tmp_path), folder, anyway=False)


def branch_of(done: kit.Finished) -> str:
    return done.record.rounds[0].settled[0].branch


def touched(top: Path, done: kit.Finished) -> list[str]:
    """Files that the branch of a run changes."""
    settled = done.record.rounds[0].settled[0]
    return kit.git(top, "diff", "--name-only", f"{settled.commits[0]}^", settled.commits[-1]).split()


def at_the_top(top: Path) -> Path:
    own.begin(top.parent, top.name)
    own.commit(top)
    return top


def in_a_dirty_tree(top: Path) -> Path:
    """A stash, something staged, something changed, something untracked, also beside the operator's files."""
    top.mkdir()
    folder = own.begin(top / "ops")
    (top / "a.txt").write_text("one\n")
    own.commit(top)
    (top / "a.txt").write_text("stashed\n")
    kit.git(top, "stash", "-q")
    (top / "b.txt").write_text("staged\n")
    kit.git(top, "add", "b.txt")
    (top / "a.txt").write_text("changed\n")
    (folder / "notes.txt").write_text("untracked, beside the operator\n")
    return folder


def on_a_detached_head(top: Path) -> Path:
    folder = in_a_dirty_tree(top)
    kit.git(top, "checkout", "-q", "--detach")
    return folder


@pytest.mark.parametrize("prepare", [at_the_top, in_a_dirty_tree, on_a_detached_head])
def test_a_run_writes_objects_and_refs_of_its_own_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path], Path]
) -> None:
    top = tmp_path / "user"
    folder = prepare(top)
    prefix = "" if folder == top else "ops/my_op/"
    before = own.snapshot(top)
    marks(monkeypatch)
    done = run(tmp_path, folder)
    assert own.snapshot(top) == before
    assert [j.decision.action for j in done.record.rounds[0].judged] == ["adopt"]
    assert touched(top, done) == [f"{prefix}plan.toml", f"{prefix}start.c"]
    assert ALWAYS in kit.git(top, "show", f"{branch_of(done)}:{prefix}start.c")
    assert f"refs/kernelcrew/incumbent/{done.record.operator}/{done.record.platform}/c" in kit.git(top, "for-each-ref")
    assert not (work(tmp_path) / ".kernelcrew" / "repos").exists()


def test_the_next_run_starts_from_what_was_adopted_and_after_a_merge_from_the_source_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = at_the_top(tmp_path / "my_op")
    marks(monkeypatch)
    first = run(tmp_path, folder)
    commit = first.record.rounds[0].settled[0].commits[-1]
    marks(monkeypatch, "sim(n >= 0)=0.6")
    second = run(tmp_path, folder)
    assert second.said(f"start from adopted {commit[:12]}")
    assert second.record.baseline.incumbent.identity == first.record.final.identity
    kit.git(folder, "merge", "-q", "--ff-only", branch_of(second))
    third = run(tmp_path, folder)
    assert third.record.baseline.start.identity == second.record.final.identity
    assert third.record.baseline.incumbent_over_start is None


def test_a_commit_beside_the_operators_own_files_leaves_the_adopted_kernel_standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = at_the_top(tmp_path / "my_op")
    marks(monkeypatch)
    first = run(tmp_path, folder)
    (folder / "README").write_text("words\n")
    own.commit(folder, "words")
    marks(monkeypatch, "sim(n >= 0)=0.6")
    assert run(tmp_path, folder).record.baseline.incumbent.identity == first.record.final.identity


def test_a_source_that_moved_on_is_what_the_next_run_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = at_the_top(tmp_path / "my_op")
    marks(monkeypatch)
    adopted = run(tmp_path, folder).record.rounds[0].settled[0].commits[-1]
    source = folder / "start.c"
    source.write_text("/* Mine, newer. */\n" + source.read_text())
    own.commit(folder, "newer")
    marks(monkeypatch, "sim(n >= 0)=0.6")
    done = run(tmp_path, folder)
    assert done.said(f"the adopted {adopted[:12]} does not descend from the current source")
    assert "Mine, newer." in done.record.baseline.incumbent.variants[-1].source.text


def test_an_edit_that_is_not_committed_is_refused_with_the_two_ways_out_and_judged_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = at_the_top(tmp_path / "my_op")
    source = folder / "start.c"
    source.write_text("/* Half an edit. */\n" + source.read_text())
    with pytest.raises(UserMistake) as caught:
        run(tmp_path, folder)
    for words in ("changes that are not committed: start.c", "commit -m", "restore --staged --worktree", "--anyway"):
        assert words in str(caught.value)
    assert not list(work(tmp_path).glob(".kernelcrew/runs/*"))
    mine = tmp_path / "mine.c"
    why = "/* Independent accumulators hide the latency of the addition chain, which bounds long rows. */\n"
    mine.write_text(f"{why}/* {ALWAYS} */\n" + source.read_text())
    words = ("judge", str(folder), "--source", str(mine), "--workdir", str(work(tmp_path)), "--json")
    said = kit.command(monkeypatch, capsys, *words)
    assert (said.code, said.last["outcome"]) == (0, "accept"), said.err
    assert "not committed: start.c: the files as they stand are used" in said.err
    copied = kit.run(work(tmp_path), folder, rounds=1)
    assert copied.said("the files as they stand are used, in a copy")
    assert not kit.git(folder, "for-each-ref", "refs/kernelcrew")


def no_repository(folder: Path) -> None:
    pass


def no_commit(folder: Path) -> None:
    kit.git(folder, "init", "-q")


def never_added(folder: Path) -> None:
    (folder / "start.c").rename(folder / "kept")
    own.commit(folder)
    (folder / "kept").rename(folder / "start.c")


def ignored(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.c\n")
    own.commit(folder)


def staged(folder: Path) -> None:
    own.commit(folder)
    (folder / "reference.py").write_text((folder / "reference.py").read_text() + "\n")
    kit.git(folder, "add", "reference.py")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (no_repository, ("not in a git working tree", "git init ")),
        (no_commit, ("there is no commit yet", "git -C ", "add . &&", "commit -m 'Operator my_op'")),
        (never_added, ("files that are in no commit: start.c", "add -- start.c &&")),
        (ignored, ("files that are in no commit: start.c", "add -f -- start.c &&")),
        (staged, ("changes that are not committed: reference.py", "restore --staged --worktree -- reference.py")),
    ],
)
def test_what_is_in_no_commit_is_named_with_what_to_type(
    tmp_path: Path, damage: Callable[[Path], None], told: tuple[str, ...]
) -> None:
    folder = own.begin(tmp_path)
    damage(folder)
    operator = load_operator(str(folder))
    settings = resolve(work(tmp_path))
    with pytest.raises(UserMistake) as caught:
        repo_for(settings, operator, "c")
    for words in told:
        assert words in str(caught.value)
        assert words in vcs_trouble(operator)
    assert repo_for(settings, operator, "c", anyway=True).kernel == ""
    kit.git(folder.parent if damage is no_repository else folder, "init", "-q")
    kit.git(folder, "add", "-f", ".")
    own.commit(folder)
    assert vcs_trouble(operator) == ""
    assert repo_for(settings, operator, "c").kernel == "start.c"
    assert vcs_trouble(load_operator("reduction")) == ""


def in_a_source_tree(top: Path) -> Path:
    """The kernel in src/kernels, its operator in ops/my_op."""
    folder = own.begin(top / "ops")
    (top / "src" / "kernels").mkdir(parents=True)
    (folder / "start.c").rename(top / "src" / "kernels" / "foo.c")
    manifest = folder / "operator.toml"
    manifest.write_text(manifest.read_text().replace('source = "start.c"', 'source = "../../src/kernels/foo.c"'))
    return folder


def test_a_kernel_in_a_source_tree_is_changed_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "user"
    folder = in_a_source_tree(top)
    own.commit(top)
    before = own.snapshot(top)
    marks(monkeypatch)
    first = run(tmp_path, folder)
    assert own.snapshot(top) == before
    assert touched(top, first) == ["ops/my_op/plan.toml", "src/kernels/foo.c"]
    commit = first.record.rounds[0].settled[0].commits[-1]
    plan = tomllib.loads(kit.git(top, "show", f"{commit}:ops/my_op/plan.toml"))
    assert [v["file"] for v in plan["variant"]] == ["../../src/kernels/foo.c"]
    marks(monkeypatch, "sim(n > 100)=0.6 sim(n <= 100)=1.5")
    second = run(tmp_path, folder)
    assert second.said(f"start from adopted {commit[:12]}")
    assert second.record.rounds[0].judged[0].decision.action == "adopt_when"
    assert touched(top, second) == ["ops/my_op/kernel_v1.c", "ops/my_op/plan.toml"]
    kit.git(top, "merge", "-q", "--ff-only", branch_of(second))
    merged = start_candidate(load_operator(str(folder)))
    assert merged.identity == second.record.final.identity
    assert [v.when is None for v in merged.variants] == [False, True]
    source = top / "src" / "kernels" / "foo.c"
    source.write_text("/* Mine. */\n" + source.read_text())
    assert "../../src/kernels/foo.c" in vcs_trouble(load_operator(str(folder)))


def test_a_kernel_outside_the_repository_is_refused(tmp_path: Path) -> None:
    folder = in_a_source_tree(tmp_path / "user")
    own.commit(folder)
    told = vcs_trouble(load_operator(str(folder)))
    assert "lies outside the repository" in told
    assert "fix:" in told


def test_a_linked_kernel_is_changed_where_it_lies(tmp_path: Path) -> None:
    top = tmp_path / "user"
    folder = in_a_source_tree(top)
    (folder / "start.c").symlink_to("../../src/kernels/foo.c")
    manifest = folder / "operator.toml"
    manifest.write_text(manifest.read_text().replace("../../src/kernels/foo.c", "start.c"))
    own.commit(top)
    assert repo_for(resolve(work(tmp_path)), load_operator(str(folder)), "c").kernel == "../../src/kernels/foo.c"


def test_a_users_file_that_looks_like_a_candidates_stays_in_the_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own.begin(tmp_path)
    (folder / "kernel.h").write_text("/* the user's */\n")
    own.commit(folder)
    marks(monkeypatch)
    assert touched(folder, run(tmp_path, folder)) == ["plan.toml", "start.c"]


def test_a_run_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = at_the_top(tmp_path / "my_op")
    monkeypatch.chdir(tmp_path)
    marks(monkeypatch)
    done = kit.run(work(tmp_path), Path("my_op"), anyway=False)
    monkeypatch.chdir("/")
    again = kit.resume(work(tmp_path), done.record.run)
    assert again.record.final.identity == done.record.final.identity
    assert folder.is_dir()


def test_an_operator_of_another_kind_gets_to_the_end_with_the_rule_based_team(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own.tally(tmp_path)
    own.commit(folder)
    done = run(tmp_path, folder)
    assert done.record.status == "finished"
    marks(monkeypatch)
    adopted = run(tmp_path, folder)
    assert [j.decision.action for j in adopted.record.rounds[0].judged] == ["adopt"]
    assert touched(folder, adopted) == ["plan.toml", "tally.c"]
    assert Path(adopted.record.report).is_file()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("sum += count[i];", "sum += count[i]", ("tally.c, does not build (build): line", "mend the start kernel")),
        ("y[i] = count[i]", "y[i] = 2 * count[i]", ("tally.c, is not right: n=", "uniform", "output 'y'")),
        ("total[0] = sum;", "total[0] = sum + 1;", ("is not right: n=", "output 'total'", "expected exactly")),
        ("total[0] = sum;", "", ("is not right: n=", "output 'total'")),
    ],
)
def test_a_start_kernel_that_fails_is_named_with_the_case(tmp_path: Path, old: str, new: str, told: tuple[str]) -> None:
    folder = own.tally(tmp_path)
    source = folder / "tally.c"
    source.write_text(source.read_text().replace(old, new))
    own.commit(folder)
    with pytest.raises(CrewError) as caught:
        run(tmp_path, folder)
    for words in ("the start kernel itself, ", str(folder), "fix:", *told):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def reference(inputs, axes):\n    return inputs['z']\n", "KeyError: 'z' (line 2)"),
        ("def reference(inputs, axes):\n    return {'y': (inputs['weight'],) * 2}\n", "returned no 'total'"),
        (
            "def reference(inputs, axes):\n    y = [[1.0, 2.0]]\n    return {'y': (y, y), 'total': (y, y)}\n",
            "the value of 'y' that reference() returned has shape (1, 2), expected (",
        ),
        ("def reference(inputs, axes):\n    return None\n", "reference() returned NoneType"),
        ("def reference(inputs, axes)\n    return 1\n", "line 1: it is no Python"),
        ("answer = 42\n", "it defines no function reference"),
    ],
)
def test_a_reference_that_fails_is_named_with_its_file(tmp_path: Path, text: str, told: str) -> None:
    folder = own.tally(tmp_path)
    (folder / "reference.py").write_text(text)
    own.commit(folder)
    with pytest.raises(CrewError) as caught:
        run(tmp_path, folder)
    for words in (str(folder / "reference.py"), "fix:", told):
        assert words in str(caught.value)


def test_a_rule_that_there_was_no_time_to_confirm_is_not_settled_by_its_predecessors_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = at_the_top(tmp_path / "my_op")
    confirm = kit.SimulatedWorkshop.confirm
    budget: list[Clock] = []

    def last_one(workshop: kit.SimulatedWorkshop, args: ConfirmArgs) -> Timing:
        found = confirm(workshop, args)
        budget[0].budget_s = 0.0
        return found

    monkeypatch.setattr(kit.SimulatedWorkshop, "confirm", last_one)
    marks(monkeypatch, "sim(n > 100)=0.5 sim(n <= 100)=1.5")
    asked = Asked(operator=str(folder), rounds=1, budget_min=10.0)
    crew = open_run(resolve(work(tmp_path)), asked, lambda event: None)
    budget.append(crew.clock)
    decision = kit.finish(crew, []).record.rounds[0].judged[0].decision
    assert decision.action == "inconclusive"
    assert "budget" in decision.reason
