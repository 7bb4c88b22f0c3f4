"""The space that Kernel Tuner searches: what is in it, what is not, and that all of it can be built and timed."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kernelcrew import proc
from kernelcrew.errors import HarnessError
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.platforms.detect import detect
from kernelcrew.runs.race_kt import DRAWN, FOUND, Found, TunerJob, drawn_from, source_of, tuned_by
from kernelcrew.runs.race_space import LISTED_MOST, RecipeSpace, Switch, composed, space_for
from kernelcrew.runs.race_timing import arena_for, flags_of, layout, timing_text
from kernelcrew.settings import child_environment
from kernelcrew.tools import build_lines as lines

OPERATORS = ("gemm", "reduction", "reduction_batch", "attention")
TOOLCHAIN = detect("gcc").toolchain


@pytest.fixture(scope="module")
def spaces() -> dict[str, RecipeSpace]:
    return {name: space_for(load_operator(name)) for name in OPERATORS}


def switch(name: str, values: int) -> Switch:
    return Switch(recipe=name, choices=tuple({"K": n} for n in range(values)), first=0)


def test_a_space_counts_what_its_restrictions_allow() -> None:
    space = RecipeSpace(
        switches=(switch("a", 3), switch("b", 2), switch("c", 1), switch("d", 4)),
        requires=(("b", "a"),),
        conflicts=(("a", "c"),),
    )
    every = list(product(range(4), range(3), range(2), range(5)))
    assert space.size() == sum(space.allows(config) for config in every) == (1 + 1 + 3 * 3) * 5
    assert not space.allows((0, 1, 0, 0)) and not space.allows((1, 0, 1, 0)) and space.allows((1, 1, 0, 4))
    thin = space.thinned(20)
    assert [len(s.choices) for s in thin.switches] == [3, 1, 1, 1] and thin.size() == 16
    assert space.thinned(55) == space


def test_the_switches_are_the_recipes_that_the_proposer_can_choose(spaces: dict[str, RecipeSpace]) -> None:
    gemm = {s.recipe: s for s in spaces["gemm"].switches}
    assert {"register_tile", "pack_b", "block_k", "skinny_rows", "skinny_columns", "jam_terms"} <= set(gemm)
    assert not {"order_ikj", "vector_accumulators", "poly_exp", "split_sums", "unroll_inner"} & set(gemm)
    assert ("pack_b", "register_tile") in spaces["gemm"].requires
    tiles = gemm["register_tile"].choices
    assert all(t["MR"] * t["NR"] >= 8 and t["MR"] * t["NR"] + t["NR"] < 32 for t in tiles)
    assert {"VEC": 16, "MR": 12, "NR": 4} not in tiles and {"VEC": 16, "MR": 8, "NR": 3} in tiles
    assert ("scalar_accumulators", "vector_accumulators") in spaces["reduction"].conflicts


def test_the_whole_space_is_kept_where_it_can_be_listed(spaces: dict[str, RecipeSpace]) -> None:
    for name, space in spaces.items():
        listed = space.thinned(LISTED_MOST)
        facts = space.facts(listed)
        assert facts.listed <= LISTED_MOST < 1_000_000 < spaces["gemm"].size()
        assert (facts.held == ()) == (facts.listed == facts.size)
        assert facts.recipes == tuple(s.recipe for s in listed.switches)
        assert (listed == space) == (name in ("reduction_batch", "attention"))


@pytest.mark.parametrize("name", OPERATORS)
def test_drawn_configurations_compose_and_are_allowed(name: str, spaces: dict[str, RecipeSpace]) -> None:
    operator, space = load_operator(name), spaces[name]
    start = start_candidate(operator, "c")
    rng = random.Random(7)
    configs = {space.draw(rng) for _ in range(40)} | {(0,) * len(space.switches)}
    made = {config: composed(operator, start, space, config) for config in configs}
    assert len({c.identity for c in made.values()}) == len(configs)
    for config, candidate in made.items():
        assert space.allows(config)
        on = tuple(s.recipe for s, chosen in zip(space.switches, config, strict=True) if chosen)
        assert candidate.changes == on


@pytest.mark.parametrize("name", OPERATORS)
def test_every_pair_of_switches_that_is_allowed_composes(name: str, spaces: dict[str, RecipeSpace]) -> None:
    operator, space = load_operator(name), spaces[name]
    start = start_candidate(operator, "c")
    count = len(space.switches)
    whole = [tuple(1 if at not in out else 0 for at in range(count)) for out in product(range(count), repeat=2)]
    pairs = [tuple(1 if at in on else 0 for at in range(count)) for on in product(range(count), repeat=2)]
    allowed = {config for config in (*whole, *pairs) if space.allows(config)}
    assert len(allowed) > count
    for config in allowed:
        assert composed(operator, start, space, config).changes


def test_what_is_not_allowed_does_not_compose(spaces: dict[str, RecipeSpace]) -> None:
    operator, space = load_operator("gemm"), spaces["gemm"]
    alone = tuple(int(s.recipe == "pack_b") for s in space.switches)
    assert not space.allows(alone)
    with pytest.raises(HarnessError, match="does not compose: pack_b"):
        composed(operator, start_candidate(operator, "c"), space, alone)


@pytest.mark.parametrize("name", ["attention", "reduction_batch"])
def test_kernel_tuners_restrictions_allow_the_same_configurations(name: str, spaces: dict[str, RecipeSpace]) -> None:
    space = spaces[name]
    parameters, restrictions, back = tuned_by(space)
    tests = [compile(text, text, "eval") for text in restrictions]
    found = []
    for values in product(*parameters.values()):
        named = dict(zip(parameters, values, strict=True))
        if all(eval(test, {}, named) for test in tests):
            found.append(back(named))
    assert len(found) == len(set(found)) == space.size()
    assert all(space.allows(config) for config in found)


def test_a_space_too_large_to_list_is_drawn_by_seed(spaces: dict[str, RecipeSpace]) -> None:
    parameters, restrictions, back = drawn_from(spaces["gemm"], 3)
    places = parameters["configuration"]
    assert restrictions == [] and 0.99 * DRAWN < len(places) <= DRAWN
    configs = [back({"configuration": n}) for n in places]
    assert len(set(configs)) == len(places) and all(spaces["gemm"].allows(c) for c in configs)
    again, other = (drawn_from(spaces["gemm"], seed)[2] for seed in (3, 4))
    assert (
        [again({"configuration": n}) for n in range(9)]
        == configs[:9]
        != [other({"configuration": n}) for n in range(9)]
    )


def test_a_source_carries_the_flags_of_its_own_build(spaces: dict[str, RecipeSpace]) -> None:
    operator, space = load_operator("gemm"), spaces["gemm"]
    start = start_candidate(operator, "c")
    job = TunerJob(
        operator="gemm", backend="c", strategy="", seed=0, core=None, toolchain=TOOLCHAIN, began=0.0, search_s=1.0
    )  # fmt: skip
    flagged = composed(operator, start, space, tuple(int(s.recipe == "contract_flags") for s in space.switches))
    plain, more = (source_of(job, c).splitlines()[0] for c in (start, flagged))
    assert "-O3 -march=native" in plain and "-fvisibility=hidden" in plain and plain.endswith('extern "C" */')
    assert "-fassociative-math" in more and "-fassociative-math" not in plain
    assert not any(word in more for word in ("-fopt-info", "-Wall", "json"))


RUN = """
import ctypes, json, sys
import numpy as np
from kernelcrew.kernels.load import load_operator
from kernelcrew.runs.race_timing import Layout, arena_for
placed = Layout.model_validate_json(open("layout.json").read())
arena = arena_for(load_operator("gemm"), placed, np.random.default_rng(5))
timed = ctypes.CDLL("./timed.so").time_all_shapes
timed.restype = ctypes.c_float
us = timed(arena.ctypes.data_as(ctypes.c_void_p))
wrong = 0
for ring in placed.rings:
    m, n, k = (ring.shape.axes[a] for a in "MNK")
    for slot in ring.at:
        a, b, c = (arena[at : at + 4 * s * t].view(np.float32).reshape(s, t)
                   for at, s, t in zip(slot, (m, k, m), (k, n, n)))
        wrong += not np.allclose(c, a.astype(float) @ b, rtol=1e-3, atol=1e-2)
print(json.dumps({"us": us, "wrong": wrong, "slots": sum(len(r.at) for r in placed.rings)}))
"""


def test_the_timed_function_computes_every_slot_of_every_shape(tmp_path: Path) -> None:
    """Run in a child: the start kernel, called as Kernel Tuner would call it."""
    operator = load_operator("gemm")
    backend, start = operator.backends["c"], start_candidate(operator, "c")
    placed = layout(operator, None, np.random.default_rng(1))
    assert len({at for ring in placed.rings for slot in ring.at for at in slot}) == sum(
        len(slot) for ring in placed.rings for slot in ring.at
    )
    (tmp_path / "layout.json").write_text(placed.model_dump_json())
    (tmp_path / lines.CONTRACT).write_text(lines.contract_header(operator, backend, False))
    (tmp_path / "timing.c").write_text(timing_text(operator, backend, placed))
    (tmp_path / "kernel.c").write_text(start.variants[-1].source.text)
    flags = flags_of(TOOLCHAIN, backend, start.variants[-1])
    for line in (
        [TOOLCHAIN.path, *flags, "-c", "kernel.c"],
        [TOOLCHAIN.path, "-O2", "-fPIC", "-Wall", "-Werror", "-c", "timing.c"],
        [TOOLCHAIN.path, "-shared", "kernel.o", "timing.o", "-o", "timed.so", "-lm"],
    ):
        built = proc.run(line, cwd=tmp_path)
        assert built.ok, built.err
    done = proc.run([sys.executable, "-P", "-c", RUN], cwd=tmp_path, env=child_environment())
    assert done.ok, done.err
    told = dict(eval(done.out))
    assert told["wrong"] == 0 and told["slots"] >= 2 * len(operator.timed()) and told["us"] > 0


def test_an_arena_repeats_by_its_seed_and_leaves_outputs_alone() -> None:
    operator = load_operator("gemm")
    placed = layout(operator, None, np.random.default_rng(1))
    one, same, other = (arena_for(operator, placed, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert (one == same).all() and (one != other).any()
    a, _, c = placed.rings[0].at[0]
    assert one[a : a + 64].any() and not one[c : c + 64].any()


@pytest.mark.slow
def test_kernel_tuner_itself_searches_and_tells_as_it_goes(tmp_path: Path, spaces: dict[str, RecipeSpace]) -> None:
    pytest.importorskip("kernel_tuner", reason="an extra: pip install 'kernelcrew[bench]'")
    import time

    job = TunerJob(
        operator="gemm", backend="c", strategy="genetic_algorithm", seed=0, core=None, toolchain=TOOLCHAIN,
        began=time.time(), search_s=25.0,
    )  # fmt: skip
    (tmp_path / "job.json").write_text(job.model_dump_json())
    argv = [sys.executable, "-P", "-m", "kernelcrew.runs.race_kt", str(tmp_path / "job.json")]
    done = proc.run(argv, cwd=tmp_path, env=child_environment(), limits=proc.Limits(time_s=120.0))
    assert done.ok, done.err
    found = [Found.model_validate_json(line) for line in (tmp_path / FOUND).read_text().splitlines()]
    assert found and all(one.us > 0 and spaces["gemm"].allows(one.config) for one in found)
    assert [one.t_s for one in found] == sorted(one.t_s for one in found)
