"""The real laboratory: sandboxed workers on a pinned core, rings of fresh inputs, every timed output compared.

The parent owns the clock and reads the outputs itself while all workers stand still.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.settings import Settings
from kernelcrew.tools.arena import InputRing, OutputRing
from kernelcrew.tools.hoststate import HostReading, cache_bytes, cpu_ns, quiet_parent, read_host
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.sandbox import Sandbox
from kernelcrew.tools.timing_blocks import LEAST_US, SAMPLE_US, Heat, Sampled, calls_for
from kernelcrew.tools.timing_check import Checker, Filled
from kernelcrew.tools.timing_rings import call_bytes, slots_for
from kernelcrew.tools.worker import Worker

KEPT_RING_BYTES = 16 << 20
"""Input rings from this size on are kept from block to block: to make and fault in one of 128 MB costs 80 ms. The
workers map it anew each time."""
FIRST_GUESS_US = 300.0
"""A guess at a call's time is good once its batch lasted this long."""
BATCH_LIMIT_S = 30.0


@dataclass
class WorkerLab:
    """Makes a stand of fresh workers for each block. Holds the kept rings, and nothing of a candidate."""

    operator: Operator
    settings: Settings
    sandbox: Sandbox
    core: int | None
    checker: Checker
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    sample_us: float = SAMPLE_US
    _kept: dict[str, InputRing] = field(default_factory=dict)

    @contextmanager
    def stand(self, builds: Mapping[str, Build], trusted: Sequence[str]) -> Iterator[WorkerStand]:
        with ExitStack() as stack:
            stack.enter_context(quiet_parent(self.core))
            workers: dict[str, Worker] = {}
            for name in self.rng.permutation(list(builds)):
                worker = Worker.start(builds[str(name)], self.operator, self.settings, self.sandbox, self.core)
                workers[str(name)] = stack.enter_context(worker)
            stand = WorkerStand(self, workers, tuple(trusted))
            stack.callback(stand.close)
            yield stand

    def now(self) -> float:
        return time.monotonic()

    def host(self) -> HostReading:
        return read_host(self.core)

    def ring_bytes(self, shape: Shape) -> int:
        size = call_bytes(self.operator, shape)
        return size * slots_for(shape, size, self._caches)

    @cached_property
    def _caches(self) -> dict[int, int]:
        return cache_bytes(self.core)

    def inputs_for(self, shape: Shape) -> InputRing:
        """A ring for the shape's inputs, placed at random; a large one is the same in every block."""
        size = call_bytes(self.operator, shape)
        slots = slots_for(shape, size, self._caches)
        if size * slots < KEPT_RING_BYTES:
            return InputRing(self.operator, shape.axes, slots, layout="windowed", rng=self.rng)
        if shape.key not in self._kept:
            self._kept[shape.key] = InputRing(self.operator, shape.axes, slots, layout="windowed", rng=self.rng)
        return self._kept[shape.key]

    def close(self) -> None:
        """Free the kept rings and end the reference's child."""
        for ring in self._kept.values():
            ring.close()
        self._kept.clear()
        self.checker.close()


@dataclass
class _Desk:
    """One shape in one stand: its rings, the workers' handles on them and the calls a sample."""

    inputs: InputRing
    outputs: dict[str, OutputRing] = field(default_factory=dict)
    handles: dict[str, int] = field(default_factory=dict)
    paces_us: dict[str, float] = field(default_factory=dict)
    last: dict[str, Filled] = field(default_factory=dict)


@dataclass
class WorkerStand:
    """Fresh workers of one block; all stand still except the one whose turn it is."""

    lab: WorkerLab
    workers: Mapping[str, Worker]
    trusted: tuple[str, ...]
    _desks: dict[str, _Desk] = field(default_factory=dict)

    def heat(self, shape: Shape, order: Sequence[str]) -> Heat:
        """See `Stand.heat`. A contender whose batch fails has no sample and is named in `wrong`."""
        desk = self._desk(shape)
        wrong: dict[str, str] = {}
        for name in order:
            wrong |= self._seat(desk, shape, name)
        self.lab.checker.refresh(desk.inputs)
        running = [n for n in order if n not in wrong]
        paces = {n: desk.paces_us[n] for n in running}
        calls = calls_for(paces, desk.inputs.slots, self.lab.sample_us) if paces else {}
        for name in running:
            desk.outputs[name].poison("nan" if self.lab.rng.random() < 0.8 else "large")
        desk.last = {}
        samples: list[Sampled] = []
        for name in running:
            sample = self._sample(desk, name, calls[name])
            if isinstance(sample, str):
                wrong[name] = sample
            else:
                samples.append(sample)
        wrong |= self._compared(shape, desk)
        short = next((s for s in samples if s.elapsed_us < LEAST_US), None)
        spoilt = f"{short.name}: {short.elapsed_us:.0f} us are no sample" if short else ""
        return Heat(samples=tuple(samples), spoilt=spoilt, wrong=wrong)

    def strict(self, shape: Shape, names: Sequence[str]) -> dict[str, str]:
        """See `Stand.strict`: one slot, chosen at random."""
        desk = self._desk(shape)
        found: dict[str, str] = {}
        slot = int(self.lab.rng.integers(desk.inputs.slots))
        judged = [n for n in names if n not in self.trusted and n in desk.last]
        if judged:
            truth = self.lab.checker.truth(shape, desk.inputs, slot)
            for name in judged:
                reason = self.lab.checker.against_truth(shape, desk.last[name], slot, truth)
                if reason:
                    found[name] = reason
        return found

    def close(self) -> None:
        """Close the rings that are not kept."""
        kept = set(map(id, self.lab._kept.values()))
        for desk in self._desks.values():
            for ring in desk.outputs.values():
                ring.close()
            if id(desk.inputs) not in kept:
                desk.inputs.close()

    def _desk(self, shape: Shape) -> _Desk:
        if shape.key not in self._desks:
            inputs = self.lab.inputs_for(shape)
            self.lab.checker.prepare(shape, inputs)
            self._desks[shape.key] = _Desk(inputs=inputs)
        return self._desks[shape.key]

    def _seat(self, desk: _Desk, shape: Shape, name: str) -> dict[str, str]:
        """Attach a contender to the shape's rings and guess its pace; this also touches every page once."""
        if name in desk.handles:
            return {}
        worker = self.workers[name]
        outputs = OutputRing(self.lab.operator, shape.axes, desk.inputs.slots, layout="packed", rng=self.lab.rng)
        desk.outputs[name] = outputs
        outputs.poison()
        desk.handles[name] = handle = worker.attach(desk.inputs, outputs)
        calls = desk.inputs.slots
        while True:
            sample = _batch(worker, name, handle, calls, 0)
            if isinstance(sample, str):
                return {name: sample}
            busy_us = _busy_us(sample)
            desk.paces_us[name] = busy_us / calls
            if busy_us >= FIRST_GUESS_US:
                return {}
            passes = calls // desk.inputs.slots
            passes = min(16 * passes, max(2 * passes, int(passes * 1.2 * FIRST_GUESS_US / busy_us)))
            calls = passes * desk.inputs.slots

    def _sample(self, desk: _Desk, name: str, calls: int) -> Sampled | str:
        """One sealed batch, or what went wrong."""
        rotation = int(self.lab.rng.integers(desk.inputs.slots))
        sample = _batch(self.workers[name], name, desk.handles[name], calls, rotation)
        if isinstance(sample, Sampled):
            desk.paces_us[name] = min(desk.paces_us[name], _busy_us(sample) / calls)
            desk.last[name] = Filled(ring=desk.outputs[name], slots=desk.outputs[name].outputs_of(calls, rotation))
        return sample

    def _compared(self, shape: Shape, desk: _Desk) -> dict[str, str]:
        """Every output slot of every contender against the first trusted one's, canaries included."""
        wrong = {n: damage for n, filled in desk.last.items() if (damage := filled.ring.damage())}
        judge = next((n for n in self.trusted if n in desk.last), None)
        if judge is None:
            if any(n not in self.trusted for n in desk.last):
                raise HarnessError("no verified kernel ran beside a candidate", fix="report this as a defect")
            return wrong
        for name, filled in desk.last.items():
            if name != judge and name not in wrong:
                reason = self.lab.checker.against_baseline(shape, filled, desk.last[judge])
                if reason:
                    wrong[name] = reason
        return wrong


def _batch(worker: Worker, name: str, handle: int, calls: int, rotation: int) -> Sampled | str:
    before = cpu_ns(worker.pid)
    sample = worker.batch(handle, calls, rotation, limit_s=BATCH_LIMIT_S)
    if not sample.ok:
        return f"{sample.status}: {sample.detail}"
    # The account includes what the worker needs to wake and answer once before the clock starts, some 20 us.
    cpu_us = (cpu_ns(worker.pid) - before) / 1000 if before >= 0 else -1.0
    return Sampled(
        name=name, calls=calls, elapsed_us=sample.elapsed_ns / 1000, worker_us=sample.worker_ns / 1000, cpu_us=cpu_us
    )


def _busy_us(sample: Sampled) -> float:
    return min(sample.elapsed_us, sample.cpu_us) if sample.cpu_us > 0 else sample.elapsed_us
