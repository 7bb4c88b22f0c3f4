"""People at the same net: a patch through the queue, the last word on a run, a kernel taken back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.memory.embed import choose
from kernelcrew.memory.nouns import TriedPatch
from kernelcrew.memory.store import Memory
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import RunRecord
from kernelcrew.settings import resolve

WHY = "Two chains of additions hide the latency of one add, which bounds long rows (0.8 ns an element measured)."

IDLE = "idle=2:A second mark on the add of the inner loop, whose latency it leaves as it is in every row."


@dataclass
class Desk:
    """One working directory with a small operator, and its commands."""

    work: Path
    operator: Path
    say: Callable[..., kit.Said]

    def patch(self, name: str, *marks: str) -> Path:
        """A diff that puts marks for the simulated clock behind lines of the kernel as it stands."""
        old = self.say("show", str(self.operator), "--workdir", str(self.work)).out
        new = old
        for anchor, mark in zip(("float s = 0.0f;", "s += p[i];", "y[r] = s;"), marks, strict=False):
            assert new.count(anchor) == 1
            new = new.replace(anchor, f"{anchor} /* {mark} */") if mark else new
        path = self.work / name
        # Without context, so that each mark is a hunk of its own.
        path.write_text("".join(unified_diff(old.splitlines(True), new.splitlines(True), "a/k.c", "b/k.c", n=0)))
        return path

    def submit(self, patch: Path, *more: str, why: str = WHY) -> kit.Said:
        words = ("--patch", str(patch), "--why", why, "--author", "ada", "--workdir", str(self.work))
        return self.say("submit", str(self.operator), *words, "--json", *more)

    def tried(self) -> list[TriedPatch]:
        settings = resolve(self.work)
        memory = Memory(settings.home, choose("lexical")[0])
        try:
            return list(memory.tried("reduction", load_platform(self.work)))
        finally:
            memory.close()


def load_platform(work: Path) -> str:
    lines = next((work / ".kernelcrew" / "runs").glob("*/journal.jsonl")).read_text().splitlines()
    platform: str = json.loads(lines[0])["payload"]["platform"]
    return platform


@pytest.fixture
def desk(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Desk:  # fmt: skip
    kit.simulate(monkeypatch)
    operator = kit.small_operator(tmp_path / "reduction")
    kit.git(operator, "init", "-q")
    kit.git(operator, "add", ".")
    kit.git(operator, "commit", "-qm", "Operator")
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path / "work")
    return Desk(tmp_path / "work", operator, lambda *words: kit.command(monkeypatch, capsys, *words))


def test_a_patch_goes_through_net_ablation_and_memory_under_its_author(desk: Desk) -> None:
    patch = desk.patch("mine.diff", "sim(n >= 1)=0.5", "sim(n >= 1)=1.0")
    said = desk.submit(patch, "--changes", "chains=1", "--changes", IDLE)
    assert said.code == 0, said.err
    (decision,) = said.last["decisions"]
    assert decision["decision"] == "adopt" and "idle" in decision["reason"]
    record = run_of(desk, said.last["run"])
    assert record.rounds[0].given_by == "person:ada" and record.rounds[0].judged[0].ablation is not None
    assert {t.author for t in desk.tried()} == {"person:ada"}
    log = kit.git(desk.operator, "log", "-1", "--format=%B", record.rounds[0].settled[0].commits[-1])
    assert "Proposed-by: person:ada" in log and WHY in log
    assert not list((desk.work / ".kernelcrew" / "queue").glob("*.json"))


def run_of(desk: Desk, run: str) -> RunRecord:
    record = payload_of(read_steps(desk.work / ".kernelcrew" / "runs" / run), "end", RunRecord)
    assert record is not None
    return record


def test_the_net_does_not_trust_a_person(desk: Desk) -> None:
    slow = desk.submit(desk.patch("slow.diff", "sim(n >= 1)=2.0"))
    assert slow.last["decisions"][0]["decision"] == "rollback"
    hollow = desk.submit(desk.patch("hollow.diff", "", "sim(n >= 1)=0.5"), why="faster")
    assert hollow.last["decisions"][0]["decision"] == "rollback"
    assert "gate rationale" in hollow.last["decisions"][0]["reason"]
    better = desk.submit(desk.patch("hollow.diff", "", "sim(n >= 1)=0.5"))
    assert better.last["decisions"][0]["decision"] == "adopt"  # a hollow reason refutes no code


def test_a_wrong_patch_is_refused_by_correctness(desk: Desk) -> None:
    old = desk.say("show", str(desk.operator), "--workdir", str(desk.work)).out
    changed = desk.work / "mine.c"
    changed.write_text(old.replace("s += p[i];", "s += p[i] * 1.001f;"))
    said = desk.submit(changed)
    assert said.last["decisions"][0]["decision"] == "rollback" and "correctness" in said.last["decisions"][0]["reason"]


def test_what_was_refuted_is_not_tried_again_whoever_asks(desk: Desk) -> None:
    patch = desk.patch("slow.diff", "sim(n >= 1)=2.0")
    desk.submit(patch)
    again = desk.submit(patch)
    assert again.last["decisions"] == [] and "not tried again" in again.err


def test_a_queued_patch_has_the_first_round_of_the_next_run(desk: Desk) -> None:
    queued = desk.submit(desk.patch("mine.diff", "sim(n >= 1)=0.5"), "--queue")
    assert queued.code == 0 and len(list((desk.work / ".kernelcrew" / "queue").glob("*.json"))) == 1
    done = kit.run(desk.work, desk.operator, rounds=2)
    assert [r.given_by for r in done.record.rounds] == ["person:ada", ""]
    assert done.record.rounds[0].judged[0].decision.action == "adopt"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--changes", "a=1,2"), "the diff has 1"),
        (("--changes", "a"), "write NAME=HUNKS"),
        (("--expects", "wide=2"), "CLASS=RATIO"),
        (("--expects", "main=x"), "CLASS=RATIO"),
    ],
)
def test_words_that_make_no_sense(desk: Desk, words: tuple[str, ...], told: str) -> None:
    said = desk.submit(desk.patch("mine.diff", "sim(n >= 1)=0.5"), *words)
    assert said.code == 2 and told in said.err
    assert not (desk.work / ".kernelcrew" / "queue").exists()


def test_a_patch_that_does_not_fit_is_told_before_anything_runs(desk: Desk) -> None:
    patch = desk.work / "old.diff"
    patch.write_text("--- a/kernel.c\n+++ b/kernel.c\n@@ -1 +1 @@\n-no such line\n+x\n")
    said = desk.submit(patch)
    assert said.code == 2 and "does not fit the kernel as it stands" in said.err and "kernelcrew show" in said.err


def adopted(desk: Desk, *marks: str) -> str:
    said = desk.submit(desk.patch("mine.diff", *marks))
    assert said.last["decisions"][0]["decision"] == "adopt"
    return str(said.last["run"])


def incumbent(desk: Desk) -> str:
    refs = kit.git(desk.operator, "for-each-ref", "--format=%(objectname)", "refs/kernelcrew/incumbent")
    return refs.strip()


def test_approve_merges_only_on_request_and_only_cleanly(desk: Desk) -> None:
    run = adopted(desk, "sim(n >= 1)=0.5")
    head = kit.git(desk.operator, "rev-parse", "HEAD")
    at = ("--workdir", str(desk.work), "--json")
    assert desk.say("approve", run, *at).last["merged"] == ""
    assert kit.git(desk.operator, "rev-parse", "HEAD") == head
    (desk.operator / "start.c").write_text("/* being edited */\n")
    refused = desk.say("approve", run, "--merge", *at)
    assert refused.code == 2 and "not committed" in refused.err
    kit.git(desk.operator, "checkout", "-q", "start.c")
    merged = desk.say("approve", run, "--merge", "--why", "reads well", *at)
    assert merged.last["merged"] == kit.git(desk.operator, "rev-parse", "HEAD").strip() != head.strip()
    assert "sim(n >= 1)=0.5" in (desk.operator / "start.c").read_text()


def test_approve_refuses_a_conflict_and_changes_nothing(desk: Desk) -> None:
    run = adopted(desk, "sim(n >= 1)=0.5")
    text = (desk.operator / "start.c").read_text()
    (desk.operator / "start.c").write_text(text.replace("float s = 0.0f;", "float s = 0; /* mine */"))
    kit.git(desk.operator, "commit", "-qam", "Mine")
    before = (kit.git(desk.operator, "rev-parse", "HEAD"), kit.git(desk.operator, "status", "--porcelain"))
    said = desk.say("approve", run, "--merge", "--workdir", str(desk.work))
    assert said.code == 2 and "does not apply cleanly" in said.err
    assert (kit.git(desk.operator, "rev-parse", "HEAD"), kit.git(desk.operator, "status", "--porcelain")) == before


def test_approve_writes_the_files_out(desk: Desk) -> None:
    run = adopted(desk, "sim(n >= 1)=0.5")
    said = desk.say("approve", run, "--out", str(desk.work / "out"), "--workdir", str(desk.work), "--json")
    assert {Path(p).name for p in said.last["written"]} == {"kernel.c", "plan.toml"}
    assert "sim(n >= 1)=0.5" in (desk.work / "out" / "kernel.c").read_text()


def test_reject_takes_it_back_and_memory_refutes_it(desk: Desk) -> None:
    run = adopted(desk, "sim(n >= 1)=0.5")
    assert incumbent(desk)
    said = desk.say("reject", run, "--why", "unreadable", "--workdir", str(desk.work), "--json")
    assert said.last["word"] == "rejected" and said.last["after"] == "" and not incumbent(desk)
    (tried,) = desk.tried()
    assert (tried.decision, tried.gate, tried.fates) == ("rollback", "person", ("refuted",))
    again = desk.submit(desk.patch("again.diff", "sim(n >= 1)=0.5"))
    assert again.last["decisions"] == [] and "not tried again" in again.err


def test_rollback_goes_one_run_back_or_where_it_is_told(desk: Desk) -> None:
    first = adopted(desk, "sim(n >= 1)=0.5")
    one = incumbent(desk)
    adopted(desk, "", "sim(n >= 1)=0.6")
    two = incumbent(desk)
    assert two != one
    at = ("--workdir", str(desk.work), "--json")
    assert desk.say("rollback", str(desk.operator), *at).last["after"] == one == incumbent(desk)
    assert desk.say("rollback", str(desk.operator), "--to", two[:12], *at).last["after"] == two
    assert desk.say("rollback", str(desk.operator), "--to", first, *at).last["after"] == one
    assert desk.say("rollback", str(desk.operator), "--to", "nowhere", *at).code == 2
    assert desk.say("rollback", str(desk.operator), "--to", "start", *at).last["after"] == "" == incumbent(desk)
    nothing = desk.say("rollback", str(desk.operator), *at)
    assert nothing.code == 2 and "nothing is adopted" in nothing.err


def test_a_run_that_adopted_nothing_has_nothing_to_approve(desk: Desk) -> None:
    said = desk.submit(desk.patch("slow.diff", "sim(n >= 1)=2.0"))
    refused = desk.say("approve", said.last["run"], "--workdir", str(desk.work))
    assert refused.code == 2 and "adopted nothing" in refused.err


def test_the_start_kernel_is_shown_where_nothing_is_adopted(desk: Desk) -> None:
    said = desk.say("show", str(desk.operator), "--workdir", str(desk.work))
    assert said.out == start_candidate(load_operator(str(desk.operator))).variants[-1].source.text
