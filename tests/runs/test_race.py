"""Searches side by side: traces from journals, the score with what was not reached, shuffled profiles, and the door."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from datetime import datetime
from math import inf
from pathlib import Path

import agent_evidence
import flow_kit as kit
import pytest

from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.facts import ceilings
from kernelcrew.errors import HarnessError, UserMistake
from kernelcrew.event import silent
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.runs import race as racing
from kernelcrew.runs.cli_race import lane_of
from kernelcrew.runs.nouns import Baseline, RunRecord, Start, Step
from kernelcrew.runs.race import RaceAsked, jobs_of, joined, load, save
from kernelcrew.runs.race_nouns import SHUFFLED, TEAM, TUNER, Job, Point, Race, Score, SpaceFacts, Trace
from kernelcrew.runs.race_table import notes, ratio_of, reached, tables
from kernelcrew.runs.race_team import BUILT, keep_sources, read_sources
from kernelcrew.runs.race_trace import best_so_far, measured_in, screened_in
from kernelcrew.runs.session import Asked
from kernelcrew.runs.shuffling import shuffled
from kernelcrew.runs.tuning import score as overall
from kernelcrew.settings import resolve
from kernelcrew.tools.bus import Call
from kernelcrew.tools.nouns import Profile, Timing
from kernelcrew.tools.workshop import BUILD, BuildArgs, Builds

EVIDENCE = next((Path(__file__).parents[2] / "runs" / "evidence").glob("**/reduction-demo.jsonl.gz"))
RANDOM, GENETIC = TUNER + "random_sample", TUNER + "genetic_algorithm"


def steps() -> list[Step]:
    return [Step.model_validate(json.loads(line)) for line in gzip.decompress(EVIDENCE.read_bytes()).splitlines()]


def test_a_recorded_journal_gives_each_screened_candidate_and_its_second() -> None:
    recorded = steps()
    began = datetime.fromisoformat(recorded[0].started).timestamp()
    figures = screened_in(recorded, began)
    screens = [s for s in recorded if s.kind == "Screens" and not s.step.startswith(("baseline", "final"))]
    confirmed = [s for s in recorded if s.kind == "Timing"]
    assert len(figures) == sum(len(s.payload["timings"]) for s in screens) + len(confirmed)
    first = next(s for s in screens if s.step == "r1.trial.r1p1.1.screen")
    assert figures[0][0] == datetime.fromisoformat(first.started).timestamp() + first.seconds - began
    assert [t for t, _, _ in figures] == sorted(t for t, _, _ in figures)
    end = RunRecord.model_validate(recorded[-1].payload)
    flags = end.baseline.flags_alone
    assert flags is not None and flags.candidate not in {name for _, name, _ in figures}
    own = {name: figure for _, name, figure in figures}
    over_start = end.final_over_start
    assert over_start is not None
    # What was confirmed against the start agrees with the last measurement of it, whatever it was screened against.
    assert own[end.final.identity] == pytest.approx(overall(over_start), rel=0.1)


def test_a_figure_against_another_kernel_is_carried_over_to_the_start() -> None:
    recorded = steps()
    whole = {name: own for _, name, own in screened_in(recorded, 0.0)}
    ablation = next(s for s in recorded if s.step == "r1.ablate.r1p1.screen").payload["timings"][0]
    assert ablation["baseline"] in whole
    direct = overall(Timing.model_validate(ablation))
    assert whole[ablation["candidate"]] == pytest.approx(whole_before(recorded, ablation) * direct)
    without = [s for s in recorded if s.kind != "Baseline"]
    assert screened_in(without, 0.0) == []


def whole_before(recorded: list[Step], ablation: dict[str, object]) -> float:
    """The whole set's figure when the ablation was measured."""
    at = next(n for n, s in enumerate(recorded) if s.step == "r1.ablate.r1p1.screen")
    return {name: own for _, name, own in screened_in(recorded[:at], 0.0)}[str(ablation["baseline"])]


def test_best_so_far_rises_and_ends_with_the_budget() -> None:
    figures = [(5.0, "b", 1.5), (2.0, "a", 1.2), (7.0, "c", 1.4), (9.0, "d", 2.0), (11.0, "e", 3.0)]
    assert [p.candidate for p in best_so_far(figures, 10.0)] == ["a", "b", "d"]
    assert best_so_far(figures, 1.0) == ()


def test_kernel_tuners_lines_are_read_up_to_a_torn_one() -> None:
    lines = ['{"t_s":1.5,"config":[0,1],"us":4.0}\n', '{"t_s":2.5,"config":[1,1],"us":2.0}\n', '{"t_s":3.5,"conf']
    assert measured_in(lines, {(0, 1): "x", (1, 1): "y"}) == [(1.5, "x", 0.25), (2.5, "y", 0.5)]


def test_sources_are_written_before_they_are_built(tmp_path: Path) -> None:
    start = start_candidate(load_operator("gemm"))
    other = start.model_copy(update={"variants": start_candidate(load_operator("reduction")).variants})
    wrap = keep_sources(tmp_path / BUILT)
    for group in ((start,), (start, other)):
        seen = read_sources(tmp_path / BUILT)
        wrap(Call(tool=BUILD, arguments=BuildArgs(candidates=group), caller="runs"), lambda call: Builds(builds=()))
        assert len(read_sources(tmp_path / BUILT)) == len(seen) + 1
    with open(tmp_path / BUILT, "a") as handle:
        handle.write('{"operator": "ge')
    assert read_sources(tmp_path / BUILT) == {start.identity: start, other.identity: other}
    assert read_sources(tmp_path / "nothing") == {}


# The score.


def trace(who: str, seed: int, *points: tuple[float, str]) -> Trace:
    made = tuple(Point(t_s=t, candidate=name, own=float(n)) for n, (t, name) in enumerate(points, 1))
    return Trace(job=Job(contestant=who, seed=seed), core=0, points=made, measured=len(points), seconds=100.0)


def a_race(*traces: Trace, **scores: float | None) -> Race:
    facts = SpaceFacts(recipes=("a", "b"), size=1000, listed=100, held=("b",))
    found = {n: Score(ratio=r, why="" if r else "wrong output") for n, r in scores.items()}
    return Race(
        operator="gemm", platform="cpu-test", readable="A test machine", search_s=100.0, versions={}, started="",
        space=facts, traces=traces, scores=found,
    )  # fmt: skip


def test_the_time_is_that_of_the_first_best_so_far_within_95_percent() -> None:
    record = a_race(
        trace(TEAM, 0, (10.0, "slow"), (20.0, "near"), (30.0, "best")),
        trace(TEAM, 1, (10.0, "slow")),
        trace(RANDOM, 0, (5.0, "lies"), (50.0, "best")),
        trace(RANDOM, 1),
        slow=2.0, near=3.81, best=4.0, lies=None,
    )  # fmt: skip
    found = reached(record)
    turned = reached(record.model_copy(update={"traces": record.traces[::-1]}))
    assert list(found) == list(turned) == [TEAM, RANDOM] and found == turned
    assert [(r.at_s, r.final) for r in found[TEAM]] == [(20.0, 4.0), (None, 2.0)]
    assert [(r.at_s, r.final) for r in found[RANDOM]] == [(50.0, 4.0), (None, None)]
    assert any("kernelcrew 1" in n and "Kernel Tuner random_sample 1" in n for n in notes(record, found))
    assert any("wrong output" in n for n in notes(record, found))


def test_a_search_that_did_not_get_there_leaves_the_interval_open() -> None:
    record = a_race(
        *(trace(TEAM, n, (20.0, "best")) for n in range(4)), *(trace(RANDOM, n, (9.0, "slow")) for n in range(4)),
        slow=2.0, best=4.0,
    )  # fmt: skip
    rows = reached(record)
    found = ratio_of(rows[TEAM], rows[RANDOM], record.search_s)
    assert (found.ratio, found.low, found.high) == (0.2, 0.0, 0.2)
    turned = ratio_of(rows[RANDOM], rows[TEAM], record.search_s)
    assert (turned.ratio, turned.low, turned.high) == (5.0, 5.0, inf)
    neither = ratio_of(rows[RANDOM], rows[RANDOM], record.search_s)
    assert (neither.ratio, neither.low, neither.high) == (None, 0.0, inf)
    cells = tables(record).tables[0].rows
    assert cells[0][2:4] == ("4 of 4", "20.0") and cells[1][2:4] == ("0 of 4", "over 100.0")


def field(team: list[float], tuner: list[float], blind: list[float]) -> Race:
    every = [(TEAM, team), (RANDOM, tuner), (GENETIC, [90.0] * len(tuner)), (SHUFFLED, blind)]
    return a_race(*(trace(w, n, (t, "best")) for w, times in every for n, t in enumerate(times)), best=4.0)


SPREAD = [1.0 + 0.01 * n for n in range(12)]


@pytest.mark.parametrize(
    ("team", "tuner", "blind", "half", "pays"),
    [
        (10.0, 40.0, 30.0, "yes", "yes"),
        (30.0, 40.0, 30.0, "no", "no"),
        (30.0, 10.0, 20.0, "no", "no"),
        (10.0, 40.0, 10.0, "yes", "no"),
    ],
)
def test_the_verdicts_follow_the_intervals(team: float, tuner: float, blind: float, half: str, pays: str) -> None:
    times = [[t * s for s in SPREAD] for t in (team, tuner, blind)]
    against, profile = tables(field(*times)).verdicts
    assert against.startswith(f"at most half of Kernel Tuner's time: {half} (") and RANDOM in against
    assert profile.startswith(f"profile reading pays: {pays} (")
    assert ("decoration" in profile) == (pays == "no")


def test_what_the_intervals_hold_open_is_undecided() -> None:
    wide = [5.0, 60.0] * 6
    against, profile = tables(field(wide, [25.0] * 12, [70.0, 20.0] * 6)).verdicts
    assert "undecided" in against and "undecided" in profile and "may be decoration" in profile
    few = tables(field([10.0] * 9, [40.0] * 9, [30.0] * 9)).verdicts
    assert all("undecided" in line and "fewer than 10 seeds" in line for line in few)


def test_nobody_there_is_no_verdict() -> None:
    nowhere = [trace(who, n, (1.0, "slow")) for who in (TEAM, RANDOM, SHUFFLED) for n in range(12)]
    record = a_race(*nowhere, slow=1.0, best=4.0)
    told = tables(record)
    assert all(": undecided (" in v and "neither median within the budget, [0, open]" in v for v in told.verdicts)
    assert {row[1] for row in told.tables[1].rows} == {"neither median within the budget, [0, open]"}


def test_a_search_that_broke_off_counts_for_nothing() -> None:
    fault = {"problem": "no module named x"}
    good = field([10.0] * 12, [40.0] * 12, [30.0] * 12)
    broken = [t.model_copy(update=fault) for t in good.traces if t.job.contestant == TEAM and t.job.seed < 3]
    kept = [t for t in good.traces if t.job.contestant != TEAM or t.job.seed >= 3]
    told = tables(good.model_copy(update={"traces": (*broken, *kept)}))
    assert told.tables[0].rows[0][:4] == (TEAM, "9", "9 of 9", "10.0")
    assert all("fewer than 10 seeds" in line for line in told.verdicts)
    assert any("3 of 48 searches broke off" in note for note in told.notes)
    assert "kernelcrew, seed 0: no module named x" in told.notes
    none = good.model_copy(update={"traces": tuple(t.model_copy(update=fault) for t in good.traces)})
    with pytest.raises(HarnessError, match="not one of 48 searches"):
        racing.scored(resolve(Path()), none, silent)


# Lanes and records.


def test_lanes_share_out_every_search_once() -> None:
    asked = RaceAsked(operator="gemm", seeds=3)
    whole = jobs_of(asked)
    assert len(whole) == 12 and [j.contestant for j in whole[:4]] == [TEAM, SHUFFLED, RANDOM, GENETIC]
    dealt = [jobs_of(asked.model_copy(update={"lane": (k, 5)})) for k in range(1, 6)]
    assert Counter((j.contestant, j.seed) for lane in dealt for j in lane) == Counter(
        (j.contestant, j.seed) for j in whole
    )
    assert lane_of("2/14") == (2, 14)
    for text in ("2", "a/b", "1/2/3", ""):
        with pytest.raises(UserMistake, match="--lane"):
            lane_of(text)


def test_records_of_lanes_join_and_others_do_not(tmp_path: Path) -> None:
    one, two = a_race(trace(TEAM, 0, (1.0, "x"))), a_race(trace(TEAM, 1, (2.0, "y")), x=2.0)
    for number, record in enumerate((one, two)):
        save(record, tmp_path / "races" / f"{number}.json")
    both = joined([load(path) for path in sorted((tmp_path / "races").iterdir())])
    assert [t.job.seed for t in both.traces] == [0, 1] and both.scores == {}, "joined records are scored together"
    assert joined([two]) == two
    with pytest.raises(UserMistake, match="differ in search_s"):
        joined([one, two.model_copy(update={"search_s": 60.0})])
    with pytest.raises(UserMistake, match="stands in two"):
        joined([one, one])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserMistake, match="not a record"):
        load(tmp_path / "bad.json")
    with pytest.raises(UserMistake, match="--from"):
        load(tmp_path / "nothing.json")


# The control: a profile with its figures in the wrong places.


def test_shuffling_moves_figures_and_nothing_else() -> None:
    true = agent_evidence.serial_profile().model_copy(
        update={
            "loops": tuple(
                agent_evidence.SCALAR[0].model_copy(update={"line": n, "vectorized": n > 5, "message": str(n)})
                for n in (3, 5, 7)
            ),
            "hot_lines": ((4, 0.7), (6, 0.2), (8, 0.1)),
        }
    )
    found = shuffled(true, 1)
    assert [(s.shape, s.shape_class) for s in found.shapes] == [(s.shape, s.shape_class) for s in true.shapes]
    assert found.shapes != true.shapes and figures(found) == figures(true)
    assert [loop.line for loop in found.loops] == [3, 5, 7] and found.loops != true.loops
    assert sorted(loop.message for loop in found.loops) == ["3", "5", "7"]
    assert all(loop.vectorized == (loop.message == "7") for loop in found.loops)
    assert [line for line, _ in found.hot_lines] == [4, 6, 8] and found.hot_lines != true.hot_lines
    assert sorted(share for _, share in found.hot_lines) == [0.1, 0.2, 0.7]
    kept = {"shapes", "loops", "hot_lines"}
    assert found.model_dump(exclude=kept) == true.model_dump(exclude=kept)
    assert shuffled(true, 1) == found != shuffled(true, 2)


def figures(profile: Profile) -> list[str]:
    return sorted(s.model_dump_json(exclude={"shape", "shape_class"}) for s in profile.shapes)


def test_what_cannot_move_stays() -> None:
    true = agent_evidence.serial_profile()
    one = true.model_copy(update={"shapes": true.shapes[:1]})
    assert shuffled(one, 3) == one


def test_a_shuffled_run_records_it_and_shows_it_to_reader_and_proposer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    operator = kit.small_operator(tmp_path / "reduction")
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path / "work")
    kit.simulate(monkeypatch)
    team = kit.script(monkeypatch, {})
    done = kit.run(tmp_path / "work", operator, shuffled=5, rounds=1)
    start = Start.model_validate(done.step("start"))
    assert start.shuffled == 5 and Start.model_fields["shuffled"].default is None
    baseline = Baseline.model_validate(done.step("baseline"))
    for role in ("profiler_reader", "proposer"):
        shown = Profile.model_validate(team.questions(role)[0]["profile"])
        assert shown == shuffled(baseline.profile, 5) != baseline.profile
    for question in team.questions("skeptic"):
        true = [s.model_dump(mode="json") for s in ceilings(baseline.profile)]
        assert question["ceilings"] == true
    assert team.questions("skeptic") and Asked(operator="gemm").shuffled is None


def test_a_shuffled_profile_is_read_like_any_other() -> None:
    evidence = agent_evidence.reader_evidence()
    profiles = (evidence.profile, shuffled(evidence.profile, 2))
    true, moved = (read_profile(evidence.model_copy(update={"profile": p})) for p in profiles)
    assert true.bottlenecks and moved.bottlenecks and true != moved


# The door.


def test_without_kernel_tuner_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    monkeypatch.chdir(tmp_path)
    said = kit.command(monkeypatch, capsys, "bench", "gemm", "--search", "--seeds", "1")
    assert said.code == 1 and "Kernel Tuner" in said.err and "pip install 'kernelcrew[bench]'" in said.err


def test_the_command_refuses_what_it_cannot_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, says in (
        (("--lane", "3"), "not of the form K/N"),
        (("--search-s", "0"), "--search-s must be above 0"),
        (("--from", "nothing.json"), "--from nothing.json"),
    ):
        said = kit.command(monkeypatch, capsys, "bench", "gemm", "--search", *words)
        assert said.code == 2 and says in said.err
    own = kit.small_operator(tmp_path / "reduction")
    said = kit.command(monkeypatch, capsys, "bench", str(own), "--search")
    assert said.code == 2 and "of your own" in said.err


def test_a_scored_record_is_shown_again_without_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "gemm-scored.json"
    save(field([10.0] * 12, [40.0] * 12, [11.0] * 12), path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(racing, "open_lab", None)
    said = kit.command(monkeypatch, capsys, "bench", "gemm", "--search", "--from", str(path))
    assert said.code == 0 and "at most half of Kernel Tuner's time: yes" in said.out
    said = kit.command(monkeypatch, capsys, "bench", "gemm", "--search", "--from", str(path), "--json")
    assert json.loads(said.out.splitlines()[-1])["verdicts"][0].startswith("at most half")
    said = kit.command(monkeypatch, capsys, "bench", "reduction", "--search", "--from", str(path))
    assert said.code == 2 and "searches of gemm" in said.err


def test_the_race_that_ships_decides_neither_as_the_readme_says() -> None:
    record = load(EVIDENCE.parent / "gemm-search.json")
    assert {len(rows) for rows in reached(record).values()} == {11}
    told = tables(record)
    assert [line.split(": ")[1].split()[0] for line in told.verdicts] == ["undecided", "undecided"]
    assert {row[3] for row in told.tables[0].rows} == {"over 100.0"}
    assert {row[0]: row[4] for row in told.tables[0].rows} == {
        TEAM: "34.3", SHUFFLED: "34.1", GENETIC: "3.6", RANDOM: "3.8",
    }  # fmt: skip
    assert "gemm-search.json" in (Path(__file__).parents[2] / "README.md").read_text()
