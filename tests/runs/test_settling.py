"""Which commits an adoption becomes, and what their trailers say."""

from __future__ import annotations

from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.kernels.nouns import Block as TextBlock
from kernelcrew.kernels.nouns import Change, Edit, Expectation, Patch, Proposal, Risk
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.nouns import Ablation, AblationRow, Judged
from kernelcrew.runs.session import Asked, open_run
from kernelcrew.runs.settling import commit_steps, keep_trials, settle
from kernelcrew.runs.trying import composed
from kernelcrew.settings import resolve
from kernelcrew.tools.nouns import Build, Decision, Profile, Verdict

ANCHOR = "float s = 0.0f;"


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    kit.simulate(monkeypatch)
    operator = kit.small_operator(tmp_path / "reduction")
    opened = open_run(resolve(tmp_path), Asked(operator=str(operator), anyway=True), lambda event: None)
    yield opened  # type: ignore[misc]
    opened.close()


def change(name: str, *requires: str) -> Change:
    return Change(
        id=name, mechanism="free", target="loop", requires=requires, gain=1.2, why=f"{name} hides latency",
        expects=Expectation(figure="time", shape_class="long", factor=0.8),
        risks=(Risk(shape_class="short", level="low", why="a little more to start"),),
    )  # fmt: skip


def standing(crew: Crew) -> Standing:
    from kernelcrew.kernels.load import start_candidate

    start = start_candidate(crew.operator, "c")
    build = Build(status="ok", identity=start.identity)
    profile = Profile(grade="remarks", grade_reason="", shapes=(), loops=(), candidate=start.identity)
    return Standing(candidate=start, build=build, profile=profile, commit=crew.repo.current_commit())


def judged(crew: Crew, edits: dict[str, tuple[str, str]], kept: tuple[str, ...], action: str = "adopt") -> Judged:
    proposal = Proposal(
        id="r1p1", title="t", direction="d", bottlenecks=(), changes=tuple(change(name) for name in edits)
    )
    patch = Patch(
        proposal="r1p1",
        author="team:test",
        edits=tuple(
            Edit(change=name, blocks=(TextBlock(search=search, replace=replace),))
            for name, (search, replace) in edits.items()
        ),
    )
    made = composed(crew, standing(crew), proposal, patch, kept)
    rows = tuple(AblationRow(change=name, separable=True, effect={"long": 1.25}) for name in edits)
    return Judged.model_validate(
        {
            "proposal": "r1p1", "title": "t", "changes": list(edits), "gates": (),
            "trial": {
                "proposal": proposal, "patch": patch, "candidate": made,
                "verdict": Verdict(outcome="accept", stage="timing", reason=""),
            },
            "ablation": Ablation(rows=rows),
            "decision": Decision(action=action, reason="faster", rule="n > 64" if action == "adopt_when" else ""),  # type: ignore[arg-type]
            "hypotheses": {name: "confirmed: as foretold" for name in edits},
        }
    )  # fmt: skip


SEPARATE = {"a": (ANCHOR, f"{ANCHOR} /* a */"), "b": ("y[r] = s;", "y[r] = s; /* b */")}
CHAINED = {"a": (ANCHOR, f"{ANCHOR} /* a */"), "b": ("/* a */", "/* a b */")}


def test_each_change_is_one_commit_that_holds_those_before_it(crew: Crew) -> None:
    one = judged(crew, SEPARATE, ("a", "b"))
    assert one.trial.candidate is not None
    steps = commit_steps(crew, standing(crew), one, one.trial.candidate)
    assert [s.subject for s in steps] == ["reduction: a", "reduction: b"]
    texts = [s.files["kernel.c"] for s in steps]
    assert ["/* b */" in t for t in texts] == [False, True]
    assert texts[1] == one.trial.candidate.variants[-1].source.text
    assert steps[0].trailers[0] == ("Proposed-by", one.trial.patch.author)
    assert dict(steps[0].trailers[1:4]) == {
        "Rationale": "a hides latency",
        "Expected": "time of long to 0.80; confirmed: as foretold",
        "Risk": "short low: a little more to start",
    }
    assert ("Measured", "without it (screen): long 0.80x") in steps[0].trailers


def test_a_change_that_was_left_out_has_no_commit(crew: Crew) -> None:
    one = judged(crew, SEPARATE, ("b",))
    assert one.trial.candidate is not None
    steps = commit_steps(crew, standing(crew), one, one.trial.candidate)
    assert [s.subject for s in steps] == ["reduction: b"]
    assert "/* a */" not in steps[0].files["kernel.c"]


def test_changes_that_cannot_stand_alone_share_the_commit_that_completes_them(crew: Crew) -> None:
    reversed_order = {"b": ("/* a */", "/* a b */"), "a": (ANCHOR, f"{ANCHOR} /* a */")}
    chained = judged(crew, CHAINED, ("a", "b"))
    patch = chained.trial.patch
    proposal = chained.trial.proposal.model_copy(update={"changes": (change("b"), change("a"))})
    trial = chained.trial.model_copy(update={"proposal": proposal, "patch": patch})
    assert trial.candidate is not None
    one = chained.model_copy(update={"trial": trial, "changes": tuple(reversed_order)})
    steps = commit_steps(crew, standing(crew), one, trial.candidate)
    assert [s.subject for s in steps] == ["reduction: b, a"]
    assert [key for key, _ in steps[0].trailers].count("Rationale") == 2


def test_settling_twice_makes_no_second_series(crew: Crew) -> None:
    one = judged(crew, SEPARATE, ("a", "b"))
    stands = standing(crew)
    first = settle(crew, 1, stands, one)
    crew.journal.steps.clear()
    again = settle(crew, 1, stands, one)
    assert again == first
    assert len(first.commits) == 2
    git_dir = crew.repo.git.git_dir
    assert kit.git(git_dir, "rev-list", "--count", f"main..{first.branch}").strip() == "2"
    assert kit.git(git_dir, "rev-parse", first.incumbent_ref).strip() == first.commits[-1]


@pytest.mark.parametrize("action", ["rollback", "inconclusive", "split", "adjust"])
def test_nothing_else_is_committed_but_every_trial_is_kept(crew: Crew, action: str) -> None:
    one = judged(crew, SEPARATE, ("a", "b"), action)
    assert settle(crew, 1, standing(crew), one).commits == ()
    keep_trials(crew, [one])
    git_dir = crew.repo.git.git_dir
    assert kit.git(git_dir, "for-each-ref", "refs/kernelcrew/incumbent", "refs/heads/kernelcrew") == ""
    held = kit.git(git_dir, "show", f"refs/kernelcrew/trial/{crew.start.run}/r1p1:kernel.c")
    assert "/* a */" in held
    assert "/* b */" in held


def test_a_rule_is_told_in_the_last_trailer(crew: Crew) -> None:
    one = judged(crew, SEPARATE, ("a",), "adopt_when")
    assert one.trial.candidate is not None
    steps = commit_steps(crew, standing(crew), one, one.trial.candidate)
    assert steps[-1].trailers[-1] == ("Measured", "adopted where n > 64")
