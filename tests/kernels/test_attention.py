"""`attention`: honest kernels pass its limits; wrong, imprecise and careless ones do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator

sys.path.insert(0, str(Path(__file__).parent))
import operator_net as kit

KEYS = (
    "heads=2,m=3,n=0,d=4,causal=0", "heads=1,m=1,n=1,d=64,causal=1", "heads=2,m=9,n=4,d=5,causal=1",
    "heads=3,m=2,n=7,d=8,causal=1", "heads=2,m=3,n=33,d=31,causal=0", "heads=1,m=65,n=65,d=32,causal=1",
    "heads=1,m=5,n=129,d=80,causal=0", "heads=5,m=61,n=37,d=33,causal=0", "heads=2,m=1,n=127,d=128,causal=1",
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Net]:
    made = kit.Net("attention", tmp_path_factory.mktemp("attention"), KEYS)
    yield made
    made.close()


HEAD = """#include <math.h>
#include <stdlib.h>
static float weight(float x) { return expf(x); }
static float bf(float x) { union { float f; unsigned u; } c; c.f = x; c.u &= 0xffff0000u; return c.f; }
"""
ENTRY = """void attention(const float *Q, const float *K, const float *V, float *O,
               int heads, int m, int n, int d, int causal)
{
"""
TWO_PASSES = HEAD + ENTRY + """    float *p = malloc((size_t)(n + 1) * sizeof(float));
    if (!p) return;
    const float scale = 1 / sqrtf((float)d);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < m; i++) {
            const float *q = Q + ((long)h * m + i) * d, *k = K + (long)h * n * d, *v = V + (long)h * n * d;
            float *o = O + ((long)h * m + i) * d;
            const int seen = causal && i + n - m + 1 < n ? i + n - m + 1 : n;
            float top = -INFINITY, sum = 0;
            for (int j = 0; j < seen; j++) {
                float s = 0;
                for (int c = 0; c < d; c++) s += q[c] * k[(long)j * d + c];
                p[j] = s * scale;
                top = p[j] > top ? p[j] : top;
            }
            for (int j = 0; j < seen; j++) sum += p[j] = weight(p[j] - top);
            for (int c = 0; c < d; c++) {
                float s = 0;
                for (int j = 0; j < seen; j++) s += p[j] * v[(long)j * d + c];
                o[c] = seen > 0 ? s / sum : 0;
            }
        }
    free(p);
}
"""
ONLINE = HEAD + ENTRY + """    for (int h = 0; h < heads; h++)
        for (int i = 0; i < m; i++) {
            const float *q = Q + ((long)h * m + i) * d, *k = K + (long)h * n * d, *v = V + (long)h * n * d;
            float *o = O + ((long)h * m + i) * d;
            const int seen = causal && i + n - m + 1 < n ? i + n - m + 1 : n;
            float top = -INFINITY, sum = 0;
            for (int c = 0; c < d; c++) o[c] = 0;
            for (int j = 0; j < seen; j++) {
                float s = 0;
                for (int c = 0; c < d; c++) s += q[c] * k[(long)j * d + c];
                s /= sqrtf((float)d);
                const float higher = s > top || s != s ? s : top;
                const float keep = j ? weight(top - higher) : 0, w = weight(s - higher);
                sum = sum * keep + w;
                for (int c = 0; c < d; c++) o[c] = o[c] * keep + w * v[(long)j * d + c];
                top = higher;
            }
            if (seen > 0)
                for (int c = 0; c < d; c++) o[c] *= 1 / sum;
        }
}
"""
LIBRARY = "static float weight(float x) { return expf(x); }\n"
SEEN = "causal && i + n - m + 1 < n ? i + n - m + 1 : n"
DOT = "s += q[c] * k[(long)j * d + c]"
ADD = "s += p[j] * v[(long)j * d + c]"


def two(*pairs: tuple[str, str]) -> str:
    return kit.changed(TWO_PASSES, *pairs)


HONEST = {
    "two passes": TWO_PASSES, "online": ONLINE,
    "exp2": two((LIBRARY, "static float weight(float x) { return exp2f(x * 1.442695041f); }\n")),
    "fast exp": two((LIBRARY, """static float weight(float x)
{
    if (!(x > -87.0f)) return x != x ? x : 0;
    const float z = rintf(x * 1.442695041f), r = fmaf(z, 1.42860677e-6f, fmaf(z, -0.693148613f, x));
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720, y = y * r + 1.0f / 120, y = y * r + 1.0f / 24, y = y * r + 1.0f / 6, y = y * r + 0.5f;
    return ldexpf(y * r * r + r + 1, (int)z);
}
""")),
    "double": two(
        ("float s = 0", "double s = 0"), ("sum = 0", "sum = 0; double total = 0"), ("sum += p[j]", "total += p[j]"),
        ("s / sum", "s / total"),
    ),
    "weights divided": two((ADD, "s += p[j] / sum * v[(long)j * d + c]"), ("s / sum", "s")),
}
BAD = {
    "zeros": HEAD + ENTRY + "    for (long e = 0; e < (long)heads * m * d; e++) O[e] = 0;\n}\n",
    "sees one key too few": two((SEEN, SEEN.replace("+ 1", "+ 0"))),
    "sees one key too many": two((SEEN, SEEN.replace("+ 1", "+ 2"))),
    "mask from the first key": two((SEEN, "causal && i + 1 < n ? i + 1 : n")),
    "no mask": two((SEEN, "n")),
    "always a mask": two((SEEN, SEEN.replace("causal &&", ""))),
    "without the last key": two((SEEN, "(" + SEEN + ") - (n > 1)")),
    "no tail of d": two((DOT, "s += c < (d & ~7) || d < 8 ? q[c] * k[(long)j * d + c] : 0")),
    "no scale": two(("p[j] = s * scale", "p[j] = s")),
    "maximum left on": two(("weight(p[j] - top)", "weight(p[j])")),
    "NaN where nothing is seen": two(("seen > 0 ? s / sum : 0", "s / sum")),
    "hidden values times zero": two(
        ("for (int j = 0; j < seen; j++) s += p[j] *", "for (int j = 0; j < n; j++) s += (j < seen ? p[j] : 0) *")
    ),
    "bfloat16 queries": two((DOT, "s += bf(q[c]) * k[(long)j * d + c]")),
    "bfloat16 keys": two((DOT, "s += q[c] * bf(k[(long)j * d + c])")),
    "bfloat16 values": two((ADD, "s += p[j] * bf(v[(long)j * d + c])")),
    "bfloat16 weights": two((ADD, "s += bf(p[j]) * v[(long)j * d + c]")),
    "float16 inputs": two((DOT, "s += (float)(_Float16)q[c] * (float)(_Float16)k[(long)j * d + c]")),
    "float16 accumulators": two(("float s = 0", "_Float16 s = 0")),
    "coarse exp": two((LIBRARY, """static float weight(float x)
{
    union { float f; int i; } u;
    u.i = x > -87 ? (int)(12102203.0f * x + 1064866805.0f) : 0;
    return u.f;
}
""")),
    "exp off by 2^-15": two(("return expf(x)", "return expf(x * (1 + 0x1p-15f))")),
    "clears NaN": two(("? s / sum : 0", "&& s == s ? s / sum : 0")),
}


def test_the_start_kernel_passes_with_and_without_the_flags_of_the_contract(net: kit.Net) -> None:
    backend = net.operator.backends["c"]
    assert net.verdict(net.start()).status == "ok"
    assert net.verdict(net.start(*backend.contract_flags, *backend.extra_flags)).status == "ok"


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_pass(net: kit.Net, name: str) -> None:
    found = net.verdict(net.candidate(HONEST[name]))
    assert found.status == "ok", found.reason


@pytest.mark.parametrize("name", BAD)
def test_bad_kernels_are_refused(net: kit.Net, name: str) -> None:
    found = net.verdict(net.candidate(BAD[name]))
    assert found.status == "wrong" and found.reason, name


def test_shapes_and_costs() -> None:
    operator = load_operator("attention")
    kit.shape_rules(operator)
    timed = operator.timed()
    assert {0, 1} == {s.axes["causal"] for s in timed} and {32, 64, 80, 128} <= {s.axes["d"] for s in timed}
    for m in range(6):
        for n in range(6):
            for causal in (0, 1):
                pairs = sum(1 for i in range(m) for j in range(n) if not causal or j <= i + n - m)
                axes = {"heads": 3, "m": m, "n": n, "d": 5, "causal": causal}
                assert parse(operator.cost.flops).value(axes) == 3 * pairs * (4 * 5 + 4), axes


def plain(q: Any, k: Any, v: Any, causal: int) -> Any:
    """The definition, key by key, for one head."""
    (m, d), n = q.shape, len(k)
    out = np.zeros((m, d))
    for i in range(m):
        seen = max(0, min(n, i + n - m + 1)) if causal else n
        if seen:
            weights = np.exp(k[:seen] @ q[i] / np.sqrt(d))
            out[i] = weights @ v[:seen] / weights.sum()
    return out


@pytest.mark.parametrize(("m", "n", "causal"), [(4, 6, 0), (4, 6, 1), (6, 4, 1), (5, 5, 1), (3, 0, 1), (0, 3, 0)])
def test_the_reference(m: int, n: int, causal: int) -> None:
    reference = kit.reference_of(load_operator("attention"))
    rng = np.random.default_rng(m + n)
    q, k, v = (rng.standard_normal((2, rows, 7), dtype=np.float32) for rows in (m, n, n))
    axes = {"heads": 2, "m": m, "n": n, "d": 7, "causal": causal}
    value, scale = reference({"Q": q, "K": k, "V": v}, axes)["O"]
    for h in range(2):
        ours = (x[h].astype(np.float64) for x in (q, k, v))
        np.testing.assert_allclose(value[h], plain(*ours, causal=causal), atol=1e-13)
    blind = [i for i in range(m) if n == 0 or (causal and i + n - m < 0)]
    assert not scale[:, blind].any() and (np.delete(scale, blind, axis=1) > 0).all()
    assert (np.abs(value) <= scale).all()


def test_the_scale_bounds_what_a_wrong_logit_does() -> None:
    """Logits off by one part in 10^7 of their condition move O by less than that part of the scale."""
    reference = kit.reference_of(load_operator("attention"))
    rng = np.random.default_rng(2)
    for spread in (0.1, 1.0, 30.0):
        q, k, v = (rng.standard_normal((1, rows, 16)) for rows in (8, 20, 20))
        q *= spread
        axes = {"heads": 1, "m": 8, "n": 20, "d": 16, "causal": 0}
        value, scale = reference({"Q": q, "K": k, "V": v}, axes)["O"]
        moved, _ = reference({"Q": q * (1 + 1e-7 * rng.choice([-1, 1], q.shape)), "K": k, "V": v}, axes)["O"]
        share = np.abs(moved - value) / (1e-7 * scale)
        assert 0 < share.max() <= 1


def test_classes_of_the_reference() -> None:
    reference = kit.reference_of(load_operator("attention"))
    q, k, v = (np.random.default_rng(3).standard_normal((1, 4, 3)).astype(np.float32) for _ in range(3))
    axes = {"heads": 1, "m": 4, "n": 4, "d": 3, "causal": 1}
    v[0, 2, 0], v[0, 3, 1], v[0, 1, 2], v[0, 3, 2] = np.inf, np.nan, np.inf, -np.inf
    value, scale = reference({"Q": q, "K": k, "V": v}, axes)["O"]
    assert np.isfinite(value[0, :2, 0]).all() and (value[0, 2:, 0] == np.inf).all()
    assert np.isfinite(value[0, :3, 1]).all() and np.isnan(value[0, 3, 1])
    assert value[0, 1, 2] == value[0, 2, 2] == np.inf and np.isnan(value[0, 3, 2])
    assert np.array_equal(np.isfinite(value), np.isfinite(scale))
    q[0, 1, 0], q[0, 2, 1] = np.nan, np.inf
    value, _ = reference({"Q": q, "K": k, "V": v}, axes)["O"]
    assert np.isnan(value[0, 1:3]).all() and np.isfinite(value[0, 0]).all()
