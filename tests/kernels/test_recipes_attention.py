"""The recipes for attention: every subset builds, is right on odd sizes and hard data, and refuses the rest."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Edit, KernelSource, NotApplicable, Patch
from kernelcrew.kernels.recipes import RECIPES
from kernelcrew.kernels.recipes.attention import RECIPES as OWN
from kernelcrew.kernels.recipes.attention_lanes import EXP_FAST, WIDTH
from kernelcrew.tools import policy_c

CHILD = Path(__file__).with_name("attention_child.py")
OPERATOR = load_operator("attention")
START = start_candidate(OPERATOR)
NAMES = tuple(recipe.name for recipe in OWN)
SHAPES = [
    (0, 3, 5, 4, 0), (2, 0, 5, 4, 1), (2, 3, 0, 4, 0), (1, 9, 0, 8, 1), (1, 1, 1, 1, 0), (1, 1, 1, 64, 1),
    (2, 5, 9, 1, 0), (2, 9, 9, 2, 1), (1, 17, 17, 3, 1), (2, 9, 4, 5, 1), (1, 33, 1, 7, 1), (3, 2, 7, 8, 1),
    (1, 7, 15, 9, 0), (2, 8, 16, 15, 1), (1, 15, 17, 16, 0), (1, 16, 31, 17, 1), (2, 3, 33, 31, 0), (1, 31, 32, 33, 1),
    (1, 33, 63, 65, 0), (1, 65, 65, 32, 1), (2, 1, 127, 128, 1), (1, 5, 129, 80, 0), (1, 64, 20, 13, 1),
    (1, 40, 300, 24, 1), (2, 35, 259, 129, 0), (1, 50, 131, 140, 1), (1, 97, 97, 47, 1), (1, 129, 130, 8, 1),
    (1, 20, 1025, 11, 0),
]
"""heads, m, n, d, causal: nothing, one of each, one beside every tile, fewer and more queries than keys."""
TUNED: dict[str, dict[str, dict[str, int]]] = {
    "narrow": {
        "query_lanes": {"QUERY_VECTORS": 1, "KEY_BLOCK": 8, "FEW_QUERIES": 1}, "value_registers": {"COLUMNS": 1},
        "stack_weights": {"STACK_FLOATS": 128},
    },
    "wide": {
        "query_lanes": {"QUERY_VECTORS": 4, "KEY_BLOCK": 1024, "FEW_QUERIES": 16}, "value_registers": {"COLUMNS": 8},
        "prefetch_keys": {"KEY_AHEAD": 32768},
    },
    "odd": {"query_lanes": {"QUERY_VECTORS": 3, "KEY_BLOCK": 16, "FEW_QUERIES": 3}, "value_registers": {"COLUMNS": 2}},
}
LIMIT = 8.0
"""Largest error in u of the scale; the operator's own limit is 12."""


def made(*names: str, knobs: dict[str, dict[str, int]] | None = None, text: str = "") -> Candidate | NotApplicable:
    """The start, or another source, with these recipes applied in order."""
    start = START
    if text:
        variant = START.variants[-1].model_copy(update={"source": KernelSource(text=text)})
        start = START.model_copy(update={"variants": (variant,)})
    edits = tuple(Edit(change=name, recipe=name, knobs=(knobs or {}).get(name, {})) for name in names)
    return compose(start, Patch(proposal="p", edits=edits, author="test"), None, operator=OPERATOR)


def text_of(candidate: Candidate | NotApplicable) -> str:
    assert isinstance(candidate, Candidate), candidate
    return candidate.variants[-1].source.text


def run(
    folder: Path, kernels: dict[str, tuple[str, tuple[str, ...]]], shapes: Iterable[tuple[int, ...]],
    data: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What the child says of these sources, each with its flags."""
    listed = [{"name": name, "text": text, "flags": list(flags)} for name, (text, flags) in kernels.items()]
    asked = {"folder": str(folder), "kernels": listed, "shapes": [list(s) for s in shapes], "data": list(data)}
    done = subprocess.run(
        [sys.executable, str(CHILD)], input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}, timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def subsets() -> list[tuple[str, ...]]:
    """Every subset whose recipes can be applied, in the order of the catalogue."""
    found = [s for size in range(1, len(NAMES) + 1) for s in itertools.combinations(NAMES, size)]
    return [s for s in found if "prefetch_keys" not in s or {"vector_scores", "value_registers"} & set(s)]


def test_recipes_alone_together_reversed_and_tuned_are_right(tmp_path: Path) -> None:
    kernels = {"start": (text_of(START), ())}
    for name in NAMES:
        kernels[name] = (text_of(made(*RECIPES[name].requires, name)), ())
    kernels["all"] = (text_of(made(*NAMES)), ())
    backwards = ("stack_weights", "late_division", "value_registers", "poly_exp", "vector_scores", "query_lanes")
    kernels["reversed"] = (text_of(made(*backwards, "prefetch_keys")), ())
    kernels["exp last"] = (text_of(made("query_lanes", "poly_exp")), ())
    for name, knobs in TUNED.items():
        kernels[name] = (text_of(made(*NAMES, knobs=knobs)), ())
    kernels["width 8"] = (text_of(made(*NAMES)), ("-DVEC=8",))
    kernels["plain"] = (text_of(made(*NAMES)), ("-march=x86-64",))
    answer = run(tmp_path, kernels, SHAPES)
    assert {n: f["warnings"] for n, f in answer.items() if f["warnings"] and "ABI" not in f["warnings"]} == {}
    assert {n: f for n, f in answer.items() if not f["worst"] < LIMIT} == {}
    assert answer["all"]["worst"] > 0


def test_hard_data_is_right_on_both_paths(tmp_path: Path) -> None:
    kernels = {"all": (text_of(made(*NAMES)), ()), "rows": (text_of(made(*NAMES[1:])), ())}
    data = (
        "sharp", "saturated", "equal", "huge", "denormal", "infinite values", "infinite queries", "minus one",
    )
    shapes = [(2, 33, 140, 64, 1), (2, 3, 300, 20, 0), (1, 19, 290, 33, 0), (1, 40, 25, 16, 1)]
    answer = run(tmp_path, kernels, shapes, data)
    assert {n: f for n, f in answer.items() if not f["worst"] < LIMIT} == {}


def test_the_child_notices_what_is_wrong(tmp_path: Path) -> None:
    text = text_of(made(*NAMES))
    masked = text.replace("& (state->limit[b] > first + j)", "& -1")
    assert masked != text
    seen = run(tmp_path, {"masked": (masked, ())}, [(1, 33, 40, 8, 1)], ("infinite values",))
    assert seen["masked"]["worst"] == float("inf")
    late = text.replace("seen > 0", "seen > -9")
    assert run(tmp_path, {"late": (late, ())}, [(1, 7, 3, 8, 1)])["late"]["worst"] == float("inf")
    outside = text.replace("j + k < seen ? j + k : seen - 1", "j + k")
    with pytest.raises(AssertionError):
        run(tmp_path, {"outside": (outside, ())}, [(1, 1, 3, 4, 0)])


def test_every_subset_is_another_text_passes_the_policy_and_every_other_one_is_compiled() -> None:
    texts = [text_of(made(*subset)) for subset in subsets()]
    assert len(set(texts)) == len(texts) == 2**7 - 1 - 2**4
    assert [found for text in texts for found in policy_c.judge(text, 1)] == []
    with ThreadPoolExecutor(2) as pool:
        words = list(pool.map(check_syntax, texts[::2]))
    assert [w for w in words if w] == []


def check_syntax(text: str) -> str:
    flags = ["-fsyntax-only", "-march=native", "-Wall", "-Wextra", "-Werror", "-xc", "-"]
    return subprocess.run(["gcc", *flags], input=text, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_not_applied_twice_and_not_to_other_operators(name: str) -> None:
    twice = made(*RECIPES[name].requires, name, name)
    assert isinstance(twice, NotApplicable) and twice.because
    reduction = load_operator("reduction")
    variant = start_candidate(reduction).variants[-1]
    other = RECIPES[name].apply(variant.source, variant.plan, reduction, {})
    assert isinstance(other, NotApplicable) and "attention alone" in other.because


def test_a_polynomial_that_rounds_by_adding_and_flags_that_reassociate_refuse_each_other() -> None:
    operator, start = load_operator("attention"), START.variants[-1]
    flags = start.plan.model_copy(update={"flags": ("-fassociative-math",)})
    late = RECIPES["poly_exp"].apply(start.source, flags, operator, {})
    assert isinstance(late, NotApplicable) and "-fassociative-math cancels" in late.because
    fast = RECIPES["poly_exp"].apply(start.source, start.plan, operator, {})
    assert not isinstance(fast, NotApplicable)
    found = RECIPES["contract_flags"].apply(*fast, operator, {})
    assert isinstance(found, NotApplicable) and "reassociation cancels" in found.because
    assert not isinstance(RECIPES["contract_flags"].apply(start.source, start.plan, operator, {}), NotApplicable)


@pytest.mark.parametrize(
    ("name", "before", "after", "because"),
    [
        ("query_lanes", "int i = 0; i < m; i++", "int i = 0; i < m; i += 1", "no loop"),
        ("query_lanes", "int causal)", "int causal, int more)", "does not take"),
        ("vector_scores", "s += q[c] * k[c]", "s += q[c] * k[c] * 2", "no loop over keys"),
        ("poly_exp", "expf(p[j] - top)", "expf(p[j])", "no loop"),
        ("value_registers", "o[c] = 0.0f", "o[c] = 1.0f", "set to zero"),
        ("value_registers", "o[c] += w * v[c]", "o[c] += v[c]", "no loop over keys"),
        ("late_division", "p[j] / sum", "p[j] * sum", "divides each weight"),
        ("stack_weights", "free(p);", "(void)p;", "freed once"),
        ("vector_scores", "#include <math.h>", "#include <math.h>\n#define VEC 3", "the name 'VEC'"),
    ],
)
def test_other_forms_are_left_alone(name: str, before: str, after: str, because: str) -> None:
    text = text_of(START)
    assert before in text
    found = made(name, text=text.replace(before, after))
    assert isinstance(found, NotApplicable) and because in found.because


def test_prefetching_needs_a_vector_loop() -> None:
    found = made("prefetch_keys")
    assert isinstance(found, NotApplicable) and "vector_scores first" in found.because


EXP_CHECK = """
#include <math.h>
#include <stdio.h>
#include <string.h>
%s
int main(void)
{
    double worst = 0.0, below = 0.0;
    for (unsigned u = 0x0da24260u; u < 0x42d10000u; u += VEC * 331u) {
        vec_f x;
        for (int k = 0; k < VEC; k++) {
            const unsigned w = u + k * 331u;
            float g;
            memcpy(&g, &w, 4);
            x[k] = -g;
        }
        vec_f y = x;
        exp_lanes(&y);
        for (int k = 0; k < VEC; k++) {
            const double t = exp((double)x[k]);
            const int normal = x[k] >= -87.3f;
            const double off = fabs(y[k] - t) / (normal ? ldexp(1.0, ilogb(t) - 23) : 0x1p-149);
            if (normal && off > worst)
                worst = off;
            if (!normal && off > below)
                below = off;
        }
    }
    vec_f s = {-INFINITY, NAN, 0.0f, -104.5f};
    exp_lanes(&s);
    printf("%%.4f %%.4f %%d", worst, below, s[0] == 0.0f && isnan(s[1]) && s[2] == 1.0f && s[3] == 0.0f);
    return 0;
}
"""


def test_poly_exp_keeps_its_promise(tmp_path: Path) -> None:
    source, program = tmp_path / "exp.c", tmp_path / "exp"
    source.write_text(EXP_CHECK % (WIDTH + EXP_FAST), encoding="utf-8")
    subprocess.run(["gcc", "-O2", "-march=native", str(source), "-o", str(program), "-lm"], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert 0.5 < float(said[0]) <= 1.02 and 0 < float(said[1]) <= 1.0 and said[2] == "1"
    assert "1.02" in EXP_FAST and "1.02" in RECIPES["poly_exp"].mechanism
