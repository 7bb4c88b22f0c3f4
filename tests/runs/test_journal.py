"""The journal: written before the next step begins, torn lines dropped, finished steps never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcrew.errors import StoreError
from kernelcrew.record import Record
from kernelcrew.runs.journal import Journal, payload_of, read_steps


class Number(Record):
    value: int
    """A figure."""


def test_a_step_is_worked_out_once_and_read_back_after_reopening(tmp_path: Path) -> None:
    calls: list[int] = []

    def work() -> Number:
        calls.append(1)
        return Number(value=len(calls))

    assert Journal.open(tmp_path).do("a", Number, "in", work).value == 1
    assert Journal.open(tmp_path).do("a", Number, "in", work).value == 1
    assert calls == [1]


def test_other_inputs_are_another_step(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    assert journal.do("a", Number, "in", lambda: Number(value=1)).value == 1
    assert journal.do("a", Number, "other", lambda: Number(value=2)).value == 2
    assert payload_of(read_steps(tmp_path), "a", Number) == Number(value=2)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_dropped_and_its_step_runs_again(tmp_path: Path, cut: int) -> None:
    journal = Journal.open(tmp_path)
    journal.do("a", Number, 0, lambda: Number(value=1))
    journal.do("b", Number, 0, lambda: Number(value=2))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal.open(tmp_path)
    assert [s.step for s in again.steps] == ["a"]
    assert again.do("b", Number, 0, lambda: Number(value=3)).value == 3
    assert [s.payload["value"] for s in read_steps(tmp_path)] == [1, 3]


def test_a_broken_line_in_the_middle_is_an_error_not_a_loss(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    for name in "abc":
        journal.do(name, Number, 0, lambda: Number(value=1))
    path = tmp_path / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{broken\n" + lines[2])
    with pytest.raises(StoreError, match="line 2"):
        Journal.open(tmp_path)


def test_blobs_are_kept_by_content(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    name = journal.keep("samples")
    assert journal.keep("samples") == name
    assert journal.blob(name) == "samples"
    with pytest.raises(StoreError):
        journal.blob("0" * 16)


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(StoreError, match="cannot be written"):
        Journal.open(blocked / "run")
