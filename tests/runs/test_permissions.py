"""The permission ladder: what a record comes to, what a person says over it, and how the bus holds each rung."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flow_kit as kit
import pytest

from kernelcrew.errors import BadManifest, NotPermitted, UnknownName, UserMistake
from kernelcrew.record import Record
from kernelcrew.runs.deeds import Grant, deed_of, level_here, override, read_overrides
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import Step
from kernelcrew.runs.permissions import (
    ROLES,
    Deed,
    Held,
    Override,
    Violation,
    Where,
    held,
    level_named,
    role_level,
    shipped_rules,
    team_of,
)
from kernelcrew.runs.toml_text import toml_text
from kernelcrew.settings import resolve
from kernelcrew.tools.bus import Bus, Level, Refusal, Tool, permission_wrapper

HERE = Where(team="openai:small", operator="reduction", platform="cpu-x", shipped=True)
OUT_OF_BOUNDS = Violation(kind="write out of bounds", step="r1.trial.r1p1.1.verify", what="SIGSEGV: wrote to 'y'")


def deed(day: int, *violations: Violation, **more: Any) -> Deed:
    plain = {"team": HERE.team, "operator": "reduction", "platform": "cpu-x", "shipped": True, "finished": True}
    fields = {**plain, "run": f"run-{day}", "at": f"2026-01-{day:02d}T00:00:00", "passed": 1, "violations": violations}
    return Deed.model_validate({**fields, **more})


def said(day: int, verb: str, level: str, **more: str) -> Override:
    fields = {"verb": verb, "who": HERE.team, "level": level, "why": "because", "author": "ann"}
    return Override.model_validate({**fields, "at": f"2026-01-{day:02d}T12:00:00", **more})


def level(deeds: list[Deed], overrides: list[Override] | None = None, where: Where = HERE) -> Held:
    return held(where, deeds, overrides or [], shipped_rules())


def test_a_newcomer_may_commit_on_the_runs_branch_and_never_merge() -> None:
    for shipped in (True, False):
        found = level([], where=HERE.model_copy(update={"shipped": shipped}))
        assert found.rung is Level.COMMIT
        assert "where a newcomer begins" in found.why[0]
    assert max(role_level(caller, Level.MERGE) for caller in ROLES) < Level.MERGE
    with pytest.raises(UserMistake, match="merging is a person's"):
        level_named("merge")
    with pytest.raises(UnknownName, match="write_scratch"):
        level_named("everything")
    assert level_named("write in scratch") is level_named("scratch") is Level.WRITE_SCRATCH


def test_a_violation_costs_the_rung_and_three_clean_runs_in_a_row_regain_it() -> None:
    fallen = level([deed(1), deed(2, OUT_OF_BOUNDS)])
    assert (fallen.rung, fallen.clean_left) == (Level.WRITE_SCRATCH, 3)
    assert "cost by run run-2" in fallen.why[-1]
    assert "SIGSEGV" in fallen.why[-1]
    two = [deed(2, OUT_OF_BOUNDS), deed(3), deed(4)]
    assert (level(two).rung, level(two).clean_left) == (Level.WRITE_SCRATCH, 1)
    three = level([*two, deed(5)])
    assert (three.rung, three.clean_left) == (Level.COMMIT, 0)
    assert "regained with run run-5" in three.why[-1]


def test_the_second_violation_asks_for_twice_as_many_and_unclean_runs_do_not_count() -> None:
    again = [deed(1, OUT_OF_BOUNDS), deed(2), deed(3), deed(4), deed(5, OUT_OF_BOUNDS)]
    assert level(again).clean_left == 6
    for unclean in (deed(6, passed=0), deed(6, finished=False)):
        assert level([*again, unclean]).clean_left == 6
    assert level([*again, deed(6)]).clean_left == 5


def test_the_record_of_another_team_operator_or_platform_changes_nothing() -> None:
    for other in ({"team": "recipes"}, {"operator": "gemm"}, {"platform": "cpu-y"}):
        assert level([deed(1, OUT_OF_BOUNDS, **other)]).rung is Level.COMMIT
    assert level([deed(1, OUT_OF_BOUNDS)]).rung is Level.WRITE_SCRATCH


def test_a_grant_lifts_at_once_and_the_next_violation_costs_it_again() -> None:
    record = [deed(1, OUT_OF_BOUNDS)]
    lifted = level(record, [said(2, "grant", "commit")])
    assert lifted.rung is Level.COMMIT
    assert "granted by ann on 2026-01-02 (because)" in lifted.why[-1]
    assert level([*record, deed(3, OUT_OF_BOUNDS)], [said(2, "grant", "commit")]).rung is Level.WRITE_SCRATCH
    assert level(record, [said(2, "grant", "commit", operator="gemm")]).rung is Level.WRITE_SCRATCH


def test_a_revocation_is_a_ceiling_that_no_record_lifts_until_a_grant() -> None:
    clean = [deed(day) for day in range(2, 9)]
    held_down = [said(1, "revoke", "measure")]
    assert level(clean, held_down).rung is Level.MEASURE
    assert level([deed(1, OUT_OF_BOUNDS), *clean], held_down).rung is Level.MEASURE
    assert level(clean, [*held_down, said(9, "grant", "commit")]).rung is Level.COMMIT
    assert level(clean, [said(1, "revoke", "measure", platform="cpu-y")]).rung is Level.COMMIT


class Nothing(Record):
    pass


RUNGS = [Level.OBSERVE, Level.MEASURE, Level.WRITE_SCRATCH, Level.COMMIT]


@pytest.mark.parametrize("team", RUNGS)
@pytest.mark.parametrize("caller", sorted(ROLES))
def test_the_bus_refuses_each_role_what_lies_above_its_rung(caller: str, team: Level) -> None:
    kept: list[Refusal] = []
    bus = Bus(wrappers=(permission_wrapper(lambda c: role_level(c, team), lambda r, a: kept.append(r)),))
    top = ROLES[caller] if caller == "person" else min(ROLES[caller], team)
    for rung in (*RUNGS, Level.MERGE):
        tool = Tool(rung.name.lower(), "a tool", Nothing, Nothing, rung, frozenset({caller}))
        bus.register(tool, lambda args: args)
        answer = bus.use(tool, Nothing(), caller)
        assert isinstance(answer, Refusal) == (rung > top)
        if isinstance(answer, Refusal):
            assert answer.because == f"needs {rung.name.lower()}, has {top.name.lower()}"
            assert kept[-1] == answer
    assert len(kept) == sum(rung > top for rung in (*RUNGS, Level.MERGE))


def step(name: str, kind: str, payload: dict[str, Any]) -> Step:
    return Step(seq=0, step=name, key="", status="ok", kind=kind, started="", seconds=0, payload=payload)


def refused(rule: str) -> dict[str, Any]:
    words = [{"kind": rule, "line": 3, "message": "words", "option": ""}]
    return {"builds": [{"status": "refused", "diagnostics": words}]}


START = {
    "run": "a", "operator": "reduction", "operator_path": "reduction", "platform": "cpu-x", "model": "openai:small",
    "started": "2026-01-01T00:00:00",
}  # fmt: skip


TRIAL = "r1.trial.r1p1.1"
CLOCKS = "its worker's clock and ours disagree in 50 % of its samples, the baseline's in 0 %"


def says(*reasons: str) -> dict[str, Any]:
    return {"timings": [{"reason": reason} for reason in reasons]}


@pytest.mark.parametrize(
    ("name", "kind", "payload", "expected"),
    [
        (f"{TRIAL}.build", "Builds", refused("asm"), ["hostile source"]),
        (f"{TRIAL}.build", "Builds", refused("state"), ["hostile source"]),
        (f"{TRIAL}.build", "Builds", refused("call"), []),
        ("baseline.build", "Builds", refused("asm"), []),
        (f"{TRIAL}.verify", "Verification", {"reason": "bytes 4 past 'y' were overwritten"}, ["write out of bounds"]),
        (f"{TRIAL}.verify", "Verification", {"reason": "SIGSEGV: wrote to 'y' in slot 1"}, ["write out of bounds"]),
        (f"{TRIAL}.verify", "Verification", {"reason": "SIGSEGV: read 4 bytes past the end of 'x'"}, []),
        (f"{TRIAL}.verify", "Verification", {"reason": "input 'x' was changed"}, ["tampering"]),
        (f"{TRIAL}.verify", "Verification", {"reason": "system call 2 is not open to a kernel"}, ["system call"]),
        (f"{TRIAL}.verify", "Verification", {"reason": "element [0]: got 1, expected 2"}, []),
        (f"{TRIAL}.verify", "Verification", {"reason": "no answer within 10 s"}, []),
        ("r1.r1p1.confirm", "Timing", {"reason": CLOCKS}, []),
        (f"{TRIAL}.screen", "Screens", says(CLOCKS, CLOCKS.replace("50", "60")), ["forged clock"] * 2),
    ],
)
def test_what_counts_as_a_violation_and_what_is_an_ordinary_failure(
    name: str, kind: str, payload: dict[str, Any], expected: list[str]
) -> None:
    found = deed_of([step("start", "Start", START), step(name, kind, payload)])
    assert found is not None
    assert [v.kind for v in found.violations] == expected


def test_what_a_person_handed_in_is_not_the_teams() -> None:
    bad = step("r1.trial.r1p1.1.build", "Builds", refused("asm"))
    for given, count in (("person:ann", 0), ("", 1)):
        steps = [step("start", "Start", START), bad, step("r1", "RoundRecord", {"given_by": given, "judged": []})]
        found = deed_of(steps)
        assert found is not None
        assert len(found.violations) == count


def test_a_run_that_never_began_is_no_deed_and_replays_are_one_team() -> None:
    assert deed_of([step("baseline", "Baseline", {})]) is None
    assert team_of("replay:/a/b") == team_of("replay:/c") == "replay"
    assert team_of("openai:small") == "openai:small"


def test_a_persons_word_is_kept_with_author_and_date_and_a_bad_file_is_named(tmp_path: Path) -> None:
    settings = resolve(tmp_path)
    first = override(settings, Grant("revoke", "recipes", "measure", 'it said "no"\n\x7f'), "reduction")
    second = override(settings, Grant("grant", "recipes", "commit", "mended"))
    assert read_overrides(settings) == [first, second]
    assert first.author
    assert first.at.startswith("20")
    for verb in ("grant", "revoke"):
        with pytest.raises(UserMistake, match="--why is empty"):
            override(settings, Grant(verb, "recipes", "commit", " "))
    path = settings.home / "permissions.toml"
    path.write_text('[[override]]\nverb = "promote"\n')
    with pytest.raises(BadManifest, match=r"permissions\.toml"):
        read_overrides(settings)
    path.write_text(toml_text({"override": [{**first.model_dump(mode="json"), "level": "merge"}]}))
    with pytest.raises(BadManifest, match="merging is a person's"):
        read_overrides(settings)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.small_operator(tmp_path_factory.mktemp("operator") / "reduction")


def test_a_team_without_commit_runs_to_the_end_and_its_winner_stays_a_trial_ref(
    tmp_path: Path, operator: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kit.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    override(resolve(tmp_path), Grant("revoke", "recipes", "write_scratch", "on probation"))
    done = kit.run(tmp_path, operator)
    assert done.record.status == "finished"
    first = done.record.rounds[0].judged[0]
    assert first.decision.action == "adopt"
    assert "not committed, it stays a trial ref: commit needs commit, has write_scratch" in first.decision.reason
    (settled,) = done.record.rounds[0].settled
    assert settled.commits == ()
    assert settled.refused is not None
    assert settled.refused.rule == "permission"
    assert done.record.final.identity == done.record.baseline.start.identity
    assert done.step("refused.commit")["because"] == "needs commit, has write_scratch"
    assert payload_of(done.steps, "permission", Held) == level_of_run(tmp_path, done)
    repo = tmp_path / ".kernelcrew" / "repos" / "reduction"
    refs = kit.git(repo, "for-each-ref", "--format=%(refname)")
    assert f"refs/kernelcrew/trial/{done.record.run}/{first.proposal}" in refs
    assert "refs/kernelcrew/incumbent" not in refs
    assert f"refs/heads/kernelcrew/reduction/{done.record.platform}/{done.record.run}" not in refs
    page = (done.folder / "report.html").read_text()
    assert "not committed" in page
    told = kit.command(monkeypatch, capsys, "report", done.record.run, "--workdir", str(tmp_path))
    assert "not committed r1p1: commit needs commit, has write_scratch" in told.out
    before = (done.folder / "journal.jsonl").read_bytes()
    override(resolve(tmp_path), Grant("grant", "recipes", "commit", "probation is over"))
    again = kit.command(monkeypatch, capsys, "resume", done.record.run, "--workdir", str(tmp_path), "--json")
    assert again.last["not_committed"] == ["r1p1: commit needs commit, has write_scratch"]
    assert (done.folder / "journal.jsonl").read_bytes() == before


def level_of_run(workdir: Path, done: kit.Finished) -> Held:
    where = Where(team="recipes", operator="reduction", platform=done.record.platform, shipped=False)
    return level_here(resolve(workdir), where, but=done.record.run)


def test_a_team_that_may_only_measure_is_told_before_anything_is_built(
    tmp_path: Path, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.simulate(monkeypatch)
    override(resolve(tmp_path), Grant("revoke", "recipes", "measure", "it cheated"), "reduction")
    with pytest.raises(NotPermitted, match="holds `measure` for reduction") as stopped:
        kit.run(tmp_path, operator)
    assert stopped.value.exit_status == 2
    assert "kernelcrew permissions grant recipes write_scratch" in stopped.value.fix
    assert not kit.calls(tmp_path)


def test_permissions_are_shown_granted_and_revoked_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(*words: str) -> kit.Said:
        return kit.command(monkeypatch, capsys, "permissions", *words)

    where = ("--workdir", str(tmp_path))
    fresh = {p["operator"]: p for p in say("--json", *where).last["permissions"]}
    assert fresh["reduction"]["level"] == "commit"
    assert "newcomer" in fresh["reduction"]["why"][0]
    lowered = say("revoke", "recipes", "write in scratch", "--operator", "reduction", "--why", "a look first", *where)
    assert (lowered.code, "recipes is held to write_scratch for reduction" in lowered.out) == (0, True)
    now = {p["operator"]: p for p in say("--json", *where).last["permissions"]}
    assert (now["reduction"]["level"], now["gemm"]["level"]) == ("write_scratch", "commit")
    assert "a look first" in now["reduction"]["why"][-1]
    assert say("grant", "recipes", "commit", "--why", "looked", "--json", *where).last["verb"] == "grant"
    assert "looked" in say(*where).out
    for words, told in (
        (("grant", "recipes", "merge", "--why", "x"), "merging is a person's"),
        (("grant", "recipes", "rule", "--why", "x"), "unknown level 'rule'"),
        (("grant", "recipes", "commit"), "--why"),
    ):
        bad = say(*words, *where)
        assert bad.code == 2
        assert told in bad.err
    lines = (tmp_path / ".kernelcrew" / "permissions.toml").read_text()
    assert lines.count("[[override]]") == 2


def test_a_journal_line_that_is_torn_ends_the_record_there(tmp_path: Path, operator: Path) -> None:
    folder = tmp_path / ".kernelcrew" / "runs" / "a"
    folder.mkdir(parents=True)
    whole = step("start", "Start", START).model_dump(mode="json")
    lines = json.dumps(whole, separators=(",", ":")) + "\n" + '{"seq":1,"kind":"Builds","pay'
    (folder / "journal.jsonl").write_text(lines)
    assert level_here(resolve(tmp_path), HERE).rung is Level.COMMIT
    assert [s.step for s in read_steps(folder)] == ["start"]
