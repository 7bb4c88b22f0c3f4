"""The command line: what each command prints and how it ends, on one small run with a simulated clock."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import flow_kit as kit
import pytest

from kernelcrew.kernels.load import load_operator
from kernelcrew.runs import doctor
from kernelcrew.runs.extending import ended
from kernelcrew.runs.journal import read_steps
from kernelcrew.runs.vcs import lock_file
from kernelcrew.settings import resolve
from kernelcrew.version import VERSION


@dataclass(frozen=True)
class Work:
    folder: Path
    operator: Path
    run: kit.Finished


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("cli")
    operator = kit.small_operator(folder / "reduction")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder)
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        return Work(folder, operator, kit.run(folder, operator))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> kit.Say:
    kit.simulate(monkeypatch)
    return lambda *words: kit.command(monkeypatch, capsys, *words)


def test_query_answers_with_what_each_answer_rests_on(work: Work, say: kit.Say) -> None:
    words = ("query", "why do rows side by side help short rows", "--workdir", str(work.folder))
    found = say(*words, "--operator", "reduction", "-n", "3", "--json")
    assert found.code == 0
    assert 1 <= len(found.last["answers"]) <= 3
    assert found.last["note"] == ""
    kinds = [(a["entry"]["mechanism"], a["entry"]["platform"]) for a in found.last["answers"]]
    assert len(set(kinds)) == len(kinds)
    best = next(a["entry"] for a in found.last["answers"] if a["entry"]["mechanism"] == "rows_together")
    assert best["run"] == work.run.record.run
    assert best["commit"] == work.run.record.rounds[0].settled[0].commits[-1]
    assert best["decision"] == "adopt"
    assert best["classes"]["short"] > 2
    assert best["evidence"]
    told = say(*words)
    assert told.code == 0
    for part in (work.run.record.run, best["commit"][:12], "rows_together: adopt", "measured"):
        assert part in told.out


def test_query_of_an_empty_store_says_what_fills_it(tmp_path: Path, say: kit.Say) -> None:
    found = say("query", "why", "--workdir", str(tmp_path))
    assert found.code == 0
    assert "has nothing on this yet" in found.out
    assert "kernelcrew run reduction" in found.out
    asked = say("query", "why", "--workdir", str(tmp_path), "--json").last
    assert asked["answers"] == []
    assert "kernelcrew run reduction" in asked["note"]
    assert list(tmp_path.iterdir()) == []


def test_query_of_another_platform_finds_nothing_and_any_finds_all(work: Work, say: kit.Say) -> None:
    listed = say("platforms", "--workdir", str(work.folder), "--json").last
    other = next(p["id"] for p in listed if p["id"] != work.run.record.platform)
    words = ("query", "short rows", "--workdir", str(work.folder), "--json", "--platform")
    there = say(*words, other).last
    assert there["answers"] == []
    assert f"nothing is kept for platform {other}" in there["note"]
    assert "--platform any" in there["note"]
    everywhere = say(*words, "any").last["answers"]
    assert everywhere
    assert all(a["proven_here"] for a in everywhere)


def test_report_writes_the_file_anew_and_shows_the_table(work: Work, say: kit.Say) -> None:
    path = Path(work.run.record.report)
    path.unlink()
    told = say("report", work.run.record.run, "--workdir", str(work.folder))
    assert told.code == 0
    assert path.stat().st_size > 10_000
    assert "adopt" in told.out
    assert str(path) in told.out.replace("\n", "")
    assert say("report", work.run.record.run, "--workdir", str(work.folder), "--json").last["report"] == str(path)


def test_the_table_tells_what_became_of_each_change(work: Work, say: kit.Say) -> None:
    told = say("report", work.run.record.run, "--workdir", str(work.folder)).out
    for word in ("vector_accumulators", "(small_tail)", "inconclusive", "started from", "stopped", "1 rounds done"):
        assert word in told
    assert re.search(r"long\s+│ 15\.\d\dx \[15\.\d\d, 1[56]\.\d\d\]", told)


@pytest.mark.parametrize("upto", ["start", "baseline.noise", "baseline", "r1.write.r1p1.1", "r1.r1p1.confirm", "r1"])
def test_report_of_an_unfinished_run_tells_as_far_as_it_got(
    work: Work, say: kit.Say, tmp_path: Path, upto: str
) -> None:
    name = work.run.record.run
    folder = tmp_path / ".kernelcrew" / "runs" / name
    folder.mkdir(parents=True)
    lines = (work.run.folder / "journal.jsonl").read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if json.loads(line)["step"] == upto)
    (folder / "journal.jsonl").write_text("".join(lines[: last + 1]) + lines[last + 1][:30])
    told = say("report", name, "--workdir", str(tmp_path))
    assert told.code == 0
    assert f"kernelcrew resume {name}" in told.out
    text = (folder / "report.html").read_text()
    assert "unfinished" in text
    assert len(read_steps(folder)) == last + 1
    assert say("report", name, "--workdir", str(tmp_path), "--json").last["status"] == "unfinished"


def test_resume_of_a_finished_run_shows_its_result_again(work: Work, say: kit.Say) -> None:
    before = (work.run.folder / "journal.jsonl").read_bytes()
    said = say("resume", work.run.record.run, "--workdir", str(work.folder), "--json")
    assert said.code == 0
    assert said.err.startswith(f"run {work.run.record.run} is already finished: 1 rounds done\n")
    more = say("resume", "last", "--budget-min", "30", "--workdir", str(work.folder))
    assert "more time would change nothing" in more.err
    assert said.last["decisions"][0]["decision"] == "adopt"
    assert (work.run.folder / "journal.jsonl").read_bytes() == before


def unfinished(work: Work, into: Path, upto: str = "baseline") -> str:
    """The run as it was when it was killed after a step, in a working directory of its own; gives its id."""
    name = work.run.record.run
    folder = into / ".kernelcrew" / "runs" / name
    folder.mkdir(parents=True)
    lines = (work.run.folder / "journal.jsonl").read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if json.loads(line)["step"] == upto)
    (folder / "journal.jsonl").write_text("".join(lines[: last + 1]))
    for part in ("simulated", "repos"):
        shutil.copytree(work.folder / ".kernelcrew" / part, into / ".kernelcrew" / part)
    repo = next((into / ".kernelcrew" / "repos").glob("*/HEAD")).parent
    for ref in kit.git(repo, "for-each-ref", "--format=%(refname)").split():
        if name in ref or "/incumbent/" in ref:
            kit.git(repo, "update-ref", "-d", ref)
    return name


def test_a_run_in_use_by_another_process_is_busy(work: Work, say: kit.Say, tmp_path: Path) -> None:
    from kernelcrew.runs.locks import hold

    name = unfinished(work, tmp_path)
    release = hold(lock_file(resolve(tmp_path), load_operator(str(work.operator))), "the repository")
    try:
        said = say("resume", name, "--workdir", str(tmp_path))
    finally:
        release()
    assert said.code == 1
    assert "in use by another kernelcrew" in said.err


def stopped_for_want_of_time(work: Work, into: Path) -> str:
    """The run as if its budget had ended before its first round; gives its id."""
    name = unfinished(work, into)
    path = into / ".kernelcrew" / "runs" / name / "journal.jsonl"
    end = json.loads((work.run.folder / "journal.jsonl").read_text().splitlines()[-1])
    assert end["step"] == "end"
    end["key"] = "of a run without rounds"
    end["payload"] |= {"rounds": [], "stop_reason": "0 s of the budget left, a round needs 30 s"}
    end["payload"]["final"] = end["payload"]["baseline"]["start"]
    with path.open("a") as handle:
        handle.write(json.dumps(end) + "\n")
    return name


def test_a_run_that_ran_out_of_time_goes_on_with_more(work: Work, say: kit.Say, tmp_path: Path) -> None:
    name = stopped_for_want_of_time(work, tmp_path)
    kit.share_builds(work.folder.parent, tmp_path)
    path = tmp_path / ".kernelcrew" / "runs" / name / "journal.jsonl"
    before = path.read_bytes()
    plain = say("resume", name, "--workdir", str(tmp_path), "--json")
    assert plain.last["decisions"] == []
    assert f"kernelcrew resume {name} --budget-min N gives it more time" in plain.err
    spent = say("resume", name, "--budget-min", "0.001", "--workdir", str(tmp_path))
    assert spent.code == 2
    assert "is spent" in spent.err
    assert path.read_bytes() == before
    more = say("resume", name, "--budget-min", "30", "--workdir", str(tmp_path), "--json")
    assert more.last["decisions"]
    assert more.last["stop_reason"] == "1 rounds done"
    steps = read_steps(path.parent)
    assert [s.payload for s in steps if s.step == "extended.1"] == [{"budget_min": 30.0}]
    assert ended(steps) is not None
    assert "already finished: 1 rounds done" in say("resume", name, "--workdir", str(tmp_path)).err


def test_runs_are_listed_newest_first_with_how_each_came_out(work: Work, say: kit.Say, tmp_path: Path) -> None:
    listed = say("runs", "--workdir", str(work.folder), "--json").last["runs"]
    assert [r["run"] for r in listed] == [work.run.record.run]
    assert (listed[0]["operator"], listed[0]["status"]) == ("reduction", "finished")
    assert listed[0]["outcome"].startswith("adopted ")
    assert say("runs", "--operator", "gemm", "--workdir", str(work.folder), "--json").last["runs"] == []
    name = unfinished(work, tmp_path)
    (tmp_path / ".kernelcrew" / "runs" / "broken").mkdir()
    (tmp_path / ".kernelcrew" / "runs" / "broken" / "journal.jsonl").write_text("{}\n{}\n")
    rows = say("runs", "--workdir", str(tmp_path), "--json").last["runs"]
    assert [(r["run"], r["status"]) for r in rows] == [(name, "unfinished"), ("broken", "unreadable")]
    assert f"kernelcrew resume {name}" in rows[0]["outcome"]
    assert "no runs here yet: kernelcrew run reduction" in say("runs", "--workdir", str(tmp_path.parent)).out


def test_operators_platforms_and_version(say: kit.Say, tmp_path: Path) -> None:
    assert "reduction" in [o["name"] for o in say("operators", "--json").last]
    assert "reduction" in say("operators").out
    platforms = say("platforms", "--workdir", str(tmp_path), "--json").last
    assert sum(p["here"] for p in platforms) == 1
    assert "this machine" in say("platforms", "--workdir", str(tmp_path)).out
    assert say("--version").out == f"kernelcrew {VERSION}\n"


def test_doctor_tells_what_is_here_and_what_is_missing(
    say: kit.Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {f["what"]: f for f in say("doctor", "--workdir", str(tmp_path), "--json").last}
    for what in ("Python", "C compiler", "git", "platform", "working directory"):
        assert found[what]["state"] == "ok", found[what]
    assert all(f["means"] for f in found.values())
    monkeypatch.setenv("KERNELCREW_CC", "/nonexistent/gcc")
    monkeypatch.setattr(doctor, "shutil", SimpleNamespace(which=lambda name: None, disk_usage=shutil.disk_usage))
    without = say("doctor", "--workdir", str(tmp_path), "--json")
    assert without.code == 0
    missing = {f["what"]: f for f in without.last}
    assert missing["C compiler"]["state"] == missing["platform"]["state"] == "missing"
    assert "apt-get install gcc" in missing["C compiler"]["means"]
    assert missing["valgrind"]["state"] == "limited"


def test_memory_can_be_rebuilt_from_the_journals(work: Work, say: kit.Say, tmp_path: Path) -> None:
    runs = tmp_path / ".kernelcrew" / "runs"
    runs.parent.mkdir()
    runs.symlink_to(work.run.folder.parent)
    said = say("memory", "rebuild", "--workdir", str(tmp_path), "--json")
    judged = work.run.record.rounds[0].judged
    assert said.last == {"tried": len(judged), "rationale": sum(len(j.changes) for j in judged)}
    there = say("query", "short rows", "--workdir", str(tmp_path), "--json").last["answers"]
    here = say("query", "short rows", "--workdir", str(work.folder), "--json").last["answers"]
    assert [a["entry"]["id"] for a in there] == [a["entry"]["id"] for a in here]
    moved = tmp_path / "out.jsonl"
    assert say("memory", "export", str(moved), "--workdir", str(tmp_path)).code == 0
    other = tmp_path / "other"
    other.mkdir()
    assert say("memory", "import", str(moved), "--workdir", str(other)).code == 0
    assert say("query", "short rows", "--workdir", str(other), "--json").last["answers"]
