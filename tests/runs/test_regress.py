"""`kernelcrew regress`: adopted kernels are rebuilt, verified and screened; times come from the simulated clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import flow_kit as kit
import own_kit as own
import pytest

from kernelcrew.event import silent
from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import Variant
from kernelcrew.kernels.planfile import to_files
from kernelcrew.runs.nouns import RunRecord
from kernelcrew.runs.regress import SCREENS, Guarded, Recorded, Regression, junit, regress, weigh
from kernelcrew.runs.vcs import repo_for
from kernelcrew.settings import resolve
from kernelcrew.tools.nouns import ClassTiming, Timing

CLASSES = ("main", "short")
RECORDED = Recorded(run="r", ratios={"main": (2.0, 1.9, 2.1), "short": (1.5, 1.4, 1.6)})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> kit.Finished:
    folder = tmp_path_factory.mktemp("regress")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder)
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        operator = kit.small_operator(folder / "reduction")
        own.commit(operator)
        return kit.run(folder, operator)


@pytest.fixture
def say(work: kit.Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> kit.Say:
    kit.simulate(monkeypatch)
    where = ("--workdir", str(home(work)))
    return lambda *words: kit.command(monkeypatch, capsys, "regress", *words, *where)


def home(work: kit.Finished) -> Path:
    return work.folder.parents[2]


def screen(main: float, short: float = 1.5, status: str = "undecided", reason: str = "") -> Timing:
    pairs = zip(CLASSES, (main, short), strict=True)
    figures = [{"shape_class": c, "ratio": r, "low": r - 0.05, "high": r + 0.05} for c, r in pairs]
    rows = tuple(ClassTiming.model_validate({**one, "answer": "unknown"}) for one in figures)
    return Timing.model_validate({
        "grade": "screen", "status": status, "baseline": "b", "candidate": "c", "margin": 0.02, "aa_sd": 0.004,
        "classes": rows, "shapes": (), "blocks": 6, "reason": reason,
    })  # fmt: skip


def test_one_good_screen_is_enough_and_a_slow_one_asks_for_more() -> None:
    assert weigh([screen(2.0)], RECORDED)[0] == "passed"
    assert weigh([screen(1.87)], RECORDED)[0] == "passed", "within the noise margin of the interval"
    assert weigh([screen(1.8)], RECORDED)[0] is None
    assert weigh([screen(1.8), screen(2.0)], RECORDED)[0] == "passed"


def test_a_class_slower_in_every_screen_fails_with_its_figures() -> None:
    outcome, reason, rows = weigh([screen(1.8), screen(1.7), screen(1.75)], RECORDED)
    assert outcome == "failed"
    assert "main 1.80x, 1.70x, 1.75x (recorded 2.00x [1.90, 2.10], at least 1.86x)" in reason
    assert "short" not in reason
    assert [len(row.measured) for row in rows] == [3, 3]


def test_classes_that_are_slow_in_turn_pass() -> None:
    turns = [screen(1.8), screen(2.0, short=1.0)]
    assert weigh(turns, RECORDED)[0] == "passed"


def test_a_noisy_host_decides_nothing_and_a_wrong_output_all() -> None:
    noisy = screen(1.0, status="noisy", reason="the host was busy")
    assert weigh([noisy], RECORDED)[0] is None
    outcome, reason, _ = weigh([noisy, screen(1.7), screen(1.7)], RECORDED)
    assert (outcome, "1 of 3 screens were noise: the host was busy" in reason) == ("inconclusive", True)
    assert weigh([noisy] * 3, RECORDED)[0] == "inconclusive"
    assert weigh([noisy, screen(2.0)], RECORDED)[0] == "passed"
    assert weigh([screen(2.0, status="invalid", reason="x")], RECORDED)[:2] == ("failed", "timed outputs: x")


def test_without_a_record_it_must_not_be_slower_than_the_start() -> None:
    nothing = Recorded(run="", ratios={})
    assert weigh([screen(0.99, short=1.0)], nothing)[0] == "passed"
    assert weigh([screen(0.9)] * SCREENS, nothing)[0] == "failed"


def test_what_was_adopted_passes(work: kit.Finished, say: kit.Say, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    said = say("--json", "--junit", str(path))
    assert said.code == 0, said.err
    (one,) = said.last["guarded"]
    assert (one["operator"], one["outcome"], one["stage"], one["run"]) == (
        "reduction", "passed", "timing", work.record.run,
    )  # fmt: skip
    assert one["commit"] == work.record.rounds[0].settled[0].commits[-1]
    assert one["screens"] == 1
    assert {r["shape_class"] for r in one["rows"]} == {"main", "short", "long", "tail"}
    suite = ElementTree.parse(path).getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("1", "0", "0")


def test_one_that_became_slower_than_recorded_fails(
    work: kit.Finished, say: kit.Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kit.call_us

    def slower(variant: Variant, axes: Mapping[str, int]) -> float:
        return real(variant, axes) * (1.3 if "vector_accumulators:" in variant.source.text else 1.0)

    monkeypatch.setattr(kit, "call_us", slower)
    path = tmp_path / "junit.xml"
    said = say(str(home(work) / "reduction"), "--json", "--junit", str(path))
    assert said.code == 1
    (one,) = said.last["guarded"]
    assert (one["outcome"], one["stage"], one["screens"]) == ("failed", "timing", SCREENS)
    assert "slower than recorded in each of 3 screens" in one["reason"]
    failure = ElementTree.parse(path).getroot().find("testcase/failure")
    assert failure is not None
    assert failure.attrib["type"] == "timing"


@pytest.mark.parametrize(
    ("old", "new", "stage", "told"),
    [
        ("s += p[i];", "s += p[i] + 0.01f;", "correctness", "rows="),
        ("y[r] = s;", "y[rows + 70000] = s;", "safety", "rows="),
        ("s += p[i];", "s += p[i]", "build", "line"),
    ],
)
def test_one_that_is_wrong_fails_at_its_stage(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, old: str, new: str,
    stage: str, told: str,
) -> None:  # fmt: skip
    kit.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    settings = resolve(tmp_path)
    operator = load_operator(str(kit.small_operator(tmp_path / "reduction")))
    repo = repo_for(settings, operator, "c", anyway=True)
    source = (tmp_path / "reduction" / "start.c").read_text()
    assert old in source
    (kernel,) = [name for name in repo.files_at(repo.current_commit()) if name.startswith("kernel")]
    plan = repo.read(repo.current_commit(), "plan.toml")
    files = {"plan.toml": plan, kernel: source.replace(old, new)}
    commits = repo.commit_changes("kernelcrew/bad", repo.current_commit(), [(files, "reduction: bad", ())])
    here = regress(settings, "", silent).platform
    repo.set_incumbent("reduction", here, "c", commits[-1])
    found = regress(settings, str(tmp_path / "reduction"), silent)
    (one,) = found.guarded
    assert (found.failed, one.outcome, one.stage) == (True, "failed", stage)
    assert told in one.reason


def test_nothing_adopted_is_nothing_to_guard_and_unknown_names_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kit.simulate(monkeypatch)
    empty = kit.command(monkeypatch, capsys, "regress", "--workdir", str(tmp_path))
    assert (empty.code, "there is nothing to guard" in empty.out) == (0, True)
    strange = kit.command(monkeypatch, capsys, "regress", "reductoin", "--workdir", str(tmp_path))
    assert (strange.code, "unknown operator 'reductoin'. Known: " in strange.err) == (2, True)


def test_junit_names_each_kernel_once_and_skips_what_could_not_be_decided() -> None:
    plain = {"operator": "o", "platform": "p", "backend": "c", "commit": "a" * 40, "stage": "timing"}
    found = Regression(
        platform="p",
        guarded=(
            Guarded.model_validate({**plain, "outcome": "failed", "reason": 'slower <&> "x"'}),
            Guarded.model_validate({**plain, "outcome": "inconclusive", "reason": "noise"}),
        ),
    )
    suite = ElementTree.fromstring(junit(found).split("\n", 1)[1])
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("2", "1", "1")
    failed, skipped = suite.findall("testcase")
    assert failed.find("failure").attrib["message"] == 'slower <&> "x"'  # type: ignore[union-attr]
    assert skipped.find("skipped").attrib["message"] == "noise"  # type: ignore[union-attr]
    assert found.failed
    assert not Regression(platform="p", guarded=found.guarded[1:]).failed


def test_the_record_of_the_run_is_what_it_is_held_against(work: kit.Finished) -> None:
    from kernelcrew.runs.regress import recorded_ratios

    record: RunRecord = work.record
    commit = record.rounds[0].settled[0].commits[-1]
    found = recorded_ratios(resolve(home(work)), "reduction", record.platform, commit)
    assert record.final_over_start is not None
    assert found.run == record.run
    assert found.ratios["main"][0] == pytest.approx(record.final_over_start.classes[0].ratio)
    assert recorded_ratios(resolve(home(work)), "reduction", record.platform, "0" * 40) == Recorded(run="", ratios={})
    assert recorded_ratios(resolve(home(work)), "reduction", "cpu-vax", commit).ratios == {}
    assert to_files(record.final)["plan.toml"]


def test_a_kernel_merged_into_the_source_is_held_against_what_it_replaced(work: kit.Finished, say: kit.Say) -> None:
    operator = home(work) / "reduction"
    kept = work.record.rounds[0].settled[0].commits[-1]
    kit.git(operator, "merge", "-q", "--ff-only", kept)
    said = say("--json")
    (one,) = said.last["guarded"]
    assert (one["outcome"], one["stage"]) == ("passed", "timing"), one["reason"]
    assert all(row["measured"][0] >= row["least"] > 1 for row in one["rows"] if row["shape_class"] == "main")
    journals = [home(work) / ".kernelcrew" / "runs" / work.record.run, home(work) / "away"]
    journals[0].rename(journals[1])
    (lost,) = say(str(operator), "--json").last["guarded"]
    journals[1].rename(journals[0])
    assert lost["outcome"] == "inconclusive"
    assert "the source is the adopted kernel itself" in lost["reason"]
