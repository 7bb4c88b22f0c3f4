"""The recipes for any operator: right on kernels that no recipe was written for, refused where they would be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import KernelSource, LaunchPlan, NotApplicable, Operator, Tolerance
from kernelcrew.kernels.recipes import RECIPES
from kernelcrew.kernels.recipes.generic import RECIPES as OWN
from kernelcrew.kernels.recipes.generic_find import accesses, stride
from kernelcrew.tools import policy_c

CHILD = Path(__file__).with_name("generic_child.py")
SIZES = [
    (0, 0, 0), (0, 5, 3), (3, 1, 1), (1, 1, 7), (4, 7, 2), (3, 15, 16), (5, 16, 17), (2, 17, 31), (7, 33, 64),
    (9, 64, 5), (3, 127, 13), (2, 1023, 3), (17, 31, 1),
]
LIMIT = 24.0
"""Largest error in u of the scale: what the plain loops need at these sizes, and a margin."""
NORM = """\
#include <math.h>

void layernorm(const float *x, const float *gamma, const float *beta, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        const float *row = x + (long)r * n;
        float *out = y + (long)r * n;
        float mean = 0.0f;
        for (int i = 0; i < n; i++)
            mean += row[i]; /* one by one */
        mean /= n;
        float var = 0.0f;
        for (int i = 0; i < n; i++) {
            const float t = row[i] - mean;
            var += t * t;
        }
        const float dev = sqrtf(var / n + 1e-5f);
        for (int i = 0; i < n; i++)
            out[i] = (row[i] - mean) / dev * gamma[i] + beta[i];
    }
}
"""
PRODUCT = """\
void product(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m * n; i++)
        c[i] = 0.0f;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            for (int l = 0; l < k; l++)
                c[(long)i * n + j] += a[(long)i * k + l] * b[(long)l * n + j];
        }
}
"""
COLUMNS = """\
void columns(const float *x, float *y, int rows, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = 0.0f;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < rows; r++)
            y[i] += x[(long)r * n + i];
}
"""
TEXTS = {"layernorm": NORM, "product": PRODUCT, "columns": COLUMNS}


def operator(**contract: Any) -> Operator:
    """An operator that no recipe names, with the manifest of reduction otherwise."""
    reduction = load_operator("reduction")
    made = reduction.contract.model_copy(update=contract)
    backend = reduction.backends["c"]
    backend = backend.model_copy(
        update={"extra_flags": (*backend.extra_flags, "-mprefer-vector-width=512", "-fopenmp")}
    )
    limits = (Tolerance(error="8 + sqrt(n)", bias="1", deviation="2", reason="for a test"),)
    changed = {"name": "unheard of", "contract": made, "backends": {"c": backend}, "tolerances": limits}
    return reduction.model_copy(update=changed)


def rewritten(text: str, *names: str, plan: LaunchPlan | None = None, about: Operator | None = None) -> Any:
    """Source and plan after these recipes in order, or why not."""
    entry = next((name for name in TEXTS if f"void {name}(" in text), "product")
    source, plan = KernelSource(text=text), plan or LaunchPlan(entry=entry)
    for name in names:
        made = RECIPES[name].apply(source, plan, about or operator(), {})
        if isinstance(made, NotApplicable):
            return made
        source, plan = made
    return source.text, plan


def test_rewritten_kernels_are_right(tmp_path: Path) -> None:
    cases = {
        "layernorm": (
            (), ("split_sums",), ("reciprocal_division",), ("independent_rounds", "no_errno"), ("unroll_inner",),
            ("split_sums", "reciprocal_division", "restrict_pointers", "independent_rounds", "wide_vectors"),
            ("reciprocal_division", "split_sums", "contract_flags"),
        ),
        "product": ((), ("interchange_loops",), ("keep_in_register",), ("keep_in_register", "split_sums"),
                    ("unroll_inner",), ("interchange_loops", "independent_rounds", "unroll_inner")),
        "columns": ((), ("interchange_loops",), ("keep_in_register",), ("keep_in_register", "split_sums")),
    }
    kernels = []
    for entry, lists in cases.items():
        for names in lists:
            made = rewritten(TEXTS[entry], *names)
            assert not isinstance(made, NotApplicable), (entry, names, made)
            text, plan = made
            assert policy_c.judge(text, 1) == []
            assert all(f"{n}:" in text or n in ("no_errno", "wide_vectors", "contract_flags") for n in names)
            kernels.append({"name": "-".join((entry, *names)), "text": text, "entry": entry, "flags": list(plan.flags)})
    answer = run(tmp_path, kernels)
    assert {n: f["warnings"] for n, f in answer.items() if f["warnings"]} == {}
    assert {n: f for n, f in answer.items() if not f["worst"] < LIMIT} == {}
    wrong = NORM.replace("out[i] = (row[i] - mean)", "out[i] = row[i]")
    wrong_one = {"name": "wrong", "text": wrong, "entry": "layernorm", "flags": []}
    assert run(tmp_path, [wrong_one])["wrong"]["worst"] > 1000


def run(folder: Path, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    asked = {"folder": str(folder), "kernels": kernels, "sizes": SIZES}
    done = subprocess.run(
        [sys.executable, str(CHILD)], input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("name", "text", "before", "after", "because"),
    [
        ("split_sums", NORM, "float mean = 0.0f", "double mean = 0.0", ""),
        ("split_sums", PRODUCT, "", "", "adds one term to a scalar float"),
        ("keep_in_register", COLUMNS, "y[i] += x", "y[i] += y[r] + x", "stays the same"),
        ("keep_in_register", COLUMNS, "y[i] += x", "y[r % n] += x", "stays the same"),
        ("interchange_loops", COLUMNS, "y[i] += x", "y[i] += y[0] + x", "read as well as added to"),
        ("interchange_loops", COLUMNS, "x[(long)r * n + i]", "x[r + (long)i * rows]", "contiguous, or the same"),
        ("interchange_loops", COLUMNS, "x[(long)r * n + i]", "x[r * r + i]", "cannot be told"),
        ("interchange_loops", COLUMNS, "r = 0; r < rows", "r = i; r < rows", "stay the same"),
        ("interchange_loops", COLUMNS, "(long)r * n + i", "(long)r * n + i * 2", "contiguous either"),
        ("reciprocal_division", NORM, "/ dev", "/ gamma[i]", "divides by one scalar"),
        ("independent_rounds", NORM, "row[i] - mean) /", "out[i + 1] - mean) /", "stores to elements of its own"),
        ("align_hints", NORM, "", "", "no more than the alignment"),
        ("threads_outside", NORM, "", "", "one thread"),
    ],
)
def test_other_loops_are_left_alone(name: str, text: str, before: str, after: str, because: str) -> None:
    assert before in text
    made = rewritten(text.replace(before, after) if before else text, name)
    if because:
        assert isinstance(made, NotApplicable) and because in made.because
    else:  # the float sum alone is split
        assert made[0].count("float chain[") == 1


def test_the_contract_decides() -> None:
    strict = operator(summation="in order")
    assert isinstance(rewritten(NORM, "split_sums", about=strict), NotApplicable)
    both = PRODUCT.replace("c[(long)i * n + j] += a[(long)i * k + l] * b", "c[0] += b")
    flat = both.replace("for (int i = 0; i < m; i++)\n        for", "        for")
    swapped = rewritten(flat, "interchange_loops")
    assert not isinstance(swapped, NotApplicable)
    refused = rewritten(flat, "interchange_loops", about=strict)
    assert isinstance(refused, NotApplicable) and "change their order" in refused.because
    tight = operator().model_copy(
        update={"tolerances": (Tolerance(error="2", bias="1", deviation="1", reason="exact to a rounding"),)}
    )
    exact = rewritten(NORM, "reciprocal_division", about=tight)
    assert isinstance(exact, NotApplicable) and "the contract allows 2 u" in exact.because
    about = operator()
    aligned = about.model_copy(
        update={"tensors": tuple(t.model_copy(update={"align_bytes": 64}) for t in about.tensors)}
    )
    text, _ = rewritten(COLUMNS, "align_hints", about=aligned)
    assert text.count("__builtin_assume_aligned") == 2 and "(x, 64)" in text and policy_c.judge(text, 1) == []


def test_threads_need_a_plan_with_several_and_rounds_that_share_nothing() -> None:
    several = LaunchPlan(entry="layernorm", threads=2)
    text, plan = rewritten(NORM, "threads_outside", plan=several)
    assert "#pragma omp parallel for\n    for (int r" in text and "-fopenmp" in plan.flags
    shared = NORM.replace("float mean = 0.0f", "mean = 0.0f").replace("{\n    for", "{\n    float mean;\n    for", 1)
    made = rewritten(shared, "threads_outside", plan=several)
    assert isinstance(made, NotApplicable) and "'mean' is written in every round" in made.because
    one = NORM.replace("float *out = y + (long)r * n", "float *out = y")
    made = rewritten(one, "threads_outside", plan=several)
    assert isinstance(made, NotApplicable) and "'out'" in made.because
    without = load_operator("reduction").model_copy(update={"name": "unheard of"})
    made = rewritten(NORM, "threads_outside", plan=several, about=without)
    assert isinstance(made, NotApplicable) and "-fopenmp" in made.because


@pytest.mark.parametrize("name", [recipe.name for recipe in OWN])
def test_a_recipe_is_not_applied_twice(name: str) -> None:
    for text in TEXTS.values():
        made = rewritten(text, name, name)
        assert isinstance(made, NotApplicable) and made.because


@pytest.mark.parametrize(
    ("at", "moves"),
    [
        ("i", "1"), ("j", "0"), ("(long)i * n + j", "n"), ("j * n + i", "1"), ("(h * n + i) * d + c", "d"),
        ("i * i", None), ("n - i", None), ("i / 2", None), ("i + i", None), ("(i + j) * 2 * n", "2 * n"),
    ],
)
def test_strides_are_read_from_index_expressions(at: str, moves: str | None) -> None:
    assert stride(at, "i") == moves


def test_accesses_are_found_inside_each_other() -> None:
    assert [(a.array, a.at) for a in accesses("y[i] += x[p[i] + 1]")] == [("y", "i"), ("x", "p[i] + 1"), ("p", "i")]
