"""The profile: figures by the cost formula, the grade and why it is no better, and counts of real calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.errors import HarnessError
from kernelcrew.kernels.nouns import (
    Axis,
    Backend,
    Candidate,
    Contract,
    Cost,
    Distribution,
    KernelSource,
    LaunchPlan,
    Operator,
    Shape,
    Tensor,
    Tolerance,
    Variant,
)
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine, Peak
from kernelcrew.settings import resolve
from kernelcrew.tools import profile_callgrind
from kernelcrew.tools.nouns import Build, LoopRemark
from kernelcrew.tools.profile import ProfileOptions, profile, shape_figures
from kernelcrew.tools.profile_callgrind import parse_dump
from kernelcrew.tools.profile_counters import parse_counts
from kernelcrew.tools.profile_counting import Dump, places, shim, words
from kernelcrew.tools.profile_simulated import hot_lines, variant_for
from kernelcrew.tools.profile_steps import by_line, parse_addresses, parse_steps
from kernelcrew.tools.sandbox import choose

START = """#include <stddef.h>
void row_sum(const float *x, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        float sum = 0.0f;
        for (int k = 0; k < n; k++)
            sum += x[(size_t)r * n + k];
        y[r] = sum;
    }
}
"""
VECTORS = """#include <stddef.h>
typedef float wide __attribute__((vector_size(64), aligned(4)));
void row_sum(const float *x, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        wide sums = {0};
        float sum = 0.0f;
        int k = 0;
        for (; k + 16 <= n; k += 16)
            sums += *(const wide *)(x + (size_t)r * n + k);
        for (int lane = 0; lane < 16; lane++)
            sum += sums[lane];
        for (; k < n; k++)
            sum += x[(size_t)r * n + k];
        y[r] = sum;
    }
}
"""
HANGS = "void row_sum(const float *x, float *y, int rows, int n) { (void)x; (void)y; (void)n; while (rows) ; }\n"
CRASHES = "void row_sum(const float *x, float *y, int rows, int n) { (void)x; (void)n; y[rows - (1 << 28)] = 1.0f; }\n"
OPERATOR = Operator(
    name="row_sum", version=1, summary="Sum of each row", folder=Path("/nowhere"),
    axes=(Axis(name="rows"), Axis(name="n")),
    tensors=(Tensor(name="x", role="in", dims=("rows", "n")), Tensor(name="y", role="out", dims=("rows",))),
    contract=Contract(), cost=Cost(flops="rows * max(n - 1, 0)", bytes="4 * rows * n + 4 * rows"),
    backends={"c": Backend(entry="row_sum", args=("x", "y", "rows", "n"), source="start.c", base_flags=("-O2",))},
    distributions=(Distribution(name="normal", kind="normal"),), timing_distribution="normal",
    tolerances=(Tolerance(error="1", bias="1", deviation="1", reason="test"),),
    shapes=(
        Shape(axes={"rows": 64, "n": 1000}, shape_class="main"),
        Shape(axes={"rows": 8, "n": 2000}, shape_class="main", weight=3.0),
        Shape(axes={"rows": 4096, "n": 1}, shape_class="short"),
        Shape(axes={"rows": 0, "n": 5}, shape_class="tail", role="edge"),
    ),
)
PEAKS = (
    Peak(name="read", level="L1", value=200.0, unit="GB/s", footprint_bytes=1 << 14, source="measured here", date="x"),
    Peak(name="read", level="L2", value=100.0, unit="GB/s", footprint_bytes=1 << 16, source="measured here", date="x"),
    Peak(name="read", level="memory", value=20.0, unit="GB/s", footprint_bytes=1 << 27, source="measured", date="x"),
    Peak(name="fma", level="core", value=300.0, unit="GFLOP/s", footprint_bytes=4096, source="measured here", date="x"),
)
DUMP = """# callgrind format
version: 1
positions: line
events: Ir
summary: 130

fl=/work/kernelcrew_variant_0.c
fn=row_sum
6 40
7 +0
cfi=/usr/lib/libm.c
cfn=expf
calls=3 9
7 30
fi=/usr/include/inline.h
2 20
fe=/work/kernelcrew_variant_0.c
7 10
7 5

fl=???
fn=kernelcrew_counted_call
0 9

totals: 130
"""
FIRST, SECOND, SHORT = OPERATOR.shapes[:3]


def candidate(*variants: tuple[str, str | None]) -> Candidate:
    plan = LaunchPlan(entry="row_sum")
    made = tuple(Variant(source=KernelSource(text=text), plan=plan, when=rule) for text, rule in variants)
    return Candidate(operator="row_sum", variants=made)


def built(made: Candidate, artifact: Path | None = None) -> Build:
    loops = (LoopRemark(line=6, vectorized=False, message="a reduction in order"),)
    return Build(status="ok", identity=made.identity, artifact=str(artifact or ""), loops=loops)


@pytest.fixture(scope="module")
def machine() -> Machine:
    here = detect("gcc")
    caches = {"L1d": 32 << 10, "L2": 1 << 20}
    return here.model_copy(update={"platform": here.platform.model_copy(update={"peaks": PEAKS, "caches": caches})})


@pytest.fixture
def options(tmp_path: Path) -> ProfileOptions:
    settings = resolve(tmp_path)
    return ProfileOptions(settings=settings, sandbox=choose(settings), grades=("simulated",))


def compiled(folder: Path, text: str) -> Path:
    (folder / "kernel.c").write_text(text)
    done = proc.run(["gcc", "-O2", "-shared", "-fPIC", str(folder / "kernel.c"), "-o", str(folder / "kernel.so")])
    assert done.ok, done.err
    return folder / "kernel.so"


needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


def test_rates_and_shares_follow_the_cost_formula(machine: Machine) -> None:
    figures = shape_figures(OPERATOR, FIRST, 10.0, machine.platform)
    assert figures.gb_s == pytest.approx((4 * 64 * 1000 + 4 * 64) / 1e4)
    assert figures.gflop_s == pytest.approx(64 * 999 / 1e4)
    assert figures.level == "L2"
    assert (figures.peak_gb_s, figures.peak_gflop_s) == (100.0, 300.0)
    assert figures.share == pytest.approx(figures.gb_s / 100.0)
    assert figures.ns_per_element == pytest.approx(1e4 / 64000)
    assert figures.ns_per_row == pytest.approx(1e4 / 64)
    assert figures.instructions is None


def test_the_ring_and_not_the_call_chooses_the_level(machine: Machine) -> None:
    figures = shape_figures(OPERATOR, FIRST, 10.0, machine.platform, ring_bytes=1 << 28)
    assert (figures.level, figures.peak_gb_s) == ("memory", 20.0)
    assert shape_figures(OPERATOR, FIRST, 10.0, machine.platform, ring_bytes=20000).level == "L1"


def test_what_was_not_measured_is_zero_and_never_divides(machine: Machine) -> None:
    bare = machine.platform.model_copy(update={"peaks": ()})
    assert shape_figures(OPERATOR, FIRST, 10.0, bare).share == 0.0
    empty = shape_figures(OPERATOR, OPERATOR.shapes[3], 0.0, machine.platform)
    assert (empty.gb_s, empty.ns_per_element, empty.ns_per_row) == (0.0, 0.0, 0.0)


def test_without_a_sandbox_nothing_runs_and_the_reason_is_told(machine: Machine) -> None:
    made = candidate((START, None))
    seen = profile(OPERATOR, made, built(made), {FIRST.key: 10.0}, machine)
    assert seen.grade == "remarks"
    assert "no sandbox" in seen.grade_reason
    assert [s.shape for s in seen.shapes] == [FIRST.key]
    assert seen.loops == built(made).loops
    assert seen.candidate == made.identity


def test_a_build_that_failed_has_no_profile(machine: Machine) -> None:
    with pytest.raises(HarnessError, match="failed"):
        profile(OPERATOR, candidate((START, None)), Build(status="failed", identity="x"), {}, machine)


def test_one_place_a_class_the_heaviest_and_shrunk_to_the_cap() -> None:
    assert [(p.shape.key, p.key) for p in places(OPERATOR, 1 << 20)] == [(s.key, s.key) for s in (SECOND, SHORT)]
    small = places(OPERATOR, 3000)
    assert [p.axes for p in small] == [{"rows": 4, "n": 500}, {"rows": 1024, "n": 1}]
    assert small[0].factor == pytest.approx((8 * 1999 + 32 * 2001) / (4 * 499 + 16 * 501))
    assert small[1].factor == 4.0


def test_the_driver_is_called_in_the_order_of_the_backend() -> None:
    text = shim(OPERATOR, "c", with_scratch=True)
    assert "(*entry_type)(const float *, float *, int, int, void *)" in text
    assert "entry(t[0], t[1], a[0], a[1], scratch)" in text
    assert "scratch)" not in shim(OPERATOR, "c", with_scratch=False).split("entry(")[1]
    assert words(OPERATOR, "c", places(OPERATOR, 1 << 20)[:1], "16 * n") == ["64000", "32", "8", "2000", "32000"]


def test_a_rule_chooses_the_variant_of_a_shape() -> None:
    two = candidate((VECTORS, "n >= 64"), (START, None))
    assert [variant_for(two, shape.axes) for shape in (FIRST, SHORT)] == [0, 1]


def test_a_dump_counts_own_costs_on_lines_of_the_source() -> None:
    dump = parse_dump(DUMP.replace("+0", "0"), "kernelcrew_variant_0.c")
    assert dump == Dump(total=130, lines={6: 40, 7: 15})
    assert parse_dump(DUMP.replace("+0", "0"), "other.c").lines == {}
    assert parse_dump("", "x.c").total == 0


def test_hot_lines_weigh_places_alike_and_leave_out_the_cold() -> None:
    few, many = Dump(total=100, lines={6: 90, 7: 10}), Dump(total=10000, lines={6: 5000, 8: 5000, 9: 1})
    assert hot_lines([few, many, Dump(total=0, lines={})]) == ((6, 0.7), (8, 0.25), (7, 0.05))


def test_counter_lines_are_scaled_and_others_passed_over() -> None:
    chosen = places(OPERATOR, 3000)
    text = "noise\ncounted 1 500 100\ncounted 0 1000 400\ncounted 9 1 1\ncounted 0 many 1\n"
    counts = parse_counts(text, chosen)
    assert [c.shape for c in counts] == [SECOND.key, SHORT.key]
    assert counts[0].instructions == pytest.approx(1000 * chosen[0].factor)
    assert (counts[1].instructions, counts[1].cycles) == (2000.0, 400.0)
    assert parse_counts("counted 0 0 0\n", chosen) == ()


def test_counters_are_read_or_the_refusal_is_told(machine: Machine, options: ProfileOptions, tmp_path: Path) -> None:
    made = candidate((START, None))
    wanted = options.model_copy(update={"grades": ("counters",)})
    seen = profile(OPERATOR, made, built(made, compiled(tmp_path, START)), {SECOND.key: 10.0}, machine, wanted)
    if seen.grade == "counters":
        assert seen.shapes[0].instructions > 8 * 2000
        assert seen.grade_reason == ""
    else:
        assert seen.grade == "remarks"
        assert seen.grade_reason.startswith("perf_event_open: ")


def test_steps_are_summed_by_line_and_other_lines_passed_over() -> None:
    totals, times = parse_steps("noise\n\nstepped 0 12\nat 0 4096 8\nat 0 4100 3\nat 0 x 3\nstepped 1 2\n")
    assert totals == {0: 12, 1: 2}
    assert times == {0: {4096: 8, 4100: 3}}
    told = "/work/k.c:7 (discriminator 3)\n/usr/include/immintrin.h:9\n??:?\n/work/k.c:?\nk.c:7\n"
    lines = parse_addresses(told, [4096, 4100, 4104, 4108, 4112], "k.c")
    assert lines == {4096: 7, 4112: 7}
    assert by_line({4096: 8, 4100: 3, 4112: 2}, lines) == {7: 10}


def test_without_valgrind_single_steps_count_the_object(
    machine: Machine, options: ProfileOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_callgrind, "child_environment", lambda: {"PATH": "/nonexistent"})
    made = candidate((START, None))
    seen = profile(OPERATOR, made, built(made), {SECOND.key: 10.0}, machine, options)
    assert "valgrind is not installed" in seen.grade_reason
    assert seen.grade == "simulated", seen.grade_reason
    assert seen.shapes[0].counted_on == "rows=4,n=1000, by single steps"
    assert seen.shapes[0].instructions is not None
    assert 2 * 8 * 2000 <= seen.shapes[0].instructions <= 12 * 8 * 2000
    assert {line for line, _ in seen.hot_lines} <= {3, 4, 5, 6, 7, 8, 9, 10}


def test_without_valgrind_and_time_the_grade_is_remarks(
    machine: Machine, options: ProfileOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_callgrind, "child_environment", lambda: {"PATH": "/nonexistent"})
    made = candidate((START, None))
    wanted = options.model_copy(update={"budget_s": 0.0})
    seen = profile(OPERATOR, made, built(made), {FIRST.key: 10.0}, machine, wanted)
    assert (seen.grade, seen.grade_reason) == ("remarks", "no time was left to count")


@needs_valgrind
def test_valgrind_counts_the_call_and_names_the_loop(machine: Machine, options: ProfileOptions) -> None:
    made = candidate((START, None))
    times = {shape.key: 10.0 for shape in OPERATOR.timed()}
    seen = profile(OPERATOR, made, built(made), times, machine, options)
    assert seen.grade == "simulated", seen.grade_reason
    by_shape = {s.shape: s for s in seen.shapes}
    assert by_shape[FIRST.key].instructions is None
    counted = by_shape[SECOND.key].instructions
    assert counted is not None
    assert 2 * 8 * 2000 <= counted <= 12 * 8 * 2000
    assert by_shape[SECOND.key].counted_on == "rows=8,n=2000, by callgrind"
    assert seen.grade_reason == ""
    assert {line for line, _ in seen.hot_lines[:2]} <= {6, 7, 4, 8}
    assert sum(share for _, share in seen.hot_lines) <= 1.0


@needs_valgrind
def test_wide_vectors_and_variants_are_counted_too(machine: Machine, options: ProfileOptions) -> None:
    made = candidate((VECTORS, "n >= 64"), (START, None))
    native = OPERATOR.backends["c"].model_copy(update={"base_flags": ("-O3", "-march=native")})
    operator = OPERATOR.model_copy(update={"backends": {"c": native}})
    seen = profile(operator, made, built(made), {s.key: 10.0 for s in operator.timed()}, machine, options)
    assert seen.grade == "simulated", seen.grade_reason
    by_shape = {s.shape: s for s in seen.shapes}
    wide, short = by_shape[SECOND.key], by_shape[SHORT.key]
    assert wide.instructions is not None and short.instructions is not None
    assert wide.instructions < 8 * 2000
    assert short.counted_on.endswith("by callgrind")
    if "avx512f" in machine.platform.features:
        assert wide.counted_on.endswith("by single steps")
        assert "does not know an instruction" in seen.grade_reason
    assert seen.hot_lines[0][0] in (9, 10)


@needs_valgrind
@pytest.mark.parametrize(
    ("text", "why"), [(HANGS, "timeout"), (CRASHES, "exit status"), ("int x = ;", "debug information")]
)
def test_a_candidate_that_misbehaves_only_lowers_the_grade(
    machine: Machine, options: ProfileOptions, text: str, why: str
) -> None:
    made = candidate((text, None))
    seen = profile(
        OPERATOR, made, built(made), {FIRST.key: 10.0}, machine, options.model_copy(update={"budget_s": 1.5})
    )
    assert seen.grade == "remarks"
    assert why in seen.grade_reason
    assert seen.shapes[0].time_us == 10.0
