"""Each recipe's output builds without a warning, is right on many shapes, and refuses what it cannot rewrite."""

from __future__ import annotations

import itertools
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.nouns import Candidate, Edit, KernelSource, LaunchPlan, NotApplicable, Operator, Patch
from kernelcrew.kernels.recipes import RECIPES, loops, rows, vectors

SHAPES = [
    (0, 0), (0, 5), (4, 0), (1, 1), (37, 1), (5, 2), (17, 3), (16, 4), (41, 5), (1, 7), (9, 7), (8, 8), (33, 9),
    (7, 15), (50, 16), (19, 17), (16, 31), (40, 32), (23, 33), (6, 63), (20, 64), (13, 65), (4, 127), (9, 128),
    (2, 255), (3, 513), (3, 1023), (2, 5003), (3, 70000), (1, 300007),
]
"""Rows and columns: nothing at all, every remainder of the vector widths, and both sides of each path's bounds."""

SUMS = {recipe.name: recipe for family in (loops, vectors, rows) for recipe in family.RECIPES}
"""The recipes written for sums over rows; other families have tests of their own."""
COMPOSITE = (
    "restrict_pointers", "contract_flags", "vector_accumulators", "small_tail", "split_long_rows", "prefetch",
    "rows_together", "copy_single_column",
)
TUNED: dict[str, dict[str, dict[str, int]]] = {
    "narrow": {"vector_accumulators": {"VEC": 4, "ACC": 1}, "rows_together": {"LANES": 4, "SHORT_MAX": 256}},
    "wide": {"vector_accumulators": {"VEC": 32, "ACC": 16}, "rows_together": {"LANES": 16, "SHORT_MAX": 8}},
    "streams": {"vector_accumulators": {"VEC": 16, "ACC": 2}, "split_long_rows": {"STREAMS": 8, "SPLIT_MIN": 1024}},
}
LIMIT = 12.0
"""Largest error in u of sum |x| for normal values: the operator's own limit."""


def good(candidate: Candidate | NotApplicable) -> Candidate:
    assert isinstance(candidate, Candidate), candidate
    return candidate


def with_text(start: Candidate, text: str) -> Candidate:
    variant = start.variants[-1]
    changed = variant.model_copy(update={"source": KernelSource(text=text)})
    return start.model_copy(update={"variants": (changed,)})


def apply(name: str, start: Candidate, operator: Operator, **knobs: int) -> Candidate | NotApplicable:
    edit = Edit(change=name, recipe=name, knobs=knobs)
    return compose(start, Patch(proposal="p", edits=(edit,), author="test"), None, operator=operator)


def test_every_recipe_is_right_alone_and_together(start: Candidate, composed: Any, run_kernels: Any) -> None:
    kernels: dict[str, Candidate] = {"start": start}
    for name, recipe in SUMS.items():
        kernels[name] = good(composed(*recipe.requires, name))
    kernels["all"] = good(composed(*COMPOSITE))
    backwards = ("copy_single_column", "rows_together", "vector_accumulators", *COMPOSITE[5:2:-1])
    kernels["reversed"] = good(composed(*backwards))
    for name, knobs in TUNED.items():
        kernels[name] = good(composed(*(n for n in COMPOSITE if n != "contract_flags"), **knobs))
    answer = run_kernels(kernels, SHAPES)
    assert {name: found["warnings"] for name, found in answer.items() if found["warnings"]} == {}
    assert {name: found for name, found in answer.items() if not found["worst"] < LIMIT} == {}
    assert answer["start"]["worst"] > answer["all"]["worst"] > 0


def test_the_child_notices_wrong_sums_and_reads_outside(start: Candidate, run_kernels: Any) -> None:
    text = start.variants[-1].source.text
    wrong = with_text(start, text.replace("i < n", "i < n - 1"))
    assert run_kernels({"wrong": wrong}, [(5, 9)])["wrong"]["worst"] > 1e4
    outside = with_text(start, text.replace("i < n", "i <= n"))
    with pytest.raises(AssertionError):
        run_kernels({"outside": outside}, [(5, 9)])


def test_every_subset_builds_or_says_what_it_lacks(start: Candidate, reduction: Operator) -> None:
    edits = tuple(Edit(change=name, recipe=name) for name in COMPOSITE)
    patch = Patch(proposal="p", edits=edits, author="test")
    built: set[tuple[str, tuple[str, ...]]] = set()
    for size in range(1, len(COMPOSITE) + 1):
        for subset in itertools.combinations(COMPOSITE, size):
            made = compose(start, patch, subset, operator=reduction)
            lacks = "vector_accumulators" not in subset and {"small_tail", "split_long_rows", "prefetch"} & {*subset}
            if lacks:
                assert isinstance(made, NotApplicable) and "vector_accumulators" in made.because
                continue
            variant = good(made).variants[-1]
            assert all(f"{name}:" in variant.source.text for name in subset if name != "contract_flags")
            built.add((variant.source.text, variant.plan.flags))
    assert len(built) == 2 ** 8 - 2**4 * (2**3 - 1) - 1
    texts = sorted({text for text, _ in built})
    with ThreadPoolExecutor(2) as pool:
        words = list(pool.map(check_syntax, texts))
    assert [w for w in words if w] == []


def check_syntax(text: str) -> str:
    flags = ["-fsyntax-only", "-march=native", "-Wall", "-Wextra", "-Werror", "-xc", "-"]
    return subprocess.run(["gcc", *flags], input=text, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "unroll_flag"])
def test_a_recipe_is_not_applied_twice(name: str, composed: Any) -> None:
    twice = composed(*RECIPES[name].requires, name, name)
    assert isinstance(twice, NotApplicable) and twice.because


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("double s = 0; for (int i = 0; i < n; i++) s += p[i]; y[0] = (float)s;", "double"),
        ("float s = 0; for (int i = 0; i < n; i += 2) s += p[i]; y[0] = s;", "no loop of the form"),
        ("float s = 0; for (int i = 0; i < n; i++) s += p[i] * p[i]; y[0] = s;", "no loop of the form"),
        ("float s = 0; for (int i = 0; i < n; i++) s += p[n - i]; y[0] = s;", "no loop of the form"),
        ("float s = 0; for (int i = 0; i < n; i++) { s += p[i]; rows++; } y[0] = s;", "no loop of the form"),
        (
            "float s = 0, t = 0; for (int i = 0; i < n; i++) s += p[i]; "
            "for (int i = 0; i < n; i++) t += p[i]; y[0] = s + t;",
            "several serial sum loops",
        ),
        ("float s = 0, acc = 0; for (int i = 0; i < n; i++) s += p[i]; y[0] = s + acc;", "the name 'acc'"),
        ("const double *q = 0; float s = 0; for (int i = 0; i < n; i++) s += q[i]; y[0] = s;", "not known to point"),
    ],
)
def test_vector_accumulators_leaves_other_loops_alone(
    text: str, because: str, start: Candidate, reduction: Operator
) -> None:
    head = "void reduction(const float *x, float *y, int rows, int n)\n{\n    const float *p = x; (void)rows;\n    "
    body = f"{head}{text}\n}}\n"
    made = apply("vector_accumulators", with_text(start, body), reduction)
    assert isinstance(made, NotApplicable) and because in made.because


LOOPS = (
    "for (int i = 0; i < n; i++)\n            s += p[i];",
    "for (int i = 0; i < n; ++i) {\n            s = s + p[i]; /* one by one */\n        }",
    "for (int i = 0; i < n; i += 1) { s += x[(long)r * n + i]; }",
    "int i;\n        for (i = 0; i < n; i++) s += p[i];",
    "#pragma GCC unroll 4\n        for (long i = 0; i < n; i++) s += p[i];",
    "#pragma GCC ivdep\n#pragma GCC unroll 4\n        for (int i = 0; i < n; i++) s += p[i];",
)
"""The serial loop as people write it."""


def test_the_sum_loop_is_found_however_it_is_written(start: Candidate, reduction: Operator, run_kernels: Any) -> None:
    kernels: dict[str, Candidate] = {}
    for number, loop in enumerate(LOOPS):
        text = (
            "#include <stddef.h>\n/* Row by row. */\nvoid reduction(const float *x, float *y, int rows, int n)\n{\n"
            "    for (int r = 0; r < rows; r++) {\n        const float *p = x + (long)r * n;\n        (void)p;\n"
            f"        float s = 0.0f;\n        {loop}\n        y[r] = s;\n    }}\n}}\n"
        )
        kernels[f"scalar{number}"] = good(apply("scalar_accumulators", with_text(start, text), reduction))
        made = good(apply("vector_accumulators", with_text(start, text), reduction))
        made = good(apply("small_tail", made, reduction))
        made = good(apply("split_long_rows", made, reduction, SPLIT_MIN=1024))
        kernels[f"vector{number}"] = good(apply("prefetch", made, reduction))
    answer = run_kernels(kernels, [(3, 5), (4, 37), (2, 3000)])
    assert len(answer) == 2 * len(LOOPS)
    assert all(found["worst"] < LIMIT and not found["warnings"] for found in answer.values()), answer


def test_knobs_are_checked_and_land_in_the_source(start: Candidate, reduction: Operator, composed: Any) -> None:
    made = good(composed("vector_accumulators", vector_accumulators={"VEC": 16, "ACC": 8}))
    assert "#define VEC 16" in made.variants[-1].source.text and "#define ACC 8" in made.variants[-1].source.text
    odd = composed("vector_accumulators", vector_accumulators={"VEC": 5})
    assert isinstance(odd, NotApplicable) and "VEC=5" in odd.because and "4, 8, 16" in odd.because
    recipe = RECIPES["prefetch"]
    strange = recipe.apply(start.variants[-1].source, start.variants[-1].plan, reduction, {"FAR": 1})
    assert isinstance(strange, NotApplicable) and "no knob FAR" in strange.because


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_catalogue_is_consistent(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name and recipe.mechanism and recipe.needs
    assert {k.name for k in recipe.knobs} == set(recipe.allowed)
    assert all({*k.window, k.value} <= set(recipe.allowed[k.name]) and k.value in k.window for k in recipe.knobs)
    assert set(recipe.requires) <= set(RECIPES)


def test_the_contract_and_the_language_are_minded(start: Candidate, reduction: Operator) -> None:
    contract = reduction.contract.model_copy(update={"summation": "in order"})
    strict = reduction.model_copy(update={"contract": contract})
    refused = {name for name in RECIPES if isinstance(apply(name, start, strict), NotApplicable)}
    assert {"vector_accumulators", "rows_together", "contract_flags", "scalar_accumulators"} <= refused
    assert not {"restrict_pointers", "unroll_pragma", "copy_single_column"} & refused
    other = reduction.model_copy(update={"name": "maximum"})
    made = apply("copy_single_column", start, other)
    assert isinstance(made, NotApplicable) and "reduction alone" in made.because
    cuda = KernelSource(language="cuda", text="")
    found = RECIPES["restrict_pointers"].apply(cuda, LaunchPlan(entry="reduction"), reduction, {})
    assert isinstance(found, NotApplicable) and "cuda" in found.because
    broken = RECIPES["restrict_pointers"].apply(KernelSource(text="int f( {"), LaunchPlan(entry="f"), reduction, {})
    assert isinstance(broken, NotApplicable) and "never closed" in broken.because


def test_rows_together_minds_the_entry(start: Candidate, reduction: Operator) -> None:
    text = start.variants[-1].source.text
    for before, after in (("int rows", "const int rows"), ("int rows", "int const rows"), ("*y,", "*const y,")):
        frozen = apply("rows_together", with_text(start, text.replace(before, after)), reduction)
        assert isinstance(frozen, NotApplicable) and "const and cannot be moved" in frozen.because
    for before, after in (("*y, int rows", "*out, int m"), ("y[r] =", "out[r] ="), ("< rows", "< m")):
        text = text.replace(before, after)
    renamed = with_text(start, text)
    made = good(apply("rows_together", renamed, reduction))
    assert "rows_together(x, out, m, n)" in made.variants[-1].source.text
