"""Peaks: which footprints are measured, how the program's lines become records, and how they are kept."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from kernelcrew.errors import HarnessError, MissingTool
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine, Peak, Platform
from kernelcrew.settings import resolve
from kernelcrew.tools import peaks as module
from kernelcrew.tools.peaks import (
    Job,
    best_of,
    footprints,
    jobs_for,
    measure_peaks,
    memory_footprint,
    parse_readings,
    with_peaks,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ZEN = {"L1d": 32 * KIB, "L2": MIB, "L3": 32 * MIB}
LINES = """read L1 8192 plain 200 190
read L1 8192 streams 210 150
read L1 24576 plain 220 200
read memory 1048576 plain 20 19
fma core 4096 registers 350 349
add_latency core 4096 chain 0.9 1.0
read L1 8192 plain 230 225
add_latency core 4096 chain 0.8 0.9
"""


def test_footprints_lie_inside_their_level_and_rise() -> None:
    chosen = footprints(ZEN, 128 * MIB)
    assert {level for level, _ in chosen} == {"L1", "L2", "L3", "memory"}
    assert all(a < b for (_, a), (_, b) in pairwise(chosen))
    platform = Platform(id="x", readable="x", caches=ZEN)
    assert [platform.level_of(size) for _, size in chosen] == [level for level, _ in chosen]


def test_a_level_that_is_not_there_is_not_measured() -> None:
    assert {level for level, _ in footprints({"L1d": 64 * KIB, "L2": MIB}, 128 * MIB)} == {"L1", "L2", "memory"}
    assert {level for level, _ in footprints({}, 128 * MIB)} == {"memory"}


def test_the_memory_footprint_is_beyond_the_caches_and_within_bounds() -> None:
    assert memory_footprint(ZEN, 64 * GIB) == 128 * MIB
    assert memory_footprint({"L3": 64 * MIB}, 64 * GIB) == 256 * MIB
    assert memory_footprint({"L3": 384 * MIB}, 64 * GIB) == 512 * MIB
    assert memory_footprint(ZEN, 256 * MIB) == 64 * MIB


def test_every_loop_is_measured_at_every_footprint() -> None:
    jobs = jobs_for(Platform(id="x", readable="x", caches=ZEN), 64 * GIB)
    for level in ("L1", "L2", "L3", "memory"):
        assert {job.kind for job in jobs if job.level == level} == {"read", "copy", "fma"}
    assert {job.kind for job in jobs if job.level == "core"} == {"fma", "add_latency"}


def test_the_best_of_loops_and_rounds_counts_and_the_best_footprint_stands_first() -> None:
    peaks = best_of(parse_readings(LINES), "2026-11-29")
    assert [(p.name, p.level, p.value) for p in peaks] == [
        ("read", "L1", 230.0), ("read", "L1", 220.0), ("read", "memory", 20.0), ("fma", "core", 350.0),
        ("add_latency", "core", 0.8),
    ]
    assert {p.source for p in peaks} == {"measured here"}
    assert peaks[0].spread == pytest.approx(5 / 230)
    assert peaks[-1].unit == "ns"


@pytest.mark.parametrize("line", ["read L1 8192 plain 200", "read L1 many plain 200 1", "out of memory"])
def test_a_line_of_another_form_is_our_own_fault(line: str) -> None:
    with pytest.raises(HarnessError, match="peaks program said"):
        parse_readings(LINES + line)


def test_measured_peaks_stand_before_documented_ones_and_replace_measured_ones() -> None:
    book, old, new = (
        Peak(name="fma", level="core", value=value, unit="GFLOP/s", source=source, date="2026-11-29")
        for value, source in ((100.0, "a datasheet"), (80.0, "measured here"), (90.0, "measured here"))
    )
    platform = Platform(id="x", readable="x", peaks=(book, old))
    machine = detect("gcc").model_copy(update={"platform": platform})
    assert with_peaks(machine, [new]).platform.peaks == (new, book)


@pytest.fixture
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("read", "copy", "fma")
    jobs = (
        *(Job(kind=kind, level="L1", footprint_bytes=16 * KIB) for kind in kinds),
        *(Job(kind=kind, level="core", footprint_bytes=4 * KIB) for kind in ("fma", "add_latency")),
    )
    monkeypatch.setattr(module, "jobs_for", lambda platform, available: jobs)
    monkeypatch.setattr(module, "SLICE_MS", 2)


def without_compiler(machine: Machine) -> Machine:
    return machine.model_copy(update={"toolchain": machine.toolchain.model_copy(update={"path": "no-such-compiler"})})


@pytest.mark.usefixtures("few_jobs")
def test_peaks_are_measured_once_and_then_looked_up(tmp_path: Path) -> None:
    settings, machine = resolve(tmp_path), detect("gcc")
    peaks = measure_peaks(machine, settings)
    assert [(p.name, p.level, p.unit) for p in peaks] == [
        ("read", "L1", "GB/s"), ("copy", "L1", "GB/s"), ("fma", "L1", "GFLOP/s"), ("fma", "core", "GFLOP/s"),
        ("add_latency", "core", "ns"),
    ]
    assert all(p.value > 0 and p.spread >= 0 for p in peaks)
    assert measure_peaks(without_compiler(machine), settings) == peaks
    with pytest.raises(MissingTool, match="no-such-compiler"):
        measure_peaks(without_compiler(machine), settings, again=True)


@pytest.mark.usefixtures("few_jobs")
def test_a_damaged_cache_file_is_measured_anew(tmp_path: Path) -> None:
    settings, machine = resolve(tmp_path), detect("gcc")
    measure_peaks(machine, settings)
    (kept,) = (settings.home / "cache" / "peaks").glob("*.json")
    kept.write_text(kept.read_text()[:40])
    assert len(measure_peaks(machine, settings)) == 5
    assert kept.read_text().endswith("}")
