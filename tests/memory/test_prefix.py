"""The prefix: within its budget at any size, the relevant first, and what is left out said."""

from __future__ import annotations

import pytest

from kernelcrew.memory.nouns import Opening
from kernelcrew.memory.prefix import build_prefix, relevance
from kernelcrew.memory.tokens import count

OPENING = Opening(
    kernel="/* k1 */ void reduction(const float *x, float *y, int rows, int n) { /* loop */ }",
    constraints=("float32 throughout", "flags: -O3 -march=native"),
    platform="AMD, Zen 4, AVX-512, L2 1 MiB",
)


def test_a_prefix_holds_all_four_parts(build):
    prefix = build_prefix(OPENING, [build.tried(build.change())], build.situation())
    for piece in ("float32 throughout", "Zen 4", "void reduction", "run1:r1p1"):
        assert piece in prefix.text
    assert prefix.included == ("run1:r1p1",) and prefix.left_out == 0
    assert prefix.tokens == count(prefix.text) <= prefix.budget and prefix.counter == "cl100k"
    assert "left out" not in prefix.text


def test_an_empty_memory_says_so(build):
    prefix = build_prefix(OPENING, [], build.situation())
    assert "Nothing yet" in prefix.text and prefix.included == () and prefix.left_out == 0


@pytest.mark.parametrize("budget", [0, 20, 150, 400, 1000, 4000])
def test_the_budget_holds_whatever_there_is_to_say(build, budget):
    tried = [
        build.tried(build.change(mechanism=f"m{i}"), id_=f"run1:r{i}p1", text="It was slower on short rows. " * 40)
        for i in range(30)
    ]
    opening = OPENING.model_copy(update={"kernel": "for (int i = 0; i < n; i++) s += x[i];\n" * 300})
    prefix = build_prefix(opening, tried, build.situation(), budget)
    assert count(prefix.text) == prefix.tokens <= budget
    assert len(prefix.included) + prefix.left_out == 30
    if budget >= 400:
        assert "float32 throughout" in prefix.text and "cut to fit" in prefix.text
        assert f"({prefix.left_out} earlier tries are left out" in prefix.text or prefix.left_out == 0


def test_refuted_patches_that_do_not_fit_keep_one_line(build):
    tried = [
        build.tried(build.change(mechanism=f"m{i}"), id_=f"run1:r{i}p1", text="It was slower on short rows. " * 40)
        for i in range(10)
    ]
    prefix = build_prefix(OPENING, tried, build.situation(), 1200)
    assert prefix.left_out == 0 and set(prefix.included) == {t.id for t in tried}
    lines = [line for line in prefix.text.splitlines() if line.endswith("on reduction: rolled back (main 0.97)")]
    assert 0 < len(lines) < 10 and prefix.text.count("It was slower on short rows. ") >= 40


def test_the_focus_decides_what_comes_first(build):
    near = build.tried(build.change(), id_="run1:r1p1", text="Software prefetch on long rows gained nothing.")
    far = build.tried(build.change(), id_="run1:r2p1", text="Alignment of the output.", created="2025-02-01T00:00:00Z")
    assert relevance([near, far], build.situation(), "bandwidth of long rows, prefetching")[0] == near
    assert relevance([near, far], build.situation(), "")[0] == far


def test_what_belongs_elsewhere_is_left_out_and_counted(build):
    other = build.tried(build.change(), id_="run2:r1p1", operator="gemm")
    prefix = build_prefix(OPENING, [build.tried(build.change()), other], build.situation())
    assert prefix.included == ("run1:r1p1",) and prefix.left_out == 1
    assert "1 earlier tries are left out, 1 of them of another operator" in prefix.text
