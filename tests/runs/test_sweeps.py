"""Sweeps that the team orders: they measure, are journalled and bounded, and what does not gain is not proposed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit as kit
import pytest

from kernelcrew.event import Event
from kernelcrew.runs.crew import Crew
from kernelcrew.runs.run import play
from kernelcrew.runs.session import Asked, open_run
from kernelcrew.runs.sweeps import MOST_SWEEPS
from kernelcrew.settings import resolve


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """A run of two rounds that has ended, its crew still at hand."""
    folder = tmp_path_factory.mktemp("swept")
    operator = kit.small_operator(folder / "reduction")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder / "work")
    events: list[Event] = []
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        asked = Asked(operator=str(operator), rounds=3, budget_min=10.0, anyway=True)
        crew = open_run(resolve(folder / "work"), asked, events.append)
        play(crew)
        yield crew
        crew.close()


def call(crew: Crew, role: str, name: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(crew.bus.view(role).call(name, arguments))
    return answer


def test_the_rule_based_proposer_sweeps_before_it_moves_a_knob(crew: Crew) -> None:
    swept = [s for s in crew.journal.steps if s.kind == "KnobSweep"]
    assert swept and all(s.payload["rows"] for s in swept)
    best = {s.payload["knob"]: (max(r["overall"] for r in s.payload["rows"]), s.payload["margin"]) for s in swept}
    flat = {f"knob {knob}" for knob, (ratio, margin) in best.items() if ratio <= 1 + margin}
    notes = " ".join(s.payload["proposals"]["note"] for s in crew.journal.steps if s.step.endswith(".propose"))
    assert flat and all(f"{name}: swept" in notes for name in flat)
    proposed = {c["target"] for s in crew.journal.steps if s.step.endswith(".propose")
                for p in s.payload["proposals"]["proposals"] for c in p["changes"]}  # fmt: skip
    assert not flat & proposed


def test_lengths_are_timed_from_short_to_long(crew: Crew) -> None:
    found = call(crew, "profiler_reader", "sweep_lengths", axis="n", values=[2, 64, 4096], others="rows=16")
    assert [r["shape"] for r in found["rows"]] == ["rows=16,n=2", "rows=16,n=64", "rows=16,n=4096"]
    times = [r["us"] for r in found["rows"]]
    assert times == sorted(times) and all(r["gb_s"] > 0 for r in found["rows"])


def test_the_same_sweep_is_read_back(crew: Crew) -> None:
    asked = {"axis": "n", "values": [2, 64, 4096], "others": "rows=16"}
    before = len(crew.journal.steps)
    first = call(crew, "proposer", "sweep_lengths", **asked)
    assert call(crew, "proposer", "sweep_lengths", **asked) == first
    assert len(crew.journal.steps) <= before + 1


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sweep_knob", {"knob": "NONE", "values": [1]}, "no knob NONE"),
        ("sweep_knob", {"knob": "ACC", "values": [1, 2, 3, 4, 5, 6]}, "1 to 5 values"),
        ("sweep_lengths", {"axis": "k", "values": [1], "others": ""}, "no axis 'k'"),
        ("sweep_lengths", {"axis": "n", "values": [1], "others": ""}, "must give rows"),
        ("sweep_lengths", {"axis": "n", "values": [1], "others": "rows=x"}, "is no shape"),
        ("sweep_lengths", {"axis": "n", "values": [1 << 30], "others": "rows=9"}, "MB"),
        ("sweep_lengths", {"axis": "n", "values": [0], "others": "rows=9"}, "at least 1"),
    ],
)
def test_what_cannot_be_swept_is_told(crew: Crew, name: str, arguments: dict[str, Any], words: str) -> None:
    assert words in call(crew, "proposer", name, **arguments)["refused"]


def test_a_run_allows_few(crew: Crew) -> None:
    for n in range(2, MOST_SWEEPS + 3):
        last = call(crew, "proposer", "sweep_lengths", axis="n", values=[n * 7], others="rows=3")
    assert "sweeps of this run are done" in last["refused"]
    assert sum(1 for s in crew.journal.steps if s.step.startswith("sweep.")) == MOST_SWEEPS


def test_a_role_without_the_right_is_refused(crew: Crew, tmp_path: Path) -> None:
    assert "refused" in call(crew, "skeptic", "sweep_knob", knob="ACC", values=[2])
