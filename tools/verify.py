"""Safety and correctness of one build against the float64 reference, on inputs that nobody has seen before.

Safety comes first in each case: a crash, a time limit, a damaged canary or a changed input ends the check before any
number is looked at. Outputs are poisoned before each batch, with a NaN and with a large finite value in turn, and read
while the worker stands still. The first bad case ends the check and gives the reason.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.nouns import Distribution, Operator
from kernelcrew.tools.arena import InputRing, OutputRing
from kernelcrew.tools.data import fill_large
from kernelcrew.tools.nouns import Build, CaseResult, Verification
from kernelcrew.tools.numerics import Compared, Limits, Pooled, compare, limits_for
from kernelcrew.tools.reference import Expected, Reference
from kernelcrew.tools.verify_cases import Group, VerifyOptions, groups, new_seed
from kernelcrew.tools.worker import Sample, Worker

__all__ = ["VerifyOptions", "WorkerFactory", "verify"]

WorkerFactory = Callable[[Build], Worker]
Arrays = Mapping[str, NDArray[Any]]
POISON_KINDS = ("nan", "large")
BAD_STATUS = {"timeout": "timeout", "crashed": "crashed"}


def verify(
    operator: Operator, build: Build, factory: WorkerFactory, reference: Reference, options: VerifyOptions | None = None
) -> Verification:
    """Verdict on one build that is ok. Raises HarnessError when the reference or the worker itself fails."""
    started = time.monotonic()
    with factory(build) as worker:
        check = _Check(operator, worker, reference)
        failed = worker.failure
        if failed is not None:
            reason = f"loading: {failed.detail or failed.status}"
            status = "unsafe"
        else:
            status, reason = check.run(groups(operator, options or VerifyOptions()))
        return Verification.model_validate({
            "status": status, "cases": check.cases, "bias": check.bias, "bias_slope": check.slope,
            "deterministic": check.deterministic, "reason": reason, "sandbox": worker.containment,
            "seconds": time.monotonic() - started,
        })


class _Drawn:
    """The inputs of one shape and distribution: as many as the ring has slots, each from its own seed."""

    def __init__(self, operator: Operator, distribution: Distribution, ring: InputRing, outputs: OutputRing) -> None:
        self.seeds = [new_seed() for _ in range(ring.slots)]
        self.both: list[dict[str, NDArray[Any]]] = []
        for slot, seed in enumerate(self.seeds):
            rng = np.random.Generator(np.random.SFC64(seed))
            arrays = ring.views(slot)
            for tensor in operator.tensors:
                if tensor.role == "inout":
                    arrays[tensor.name] = np.empty_like(outputs.views(slot)[tensor.name])
                if tensor.role != "out":
                    fill_large(operator.drawn(distribution, tensor.name), rng, arrays[tensor.name])
            self.both.append(arrays)
        self._inout = [t.name for t in operator.tensors if t.role == "inout"]
        self._sums = [_sums(ring.views(slot)) for slot in range(ring.slots)]

    def place(self, outputs: OutputRing, slots: Mapping[int, int]) -> None:
        """Give each output slot the starting contents of its `inout` tensors."""
        for name in self._inout:
            for target, source in slots.items():
                outputs.stacked(name)[target] = self.both[source][name]

    def changed(self, ring: InputRing) -> str:
        """'' when the inputs are as they were drawn, else which one is not."""
        for slot, before in enumerate(self._sums):
            for name, total in _sums(ring.views(slot)).items():
                if total != before[name]:
                    return f"input '{name}' was changed"
        return ""


class _Check:
    """One verification under way."""

    def __init__(self, operator: Operator, worker: Worker, reference: Reference) -> None:
        self.cases: list[CaseResult] = []
        self.deterministic = True
        self._operator = operator
        self._worker = worker
        self._reference = reference
        self._pools: dict[str, Pooled] = {}
        self._telling: dict[str, bool] = {}
        self._judged = {d.name for d in operator.distributions if d.kind not in ("zeros", "spike")}

    @property
    def bias(self) -> float:
        count = sum(p.count for p in self._pools.values())
        return sum(p.bias * p.count for p in self._pools.values()) / count if count else 0.0

    @property
    def slope(self) -> float:
        return max((p.slope for p in self._pools.values()), key=abs, default=0.0)

    def run(self, planned: list[Group]) -> tuple[str, str]:
        """Status and reason."""
        for group in planned:
            for case in self._group(group):
                if not group.swept or case.status != "ok":
                    self.cases.append(case)
                if case.status != "ok":
                    status = "wrong" if case.status == "wrong" else "unsafe"
                    return status, f"{case.shape}, {case.distribution}, seed {case.seed}: {case.detail}"
        for name, pool in self._pools.items():
            if reason := pool.reason():
                return "wrong", f"{name}, all shapes: {reason}"
        for name, telling in self._telling.items():
            if not telling:
                fix = f"tighten the tolerance of '{name}' or change the distribution in operator.toml"
                raise HarnessError(f"distribution '{name}' would let an output of zeros pass on every shape", fix=fix)
        return "ok", ""

    def _group(self, group: Group) -> Iterator[CaseResult]:
        axes = group.shape.axes
        with (
            InputRing(self._operator, axes, group.inputs) as inputs,
            OutputRing(self._operator, axes, group.inputs) as outputs,
        ):
            handle = self._worker.attach(inputs, outputs)
            for index, distribution in enumerate(group.distributions):
                drawn = _Drawn(self._operator, distribution, inputs, outputs)
                expected = [self._reference.values(arrays, axes) for arrays in drawn.both]
                rounds = POISON_KINDS if group.twice or index == 0 else POISON_KINDS[:1]
                run = _Run(group, distribution, inputs, outputs, handle)
                yield from self._distribution(run, drawn, expected, rounds)
            self._worker.detach(handle)

    def _distribution(
        self, run: _Run, drawn: _Drawn, expected: list[Expected], rounds: tuple[str, ...]
    ) -> Iterator[CaseResult]:
        """Both poisons on the same inputs; one result an input."""
        limits = limits_for(self._operator, run.distribution.name, run.group.shape.axes)
        found: list[CaseResult] = []
        before: dict[int, list[bytes]] = {}
        for kind in rounds:
            slots, unsafe = self._batch(run, drawn, kind)
            if unsafe is not None:
                yield run.case(drawn.seeds[0], unsafe[0], Compared(reason=unsafe[1]), limits)
                return
            first = kind == rounds[0]
            for target, source in sorted(slots.items(), key=lambda pair: pair[1]):
                views = run.outputs.views(target)
                result = self._compared(views, expected[source], limits, run.distribution.name, first)
                case = run.case(drawn.seeds[source], "wrong" if result.reason else "ok", result, limits)
                if result.reason:
                    yield case
                    return
                bits = [view.tobytes() for view in views.values()]
                self.deterministic &= before.setdefault(source, bits) == bits
                if first:
                    found.append(case)
        yield from found

    def _batch(self, run: _Run, drawn: _Drawn, kind: str) -> tuple[dict[int, int], tuple[str, str] | None]:
        """One sealed batch over poisoned outputs: which slot holds which answer; status and words when unsafe."""
        calls, rotation = run.inputs.slots, secrets.randbelow(run.inputs.slots)
        slots = run.outputs.outputs_of(calls, rotation)
        run.outputs.poison(kind)
        drawn.place(run.outputs, slots)
        sample: Sample = self._worker.batch(run.handle, calls, rotation)
        if not sample.ok:
            return slots, (BAD_STATUS.get(sample.status, "unsafe"), sample.detail or sample.status)
        words = run.outputs.damage() or drawn.changed(run.inputs)
        return slots, ("unsafe", words) if words else None

    def _compared(self, views: Arrays, expected: Expected, limits: Limits, name: str, first: bool) -> Compared:
        """All outputs of one call; the first that is wrong, else the one with the largest error."""
        pool = self._pools.setdefault(name, Pooled()) if first else None
        worst = Compared()
        for tensor, (value, scale) in expected.items():
            result = compare(views[tensor], value, scale, limits, pool)
            if first and value.size and name in self._judged:
                self._telling[name] = self._telling.get(name, False) or not result.trivial
            if result.reason:
                return result.model_copy(update={"reason": f"output '{tensor}', {result.reason}"})
            worst = result if result.worst >= worst.worst else worst
        return worst


class _Run:
    """What stays the same over the batches of one shape and distribution."""

    def __init__(
        self, group: Group, distribution: Distribution, inputs: InputRing, outputs: OutputRing, handle: int
    ) -> None:
        self.group = group
        self.distribution = distribution
        self.inputs = inputs
        self.outputs = outputs
        self.handle = handle

    def case(self, seed: int, status: str, result: Compared, limits: Limits) -> CaseResult:
        return CaseResult.model_validate({
            "shape": self.group.shape.key, "distribution": self.distribution.name, "seed": seed, "status": status,
            "worst": result.worst, "limit": limits.error, "mean": result.mean, "deviation": result.deviation,
            "detail": result.reason,
        })


def _sums(arrays: Arrays) -> dict[str, int]:
    """A sum of the bits of each array: cheap, and enough to see that a write went through a read-only mapping."""
    # Words of eight bytes need no conversion on the way; a guarded tensor of whole words is aligned to them by its end.
    kinds = ((8, np.uint64), (4, np.uint32), (1, np.uint8))
    found = {}
    for name, array in arrays.items():
        word = next(kind for size, kind in kinds if array.nbytes % size == 0)
        found[name] = int(np.add.reduce(array.reshape(-1).view(word), dtype=np.uint64))
    return found
