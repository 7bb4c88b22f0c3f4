"""Whole runs with the rule-based team: an adoption is committed, remembered and told, and the next run builds on it."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flow_kit as kit
import pytest

from kernelcrew.kernels.planfile import to_files
from kernelcrew.memory.embed import choose
from kernelcrew.memory.nouns import Hit, TriedPatch
from kernelcrew.memory.store import Memory
from kernelcrew.runs import cli
from kernelcrew.runs.remembering import fates_of

CLASSES = {"main", "short", "long", "tail"}


@dataclass(frozen=True)
class Played:
    """Two runs in one working directory that lies in a dirty user repository."""

    user: Path
    operator: Path
    first: kit.Finished
    second: kit.Finished
    before: dict[str, str]
    after: dict[str, str]

    @property
    def repo(self) -> Path:
        return self.user / ".kernelcrew" / "repos" / "reduction"


def state_of(user: Path) -> dict[str, str]:
    """Everything of a user's repository that a run must not touch."""
    files = sorted(p for p in user.rglob("*") if p.is_file() and ".kernelcrew" not in p.parts)
    digest = {str(p.relative_to(user)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    words = {
        "status": ("status", "--porcelain"),
        "refs": ("for-each-ref",),
        "stash": ("stash", "list"),
        "worktrees": ("worktree", "list"),
    }
    return {**digest, **{name: kit.git(user, *line) for name, line in words.items()}}


def dirty_repository(user: Path) -> None:
    """A commit, a branch, something staged, something changed, something untracked, something stashed."""
    user.mkdir()
    kit.git(user, "init", "-q", "-b", "trunk")
    (user / "a.txt").write_text("one\n")
    kit.git(user, "add", "a.txt")
    kit.git(user, "commit", "-q", "-m", "first")
    kit.git(user, "branch", "other")
    (user / "a.txt").write_text("stashed\n")
    kit.git(user, "stash", "-q")
    (user / "b.txt").write_text("staged\n")
    kit.git(user, "add", "b.txt")
    (user / "a.txt").write_text("changed\n")
    (user / "c.txt").write_text("untracked\n")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("flow")
    operator = kit.small_operator(folder / "reduction")
    user = folder / "user"
    dirty_repository(user)
    before = state_of(user)
    kit.share_builds(tmp_path_factory.getbasetemp(), user)
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        first = kit.run(user, operator)
        second = kit.run(user, operator)
    return Played(user, operator, first, second, before, state_of(user))


def tried(played: Played) -> list[TriedPatch]:
    with Memory(played.user / ".kernelcrew", choose("lexical")[0]) as memory:
        return memory.tried("reduction", played.first.record.platform)


def asked_memory(played: Played, question: str) -> list[Hit]:
    with Memory(played.user / ".kernelcrew", choose("lexical")[0]) as memory:
        return memory.query(question, operator="reduction", platform=played.first.record.platform, n=5)


def test_the_best_proposal_is_adopted_and_the_others_are_held_for_later(played: Played) -> None:
    judged = played.first.record.rounds[0].judged
    assert [j.decision.action for j in judged] == ["adopt", "inconclusive", "inconclusive"]
    assert judged[0].trial.candidate is not None
    assert "vector_accumulators" in judged[0].trial.candidate.changes
    assert all(judged[0].proposal in j.decision.reason for j in judged[1:])
    assert judged[0].confirmation is not None
    assert {c.answer for c in judged[0].confirmation.classes} == {"faster"}
    assert {s.answer for s in judged[0].confirmation.shapes} == {"not slower"}


def test_a_change_that_pays_nothing_is_left_out_and_said_so(played: Played) -> None:
    best = played.first.record.rounds[0].judged[0]
    assert best.ablation is not None
    assert {r.change for r in best.ablation.rows} == set(best.changes)
    idle = next(r for r in best.ablation.rows if r.change == "small_tail")
    paying = next(r for r in best.ablation.rows if r.change == "rows_together")
    assert max(idle.effect.values()) == pytest.approx(1.0, abs=0.02)
    assert paying.effect["short"] > 2
    assert "small_tail" not in best.decision.keep
    assert "left out, pays nothing: small_tail" in best.decision.reason


def test_each_kept_change_is_one_commit_with_its_reason(played: Played) -> None:
    settled = played.first.record.rounds[0].settled[0]
    best = played.first.record.rounds[0].judged[0]
    assert settled.branch == f"kernelcrew/reduction/{played.first.record.platform}/{played.first.record.run}"
    listed = kit.git(played.repo, "rev-list", "--reverse", f"main..{settled.branch}").split()
    assert listed == list(settled.commits)
    assert len(listed) == len(best.decision.keep) == 3
    for commit, change in zip(listed, best.decision.keep, strict=True):
        text = kit.git(played.repo, "log", "-1", "--format=%s%n%(trailers:unfold)", commit)
        assert text.startswith(f"reduction: {change}\n")
        for key in ("Rationale", "Expected", "Risk", "Measured"):
            assert re.search(rf"^{key}: \S.{{15,}}", text, re.MULTILINE), (key, text)
    assert kit.git(played.repo, "rev-parse", settled.incumbent_ref).strip() == listed[-1]
    held = {n: kit.git(played.repo, "show", f"{listed[-1]}:{n}") for n in to_files(played.first.record.final)}
    assert held == to_files(played.first.record.final)
    trials = kit.git(played.repo, "for-each-ref", f"refs/kernelcrew/trial/{played.first.record.run}").splitlines()
    assert len(trials) == len(played.first.record.rounds[0].judged)


def test_each_commit_of_the_series_is_a_kernel_of_its_own(played: Played) -> None:
    settled = played.first.record.rounds[0].settled[0]
    trees = [kit.git(played.repo, "show", f"{c}:kernel.c") for c in settled.commits]
    assert len(set(trees)) == 3
    assert ["rows_together:" in t for t in trees] == [False, True, True]


def test_the_users_repository_is_untouched(played: Played) -> None:
    assert played.before["status"].count("\n") == 3
    assert played.after == played.before


def test_memory_holds_a_summary_a_proposal_and_a_reason_a_change(played: Played) -> None:
    run = played.first.record.run
    mine = [t for t in tried(played) if t.run == run]
    assert {t.id for t in mine} == {f"{run}:r1p{n}" for n in (1, 2, 3)}
    best = next(t for t in mine if t.id.endswith("r1p1"))
    assert best.decision == "adopt"
    assert best.commit == played.first.record.rounds[0].settled[0].commits[-1]
    assert dict(zip([f["mechanism"] for f in best.features], best.fates, strict=True))["small_tail"] == "refuted"
    hits = asked_memory(played, "why do several rows side by side help short rows")
    assert any(h.entry.mechanism == "rows_together" and h.entry.commit == best.commit for h in hits)


def test_the_run_says_what_flags_alone_give(played: Played) -> None:
    flags = played.first.record.baseline.flags_alone
    assert flags is not None
    assert next(c.ratio for c in flags.classes if c.shape_class == "long") == pytest.approx(8.0, rel=0.03)
    assert flags.classes[0].ratio < played.first.record.final_over_start.classes[0].ratio  # type: ignore[union-attr]


@pytest.mark.parametrize("which", ["first", "second"])
def test_the_report_stands_alone(played: Played, which: str) -> None:
    finished: kit.Finished = getattr(played, which)
    text = Path(finished.record.report).read_text()
    assert finished.record.run in text
    assert not re.search(r"<script[^>]+src=|<link[^>]+href=|@import|url\(\s*['\"]?(?!data:|#)", text)
    loads = re.findall(r"(?:src|href|xlink:href)\s*=\s*[\"']([^\"'#][^\"']*)", text)
    assert [u for u in loads if not u.startswith("data:")] == []
    assert all(change in text for change in finished.record.rounds[0].judged[0].changes)


def test_a_second_run_starts_from_the_first_ones_incumbent_and_says_so(played: Played) -> None:
    commit = played.first.record.rounds[0].settled[0].commits[-1]
    assert played.second.record.baseline.incumbent.identity == played.first.record.final.identity
    assert commit[:12] in played.second.record.baseline.incumbent_from
    assert played.second.said(f"start from adopted {commit[:12]}")
    assert commit[:12] in Path(played.second.record.report).read_text()
    assert played.second.record.baseline.incumbent_over_start is not None
    assert played.first.said("start from the start kernel")


def test_a_second_run_does_not_try_again_what_the_first_refuted(played: Played) -> None:
    refuted: set[tuple[str, str, str]] = set()
    for one in played.first.record.rounds[0].judged:
        for change in one.trial.proposal.changes:
            if one.decision.action == "rollback" or fates_of(one).get(change.id) == "refuted":
                refuted.add(features(change.features("reduction", "c")))
    again = {
        features(change.features("reduction", "c"))
        for round_ in played.second.record.rounds
        for one in round_.judged
        for change in one.trial.proposal.changes
    }
    adopted = {f for f, t in ((features(f), t) for t in tried(played) for f in t.features) if t.decision == "adopt"}
    assert {mechanism for mechanism, _, _ in refuted} == {"small_tail"}
    assert again
    assert not again & refuted
    assert not again & adopted
    told = [*played.second.record.rounds[0].blocked, played.second.record.rounds[0].note]
    first = f"{played.first.record.run}:r1p1"
    assert any(re.search(rf"small_tail: refuted.*{first}", line) for line in told)


def features(found: dict[str, str]) -> tuple[str, str, str]:
    return found["mechanism"], found["target"], found["knobs"]


def test_a_third_run_does_not_repeat_the_seconds_rollbacks(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.simulate(monkeypatch)
    second = [c.mechanism for j in played.second.record.rounds[0].judged for c in j.trial.proposal.changes]
    assert {j.decision.action for j in played.second.record.rounds[0].judged} == {"rollback"}
    third = kit.run(played.user, played.operator)
    same = {
        features(c.features("reduction", "c"))
        for j in played.second.record.rounds[0].judged
        for c in j.trial.proposal.changes
    } & {
        features(c.features("reduction", "c")) for j in third.record.rounds[0].judged for c in j.trial.proposal.changes
    }
    assert second
    assert not same


def test_json_is_the_last_line_with_every_field(
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kit.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    words = ["run", str(played.operator), "--anyway", "--rounds", "1", "--workdir", str(tmp_path), "--json"]
    monkeypatch.setattr(sys, "argv", ["kernelcrew", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    found: dict[str, Any] = json.loads(said.out)
    wanted = {"run", "operator", "platform", "backend", "decisions", "speedup", "speedup_over_start", "report"}
    assert wanted <= found.keys()
    assert (found["operator"], found["backend"], found["status"]) == ("reduction", "c", "finished")
    assert [d["decision"] for d in found["decisions"]] == ["adopt", "inconclusive", "inconclusive"]
    assert all({"proposal", "changes", "decision", "reason"} <= d.keys() for d in found["decisions"])
    for name in ("speedup", "speedup_over_start"):
        assert set(found[name]) == CLASSES
        assert all(0 < c["low"] <= c["ratio"] <= c["high"] for c in found[name].values())
    assert Path(found["report"]).is_file()
    assert "round 1" in said.err
    assert re.search(r"\d+\.\d s +\d+ s left", said.err)
