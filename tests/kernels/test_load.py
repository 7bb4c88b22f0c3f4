"""Operators from their folders: the shipped one is sound, and a broken manifest names file, field and fix."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcrew.errors import BadManifest, UnknownName
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.kinds import DRAWN, flag_trouble
from kernelcrew.kernels.load import load_operator, reference_path, shipped, start_candidate
from kernelcrew.kernels.nouns import CLASSES, Operator
from kernelcrew.tools.data import KINDS


def test_reduction_is_what_the_contract_says(reduction: Operator) -> None:
    backend = reduction.backends["c"]
    assert (backend.entry, backend.args) == ("reduction", ("x", "y", "rows", "n"))
    assert backend.base_flags == ("-O3", "-march=native")
    assert reduction.classes() == CLASSES
    assert 10 <= len(reduction.timed()) <= 14
    for shape_class in CLASSES:
        assert any(s.shape_class == shape_class for s in reduction.held_out())
    size = parse(reduction.cost.bytes)
    assert all(size.value(s.axes) <= 64 * 2**20 + 4 for s in reduction.shapes)
    assert parse(reduction.cost.flops).value({"rows": 3, "n": 5}) == 12
    assert parse(reduction.cost.flops).value({"rows": 3, "n": 0}) == 0
    edges = [tuple(s.axes.values()) for s in reduction.shapes if s.role == "edge"]
    assert {(0, 0), (0, 7), (5, 0), (1, 1)} <= set(edges)
    assert all(t.reason and "provisional" not in t.reason for t in reduction.tolerances)


def test_the_start_is_the_plain_kernel_with_base_flags(reduction: Operator) -> None:
    start = start_candidate(reduction)
    (variant,) = start.variants
    assert variant.plan.entry == "reduction" and variant.plan.flags == () and start.author == "start"
    assert variant.source.text.startswith("/*") and variant.source.name == "start.c"
    with pytest.raises(UnknownName, match="Known: c"):
        start_candidate(reduction, "cuda")


def test_an_operator_is_found_by_name_folder_or_manifest(reduction: Operator, tmp_path: Path) -> None:
    assert shipped()["reduction"] == reduction.folder
    copy = Path(shutil.copytree(reduction.folder, tmp_path / "mine"))
    for where in (copy, copy / "operator.toml"):
        found = load_operator(str(where))
        assert found.folder == copy and found.contract_hash() == reduction.contract_hash()
    assert reference_path(found) == copy / "reference.py"
    (copy / "reference.py").unlink()
    with pytest.raises(BadManifest, match=r"reference\.py"):
        reference_path(found)


@pytest.mark.parametrize("name", ["softmax", "", "/nonexistent", "reductions"])
def test_an_unknown_operator_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownName if name else (UnknownName, BadManifest), match=r"reduction|operator\.toml"):
        load_operator(name)


def test_a_folder_without_manifest_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match=r"no operator\.toml"):
        load_operator(str(tmp_path))


BROKEN = {
    "not TOML": ('name = "reduction"', "name = reduction", ("not TOML", "line 1")),
    "unknown field": (
        "version = 1", "version = 1\nversoin = 2", ("'versoin'", "no such field", "the fields are axes, backends"),
    ),
    "missing field": ("version = 1\n", "", ("'version'", "missing")),
    "wrong type": ("version = 1", 'version = "one"', ("'version'", "'one' is not a whole number")),
    "name of a folder": ('name = "reduction"', 'name = "../../x y"', ("'name'", "../../x y")),
    "negative version": ("version = 1", "version = -1", ("'version'", "-1")),
    "negative minimum": ("minimum = 0", "minimum = -1", ("'axes[0].minimum'", "-1 is out of range")),
    "unaligned": ("align_bytes = 4", "align_bytes = 3", ("'tensors[0].align_bytes'", "power of two from 4")),
    "no alignment": ("align_bytes = 4", "align_bytes = 0", ("'tensors[0].align_bytes'",)),
    "negative alignment": ("align_bytes = 4", "align_bytes = -4", ("'tensors[0].align_bytes'",)),
    "timed on zeros": (
        'timing_distribution = "normal"', 'timing_distribution = "zeros"', ("'timing_distribution'", "zeros"),
    ),
    "kind": ('kind = "wide"', 'kind = "wild"', ("'distributions[2].kind'", "the kinds are normal, uniform")),
    "no range": ("low = 0.0", "low = 5.0", ("'distributions[1].low'", "low 5 is not below high 1")),
    "endless range": ("high = 1.0", "high = inf", ("'distributions[1].low'", "finite")),
    "precision": ('accumulator = "float32"', 'accumulator = "floot"', ("'contract.accumulator'", "float64")),
    "larger than memory": (
        "rows = 1024, n = 1024", "rows = 10000000, n = 1024000", ("'shapes[0].axes'", "16 GiB at most"),
    ),
    "moves nothing": ('bytes = "4 * rows * n + 4 * rows"', 'bytes = "0"', ("'cost.bytes'", "rows=1024,n=1024")),
    "no honest kernel passes": ('bias = "1.5"', 'bias = "0"', ("'tolerances[2].bias'", "no float32 kernel could pass")),
    "anything passes": (
        '"min(4 + 3 * sqrt(n), 30)"', '"1e30"', ("'tolerances[2].error'", "an output of zeros would pass"),
    ),
    "entry of a digit": ('entry = "reduction"', 'entry = "3x"', ("'backends.c.entry'", "3x")),
    "entry of a keyword": ('entry = "reduction"', 'entry = "return"', ("'backends.c.entry'", "return")),
    "value flag": ('"-O3", "-march', '"-ffast-math", "-march', ("'backends.c.base_flags'", "NaN")),
    "plugin": ('"-O3", "-march', '"-fplugin=/tmp/x.so", "-march', ("'backends.c.base_flags'", "-fplugin=/tmp/x.so")),
    "flags in one text": ('base_flags = ["-O3", "-march=native"]', 'base_flags = "-O3"', ("give a list",)),
    "backend": ("[backends.c]", "[backends.fortran]", ("'backends.fortran'", "the backends are c, cuda")),
    "unclosed": ("axes = [", "axes = [[", ("line 11", "not TOML")),
    "odd class": ('n = 256 }, shape_class = "main"', 'n = 256 }, shape_class = "middle"', ("'shapes[1].shape_class'",)),
    "odd role": ('role = "out"', 'role = "output"', ("'tensors[1].role'",)),
    "no output": ('role = "out"', 'role = "in"', ("'tensors'", "no output")),
    "shape lacks an axis": ("rows = 4096, n = 256", "rows = 4096", ("'shapes[1].axes'", "rows, n")),
    "shape has another axis": ("rows = 4096, n = 256", "rows = 4096, m = 256", ("'shapes[1].axes'", "rows, n")),
    "shape twice": ("rows = 4096, n = 256", "rows = 1024, n = 1024", ("'shapes[1]'", "twice")),
    "negative axis": ("rows = 4096, n = 256", "rows = 4096, n = -1", ("'shapes[1].axes'.n", "-1")),
    "bad expression": ("rows * max(n - 1, 0)", "rows ** 2", ("'cost.flops'", "Pow", "rows ** 2")),
    "foreign name": ("rows * max(n - 1, 0)", "rows * k", ("'cost.flops'", "'k'", "n, rows")),
    "negative cost": ("rows * max(n - 1, 0)", "rows * (n - 1)", ("'cost.flops'", "rows=5,n=0", "negative")),
    "bad tolerance": ("min(4 + 3 * sqrt(n), 30)", "sqrt(4 - n)", ("'tolerances[2].error'", "sqrt(4 - n)")),
    "bad dims": ('dims = ["rows", "n"]', 'dims = ["rows", "cols"]', ("'tensors[0].dims[1]'", "'cols'")),
    "no such distribution": ('timing_distribution = "normal"', 'timing_distribution = "gauss"', ("gauss", "uniform")),
    "limit for nothing": ('distribution = "wide"', 'distribution = "broad"', ("'tolerances[2].distribution'", "broad")),
    "no limit": ('distribution = "*"', 'distribution = "tiny"', ("'tolerances'", "none for 'normal'")),
    "distribution twice": ('name = "tiny"', 'name = "huge"', ("'distributions[5]'", "twice")),
    "args": ('args = ["x", "y", "rows", "n"]', 'args = ["x", "y", "n"]', ("'backends.c.args'", "n, rows, x, y")),
    "no source": ('source = "start.c"', 'source = "begin.c"', ("'backends.c.source'", "begin.c")),
    "source elsewhere": ('source = "start.c"', 'source = "../start.c"', ("'backends.c.source'",)),
    "axis name": ('{ name = "n", minimum', '{ name = "n m", minimum', ("'axes[1].name'", "n m")),
    "axis and tensor": ('name = "y", role', 'name = "n", role', ("'tensors'", "'n' is an axis")),
    "weight": ("n = 256 }, shape_class", "n = 256 }, weight = 0, shape_class", ("'shapes[1].weight'",)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_manifest_names_file_field_and_fix(what: str, reduction: Operator, tmp_path: Path) -> None:
    before, after, words = BROKEN[what]
    copy = Path(shutil.copytree(reduction.folder, tmp_path / "mine"))
    manifest = copy / "operator.toml"
    text = manifest.read_text(encoding="utf-8")
    assert before in text
    manifest.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(BadManifest) as caught:
        load_operator(str(copy))
    said = str(caught.value)
    assert str(manifest) in said and "fix: " in said
    assert [word for word in words if word not in said] == [], said


HOW: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: None,
    "empty": lambda path: path.write_text(""),
    "binary": lambda path: path.write_bytes(b"\x00\xff\xfe"),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["reference.py", "rival.py", "start.c"])
def test_a_file_beside_the_manifest_that_is_none_is_named(
    name: str, how: str, reduction: Operator, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(reduction.folder, tmp_path / "mine"))
    (copy / name).unlink()
    HOW[how](copy / name)
    if (name, how) == ("rival.py", "gone"):
        assert load_operator(str(copy)).name == "reduction"
        return
    with pytest.raises(BadManifest, match="fix: ") as caught:
        load_operator(str(copy))
    assert name in str(caught.value) and "Errno" not in str(caught.value)


def test_python_beside_the_manifest_must_be_python_that_defines_its_function(
    reduction: Operator, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(reduction.folder, tmp_path / "mine"))
    (copy / "reference.py").write_text("import numpy\n\ndef refrence(inputs, axes):\n    return {}\n")
    with pytest.raises(BadManifest, match=r"reference\.py: it defines no function reference"):
        load_operator(str(copy))
    (copy / "reference.py").write_text("def reference(inputs, axes:\n    return {}\n")
    with pytest.raises(BadManifest, match=r"reference\.py, line 1: it is no Python"):
        load_operator(str(copy))


@pytest.mark.parametrize(
    ("flag", "allowed"),
    [
        ("-O2", True), ("-march=native", True), ("-mprefer-vector-width=256", True), ("-fno-math-errno", True),
        ("-ffp-contract=off", True), ("-funroll-loops", True), ("-std=c11", True), ("-Wall", True),
        ("-Ofast", False), ("-mrecip=all", False), ("-fplugin=x.so", False), ("-specs=x", False), ("-B/tmp", False),
        ("-include", False), ("@file", False), ("-wrapper", False), ("-fdump-tree-all=/tmp/x", False), ("x.o", False),
        ("-O2 -fplugin=x", False), ("-lm", False), ("", False), ("-fprofile-use=/tmp/x", False),
    ],
)  # fmt: skip
def test_flags_choose_optimisations_and_targets_and_nothing_else(flag: str, allowed: bool) -> None:
    assert (flag_trouble(flag) == "") is allowed


def test_every_kind_that_a_manifest_may_name_can_be_drawn_and_no_other() -> None:
    assert set(DRAWN) == set(KINDS)


def test_no_timed_shape_and_no_utf8(reduction: Operator, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(reduction.folder, tmp_path / "mine"))
    manifest = copy / "operator.toml"
    text = manifest.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "{ axes" not in line or "role" in line]
    manifest.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(BadManifest, match="no timed shape"):
        load_operator(str(copy))
    manifest.write_bytes(b"name = \"\xff\"")
    with pytest.raises(BadManifest, match="UTF-8"):
        load_operator(str(copy))
