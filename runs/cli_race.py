"""`kernelcrew bench --search` on the command line: options in, tables out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from kernelcrew.errors import UserMistake
from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import above_zero
from kernelcrew.runs.race_nouns import STRATEGIES
from kernelcrew.settings import Settings

STRATEGIES_TOLD = ",".join(STRATEGIES)

Search = Annotated[bool, typer.Option("--search", help="Hold the search against Kernel Tuner and a shuffled profile.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="With --search: seeds of each contestant.")]
SearchS = Annotated[float, typer.Option("--search-s", help="With --search: seconds of each search.")]
Lane = Annotated[str, typer.Option("--lane", help="With --search: K/N, do the Kth of N parts and join them later.")]
Files = Annotated[
    list[Path] | None, typer.Option("--from", help="With --search: join and show these records, searching nothing.")
]
Strategies = Annotated[
    str, typer.Option("--strategies", help="With --search: Kernel Tuner's strategies, divided by commas.")
]


def search(settings: Settings, asked: tuple[str, int, float, str, str], files: list[Path], json: bool) -> None:
    """Search, or read what was searched; score what is not scored, and show it. `asked` holds operator, seeds, seconds,
    lane and strategies as they were typed."""
    from kernelcrew.runs.race import RaceAsked, joined, load, race, save, scored

    operator, seeds, search_s, lane, strategies = asked
    wanted = RaceAsked(
        operator=operator,
        seeds=seeds,
        search_s=above_zero("--search-s", search_s, "120"),
        strategies=tuple(name for name in strategies.split(",") if name),
        lane=lane_of(lane),
    )
    with show.progress() as listener:
        if files:
            record, path = joined([load(file) for file in files]), files[0]
            if record.operator != operator:
                what = f"these are searches of {record.operator}, not of {operator}"
                raise UserMistake(what, fix=f"kernelcrew bench {record.operator} --search --from ...")
        else:
            record, path = race(settings, wanted, listener)
        if not files and wanted.lane[1] > 1:
            show.out.print(f"written: {path}", markup=False, soft_wrap=True)
            show.out.print(f"join the lanes: kernelcrew bench {operator} --search --from FILE --from FILE ...")
            return
        if not record.scores:
            record = scored(settings, record, listener).slim()
            path = settings.home / "races" / f"{path.stem.rpartition('-')[0]}-scored.json"
            save(record, path)
    show_record(record, path, json=json)


def show_record(record: object, path: Path, *, json: bool) -> None:
    """The tables of a scored record, with verdicts and notes."""
    from kernelcrew.runs.race_nouns import Race
    from kernelcrew.runs.race_table import tables

    assert isinstance(record, Race)
    found = tables(record)
    if json:
        show.emit({"record": str(path), **found.model_dump(mode="json")})
        return
    show.tables(found.tables)
    lines = [*found.verdicts, "", *(f"- {note}" for note in found.notes), f"written: {path}"]
    show.out.print("\n".join(lines), markup=False, soft_wrap=True, highlight=False)


def lane_of(text: str) -> tuple[int, int]:
    """`2/14` as two numbers. Raises UserMistake."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found:
        raise UserMistake(f"--lane {text}: not of the form K/N", fix="for instance --lane 1/4")
    return int(found[1]), int(found[2])
