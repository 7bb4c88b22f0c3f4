"""The lock of a run: what it holds, what a difference means, and a run repeated from it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import flow_kit as kit
import model_server
import pytest

from kernelcrew.errors import BadManifest, UserMistake
from kernelcrew.event import silent
from kernelcrew.kernels.load import load_operator
from kernelcrew.record import Record
from kernelcrew.runs import locking
from kernelcrew.runs.deeds import level_here
from kernelcrew.runs.journal import payload_of
from kernelcrew.runs.lockfile import compare, read_lock, verify_lock, write_lock
from kernelcrew.runs.nouns import Lock, RunRecord, Start, Step
from kernelcrew.runs.permissions import Held, Where
from kernelcrew.runs.queue import Submission, Taken, waiting
from kernelcrew.runs.reproduce import _seed, decision_rows, overall, ratio_rows, reproduce
from kernelcrew.runs.toml_text import toml_text
from kernelcrew.settings import resolve
from kernelcrew.tools.nouns import ClassTiming, Timing


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> kit.Finished:
    """A run on `reduction`, an operator folder of its own in its working directory."""
    folder = tmp_path_factory.mktemp("lock")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder)
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        return kit.run(folder, kit.small_operator(folder / "reduction"))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> kit.Say:
    kit.simulate(monkeypatch)
    return lambda *words: kit.command(monkeypatch, capsys, *words)


def home(work: kit.Finished) -> Path:
    return work.folder.parents[2]


def lock_of(work: kit.Finished) -> Lock:
    start = payload_of(work.steps, "start", Start)
    assert start is not None
    return start.lock


def test_the_lock_file_holds_what_must_be_equal_and_the_seeds_that_were_drawn(work: kit.Finished) -> None:
    held = tomllib.loads((work.folder / "run.lock.toml").read_text())
    lock = held["lock"]
    assert set(lock["packages"]) >= {"autogen-agentchat", "chromadb", "numpy", "openai", "pydantic", "onnxruntime"}
    assert set(lock["prompts"]) >= {"profiler_reader", "proposer", "patch_writer", "skeptic"}
    for name in ("tools.verify", "tools.timing", "runs.decision", "kernels.recipes.rows", "agents.experts.proposer"):
        assert len(lock["code"][f"kernelcrew.{name}"]) == 16
    for name in ("operator_hash", "baseline", "reference", "worker", "python", "sandbox", "model"):
        assert lock[name]
    assert lock["machine"]["toolchain"]["version"]
    assert held["run"]["run"] == work.record.run
    drawn = held["seeds"]["inputs"]["baseline.verify"]
    assert len(drawn) == work.record.baseline.verification.seeds_run
    assert read_lock(work.folder).baseline == lock_of(work).baseline


def test_a_lock_that_is_as_it_was_shows_no_difference(work: kit.Finished) -> None:
    lock = lock_of(work)
    assert compare(lock, lock) == []
    assert compare(lock, read_lock(work.folder)) == []


@pytest.mark.parametrize(
    ("change", "name", "answers"),
    [
        ({"baseline": "other"}, "baseline", True),
        ({"reference": "other"}, "reference", True),
        ({"operator_hash": "other"}, "operator_hash", True),
        ({"python": "4.0.0"}, "python", False),
        ({"sandbox": "rlimits"}, "sandbox", False),
        ({"kernelcrew": "99"}, "kernelcrew", False),
        ({"packages": {"numpy": "0"}}, "packages.numpy", True),
        ({"packages": {"rich": "0"}}, "packages.rich", False),
        ({"packages": {"autogen-core": "0"}}, "packages.autogen-core", False),
        ({"prompts": {"skeptic": "0"}}, "prompts.skeptic", False),
        ({"code": {"kernelcrew.tools.verify": "0"}}, "code.kernelcrew.tools.verify", True),
        ({"code": {"kernelcrew.runs.report": "0"}}, "code.kernelcrew.runs.report", False),
        ({"machine": {"toolchain": {"version": "99"}}}, "machine.toolchain.version", True),
        ({"machine": {"toolchain": {"path": "/opt/gcc"}}}, "machine.toolchain.path", False),
        ({"machine": {"fingerprint": {"kernel": "99"}}}, "machine.fingerprint.kernel", False),
        ({"machine": {"platform": {"id": "cpu-vax"}}}, "machine.platform.id", True),
    ],
)
def test_each_difference_says_whether_it_changes_answers(
    work: kit.Finished, change: dict[str, Any], name: str, answers: bool
) -> None:
    lock = lock_of(work)
    (found,) = compare(lock, Lock.model_validate(merged(lock.model_dump(mode="json"), change)))
    assert (found.name, found.changes_answers) == (name, answers)
    assert found.means


def test_prompts_change_the_answers_of_a_language_model_alone(work: kit.Finished) -> None:
    asked = lock_of(work).model_copy(update={"model": "openai:small"})
    other = asked.model_copy(update={"prompts": {**asked.prompts, "skeptic": "0"}})
    assert [d.changes_answers for d in compare(asked, other)] == [True]
    plain = other.model_copy(update={"model": "recipes"})
    assert [d.changes_answers for d in compare(plain, lock_of(work))] == [False]


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {
        **old, **{k: merged(old[k], v) if isinstance(v, dict) and isinstance(old.get(k), dict) else v
                  for k, v in new.items()},
    }  # fmt: skip


def test_lock_verify_ends_with_0_when_all_is_as_it_was_and_with_1_when_answers_change(
    work: kit.Finished, say: kit.Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("lock", "verify", work.record.run, "--workdir", str(home(work)))
    monkeypatch.setattr(locking, "code_hashes", lambda: lock_of(work).code)
    same = say(*words, "--json")
    assert (same.code, same.last["same"], same.last["differences"]) == (0, True, [])
    assert "all is as it was" in say(*words).out
    monkeypatch.setattr(locking, "code_hashes", lambda: {**lock_of(work).code, "kernelcrew.runs.report": "0"})
    display = say(*words, "--json")
    assert (display.code, [d["name"] for d in display.last["differences"]]) == (0, ["code.kernelcrew.runs.report"])
    monkeypatch.setattr(locking, "code_hashes", lambda: {**lock_of(work).code, "kernelcrew.tools.verify": "0"})
    edited = say(*words, "--json")
    assert (edited.code, edited.last["same"]) == (1, False)
    assert "how candidates are built, verified or timed was edited" in edited.last["differences"][0]["means"]
    assert say("lock", "verify", "nothing", "--workdir", str(home(work))).code == 2


def test_an_edited_lock_file_is_told_and_a_broken_one_is_named(
    work: kit.Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "code_hashes", lambda: lock_of(work).code)
    folder = tmp_path / work.record.run
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes((work.folder / "journal.jsonl").read_bytes())
    settings = resolve(home(work))
    assert verify_lock(settings, folder).same
    path = write_lock(folder)
    assert verify_lock(settings, folder).same
    path.write_text(path.read_text().replace(lock_of(work).baseline, "f" * 16))
    found = verify_lock(settings, folder)
    assert not found.same
    assert any("was edited: the journal says otherwise" in d.means for d in found.differences)
    path.write_text("[lock\n")
    with pytest.raises(BadManifest, match=r"run\.lock\.toml"):
        verify_lock(settings, folder)


def test_toml_text_is_read_back_as_it_was() -> None:
    value = {
        "a": 'quote " \\ \n\t\x7fé', "b": [1, 2.5, True, "x"], "c": {"d e": {"f": 1e-7}, "g": []}, "h": {},
        "rows": [{"k": 1, "in": {"x": "y"}}, {"k": 2}],
    }  # fmt: skip
    assert tomllib.loads(toml_text(value)) == value
    assert tomllib.loads(toml_text({"none": None})) == {}


def test_a_run_of_the_rule_based_expert_is_reproduced(work: kit.Finished, say: kit.Say) -> None:
    before = sorted(p.name for p in (home(work) / ".kernelcrew").iterdir())
    journal = (work.folder / "journal.jsonl").read_bytes()
    found = say("lock", "reproduce", work.record.run, "--workdir", str(home(work)), "--json")
    assert found.code == 0, found.err
    assert found.last["outcome"] == "same", found.last["rows"]
    rows = {r["what"]: r for r in found.last["rows"]}
    adopted = work.record.rounds[0].settled[0].candidate
    assert adopted is not None
    for change in adopted.changes:
        assert rows[f"change {change}"]["outcome"] == "same"
        assert rows[f"change {change}"]["now"].startswith("adopted: faster")
    assert {rows[f"{c} over start"]["outcome"] for c in ("main", "short", "long", "tail")} == {"same"}
    assert Path(found.last["folder"]).is_relative_to(home(work) / ".kernelcrew" / "reproduced")
    assert (work.folder / "journal.jsonl").read_bytes() == journal
    assert sorted({*before, "reproduced"}) == sorted(p.name for p in (home(work) / ".kernelcrew").iterdir())


def test_a_run_of_a_language_model_is_replayed_without_its_server_and_from_its_incumbent(
    work: kit.Finished, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    operator = kit.small_operator(tmp_path / "reduction")
    with model_server.serve_recipes() as url:
        first = kit.run(tmp_path, operator, model="openai:expert", base_url=url)
        second = kit.run(tmp_path, operator, model="openai:expert", base_url=url)
    assert second.record.baseline.incumbent.identity == first.record.final.identity
    found = reproduce(resolve(tmp_path), second.folder, 10.0, silent)
    assert found.outcome != "differs", found.rows
    kept = kit.read_steps(Path(found.folder))
    end = payload_of(kept, "end", RunRecord)
    start = payload_of(kept, "start", Start)
    assert end is not None and start is not None
    assert end.baseline.incumbent.identity == first.record.final.identity
    assert start.model == f"replay:{second.folder}"


def test_a_repetition_begins_with_the_teams_level_and_with_what_people_handed_in(
    work: kit.Finished, tmp_path: Path
) -> None:
    held = payload_of(work.steps, "permission", Held)
    assert held is not None
    handed = Submission(
        id="1", operator="reduction", backend="c", author="person:ann", why="a reason", diff="", groups=(),
        expects=work.record.rounds[0].judged[0].trial.proposal.changes[0].expects, submitted="2026-01-01",
    )  # fmt: skip
    more = [
        made(work.steps[0], "permission", held.model_copy(update={"level": "write_scratch"})),
        made(work.steps[0], "r1.queue", Taken(submission=handed)),
        made(work.steps[0], "r2.queue", Taken(submission=None)),
    ]
    operator = load_operator(str(home(work) / "reduction"))
    cases = ((work.steps, "commit", 0), ([*work.steps, *more], "write_scratch", 1))
    for number, (steps, level, queue) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        scratch = resolve(tmp_path / str(number))
        _seed(scratch, operator, work.record, steps)
        where = Where(team="recipes", operator="reduction", platform=work.record.platform, shipped=False)
        assert level_here(scratch, where).level == level
        assert len(waiting(scratch, "reduction", "c")) == queue


def made(like: Step, name: str, payload: Record) -> Step:
    changes = {"step": name, "kind": type(payload).__name__, "payload": payload.model_dump(mode="json")}
    return like.model_copy(update=changes)


def test_a_run_that_is_unfinished_or_whose_operator_changed_is_not_repeated(
    work: kit.Finished, tmp_path: Path
) -> None:
    settings = resolve(home(work))
    folder = tmp_path / "half"
    folder.mkdir()
    lines = (work.folder / "journal.jsonl").read_text().splitlines(keepends=True)
    (folder / "journal.jsonl").write_text("".join(lines[:5]))
    with pytest.raises(UserMistake, match="is unfinished"):
        reproduce(settings, folder, 1.0, silent)
    source = home(work) / "reduction" / "start.c"
    text = source.read_text()
    try:
        source.write_text(text.replace("s += p[i];", "s = s + p[i];"))
        with pytest.raises(UserMistake, match="baseline is not as run"):
            reproduce(settings, work.folder, 1.0, silent)
    finally:
        source.write_text(text)


def test_a_change_that_came_out_otherwise_differs_and_one_left_open_cannot_be_compared(work: kit.Finished) -> None:
    was = work.record
    assert overall((*decision_rows(was, was), *ratio_rows(was, was))) == "same"
    rolled = redecided(was, "rollback")
    rows = {r.what: r.outcome for r in decision_rows(was, rolled)}
    best = was.rounds[0].judged[0]
    assert best.trial.candidate is not None
    assert {rows[f"change {c}"] for c in best.trial.candidate.changes} == {"differs"}
    assert overall(decision_rows(was, rolled)) == "differs"
    left_open = {r.outcome for r in decision_rows(was, redecided(was, "inconclusive"))}
    assert left_open == {"not comparable"}
    gone = was.model_copy(update={"rounds": ()})
    assert "not proposed" in {r.now for r in decision_rows(was, gone)}


def test_ratios_agree_when_their_intervals_meet(work: kit.Finished) -> None:
    was = work.record
    for factor, outcome in ((1.001, "same"), (1.5, "differs")):
        assert {r.outcome for r in ratio_rows(was, faster(was, factor))} == {outcome}
    elsewhere = was.model_copy(update={"platform": "cpu-vax"})
    assert {r.outcome for r in ratio_rows(was, elsewhere)} == {"not comparable"}
    unmeasured = was.model_copy(update={"final_over_start": None})
    assert {(r.outcome, r.now) for r in ratio_rows(was, unmeasured)} == {("not comparable", "not measured")}


def redecided(record: RunRecord, action: str) -> RunRecord:
    rounds = []
    for one in record.rounds:
        decided = [(j, j.decision.model_copy(update={"action": action})) for j in one.judged]
        judged = tuple(j.model_copy(update={"decision": decision}) for j, decision in decided)
        rounds.append(one.model_copy(update={"judged": judged}))
    return record.model_copy(update={"rounds": tuple(rounds)})


def faster(record: RunRecord, factor: float) -> RunRecord:
    timing = record.final_over_start
    assert isinstance(timing, Timing)

    def moved(c: ClassTiming) -> ClassTiming:
        return c.model_copy(update={"ratio": c.ratio * factor, "low": c.low * factor, "high": c.high * factor})

    changed = timing.model_copy(update={"classes": tuple(moved(c) for c in timing.classes)})
    return record.model_copy(update={"final_over_start": changed})
