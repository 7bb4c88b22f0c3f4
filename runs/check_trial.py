"""The expensive part of the preflight: the start kernel built, verified and timed, and trivial outputs held against the
limits. Kept under `.kernelcrew/cache/check` by the operator's contract, sources and toolchain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from kernelcrew.errors import HarnessError, StoreError
from kernelcrew.event import Event, Listener
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import reference_path, start_candidate
from kernelcrew.kernels.nouns import Distribution, Operator, Shape
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record, hash_of
from kernelcrew.settings import Settings
from kernelcrew.tools.data import fill_large
from kernelcrew.tools.numerics import Pooled, compare, limits_for
from kernelcrew.tools.reference import Expected, Reference
from kernelcrew.tools.verify_cases import elements
from kernelcrew.tools.workshop import BuildArgs, TimesArgs, VerifyArgs

LARGE = 1 << 21
"""Elements above which a shape is tried under the timed distribution alone."""
MOST_S = 20.0
"""Seconds that trivial outputs may take; the largest shapes come last and are left out first."""
SEED = 20260101
"""Inputs of the trivial outputs: what is kept must not depend on the draw."""
VERSION = 1
"""Raised when what is tried changes, so that nothing older is read."""
Arrays = Mapping[str, NDArray[Any]]


class Passing(Record):
    """A trivial output that the limits let pass."""

    output: str
    """zeros, ones, a copy of the first input, or the mean."""
    distribution: str
    """Under which distribution."""
    shape: str
    """At which timed shape."""


class Tried(Record):
    """What came of it."""

    start: str
    """What is wrong with the start kernel; '' when it passes its own verification."""
    us: dict[str, float] = Field(default_factory=dict)
    """Median time of one call of the start kernel, by timed shape; empty when it is not right."""
    passing: tuple[Passing, ...] = ()
    """Trivial outputs that passed."""
    everywhere: tuple[tuple[str, str], ...] = ()
    """Trivial output and distribution that passed on every timed shape tried."""
    cases: int = 0
    """Distributions times shapes that were tried."""


def tried(settings: Settings, operator: Operator, backend: str, machine: Machine, listener: Listener) -> Tried:
    """Read back when contract, sources and toolchain are as they were, else worked out. Raises CrewError."""
    start = start_candidate(operator, backend)
    reference = reference_path(operator).read_bytes().hex()
    key = hash_of(VERSION, operator.contract_hash(), start.identity, reference, machine.toolchain, machine.platform.id)
    path = settings.home / "cache" / "check" / f"{key}.json"
    kept = _kept(path)
    if kept is not None:
        return kept
    message = "build, verify and time the start kernel, hold trivial outputs against the limits"
    listener(Event(stage="check", message=message))
    found = _start(settings, operator, backend, machine)
    found = found.model_copy(update=trivial_outputs(operator, MOST_S))
    _keep(path, found)
    return found


def trivial_outputs(operator: Operator, most_s: float) -> dict[str, Any]:
    """Fields of `Tried`: which trivial outputs the limits let pass, smallest shapes first, within `most_s` seconds."""
    passing: list[Passing] = []
    refused: set[tuple[str, str]] = set()
    cases = 0
    began = time.monotonic()
    shapes = sorted(operator.timed(), key=lambda s: elements(operator, s.axes))
    with Reference(operator) as reference:
        for shape in shapes:
            for distribution in _drawn(operator, shape):
                if cases and time.monotonic() - began > most_s:
                    break
                cases += 1
                inputs = _inputs(operator, distribution, shape)
                expected = reference.values(inputs, shape.axes)
                for output, outputs in _trivial(operator, inputs, expected):
                    if _passes(operator, distribution.name, shape, outputs, expected):
                        passing.append(Passing(output=output, distribution=distribution.name, shape=shape.key))
                    else:
                        refused.add((output, distribution.name))
    everywhere = dict.fromkeys((p.output, p.distribution) for p in passing)
    return {
        "passing": tuple(passing),
        "everywhere": tuple(pair for pair in everywhere if pair not in refused),
        "cases": cases,
    }


def _start(settings: Settings, operator: Operator, backend: str, machine: Machine) -> Tried:
    """The start kernel through build, verification and a plain timing."""
    from kernelcrew.runs import session  # loads all of agents and memory, which takes longer than a kept answer

    workshop, device = session.alone(settings, operator, machine)
    try:
        build = workshop.build(BuildArgs(candidates=(start_candidate(operator, backend),))).builds[0]
        if build.status != "ok":
            words = "; ".join(f"{d.at}{d.message}" for d in build.diagnostics[:3] if d.kind != "note")
            return Tried(start=f"it does not build ({build.stage}): {words}")
        try:
            checked = workshop.verify(VerifyArgs(build=build))
        except HarnessError as error:
            return Tried(start=f"it cannot be verified: {error.what}")
        if checked.status != "ok":
            return Tried(start=f"it is not right: {checked.reason}")
        with device():
            times = workshop.times(TimesArgs(build=build, shapes=operator.timed()))
        return Tried(start="", us=times.us)
    finally:
        workshop.close()


def _drawn(operator: Operator, shape: Shape) -> list[Distribution]:
    """The distributions to try; those of zeros alone are left out, where zeros may well be right."""
    timing = operator.distribution(operator.timing_distribution)
    if elements(operator, shape.axes) > LARGE:
        return [timing]
    return [d for d in operator.distributions if d.kind != "zeros"]


def _inputs(operator: Operator, distribution: Distribution, shape: Shape) -> dict[str, NDArray[Any]]:
    rng = np.random.Generator(np.random.SFC64(SEED))
    found: dict[str, NDArray[Any]] = {}
    for tensor in operator.tensors:
        if tensor.role != "out":
            dims = tuple(int(parse(text).value(shape.axes)) for text in tensor.dims)
            found[tensor.name] = np.empty(dims, dtype=tensor.dtype)
            fill_large(operator.drawn(distribution, tensor.name), rng, found[tensor.name])
    return found


def _trivial(operator: Operator, inputs: Arrays, expected: Expected) -> Iterator[tuple[str, Arrays]]:
    """Outputs that cost nothing to make, as float32 in the outputs' shapes."""
    first = next((inputs[t.name].reshape(-1) for t in operator.tensors if t.name in inputs), np.zeros(1))
    with np.errstate(all="ignore"):
        yield "zeros", {n: np.zeros(v.shape, np.float32) for n, (v, _) in expected.items()}
        yield "ones", {n: np.ones(v.shape, np.float32) for n, (v, _) in expected.items()}
        if first.size:
            copied = {n: np.resize(first, v.shape).astype(np.float32) for n, (v, _) in expected.items()}
            yield "a copy of the first input", copied
        yield "the mean", {n: np.full(v.shape, _mean(v), np.float32) for n, (v, _) in expected.items()}


def _mean(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else 0.0


def _passes(operator: Operator, distribution: str, shape: Shape, outputs: Arrays, expected: Expected) -> bool:
    """Whether the verification's own limits let these outputs pass, the pooled ones among them."""
    limits = limits_for(operator, distribution, shape.axes)
    pool = Pooled()
    for name, (value, scale) in expected.items():
        if compare(outputs[name], value, scale, limits, pool).reason:
            return False
    return not pool.reason()


def _kept(path: Path) -> Tried | None:
    try:
        return Tried.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None


def _keep(path: Path, found: Tried) -> None:
    """Raises StoreError: a run could write nothing either."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(found.model_dump_json(), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        fix = "free space or choose another --workdir"
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix=fix) from error
