"""A run killed with SIGKILL at each of its steps goes on where it was: nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.memory.embed import choose
from kernelcrew.memory.store import Memory
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import RunRecord, Step

AFTER = (
    "start", "baseline.build", "baseline.verify", "baseline.noise", "baseline.profile", "baseline", "r1.read",
    "r1.propose", "r1.write.r1p1.1", "r1.trial.r1p1.1.build", "r1.trial.r1p1.1.screen", "r1.tune.r1p1.1.screen",
    "r1.ablate.r1p1.screen", "r1.r1p1.confirm", "r1.review.r1p1", "r1.more_tests.r1p1", "trial_ref.r1p2",
    "r1.settle.r1p1", "r1.remember", "r1", "end",
)  # fmt: skip
"""Every stage, ended once its result is on disk."""
WITHIN = (
    "baseline.incumbent", "baseline.build", "baseline.verify", "baseline.noise", "baseline.flags", "r1.read",
    "r1.propose", "r1.guard", "r1.trial.r1p1.1.build", "r1.trial.r1p2.1.verify", "r1.tune.r1p1.1.build",
    "r1.tune.r1p1.1.screen", "r1.ablate.r1p1.build", "r1.r1p1.confirm", "r1.review_again.r1p1", "r1.settle.r1p1",
    "r1.remember", "r1.profile", "r1", "final.over_incumbent", "end",
)  # fmt: skip
"""Every stage again, ended when its work is done and its line is not, or half, on disk."""
TOOL_STEPS = re.compile(r".*\.(build|verify|noise|profile|flags|screen|confirm|over_incumbent)|.*\.more_tests\..*")

spawning = multiprocessing.get_context("forkserver")
# Imported once, before each sitting is forked off.
IMPORTS = ("pytest", "chromadb", "kernelcrew.runs.cli", "kernelcrew.runs.session", "kernelcrew.runs.report")
spawning.set_forkserver_preload(list(IMPORTS))


@dataclass(frozen=True)
class Setting:
    base: Path
    operator: Path
    workdir: Path
    whole: kit.Finished
    calls: Counter[str]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """The same run without a kill: what the others must come to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    operator = kit.small_operator(folder / "reduction")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        whole = kit.run(folder / "work", operator)
    return Setting(
        tmp_path_factory.getbasetemp(), operator, folder / "work", whole, Counter(kit.calls(folder / "work"))
    )


def sitting(setting: Setting, workdir: Path, name: str, death: kit.Death | None) -> int:
    child = spawning.Process(target=kit.sit, args=(workdir, setting.operator, name, death))
    child.start()
    child.join(120)
    assert child.exitcode is not None, f"{death}: does not end"
    return child.exitcode


def killed_at(setting: Setting, workdir: Path, deaths: list[kit.Death]) -> str:
    """A run that dies at each place in turn and is then played to its end; its id."""
    kit.share_builds(setting.base, workdir)
    name = ""
    for death in deaths:
        assert sitting(setting, workdir, name, death) == -9, death
        name = name or next((workdir / ".kernelcrew" / "runs").iterdir()).name
    assert sitting(setting, workdir, name, None) == 0
    assert left_behind(workdir) == []
    return name


def left_behind(workdir: Path) -> list[str]:
    """Command lines of processes that still have to do with a working directory, some time after their parent died."""
    for _ in range(50):
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [line] if str(workdir) in line else []
        if not found:
            break
        time.sleep(0.1)
    return found


def in_order(setting: Setting, wanted: tuple[str, ...]) -> list[str]:
    """The wanted steps as this run reaches them; all of them are there."""
    found = [s.step for s in setting.whole.steps if s.step in wanted]
    assert sorted(found) == sorted(wanted)
    return found


def outcome(record: RunRecord) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(j.proposal, j.decision.action, j.decision.keep) for r in record.rounds for j in r.judged]


def assert_whole(setting: Setting, workdir: Path, name: str) -> list[Step]:
    """The result is complete and equal to the undisturbed one; nothing is there twice."""
    folder = workdir / ".kernelcrew" / "runs" / name
    steps = read_steps(folder)
    assert [s.step for s in steps] == [s.step for s in setting.whole.steps]
    assert [s.seq for s in steps] == list(range(len(steps)))
    record = payload_of(steps, "end", RunRecord)
    assert record is not None
    assert outcome(record) == outcome(setting.whole.record)
    assert record.final.identity == setting.whole.record.final.identity
    assert "adopt" in {action for _, action, _ in outcome(record)}
    assert (folder / "report.html").stat().st_size > 10_000
    repo = workdir / ".kernelcrew" / "repos" / "reduction"
    kept = record.rounds[0].settled[0]
    assert kit.git(repo, "rev-list", "--count", f"main..{kept.branch}").strip() == str(len(kept.commits))
    assert kit.git(repo, "rev-parse", kept.incumbent_ref).strip() == kept.commits[-1]
    assert len(kit.git(repo, "for-each-ref", "refs/kernelcrew/trial").splitlines()) == len(record.rounds[0].judged)
    with Memory(workdir / ".kernelcrew", choose("lexical")[0]) as memory:
        counts = memory.counts()
    changes = sum(len(j.changes) for j in record.rounds[0].judged)
    assert (counts["tried"], counts["rationale"]) == (len(record.rounds[0].judged), changes)
    return steps


def test_a_kill_after_each_step_repeats_no_step(undisturbed: Setting, tmp_path: Path) -> None:
    deaths = [kit.Death(re.escape(name), "after") for name in in_order(undisturbed, AFTER)]
    name = killed_at(undisturbed, tmp_path, deaths)
    assert_whole(undisturbed, tmp_path, name)
    assert Counter(kit.calls(tmp_path)) == undisturbed.calls


def test_a_kill_within_each_step_repeats_that_step_alone(undisturbed: Setting, tmp_path: Path) -> None:
    names = in_order(undisturbed, WITHIN)
    deaths = [kit.Death(re.escape(n), "torn" if i % 2 else "before") for i, n in enumerate(names)]
    name = killed_at(undisturbed, tmp_path, deaths)
    assert_whole(undisturbed, tmp_path, name)
    again = Counter(kit.calls(tmp_path)) - undisturbed.calls
    assert again.total() == sum(TOOL_STEPS.fullmatch(n) is not None for n in names)


def test_a_run_killed_before_its_first_line_is_told_to_start_again(undisturbed: Setting, tmp_path: Path) -> None:
    assert sitting(undisturbed, tmp_path, "", kit.Death("start", "torn")) == -9
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception, match="killed before it began"):
        kit.simulate(patch)
        kit.resume(tmp_path, next((tmp_path / ".kernelcrew" / "runs").iterdir()).name)


def test_resuming_a_finished_run_changes_nothing(undisturbed: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.simulate(monkeypatch)
    before = (undisturbed.whole.folder / "journal.jsonl").read_bytes()
    again = kit.resume(undisturbed.workdir, undisturbed.whole.folder.name)
    assert again.record == undisturbed.whole.record
    assert (undisturbed.whole.folder / "journal.jsonl").read_bytes() == before
    assert Counter(kit.calls(undisturbed.workdir)) == undisturbed.calls
