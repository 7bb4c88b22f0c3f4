"""The operator's reference and limits: honest sums pass, zeros, halves and a wrong factor do not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import reference_path
from kernelcrew.kernels.nouns import Operator, Tolerance

U = 2.0**-24
SHAPES = ((4096, 5), (2048, 16), (2048, 33), (512, 256), (256, 1024), (64, 4096))
Floats = NDArray[Any]


def serial(x: Floats) -> Floats:
    """One float32 chain from left to right."""
    return np.cumsum(x, axis=1, dtype=np.float32)[:, -1]


def lanes(x: Floats) -> Floats:
    """Eight float32 chains side by side, then a chain over them."""
    whole = x.shape[1] // 8 * 8
    chains = np.cumsum(x[:, :whole].reshape(len(x), -1, 8), axis=1, dtype=np.float32)[:, -1] if whole else x[:, :0]
    return serial(np.concatenate([chains, x[:, whole:]], axis=1))


HONEST: dict[str, Callable[[Floats], Floats]] = {
    "serial": serial, "backwards": lambda x: serial(x[:, ::-1]), "lanes": lanes, "pairwise": lambda x: x.sum(axis=1),
    "double": lambda x: x.astype(np.float64).sum(axis=1).astype(np.float32),
}
BAD: dict[str, Callable[[Floats], Floats]] = {
    "zeros": lambda x: np.zeros(len(x), np.float32),
    "halves": lambda x: x.astype(np.float16).astype(np.float64).sum(axis=1).astype(np.float32),
    "without the last": lambda x: x[:, :-1].astype(np.float64).sum(axis=1).astype(np.float32),
}


def draw(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    if name == "uniform":
        return rng.random(shape, dtype=np.float32)
    if name == "wide":
        return (rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-6, 6, shape)).astype(np.float32)
    x = rng.standard_normal(shape, dtype=np.float32)
    if name == "cancelling":
        x = np.abs(x) + np.float32(0.5)
        half = shape[1] // 2
        x[:, half : 2 * half] = -x[:, :half] * np.float32(1 - 1 / 64)
    return x


@pytest.fixture(scope="module")
def reference(reduction: Operator) -> Any:
    spec = importlib.util.spec_from_file_location("reduction_reference", reference_path(reduction))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference


def limits(reduction: Operator, name: str) -> Tolerance:
    by_name = {t.distribution: t for t in reduction.tolerances}
    return by_name.get(name, by_name["*"])


def refused(y: Floats, x: Floats, tolerance: Tolerance, reference: Any) -> str:
    """'' when `y` keeps the limits, else the one it breaks."""
    axes = {"rows": x.shape[0], "n": x.shape[1]}
    value, scale = reference({"x": x}, axes)["y"]
    errors = (y.astype(np.float64) - value) / (U * scale)
    found = {"error": np.abs(errors).max(), "bias": abs(errors.mean()), "deviation": errors.std()}
    broken = [k for k, v in found.items() if not v <= parse(getattr(tolerance, k)).value(axes)]
    return broken[0] if broken else ""


@pytest.mark.parametrize("name", ["normal", "uniform", "wide", "cancelling"])
def test_limits_part_honest_sums_from_others(name: str, reduction: Operator, reference: Any) -> None:
    rng = np.random.default_rng(3)
    tolerance = limits(reduction, name)
    for shape in SHAPES:
        x = draw(name, rng, shape)
        for who, kernel in HONEST.items():
            assert refused(kernel(x), x, tolerance, reference) == "", (who, shape)
        for who, kernel in BAD.items():
            with np.errstate(over="ignore", invalid="ignore"):
                assert refused(kernel(x), x, tolerance, reference), (who, shape)


def test_a_factor_shows_in_the_mean(reduction: Operator, reference: Any) -> None:
    x = draw("uniform", np.random.default_rng(4), (4096, 16))
    close = HONEST["double"](x) * np.float32(1 + 2e-7)
    assert refused(HONEST["double"](x), x, limits(reduction, "uniform"), reference) == ""
    assert refused(close, x, limits(reduction, "uniform"), reference) == "bias"


def test_limits_grow_only_where_the_reason_says_so(reduction: Operator) -> None:
    for tolerance in reduction.tolerances:
        far = [parse(tolerance.error).value({"rows": 1, "n": n}) for n in (4096, 1 << 24)]
        assert (far[0] < far[1]) == (tolerance.distribution in ("uniform", "cancelling"))


def test_the_reference_is_exact_enough_and_blocked(reference: Any) -> None:
    rng = np.random.default_rng(6)
    for rows, n in ((3, 7), (1, (1 << 20) + 5), (70000, 31)):
        x = rng.standard_normal((rows, n), dtype=np.float32)
        value, scale = reference({"x": x}, {"rows": rows, "n": n})["y"]
        assert value.dtype == scale.dtype == np.float64 and value.shape == scale.shape == (rows,)
        np.testing.assert_allclose(value, x.astype(np.longdouble).sum(axis=1).astype(np.float64), atol=1e-9)
        np.testing.assert_allclose(scale, np.abs(x).astype(np.float64).sum(axis=1), rtol=1e-12)


def test_the_reference_of_nothing_and_of_what_is_not_finite(reference: Any) -> None:
    for rows, n in ((0, 0), (0, 7), (5, 0)):
        value, scale = reference({"x": np.zeros((rows, n), np.float32)}, {"rows": rows, "n": n})["y"]
        assert value.shape == (rows,) and not value.any() and not scale.any()
    x = np.ones((4, 3), np.float32)
    x[0, 1], x[1, 0], x[2, 0], x[2, 2] = np.inf, np.nan, np.inf, -np.inf
    value, scale = reference({"x": x}, {"rows": 4, "n": 3})["y"]
    assert value[0] == np.inf and np.isnan(value[1]) and np.isnan(value[2]) and value[3] == 3.0
    assert not np.isfinite(scale[:3]).any() and scale[3] == 3.0
