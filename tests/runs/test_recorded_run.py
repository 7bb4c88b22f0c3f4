"""A real run's journal, kept as evidence: it replays to the same record with no compiler, no worker and no clock."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernelcrew.event import silent
from kernelcrew.kernels.load import load_operator
from kernelcrew.record import Record
from kernelcrew.runs.crew import Lab
from kernelcrew.runs.decision import gains
from kernelcrew.runs.journal import Journal, payload_of, read_steps
from kernelcrew.runs.nouns import RunRecord, Start
from kernelcrew.runs.remembering import Remembered
from kernelcrew.runs.report import render
from kernelcrew.runs.run import play
from kernelcrew.runs.session import _join
from kernelcrew.settings import resolve
from kernelcrew.tools import workshop as tools
from kernelcrew.tools.nouns import Timing
from kernelcrew.tools.sandbox import Sandbox

EVIDENCE = sorted((Path(__file__).parents[2] / "runs" / "evidence").glob("**/*.jsonl.gz"))


@pytest.fixture(params=EVIDENCE, ids=lambda path: path.parent.name)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A home that holds the recorded run's folder; returns the run's folder."""
    lines = gzip.decompress(request.param.read_bytes())
    run = json.loads(lines.splitlines()[0])["payload"]["run"]
    folder = tmp_path / ".kernelcrew" / "runs" / run
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(lines)
    return folder


def test_there_is_evidence() -> None:
    assert EVIDENCE


def test_the_run_replays_to_its_record_without_building_or_measuring(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, args: Record) -> Record:
        raise AssertionError(f"a replay called a tool with {type(args).__name__}")

    for name in ("build", "verify", "noise", "profile", "screen", "times", "confirm"):
        monkeypatch.setattr(tools.Workshop, name, refuse)
    monkeypatch.setattr(Lab, "has_artifact", lambda *_: True)
    before = (recorded / "journal.jsonl").read_bytes()
    start = payload_of(read_steps(recorded), "start", Start)
    end = payload_of(read_steps(recorded), "end", RunRecord)
    assert start is not None and end is not None
    settings = resolve(tmp_path)
    sandbox = Sandbox(kind="rlimits", detail="nothing runs in a replay")
    crew = _join(settings, load_operator(start.operator_path), start.lock.machine, sandbox, start, silent)
    try:
        again = play(crew)
    finally:
        crew.close()
    assert again == end
    assert (recorded / "journal.jsonl").read_bytes() == before


def test_every_adoption_rests_on_confirmed_blocks_and_no_failed_gate(recorded: Path) -> None:
    end = payload_of(read_steps(recorded), "end", RunRecord)
    assert end is not None
    judged = [one for round_ in end.rounds for one in round_.judged]
    adopted = [one for one in judged if one.decision.action in ("adopt", "adopt_when")]
    assert adopted
    for one in adopted:
        timing = one.confirmation
        assert timing is not None and timing.grade == "confirmed" and timing.status == "decided"
        assert gains(timing) and all(gate.passed for gate in one.gates)
        assert all(s.answer == s.answer_start == "not slower" for s in timing.shapes)
        assert any(c.e_value >= timing.threshold for c in timing.classes)


def test_report_and_memory_can_be_made_from_the_journal_alone(recorded: Path) -> None:
    steps = read_steps(recorded)
    page = render(steps)
    end = payload_of(steps, "end", RunRecord)
    assert end is not None
    assert end.run in page and "<svg" in page
    kept = [Remembered.model_validate(s.payload) for s in steps if s.kind == "Remembered"]
    assert {t.id for k in kept for t in k.tried} == {f"{end.run}:{j.proposal}" for r in end.rounds for j in r.judged}


def test_a_journal_is_only_read(recorded: Path) -> None:
    assert [s.seq for s in Journal.open(recorded).steps] == list(range(len(read_steps(recorded))))


def test_raw_figures_and_interval_belong_together(recorded: Path) -> None:
    for step in read_steps(recorded):
        if step.kind == "Timing":
            timing = Timing.model_validate(step.payload)
            assert all(s.low <= s.ratio <= s.high for s in timing.shapes)
