"""`gemm`: honest kernels pass its limits; wrong, imprecise and careless ones do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator

sys.path.insert(0, str(Path(__file__).parent))
import operator_net as kit

KEYS = (
    "M=6,N=0,K=9", "M=9,N=17,K=0", "M=2,N=3,K=5", "M=9,N=15,K=7", "M=17,N=31,K=16", "M=65,N=63,K=33", "M=14,N=65,K=129",
    "M=8,N=8,K=16384",
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Net]:
    made = kit.Net("gemm", tmp_path_factory.mktemp("gemm"), KEYS)
    yield made
    made.close()


HEAD = "void gemm(const float *A, const float *B, float *C, int M, int N, int K)\n{\n"
DOTS = HEAD + """    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float s = 0;
            for (int k = 0; k < K; k++)
                s += A[(long)i * K + k] * B[(long)k * N + j];
            C[(long)i * N + j] = s;
        }
}
"""
LANES = HEAD + """    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float s[4] = {0};
            int k = 0;
            for (; k + 4 <= K; k += 4)
                for (int l = 0; l < 4; l++)
                    s[l] += A[(long)i * K + k + l] * B[(long)(k + l) * N + j];
            for (; k < K; k++)
                s[0] += A[(long)i * K + k] * B[(long)k * N + j];
            C[(long)i * N + j] = (s[0] + s[1]) + (s[2] + s[3]);
        }
}
"""
PANELS = HEAD + """    for (long e = 0; e < (long)M * N; e++)
        C[e] = 0;
    for (int k0 = 0; k0 < K; k0 += 32)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float s = 0;
                for (int k = k0; k < K && k < k0 + 32; k++)
                    s += A[(long)i * K + k] * B[(long)k * N + j];
                C[(long)i * N + j] += s;
            }
}
"""
BF16 = """static float bf(float x) { union { float f; unsigned u; } c; c.f = x; c.u &= 0xffff0000u; return c.f; }
"""
HONEST = {
    "dots": DOTS, "lanes": LANES, "panels": PANELS, "double": kit.changed(DOTS, ("float s = 0", "double s = 0")),
    "backwards": kit.changed(DOTS, ("int k = 0; k < K; k++", "int k = K - 1; k >= 0; k--")),
}
TERM = "s += A[(long)i * K + k] * B[(long)k * N + j];"
BAD = {
    "zeros": HEAD + "    for (long e = 0; e < (long)M * N; e++) C[e] = 0;\n}\n",
    "without the last term": kit.changed(DOTS, ("k < K;", "k < K - 1;")),
    "bfloat16 inputs": BF16 + kit.changed(DOTS, (TERM, "s += bf(A[(long)i * K + k]) * bf(B[(long)k * N + j]);")),
    "bfloat16 B": BF16 + kit.changed(DOTS, (TERM, "s += A[(long)i * K + k] * bf(B[(long)k * N + j]);")),
    "float16 inputs": kit.changed(
        DOTS, (TERM, "s += (float)(_Float16)A[(long)i * K + k] * (float)(_Float16)B[(long)k * N + j];")
    ),
    "float16 accumulator": kit.changed(DOTS, ("float s = 0", "_Float16 s = 0")),
    "adds to C": kit.changed(DOTS, ("C[(long)i * N + j] = s", "C[(long)i * N + j] += s")),
    "C left alone for K = 0": kit.changed(DOTS, ("{\n    for", "{\n    if (K == 0) return;\n    for")),
    "transposed B": kit.changed(DOTS, ("(long)k * N + j", "(long)j * K + k")),
    "no tail of K": kit.changed(LANES, ("for (; k < K; k++)", "for (; k < 0; k++)")),
    "no last column": kit.changed(DOTS, ("j < N;", "j < (N & ~7);")),
    "skips zeros of A": kit.changed(DOTS, (TERM, "if (A[(long)i * K + k] != 0) " + TERM)),
    "flushes denormals": "#include <math.h>\n"
    + kit.changed(DOTS, (TERM, "if (!(fabsf(B[(long)k * N + j]) < 1.2e-38f)) " + TERM)),
    "scaled a little": kit.changed(DOTS, ("+ j] = s", "+ j] = s * (1.0f + 0x1p-17f)")),
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
    operator = load_operator("gemm")
    kit.shape_rules(operator)
    axes = {"M": 3, "N": 5, "K": 7}
    assert parse(operator.cost.flops).value(axes) == 2 * 3 * 5 * 7
    assert parse(operator.cost.bytes).value(axes) == 4 * (3 * 7 + 7 * 5 + 3 * 5)


def test_the_reference_and_its_scale() -> None:
    reference = kit.reference_of(load_operator("gemm"))
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 9), (9, 6)))
    value, scale = reference({"A": a, "B": b}, {"M": 4, "N": 6, "K": 9})["C"]
    terms = a.astype(np.longdouble)[:, :, None] * b.astype(np.longdouble)
    np.testing.assert_allclose(value, terms.sum(axis=1).astype(np.float64), atol=1e-14)
    np.testing.assert_allclose(scale, np.abs(terms).sum(axis=1).astype(np.float64), rtol=1e-14)
    value, scale = reference({"A": a[:, :0], "B": b[:0]}, {"M": 4, "N": 6, "K": 0})["C"]
    assert value.shape == scale.shape == (4, 6) and not value.any() and not scale.any()


def test_classes_of_the_reference() -> None:
    reference = kit.reference_of(load_operator("gemm"))
    a, b = np.ones((3, 2), np.float32), np.ones((2, 3), np.float32)
    a[0, 0], a[1, 1], b[1, 2] = np.inf, 0.0, -np.inf
    value, scale = reference({"A": a, "B": b}, {"M": 3, "N": 3, "K": 2})["C"]
    assert value[0, 0] == np.inf and np.isnan(value[0, 2]) and np.isnan(value[1, 2]) and value[2, 2] == -np.inf
    assert value[2, 0] == 2.0 and np.isfinite(scale[1:, :2]).all() and not np.isfinite(scale[:, 2]).any()
