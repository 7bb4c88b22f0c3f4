"""The autotuner in a whole run: inside the windows, in joint blocks, with a cache that replays and a reason to stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.runs.nouns import Trial
from kernelcrew.runs.remembering import tried_knobs
from kernelcrew.runs.tuning import ALLOWANCE


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> kit.Finished:
    folder = tmp_path_factory.mktemp("tuned")
    operator = kit.small_operator(folder / "reduction")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        return kit.run(folder / "work", operator)


def tuned(done: kit.Finished) -> Trial:
    (trial,) = [j.trial for r in done.record.rounds for j in r.judged if j.trial.tuning]
    return trial


def test_searches_inside_the_windows_and_says_why_it_stopped(first: kit.Finished) -> None:
    trial = tuned(first)
    windows = {k.name: {*k.window, k.value} for c in trial.proposal.changes for k in c.knobs}
    judged = next(j for r in first.record.rounds for j in r.judged if j.trial.tuning)
    assert all(set(values) <= windows[name] for name, values in tried_knobs(judged).items())
    assert trial.tuning in ("exhausted", "allowance", "plateau")
    assert 2 < len(trial.tried_values) <= ALLOWANCE
    assert trial.tuned["ACC"] == 4, "the simulated clock is fastest there"


def test_a_batch_is_screened_in_the_same_blocks(first: kit.Finished) -> None:
    batches = [s.payload["timings"] for s in first.steps if ".tune." in s.step and s.step.endswith(".screen")]
    assert sum(len(b) for b in batches) == len(tuned(first).tried_values) - 1
    assert max(len(b) for b in batches) > 1


def test_the_cache_replays_without_measuring(
    first: kit.Finished, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path / "work")
    home = first.folder.parents[1]
    shutil.copytree(home / "cache" / "tuned", tmp_path / "work" / ".kernelcrew" / "cache" / "tuned")
    again = kit.run(tmp_path / "work", home.parents[1] / "reduction")
    trial = tuned(again)
    assert trial.replayed > 0 and trial.tuned == tuned(first).tuned
    screened = [s for s in again.steps if ".tune." in s.step and s.step.endswith(".screen")]
    assert len(screened) < len([s for s in first.steps if ".tune." in s.step and s.step.endswith(".screen")])
