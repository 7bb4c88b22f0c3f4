"""What a round does with each kind of proposal, on a simulated clock and with a team whose answers are given."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flow_kit as kit
import pytest

from kernelcrew.agents import nouns
from kernelcrew.agents.nouns import (
    BlockText,
    ChangeIdea,
    EditText,
    KnobValue,
    PatchAnswer,
    ProposalIdea,
    ProposalSet,
    Question,
    Review,
)
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator
from kernelcrew.runs import session
from kernelcrew.runs.crew import Clock
from kernelcrew.runs.nouns import Judged

ANCHOR = "float s = 0.0f;"
ALWAYS = "sim(n >= 0)=0.5"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.small_operator(tmp_path_factory.mktemp("operator") / "reduction")


@pytest.fixture
def workdir(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    kit.simulate(monkeypatch)
    return tmp_path


def change(name: str, requires: tuple[str, ...] = ()) -> ChangeIdea:
    return ChangeIdea(
        id=name, mechanism="free", target=f"loop {name}", knobs=[], requires=list(requires), figure="time",
        figure_class="main", figure_factor=0.5, gain=2.0, risks=[],
        why=f"{name}: independent accumulators hide the latency of the addition chain that the profile shows",
    )  # fmt: skip


def proposes(*names: str, requires: tuple[str, ...] = ()) -> Callable[[Question], ProposalSet]:
    changes = [change(n, requires if i else ()) for i, n in enumerate(names)]
    idea = ProposalIdea(title="as told", direction="as told", bottlenecks=["b1"], changes=changes)
    return lambda question: ProposalSet(proposals=[idea], note="as told")


def edit(name: str, replace: str, search: str = ANCHOR) -> EditText:
    return EditText(change=name, recipe="", knobs=[], blocks=[BlockText(search=search, replace=replace)], add_flags=[])


def writes(marks: Mapping[str, str]) -> Callable[[Question], PatchAnswer]:
    """Each change puts its mark behind the declaration of the sum."""
    edits = [edit(name, f"{ANCHOR} /* {name}: {mark} */") for name, mark in marks.items()]
    return lambda question: PatchAnswer(edits=edits, note="")


def passes(question: Question) -> Review:
    return Review(verdict="pass", objections=[], tests=[], hypotheses=[], summary="nothing found")


def played(
    patch: pytest.MonkeyPatch, workdir: Path, operator: Path, marks: dict[str, str], **more: Any
) -> kit.Finished:
    kit.script(patch, {"proposer": proposes(*marks), "patch_writer": writes(marks), "skeptic": passes, **more})
    return kit.run(workdir, operator)


def only(finished: kit.Finished) -> Judged:
    (one,) = finished.record.rounds[0].judged
    return one


def test_a_hurting_change_is_pruned_before_it_is_confirmed(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = played(monkeypatch, workdir, operator, {"good": ALWAYS, "bad": "sim(n <= 16)=1.5"})
    one = only(done)
    assert one.ablation is not None
    assert one.ablation.hurts == (("bad", "short"), ("bad", "tail"))
    assert (one.decision.action, one.decision.keep) == ("adopt", ("good",))
    assert "left out, pays nothing: bad" in one.decision.reason
    assert "bad:" not in done.record.final.variants[-1].source.text
    assert len(done.record.rounds[0].settled[0].commits) == 1


def test_a_change_that_helps_here_and_hurts_there_is_split_off(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = played(monkeypatch, workdir, operator, {"good": ALWAYS, "mixed": "sim(n >= 4096)=0.5 sim(n <= 16)=3.0"})
    one = only(done)
    confirmed = [s.step for s in done.steps if s.step.endswith(".confirm")]
    assert confirmed == ["r1.r1p1.confirm", "r1.split.r1p1.confirm"]
    assert (one.decision.action, one.decision.keep) == ("adopt", ("good",))
    assert done.record.final_timing is not None
    assert all(s.ratio > 1.9 for s in done.record.final_timing.shapes)


def test_a_mixed_change_is_adopted_where_a_rule_holds_with_a_dispatcher_that_builds(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = played(monkeypatch, workdir, operator, {"mixed": "sim(n >= 1000)=0.5 sim(n <= 64)=1.5"})
    one = only(done)
    assert one.decision.action == "adopt_when"
    rule = one.decision.rule
    timed = load_operator(str(operator)).timed()
    served = {s.axes["n"] for s in timed if parse(rule).value(s.axes)}
    assert served
    assert min(served) >= 1000
    assert [v.when for v in done.record.final.variants] == [rule, None]
    assert one.trial.verdict.verification is not None
    assert one.trial.verdict.verification.status == "ok"
    assert one.confirmation is not None
    assert {"rows=32,n=1500", "rows=700,n=9"} <= {s.shape for s in one.confirmation.shapes}
    settled = done.record.rounds[0].settled[0]
    repo = workdir / ".kernelcrew" / "repos" / "reduction"
    plan = tomllib.loads(kit.git(repo, "show", f"{settled.commits[-1]}:plan.toml"))
    assert [v.get("when") for v in plan["variant"]] == [rule, None]
    assert f"adopted where {rule}" in kit.git(repo, "log", "-1", "--format=%B", settled.commits[-1])
    again = kit.run(workdir, operator)
    assert again.record.baseline.incumbent.identity == done.record.final.identity


def test_after_a_split_no_rule_is_adopted_unmeasured(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one follow-up is spent: what would need a second one is rolled back, never committed as it is."""
    mixed = edit("mixed", f"{ANCHOR} /* mixed: sim(n >= 1000)=0.5 sim(n <= 64)=1.5 */")
    worse = edit("worse", "/* worse: sim(n >= 20000)=0.5 sim(n <= 16)=1.5 mixed:", search="/* mixed:")
    answer = PatchAnswer(edits=[mixed, worse], note="")
    scripts = {"proposer": proposes("mixed", "worse"), "patch_writer": lambda q: answer, "skeptic": passes}
    kit.script(monkeypatch, scripts)
    done = kit.run(workdir, operator)
    one = only(done)
    assert any(s.step == "r1.split.r1p1.confirm" for s in done.steps)
    assert one.decision.action == "rollback"
    assert done.record.final.identity == done.record.baseline.start.identity
    assert done.record.rounds[0].settled == ()


def test_a_patch_that_does_not_compile_goes_back_with_the_compilers_words(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(question: Question) -> PatchAnswer:
        problems = json.loads(question.evidence)["problems"]
        code = f"{ANCHOR} /* {ALWAYS} */" + ("" if problems else " undeclared++;")
        return PatchAnswer(edits=[edit("good", code)], note="")

    team = kit.script(monkeypatch, {"proposer": proposes("good"), "patch_writer": write, "skeptic": passes})
    done = kit.run(workdir, operator)
    first, second = team.questions("patch_writer")
    assert first["problems"] == []
    assert "undeclared" in second["problems"][0]
    assert "line 6" in second["problems"][0]
    assert only(done).trial.attempts == 2
    assert only(done).decision.action == "adopt"


def test_a_patch_that_never_compiles_is_given_up_after_three_tries(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = kit.script(
        monkeypatch,
        {
            "proposer": proposes("good"),
            "patch_writer": lambda q: PatchAnswer(edits=[edit("good", f"{ANCHOR} undeclared++;")], note=""),
        },
    )
    done = kit.run(workdir, operator)
    assert len(team.questions("patch_writer")) == 3
    assert (only(done).decision.action, only(done).decision.gate) == ("rollback", "build")
    assert "undeclared" in only(done).decision.reason
    assert done.record.status == "finished"


def test_an_edit_that_does_not_match_goes_back_and_then_fails(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = PatchAnswer(edits=[edit("good", "x", search="not there")], note="")
    team = kit.script(monkeypatch, {"proposer": proposes("good"), "patch_writer": lambda q: answer})
    done = kit.run(workdir, operator)
    assert "occurs 0 times" in team.questions("patch_writer")[1]["problems"][0]
    assert only(done).decision.action == "rollback"
    assert only(done).trial.candidate is None


@pytest.mark.parametrize(
    ("code", "gate", "words"),
    [
        ("s = 1.0f;", "correctness", "rows="),
        ("y[rows + 40000] = s;", "safety", ""),
        ("if (n > 1) *(volatile int *)0 = 1;", "safety", ""),
    ],
)
def test_a_wrong_or_unsafe_kernel_is_rolled_back_by_its_gate(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch, code: str, gate: str, words: str
) -> None:
    answer = PatchAnswer(edits=[edit("good", f"{ANCHOR} {code}")], note="")
    team = kit.script(monkeypatch, {"proposer": proposes("good"), "patch_writer": lambda q: answer})
    done = kit.run(workdir, operator)
    assert (only(done).decision.action, only(done).decision.gate) == ("rollback", gate)
    assert words in only(done).decision.reason
    assert len(team.questions("patch_writer")) == 1
    assert not any(line.startswith("confirm") for line in kit.calls(workdir))


def test_the_skeptic_can_veto(workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Review(verdict="object", objections=["2.00x is more than the peak"], tests=[], hypotheses=[], summary="no")
    done = played(monkeypatch, workdir, operator, {"good": ALWAYS}, skeptic=lambda q: said)
    assert (only(done).decision.action, only(done).decision.gate) == ("rollback", "review")
    assert "2.00x is more than the peak" in only(done).decision.reason
    assert done.record.final.identity == done.record.baseline.start.identity


def more_tests(question: Question) -> Review:
    if json.loads(question.evidence)["tests_done"]:
        return passes(question)
    axes = [KnobValue(name="rows", value=3), KnobValue(name="n", value=777)]
    tests = [nouns.TestRequest(kind="shape", axes=axes, distribution="", why="beside a size in the code")]
    return Review(verdict="more_tests", objections=[], tests=tests, hypotheses=[], summary="look there")


def test_the_skeptics_tests_are_run_and_what_they_find_counts(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"{ANCHOR} /* {ALWAYS} */ if (n == 777) s = 1.0f;"
    answer = PatchAnswer(edits=[edit("good", code)], note="")
    scripts = {"proposer": proposes("good"), "patch_writer": lambda q: answer, "skeptic": more_tests}
    kit.script(monkeypatch, scripts)
    done = kit.run(workdir, operator)
    assert (only(done).decision.action, only(done).decision.gate) == ("rollback", "correctness")
    assert "rows=3,n=777" in only(done).decision.reason


def test_the_skeptics_tests_that_hold_let_it_pass(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = played(monkeypatch, workdir, operator, {"good": ALWAYS}, skeptic=more_tests)
    assert only(done).decision.action == "adopt"
    assert "rows=3,n=777" in {c["shape"] for c in done.step("r1.more_tests.r1p1")["cases"]}
    assert only(done).review is not None
    assert only(done).review.summary == "nothing found"  # type: ignore[union-attr]


def test_no_proposal_ends_the_run_with_the_proposers_word(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = ProposalSet(proposals=[], note="all is said")
    kit.script(monkeypatch, {"proposer": lambda q: nothing})
    done = kit.run(workdir, operator, rounds=5)
    assert len(done.record.rounds) == 1
    assert done.record.stop_reason == "nothing left to propose: all is said"
    assert done.record.final_timing is None


class SpentClock(Clock):
    """A clock that a script stops."""

    spent = False

    def left_s(self) -> float:
        return -1.0 if SpentClock.spent else 600.0


@pytest.fixture
def spendable(monkeypatch: pytest.MonkeyPatch) -> type[SpentClock]:
    monkeypatch.setattr(session, "Clock", SpentClock)
    monkeypatch.setattr(SpentClock, "spent", False)
    return SpentClock


@pytest.mark.parametrize("stage", ["propose", "trial", "ablate", "review", "remember"])
def test_a_budget_that_runs_out_ends_the_run_undecided_and_whole(
    workdir: Path, operator: Path, spendable: type[SpentClock], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    marks = {"good": ALWAYS, "idle": "sim(n < 0)=1.0"}
    kit.script(monkeypatch, {"proposer": proposes(*marks), "patch_writer": writes(marks), "skeptic": passes})
    say = kit.Crew.say

    def saying(crew: kit.Crew, now: str, *words: Any, **more: Any) -> None:
        spendable.spent = spendable.spent or now == stage
        say(crew, now, *words, **more)

    monkeypatch.setattr(kit.Crew, "say", saying)
    done = kit.run(workdir, operator, rounds=3)
    assert done.record.status == "finished"
    assert "0 s of the budget left" in done.record.stop_reason
    one = only(done)
    if stage in ("review", "settle", "remember"):
        assert one.decision.action == "adopt"
        assert done.record.final.identity != done.record.baseline.start.identity
    else:
        assert one.decision.action == "inconclusive"
        assert "budget" in one.decision.reason
        assert done.record.final.identity == done.record.baseline.start.identity
    assert Path(done.record.report).is_file()


def test_a_budget_below_the_baselines_need_measures_the_baseline_and_stops(
    workdir: Path, operator: Path, spendable: type[SpentClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spendable, "spent", True)
    done = kit.run(workdir, operator)
    assert done.record.rounds == ()
    assert "of the budget left, a round needs" in done.record.stop_reason
    assert done.record.baseline.profile.shapes
