"""The real laboratory with real workers: structure and verdicts, never speeds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.kernels.nouns import Axis, Backend, Contract, Cost, Distribution, Operator, Shape, Tensor, Tolerance
from kernelcrew.proc import run
from kernelcrew.settings import resolve
from kernelcrew.tools.arena import OutputRing, outputs_of
from kernelcrew.tools.hoststate import quiet_parent
from kernelcrew.tools.nouns import AlphaPlan, Build
from kernelcrew.tools.sandbox import choose
from kernelcrew.tools.timing import Bench, Pace
from kernelcrew.tools.timing_check import Filled
from kernelcrew.tools.timing_rings import call_bytes, slots_for

REFERENCE = """
import numpy as np


def reference(inputs, axes):
    x = inputs["x"].astype(np.float64).reshape(axes["rows"], axes["n"])
    return {"y": (x.sum(axis=1), np.abs(x).sum(axis=1))}
"""
LOOP = """
void rowsum(const float *x, float *y, int rows, int n)
{{
    for (int r = 0; r < rows; r++) {{
        float s = 0.0f;
        for (int i = 0; i < n; i++)
            s += x[(long)r * n + i];
        {end}
    }}
}}
"""
KERNELS = {
    "honest": "y[r] = s;",
    "wrong": "y[r] = r == rows - 1 ? s * 1.01f : s;",
    "lazy": "if (r != 0) y[r] = s;",
    "biased": "y[r] = s * (1.0f + 6e-7f);",
    "crash": "if (n == 8) __builtin_trap(); y[r] = s;",
}
CACHES = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}


def operator_in(folder: Path) -> Operator:
    (folder / "reference.py").write_text(REFERENCE)
    shapes = (
        Shape(axes={"rows": 64, "n": 100}, shape_class="main"),
        Shape(axes={"rows": 512, "n": 8}, shape_class="short"),
    )
    return Operator(
        name="rowsum", version=1, summary="sum of rows", folder=folder, axes=(Axis(name="rows"), Axis(name="n")),
        tensors=(Tensor(name="x", role="in", dims=("rows", "n")), Tensor(name="y", role="out", dims=("rows",))),
        contract=Contract(), cost=Cost(flops="rows * n", bytes="4 * rows * (n + 1)"),
        backends={"c": Backend(entry="rowsum", args=("x", "y", "rows", "n"), source="kernel.c", base_flags=("-O2",))},
        distributions=(Distribution(name="uniform", kind="uniform", low=0.0, high=1.0),), timing_distribution="uniform",
        tolerances=(Tolerance(error="4 + sqrt(n)", bias="4", deviation="4 + sqrt(n)", reason="for tests"),),
        shapes=shapes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Build]:
    folder = tmp_path_factory.mktemp("kernels")
    found = {}
    for name, end in KERNELS.items():
        source, target = folder / f"{name}.c", folder / f"{name}.so"
        source.write_text(LOOP.format(end=end))
        made = run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(target), str(source)])
        assert made.ok, made.err
        digest = hashlib.sha256(target.read_bytes()).hexdigest()[:16]
        found[name] = Build(status="ok", identity=name, artifact=str(target), artifact_hash=digest)
    return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("operator")
    settings = resolve(folder)
    core = max(os.sched_getaffinity(0))
    made = Bench.on_this_machine(operator_in(folder), settings, choose(settings), core, lambda text: str(len(text)))
    made.pace = Pace(pairs=2, screen_pairs=2, screen_blocks=2, noise_blocks=2, estimate_blocks=1)
    yield made
    made.close()


def test_an_honest_kernel_gets_figures_for_every_shape(bench: Bench, builds: dict[str, Build]) -> None:
    bench.noise(builds["honest"])
    timing = bench.screen(builds["honest"], builds["honest"])
    assert timing.status in ("undecided", "noisy")
    assert (timing.baseline, timing.candidate, timing.grade) == ("honest", "honest", "screen")
    assert [s.shape for s in timing.shapes] == ["rows=64,n=100", "rows=512,n=8"]
    assert {c.shape_class for c in timing.classes} == {"main", "short"}
    assert int(timing.samples) > 100
    assert timing.host["pairs"] >= 2 * 2


def test_a_confirmation_ends_with_a_status_and_figures(bench: Bench, builds: dict[str, Build]) -> None:
    plan = AlphaPlan(confirmations=1, classes=2, max_blocks=2)
    timing = bench.confirm(builds["honest"], builds["honest"], builds["honest"], plan, deadline_s=20)
    assert timing.grade == "confirmed"
    assert timing.status in ("undecided", "noisy")
    assert timing.threshold == 200
    assert "faster" not in {c.answer for c in timing.classes}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("wrong", "timed output is wrong"), ("lazy", "timed output is wrong"), ("biased", "float64 reference"),
        ("crash", "crashed"),
    ],
)
def test_a_bad_kernel_is_invalid_with_the_reason(bench: Bench, builds: dict[str, Build], name: str, word: str) -> None:
    timing = bench.screen(builds[name], builds["honest"])
    assert timing.status == "invalid"
    assert word in timing.reason
    assert timing.classes == ()


def test_a_bad_kernel_does_not_stop_an_honest_one_beside_it(bench: Bench, builds: dict[str, Build]) -> None:
    found = bench.screen_many([builds["wrong"], builds["honest"]], builds["honest"])
    assert [t.status == "invalid" for t in found] == [True, False]
    assert len(found[1].shapes) == 2


def test_rings_and_call_times_cover_every_timed_shape(bench: Bench, builds: dict[str, Build]) -> None:
    keys = {s.key for s in bench.operator.timed()}
    assert set(bench.ring_bytes()) == keys
    assert set(bench.call_times(builds["honest"])) <= keys


def test_cold_rings_exceed_twice_the_last_cache_or_take_160_mib_and_warm_ones_stay_in_theirs(tmp_path: Path) -> None:
    operator = operator_in(tmp_path)
    assert call_bytes(operator, operator.shapes[0]) == 4 * 64 * 101
    cold = Shape(axes={"rows": 1, "n": 1 << 20}, shape_class="long", cache="cold")
    assert slots_for(cold, 4 << 20, CACHES) == 16
    assert slots_for(cold, 100 << 20, CACHES) == 2
    assert slots_for(cold, 64 << 20, {3: 300 << 20}) == 3, "more would take too long to refresh: not cold there"
    warm = operator.shapes[0]
    assert slots_for(warm, 1000, CACHES) == 8
    assert slots_for(warm, 10 << 10, CACHES) == 2
    assert 2 <= slots_for(warm, 100 << 10, CACHES) * (100 << 10) * 1.1 <= 1 << 20
    assert slots_for(warm, 8 << 20, CACHES) == 2
    assert slots_for(warm, 0, CACHES) == 8


def test_outputs_are_read_in_the_order_of_their_inputs(tmp_path: Path) -> None:
    operator = operator_in(tmp_path)
    with OutputRing(operator, {"rows": 3, "n": 2}, 4, layout="packed") as ring:
        slots = outputs_of(4, calls=8, first_rotation=3)
        for place, source in slots.items():
            ring.views(place)["y"][...] = source
        filled = Filled(ring=ring, slots=slots)
        assert sorted(slots) == sorted(slots.values()) == [0, 1, 2, 3]
        assert np.array_equal(filled.by_input("y"), np.repeat(np.arange(4.0), 3).reshape(4, 3))
        assert np.array_equal(filled.of("y", 2), np.full(3, 2.0))


def test_the_parent_leaves_the_measured_core_and_comes_back() -> None:
    before = os.sched_getaffinity(0)
    with quiet_parent(max(before)):
        during = os.sched_getaffinity(0)
    assert os.sched_getaffinity(0) == before
    assert during == (before - {max(before)} or before)
