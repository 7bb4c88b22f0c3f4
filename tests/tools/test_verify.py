"""The verifier: honest kernels pass, and each wrong or unsafe one gets its verdict and a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.nouns import Candidate, Shape, Tolerance
from kernelcrew.tools.build import Builder
from kernelcrew.tools.nouns import Verification
from kernelcrew.tools.numerics import Limits, Pooled, compare, limits_for
from kernelcrew.tools.reference import Reference
from kernelcrew.tools.verify import VerifyOptions, verify
from kernelcrew.tools.verify_cases import elements, groups

sys.path.insert(0, str(Path(__file__).parent))
import net_kit as kit


class Net:
    """Builder, reference and workers of one folder."""

    def __init__(self, folder: Path) -> None:
        self.builder = Builder(kit.operator(), kit.settings(folder), kit.sandbox(), kit.machine())
        self.reference = Reference(kit.operator())
        self.factory = kit.factory(folder)

    def verdict(self, made: Candidate, options: VerifyOptions | None = None) -> Verification:
        build = self.builder.build(made)
        assert build.status == "ok", build.diagnostics
        return verify(kit.operator(), build, self.factory, self.reference, options)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    made = Net(tmp_path_factory.mktemp("net"))
    yield made
    made.reference.close()


LANES = """    for (int r = 0; r < rows; r++) {
        const float *p = x + (long)r * n;
        float a[8] = {0}, s = 0;
        int i = 0;
        for (; i + 8 <= n; i += 8) for (int k = 0; k < 8; k++) a[k] += p[i + k];
        for (; i < n; i++) s += p[i];
        for (int k = 0; k < 8; k++) s += a[k];
        y[r] = s;
    }"""
KAHAN = """    for (int r = 0; r < rows; r++) {
        const float *p = x + (long)r * n;
        double s = 0;
        for (int i = 0; i < n; i++) s += p[i];
        y[r] = (float)s;
    }"""
BACKWARDS = """    for (int r = rows - 1; r >= 0; r--) {
        float s = 0;
        for (int i = n - 1; i >= 0; i--) s += x[(long)r * n + i];
        y[r] = s;
    }"""


@pytest.mark.parametrize("body", [kit.sums(), LANES, KAHAN, BACKWARDS], ids=["plain", "lanes", "double", "backwards"])
def test_honest_kernels_pass(net: Net, body: str) -> None:
    found = net.verdict(kit.candidate(body))
    assert found.status == "ok" and not found.reason and found.deterministic
    assert {c.status for c in found.cases} == {"ok"}
    assert {c.distribution for c in found.cases} == {*(d.name for d in kit.operator().distributions), "spike in x"}
    assert len({c.seed for c in found.cases}) == len(found.cases)
    assert found.sandbox


def test_flags_of_the_contract_pass(net: Net) -> None:
    flags = kit.operator().backends["c"].contract_flags
    assert net.verdict(kit.candidate(kit.sums(), flags=flags)).status == "ok"


RULES = (
    "n > 16 && n % 16 == 13", "n % 8 == 6", "n > 256 && n < 1000 && n != 640 && n != 521", "rows % 8 == 6 && n > 70",
    "n == 101", "n > 1000 && n % 32 == 31", "rows > 1 && n > 200 && n % 64 == 47",
    "n % 4 == 3 && rows % 4 == 3 && n > 64", "n > 1000000",
)
"""Shapes of which a kernel leaves one element out; none is near the operator's own shapes."""
WRONG = {
    "zeros": "    for (int r = 0; r < rows; r++) y[r] = 0;",
    "nothing": "    (void)x; (void)y; (void)rows; (void)n;",
    "half": kit.sums().replace("r < rows", "r < rows / 2"),
    "short by one": kit.sums().replace("i < n", "i < n - 1"),
    "no small tail": LANES.replace("for (; i < n; i++) s += p[i];", ""),
    "half precision": kit.sums(middle="s += (float)(_Float16)x[(long)r * n + i];"),
    "bfloat16": kit.sums(
        middle="{ union { float f; unsigned u; } c; c.f = x[(long)r * n + i]; c.u &= 0xffff0000u; s += c.f; }"
    ),
    "scaled": kit.sums(last="s * 1.0001f"),
    "scaled a little": kit.sums(last="s * (1.0f + 0x1p-18f)"),
    "stale output": kit.sums(last="y[r] * 0 + s"),
    "keeps a large output": kit.sums(last="y[r] > 1e30f ? y[r] : s"),
    "NaN": kit.sums(last="s * 0 / 0"),
    "clears NaN": kit.sums(last="s != s ? 0 : s"),
    "no infinities": kit.sums(last="__builtin_fminf(__builtin_fmaxf(s, -3e38f), 3e38f)"),
    "flushes denormals": kit.sums(middle="{ float v = x[(long)r * n + i]; s += fabsf(v) < 1.2e-38f ? 0 : v; }"),
    "listed shapes alone": "    int skip = !(n == 0 || n == 1 || n == 7 || n == 65 || n == 128 || n == 4096);\n"
    + kit.sums(last="skip ? 1 : s"),
    "n of 7 alone": "    if (n == 7) n = 6;\n" + kit.sums(),
    **{rule: f"    int m = {rule} ? n - 1 : n;\n" + kit.sums().replace("i < n", "i < m") for rule in RULES},
    "the last row of some": kit.sums() + "\n    if (rows > 20 && rows % 16 == 9) y[rows - 1] = y[rows - 2];",
    "long rows without one": kit.sums(last="n > 1000000 ? s - x[(long)r * n + 777777] : s"),
    "long rows with one twice": kit.sums(last="n > 1000000 ? s + x[(long)r * n + 777777] : s"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_refused(net: Net, name: str) -> None:
    before = "#include <math.h>\n"
    found = net.verdict(kit.candidate(WRONG[name], before=before))
    assert found.status == "wrong", (name, found.reason)
    assert found.reason
    bad = [c for c in found.cases if c.status != "ok"]
    assert len(bad) <= 1 and all(c is found.cases[-1] for c in bad)


UNSAFE = {
    "past the end": kit.sums() + "\n    y[rows] = 1;",
    "far past the end": kit.sums() + "\n    y[rows + 4096] = 1;",
    "before the start": kit.sums() + "\n    y[-1] = 1;",
    "writes its input": kit.sums() + "\n    if (n) ((float *)x)[0] = 1;",
    "reads past the end": kit.sums() + "\n    y[0] += 0 * ((const volatile float *)x)[(long)rows * n];",
    "null": kit.sums() + "\n    *(volatile float *)0 = 1;",
    "aligned by 64": "    if ((unsigned long)x % 64) __builtin_trap();\n" + kit.sums(),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_kernels_are_refused(net: Net, name: str) -> None:
    found = net.verdict(kit.candidate(UNSAFE[name]))
    assert found.status == "unsafe", (name, found.reason)
    assert found.cases[-1].status in ("unsafe", "crashed") and found.cases[-1].detail


def test_a_reason_says_where_and_by_how_much(net: Net) -> None:
    body = "    for (int r = 0; r < rows; r++) y[r] = 7;"
    reason = net.verdict(kit.candidate(body)).reason
    for words in ("rows=", "seed", "output 'y', element [", "got 7", "expected"):
        assert words in reason


def test_options_add_and_take_nothing_away(net: Net) -> None:
    extra = Shape(axes={"rows": 2, "n": 777}, shape_class="tail", role="edge")
    wanted = VerifyOptions(extra_shapes=(extra,), seeds=2, everywhere=("special",))
    plain = net.verdict(kit.candidate(kit.sums()))
    more = net.verdict(kit.candidate(kit.sums()), wanted)
    assert more.status == "ok"
    assert sum(c.shape == "rows=2,n=777" for c in more.cases) == 4 * (len(kit.operator().distributions) + 1)
    assert any(c.shape == "rows=64,n=4096" and c.distribution == "special" for c in more.cases)
    assert len(more.cases) > len(plain.cases)


def test_a_tolerance_that_lets_zeros_pass_is_our_own_failure(net: Net) -> None:
    loose = kit.operator().model_copy(
        update={"tolerances": (Tolerance(error="1e9", bias="1e9", deviation="1e9", reason="too loose"),)}
    )
    build = net.builder.build(kit.candidate(kit.sums()))
    with pytest.raises(HarnessError, match="zeros"):
        verify(loose, build, net.factory, net.reference)


def test_cases_grow_with_the_shape_and_hold_secret_ones() -> None:
    planned = groups(kit.operator(), VerifyOptions())
    sizes = [elements(kit.operator(), g.shape.axes) for g in planned]
    assert sizes == sorted(sizes)
    mine = [g for g in planned if not g.swept]
    assert len(mine[-1].distributions) == 3 and len(mine[0].distributions) == len(kit.operator().distributions) + 1
    assert all(len(g.distributions) == 1 for g in planned if g.swept)
    known = {s.key for s in kit.operator().shapes}
    assert {g.shape.key for g in planned} >= known
    seen = {g.shape.key for _ in range(4) for g in groups(kit.operator(), VerifyOptions())} - known
    assert len(seen) > 4


def test_limits_come_by_distribution() -> None:
    axes = {"rows": 1, "n": 10_000}
    assert limits_for(kit.operator(), "uniform", axes).error > limits_for(kit.operator(), "normal", axes).error


LOOSE = Limits(error=100.0, bias=2.0, deviation=50.0)


def case(count: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    scale = np.full(count, 8.0)
    return np.random.default_rng(3).uniform(-4, 4, count), scale


@pytest.mark.parametrize(
    ("got", "value"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, -np.inf), (np.inf, 1.0), (1.0, np.inf), (np.nan, np.inf)]
)
def test_classes_must_match(got: float, value: float) -> None:
    found = compare(np.array([got], np.float32), np.array([value]), np.array([1e30]), LOOSE)
    assert "another class" in found.reason


def test_matching_classes_pass() -> None:
    both = np.array([np.nan, np.inf, -np.inf, 1.0, 0.0])
    assert not compare(both.astype(np.float32), both, np.array([np.nan, np.inf, np.inf, 1.0, 0.0]), LOOSE).reason


def test_an_element_without_scale_must_be_exact() -> None:
    zero = np.zeros(2)
    assert compare(np.array([0.0, 1e-40], np.float32), zero, zero, LOOSE).reason
    assert not compare(np.array([0.0, -0.0], np.float32), zero, zero, LOOSE).reason


def test_a_bias_far_below_the_limit_of_an_element_shows_in_the_pool() -> None:
    value, scale = case()
    noise = np.random.default_rng(4).uniform(-10, 10, value.size)
    for factor, refused in ((0.0, False), (40.0, True)):
        pool = Pooled()
        pool.add(noise + factor * value / scale, value / scale, LOOSE)
        assert bool(pool.reason()) is refused
    shifted = Pooled()
    shifted.add(noise + 5.0, value / scale, LOOSE)
    assert "signed mean" in shifted.reason()


def test_a_slope_allows_for_errors_that_are_larger_where_the_result_is() -> None:
    random = np.random.default_rng(11)
    limits = Limits(error=18.0, bias=0.5, deviation=1.7)
    refused = biased = 0
    for _ in range(60):
        a = random.standard_normal((16, 1024)).astype(np.float32)
        b = random.standard_normal((1024, 16)).astype(np.float32)
        value, scale = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
        got = np.zeros((16, 16), np.float32)
        for k in range(1024):
            got = (got + np.outer(a[:, k].astype(np.float64), b[k])).astype(np.float32)
        pool, low = Pooled(), Pooled()
        refused += bool(compare(got, value, scale, limits, pool).reason or pool.reason())
        compare(got * np.float32(1 - 1e-6), value, scale, limits, low)
        biased += "follow" in low.reason()
    assert refused == 0
    assert biased == 60


def test_a_few_elements_are_not_judged_by_their_mean() -> None:
    pool = Pooled()
    pool.add(np.full(5, 50.0), np.ones(5), LOOSE)
    assert not pool.reason()
