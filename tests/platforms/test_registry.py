"""The table of platforms: every number has its source and date, names resolve, broken files say where."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from kernelcrew.errors import BadManifest, UnknownName
from kernelcrew.platforms.nouns import Peak, Platform
from kernelcrew.platforms.registry import DATA, known, load, resolve

HERE = Platform(id="cpu-vendor-1-2", readable="a machine without a file", here=True)
GOOD = """id = "cpu-test-1-1"
readable = "Test"
features = ["avx2"]
source = "a document"

[figures.vector_bytes]
value = 32
unit = "B"
source = "a document"
date = "2026-11-29"
"""


def test_every_figure_of_every_platform_has_a_source_and_a_date() -> None:
    table = known()
    assert len(table) >= 8
    for platform in table.values():
        assert platform.source
        assert platform.vector_bytes in (16, 32, 64)
        assert platform.caches["L1d"] >= 32 << 10
        for figure in platform.figures.values():
            assert figure.source and figure.unit and figure.value > 0
            date.fromisoformat(figure.date)


def test_flops_a_cycle_are_whole_multiply_adds_of_registers() -> None:
    for platform in known().values():
        assert platform.figures["fp32_flops_per_cycle"].value % 16 == 0


def test_the_aliases_and_the_own_id_are_this_machine() -> None:
    assert [resolve(name, HERE) for name in ("auto", "cpu", HERE.id)] == [HERE, HERE, HERE]


def test_another_known_platform_is_not_here() -> None:
    assert not resolve("cpu-intel-6-143", HERE).here


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="cpu-amd-25-17") as caught:
        resolve("h900", HERE)
    assert {"auto", "cpu", HERE.id, *known()} == set(caught.value.known)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("value = 32", 'value = "wide"', "field 'figures.vector_bytes.value': 'wide' is not a number"),
        ('source = "a document"\n\n', "\n", "field 'source'"),
        ('unit = "B"', 'unit = "B"\ncolour = 1', "field 'figures.vector_bytes.colour'"),
        ('id = "cpu-test-1-1"', 'id = "cpu-other"', "field 'id'"),
        ("[figures.vector_bytes]", "[figures.L1d]", "vector_bytes is missing"),
        ("features = [", "features = ", "line 3"),
    ],
)
def test_a_broken_file_names_file_and_field(tmp_path: Path, old: str, new: str, where: str) -> None:
    path = tmp_path / "cpu-test-1-1.toml"
    path.write_text(GOOD)
    assert load(path).vector_bytes == 32
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(BadManifest) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert where in str(caught.value)


def test_files_are_named_by_their_id() -> None:
    assert {path.stem for path in DATA.glob("*.toml")} == set(known())


def peak(level: str, footprint: int, value: float, name: str = "read") -> Peak:
    fields = {"name": name, "level": level, "value": value, "footprint_bytes": footprint}
    return Peak.model_validate({**fields, "unit": "GB/s", "source": "x", "date": "x"})


def test_a_ceiling_never_lies_below_what_a_larger_footprint_reached() -> None:
    peaks = (peak("L1", 100, 50.0), peak("L2", 1000, 20.0), peak("L2", 4000, 25.0), peak("memory", 90000, 10.0))
    machine = HERE.model_copy(update={"peaks": peaks})

    def ceiling(footprint: int) -> float:
        found = machine.ceiling("read", footprint)
        assert found is not None
        return found.value

    assert [ceiling(size) for size in (10, 100, 999, 1000, 5000, 10**9)] == [50.0, 50.0, 50.0, 25.0, 25.0, 10.0]
    assert machine.ceiling("copy", 100) is None
    assert HERE.ceiling("read", 100) is None
