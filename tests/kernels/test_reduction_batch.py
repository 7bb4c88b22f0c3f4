"""`reduction_batch`: honest kernels pass its limits; wrong, imprecise and careless ones do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.kernels.load import load_operator
from kernelcrew.tools.data import draw

sys.path.insert(0, str(Path(__file__).parent))
import operator_net as kit

KEYS = (
    "batch=0,n=7", "batch=5,n=0", "batch=1,n=37", "batch=37,n=1", "batch=9,n=33", "batch=33,n=63", "batch=255,n=129",
    "batch=1023,n=5",
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Net]:
    made = kit.Net("reduction_batch", tmp_path_factory.mktemp("batch"), KEYS)
    yield made
    made.close()


HEAD = "void reduction_batch(const float *x, float *y, int batch, int n)\n{\n"
COLUMNS = HEAD + """    for (int i = 0; i < n; i++) {
        float s = 0;
        for (int b = 0; b < batch; b++)
            s += x[(long)b * n + i];
        y[i] = s;
    }
}
"""
ROWS = HEAD + """    for (int i = 0; i < n; i++)
        y[i] = 0;
    int b = 0;
    for (; b + 4 <= batch; b += 4) {
        const float *p = x + (long)b * n;
        int i = 0;
        for (; i + 8 <= n; i += 8)
            for (int l = i; l < i + 8; l++)
                y[l] += (p[l] + p[l + n]) + (p[l + 2l * n] + p[l + 3l * n]);
        for (; i < n; i++)
            y[i] += (p[i] + p[i + n]) + (p[i + 2l * n] + p[i + 3l * n]);
    }
    for (; b < batch; b++)
        for (int i = 0; i < n; i++)
            y[i] += x[(long)b * n + i];
}
"""
TERM = "s += x[(long)b * n + i];"
HONEST = {
    "columns": COLUMNS, "rows": ROWS, "double": kit.changed(COLUMNS, ("float s", "double s")),
    "backwards": kit.changed(COLUMNS, ("int b = 0; b < batch; b++", "int b = batch - 1; b >= 0; b--")),
}
BAD = {
    "zeros": HEAD + "    for (int i = 0; i < n; i++) y[i] = 0;\n}\n",
    "without the last row": kit.changed(COLUMNS, ("b < batch", "b < batch - 1")),
    "last axis": kit.changed(COLUMNS, ("(long)b * n + i", "(long)i * batch + b")),
    "bfloat16 inputs": kit.changed(
        COLUMNS, (TERM, "{ union { float f; unsigned u; } c; c.f = x[(long)b * n + i]; c.u &= 0xffff0000u; s += c.f; }")
    ),
    "float16 inputs": kit.changed(COLUMNS, (TERM, "s += (float)(_Float16)x[(long)b * n + i];")),
    "float16 accumulator": kit.changed(COLUMNS, ("float s", "_Float16 s")),
    "adds to y": kit.changed(COLUMNS, ("y[i] = s", "y[i] += s")),
    "y left alone for an empty batch": kit.changed(COLUMNS, ("{\n    for", "{\n    if (!batch) return;\n    for")),
    "no tail of the batch": kit.changed(ROWS, ("b < batch;", "b < 0;")),
    "no tail of the columns": kit.changed(ROWS, ("for (; i < n; i++)", "for (; i < 0; i++)")),
    "clears NaN": kit.changed(COLUMNS, ("y[i] = s", "y[i] = s != s ? 0 : s")),
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


def test_shapes() -> None:
    operator = load_operator("reduction_batch")
    kit.shape_rules(operator)
    lengths = [s.axes["batch"] for s in operator.timed()]
    assert max(lengths) > 30 * min(length for length in lengths if length > 1)


def test_columns_are_what_cancels_and_holds_specials() -> None:
    operator = load_operator("reduction_batch")
    rng = np.random.default_rng(8)
    x = draw(operator.distribution("cancelling"), rng, (1000, 40)).astype(np.float64)
    share = np.abs(x.sum(axis=0)) / np.abs(x).sum(axis=0)
    assert (share < 0.02).all() and (np.abs(x.sum(axis=1)) > 1).any()
    special = draw(operator.distribution("special"), rng, (1000, 40))
    held = ~np.isfinite(special).all(axis=0)
    assert 5 <= held.sum() <= 20


def test_the_reference_is_exact_enough_and_blocked() -> None:
    reference = kit.reference_of(load_operator("reduction_batch"))
    rng = np.random.default_rng(6)
    for batch, n in ((0, 4), (4, 0), (7, 3), (70001, 5), (2, 300000)):
        x = rng.standard_normal((batch, n), dtype=np.float32)
        value, scale = reference({"x": x}, {"batch": batch, "n": n})["y"]
        assert value.shape == scale.shape == (n,)
        np.testing.assert_allclose(value, x.astype(np.longdouble).sum(axis=0).astype(np.float64), atol=1e-9)
        np.testing.assert_allclose(scale, np.abs(x.astype(np.float64)).sum(axis=0), rtol=1e-12)
    x = np.ones((3, 4), np.float32)
    x[0, 0], x[1, 1], x[2, 1], x[1, 2] = np.nan, np.inf, -np.inf, np.inf
    value, scale = reference({"x": x}, {"batch": 3, "n": 4})["y"]
    assert np.isnan(value[:2]).all() and value[2] == np.inf and value[3] == 3.0 and np.isfinite(scale).sum() == 1
