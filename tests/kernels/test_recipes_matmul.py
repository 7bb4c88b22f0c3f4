"""Recipes for `gemm` and `reduction_batch`: right alone, together and at many knob values, and refused elsewhere."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Edit, KernelSource, NotApplicable, Patch
from kernelcrew.kernels.recipes import RECIPES, columns, matmul
from kernelcrew.tools.policy_c import judge

CHILD = Path(__file__).with_name("product_child.py")
GEMM, BATCH = load_operator("gemm"), load_operator("reduction_batch")
OPERATORS = {"gemm": GEMM, "reduction_batch": BATCH}
TILED = tuple(r.name for r in matmul.TILED)
SKINNY = ("skinny_rows", "skinny_columns")
COLUMNS = tuple(r.name for r in columns.RECIPES)
LIMIT = 12.0
"""Largest error in u of the scale for normal values."""

PRODUCTS = [
    (0, 0, 0), (0, 5, 7), (6, 0, 9), (9, 17, 0), (1, 1, 1), (1, 1, 300), (1, 67, 1), (67, 1, 1), (1, 31, 33),
    (2, 33, 70), (3, 4, 2), (4, 5, 3), (5, 3, 129), (7, 2, 255), (8, 8, 64), (13, 16, 17), (17, 31, 16), (33, 15, 65),
    (3, 65, 32), (49, 63, 33), (31, 97, 31), (97, 129, 67), (53, 7, 131), (2, 2100, 19), (1, 47, 1031), (19, 4, 519),
]
"""M, N, K: nothing at all, every remainder of vectors, tiles and blocks, both sides of each path's bounds."""
SUMS = [
    (0, 0), (0, 7), (5, 0), (1, 1), (1, 37), (37, 1), (2, 3), (3, 15), (4, 16), (7, 17), (8, 31), (9, 33), (15, 63),
    (16, 65), (17, 129), (300, 1), (1031, 1), (257, 2), (521, 3), (700, 17), (129, 32), (131, 48), (67, 130), (5, 4097),
    (33, 127), (11, 8200),
]
"""batch, n, likewise."""

SMALL = {"VEC": 8, "MR": 4, "NR": 2}
BLOCKS = {"pack_b": {"PACK_MIN": 8}, "block_k": {"KC": 32}, "block_rows": {"MC": 48}, "pack_a": {"STRIPS_MIN": 1}}
TUNED: dict[str, dict[str, dict[str, int]]] = {
    "avx2": {"register_tile": {"VEC": 8, "MR": 6, "NR": 2}},
    "avx512": {"register_tile": {"VEC": 16, "MR": 8, "NR": 3}},
    "flat": {"register_tile": {"VEC": 16, "MR": 2, "NR": 4}, "block_rows": {"MC": 96}},
    "tall": {"register_tile": {"VEC": 4, "MR": 12, "NR": 1}, "pack_b": {"PACK_MIN": 1}},
    "dots": {
        "register_tile": SMALL, "skinny_rows": {"ROWS_MAX": 8, "ROW_TERMS": 2},
        "skinny_columns": {"COLUMNS_MAX": 16, "DOT_ROWS": 6, "DOT_COLUMNS": 3},
    },
}

Knobs = dict[str, dict[str, int]]


def made(operator: str, *names: str, knobs: Knobs | None = None, text: str = "") -> Candidate | NotApplicable:
    """The start, or `text`, with these recipes in order."""
    start = start_candidate(OPERATORS[operator])
    if text:
        variant = start.variants[-1].model_copy(update={"source": KernelSource(text=text)})
        start = start.model_copy(update={"variants": (variant,)})
    edits = tuple(Edit(change=n, recipe=n, knobs=(knobs or {}).get(n, {})) for n in names)
    return compose(start, Patch(proposal="p", edits=edits, author="test"), None, operator=OPERATORS[operator])


def good(candidate: Candidate | NotApplicable) -> Candidate:
    assert isinstance(candidate, Candidate), candidate
    return candidate


Runner = Callable[[dict[str, Candidate], Iterable[tuple[int, ...]]], dict[str, Any]]


@pytest.fixture
def run_products(tmp_path: Path) -> Runner:
    """Build candidates and run them in a child; the answer of `product_child.py` by name."""

    def run(candidates: dict[str, Candidate], shapes: Iterable[tuple[int, ...]]) -> dict[str, Any]:
        kernels = []
        for name, candidate in candidates.items():
            variant = candidate.variants[-1]
            assert judge(variant.source.text, 1) == [], name
            flags = [*variant.plan.flags]
            kernels.append({"name": name, "text": variant.source.text, "entry": variant.plan.entry, "flags": flags})
        asked = {"folder": str(tmp_path), "kernels": kernels, "shapes": list(shapes)}
        done = subprocess.run(
            [sys.executable, str(CHILD)], input=json.dumps(asked), capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}, timeout=300,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def check(answer: dict[str, Any], count: int) -> None:
    assert len(answer) == count
    assert {name: found["warnings"] for name, found in answer.items() if found["warnings"]} == {}
    assert {name: found for name, found in answer.items() if not found["worst"] < LIMIT} == {}
    assert max(found["worst"] for found in answer.values()) > 0


def test_every_product_recipe_is_right_alone_and_left_out(run_products: Runner) -> None:
    small = {"register_tile": SMALL, **BLOCKS}
    kernels = {"start": good(made("gemm"))}
    for name in (*TILED, *SKINNY, "jam_terms", "order_ijk"):
        kernels[name] = good(made("gemm", *RECIPES[name].requires, name, knobs=small))
    kernels["back"] = good(made("gemm", "order_ijk", "order_ikj", "jam_terms"))
    every = (*TILED, *SKINNY, "jam_terms")
    kernels["all"] = good(made("gemm", *every, knobs=small))
    kernels["reversed"] = good(made("gemm", "register_tile", *reversed(every[1:]), knobs=small))
    kernels["skinny first"] = good(made("gemm", *SKINNY, *TILED, knobs=small))
    check(run_products(kernels, PRODUCTS), len(TILED) + 9)


def test_products_are_right_at_other_knob_values(run_products: Runner) -> None:
    kernels = {n: good(made("gemm", *TILED, *SKINNY, knobs={**BLOCKS, **k})) for n, k in TUNED.items()}
    check(run_products(kernels, PRODUCTS), len(TUNED))


def test_every_column_recipe_is_right_alone_together_and_at_other_knob_values(run_products: Runner) -> None:
    kernels = {"start": good(made("reduction_batch"))}
    for name in COLUMNS:
        kernels[name] = good(made("reduction_batch", *RECIPES[name].requires, name))
    kernels["all"] = good(made("reduction_batch", *COLUMNS))
    kernels["reversed"] = good(made("reduction_batch", "rows_per_pass", *reversed(COLUMNS[1:])))
    for number, (vec, rows, strip, fold) in enumerate(((4, 1, 1, 16), (16, 16, 14, 256), (32, 3, 4, 32))):
        knobs = {
            "rows_per_pass": {"VEC": vec, "ROWS": rows}, "column_strips": {"STRIP": strip, "STRIPS_TO": 4096},
            "fold_batch": {"FOLD": fold, "FOLD_TO": 128},
        }
        kernels[f"tuned{number}"] = good(made("reduction_batch", *COLUMNS, knobs=knobs))
    check(run_products(kernels, SUMS), len(COLUMNS) + 6)


def test_the_child_notices_wrong_products_and_reads_outside(run_products: Runner) -> None:
    text = good(made("gemm")).variants[-1].source.text
    wrong = good(made("gemm", text=text.replace("k < K", "k < K - 1")))
    assert run_products({"wrong": wrong}, [(5, 9, 7)])["wrong"]["worst"] > 1e4
    outside = good(made("gemm", text=text.replace("k < K", "k <= K")))
    with pytest.raises(AssertionError):
        run_products({"outside": outside}, [(5, 9, 7)])
    whole = good(made("gemm", "register_tile")).variants[-1].source.text
    beyond = whole.replace("const int past = (int)((vecs * VEC - width + ldb - 1) / ldb);", "const int past = 0;")
    assert beyond != whole
    with pytest.raises(AssertionError):
        run_products({"beyond": good(made("gemm", text=beyond))}, [(5, 9, 7)])


@pytest.mark.parametrize(
    ("operator", "names"), [("gemm", (*TILED, *SKINNY, "jam_terms")), ("reduction_batch", COLUMNS)]
)
def test_subsets_compose_or_say_what_they_lack(operator: str, names: tuple[str, ...]) -> None:
    """One, two, all but one, and all of them: what an ablation asks for."""
    texts: dict[str, str] = {}
    whole = 0
    for size in sorted({1, 2, len(names) - 1, len(names)}):
        for subset in itertools.combinations(names, size):
            candidate = made(operator, *subset)
            missing = {r for name in subset for r in RECIPES[name].requires} - {*subset}
            if missing:
                assert isinstance(candidate, NotApplicable) and missing.pop() in candidate.because
                continue
            text = good(candidate).variants[-1].source.text
            assert all(f"{name}:" in text for name in subset)
            texts[text] = " ".join(subset)
            whole += 1
    assert len(texts) == whole > len(names)
    chosen = sorted(texts)[:: max(1, len(texts) // 16)]
    with ThreadPoolExecutor(2) as pool:
        assert [w for w in pool.map(check_syntax, chosen) if w] == []


def check_syntax(text: str) -> str:
    flags = ["-fsyntax-only", "-march=native", "-Wall", "-Wextra", "-Werror", "-xc", "-"]
    return subprocess.run(["gcc", *flags], input=text, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("name", [r.name for r in (*matmul.RECIPES, *columns.RECIPES) if r.name != "order_ikj"])
def test_a_product_recipe_is_not_applied_twice_nor_to_another_operator(name: str) -> None:
    recipe = RECIPES[name]
    operator = recipe.operators[0]
    twice = made(operator, *recipe.requires, name, name)
    assert isinstance(twice, NotApplicable) and twice.because
    other = "gemm" if operator == "reduction_batch" else "reduction_batch"
    elsewhere = made(other, name)
    assert isinstance(elsewhere, NotApplicable) and operator in elsewhere.because


HEAD = "void gemm(const float *A, const float *B, float *C, int M, int N, int K)\n{\n"
IKJ = """    for (int i = 0; i < M; ++i) {
        float *row = C + (long)i * N;
        for (int j = 0; j < N; j++) { row[j] = 0; }
        for (int p = 0; p < K; p += 1) { /* terms */
            float x = A[(long)i * K + p];
            const float *q = B + (long)p * N;
            for (int j = 0; j < N; ++j) { row[j] += x * q[j]; }
        }
    }
}
"""
IJK = """    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float s = 0.0f;
            for (int k = 0; k < K; k++)
                s += A[(long)i * K + k] * B[(long)k * N + j];
            C[(long)i * N + j] = s;
        }
}
"""


def test_loops_are_found_however_they_are_written_and_turned_both_ways(run_products: Runner) -> None:
    kernels = {
        "jam": good(made("gemm", "jam_terms", text=HEAD + IKJ)),
        "ijk": good(made("gemm", "order_ijk", text=HEAD + IKJ)),
        "ikj": good(made("gemm", "order_ikj", text=HEAD + IJK)),
        "there and back": good(made("gemm", "order_ijk", "order_ikj", text=HEAD + IKJ)),
    }
    for name, candidate in kernels.items():
        text = candidate.variants[-1].source.text
        innermost = text.rindex("for (int")
        assert ("k < K" in text[innermost:] or "p < K" in text[innermost:]) == (name == "ijk")
    check(run_products(kernels, PRODUCTS[:20]), 4)


@pytest.mark.parametrize(
    ("name", "old", "new", "because"),
    [
        ("jam_terms", "row[j] += x * q[j]", "row[j] += x * q[j + 1]", "no loop over terms"),
        ("jam_terms", "row[j] += x * q[j]", "row[j] -= x * q[j]", "no loop over terms"),
        ("jam_terms", "A[(long)i * K + p]", "A[(long)i * K + p]; M--", "no loop over terms"),
        ("jam_terms", "int M, int N", "int left, int N", "no loop over terms"),
        ("jam_terms", "p < K; p += 1", "p < K; p += 2", "no loop over terms"),
        ("order_ijk", "row[j] = 0;", "row[j] = 1;", "start from zeros"),
        ("order_ijk", "{ row[j] = 0; }", "{ row[j] = 0; } row[0] = 3;", "start from zeros"),
        ("order_ikj", "x * q", "x * q", "no loop over columns"),
    ],
)
def test_other_loops_are_left_alone(name: str, old: str, new: str, because: str) -> None:
    text = (HEAD + IKJ).replace(old, new)
    if new.startswith("int left"):
        text = text.replace("i < M", "i < left").replace("A[(long)i * K + p]", "A[(long)i * K + p] * left")
        because = "'left'"
    refused = made("gemm", name, text=text)
    assert isinstance(refused, NotApplicable) and because in refused.because


def test_knobs_are_checked_and_land_in_the_source() -> None:
    knobs = {"register_tile": {"MR": 8, "NR": 3, "VEC": 16}, "block_k": {"KC": 128}}
    candidate = good(made("gemm", *TILED, knobs=knobs))
    text = candidate.variants[-1].source.text
    assert "#ifndef MR\n#define MR 8\n#endif\n" in text and "#define KC 128\n" in text
    refused = made("gemm", "register_tile", knobs={"register_tile": {"MR": 17}})
    assert isinstance(refused, NotApplicable) and "MR=17" in refused.because
    taken = made("gemm", "register_tile", text="static int strip(void) { return 1; }\n" + HEAD + IJK)
    assert isinstance(taken, NotApplicable) and "'strip'" in taken.because
    other = made("gemm", "register_tile", text=(HEAD + IJK).replace("float *C, int M", "float *C, long *w, int M"))
    assert isinstance(other, NotApplicable) and "does not take" in other.because


@pytest.mark.skipif("x86_64" not in os.uname().machine, reason="x86 registers are counted")
@pytest.mark.parametrize(("flags", "knobs"), [("-mavx2 -mfma", (8, 6, 2)), ("-mavx512f -mfma", (16, 8, 3))])
def test_the_first_tiles_leave_nothing_of_the_innermost_loop_on_the_stack(
    flags: str, knobs: tuple[int, int, int]
) -> None:
    values = dict(zip(("VEC", "MR", "NR"), knobs, strict=True))
    candidate = good(made("gemm", "register_tile", "pack_b", "block_k", knobs={"register_tile": values}))
    argv = ["gcc", "-O3", *flags.split(), "-S", "-xc", "-", "-o", "-"]
    text = candidate.variants[-1].source.text
    lines = subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    tiles = [body for body in innermost(lines) if sum("vfmadd" in x and "ps" in x for x in body) == knobs[1] * knobs[2]]
    assert tiles and all("(%rsp" not in x and "(%rbp" not in x for body in tiles for x in body)


def innermost(lines: list[str]) -> list[list[str]]:
    """The instructions of every loop that holds no jump but its own."""
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    found = []
    for at, line in enumerate(lines):
        target = line.split()[-1] if line.startswith("\tj") else ""
        body = lines[labels[target] : at] if labels.get(target, at) < at else []
        if body and not any(x.startswith("\tj") for x in body):
            found.append(body)
    return found
