"""The trusted program that loads one candidate and calls it, as the parent drives it.

The parent never loads a candidate and owns the clock and the verdict. One worker serves one build: it maps the rings
that `attach` hands over and runs sealed batches of calls. Whatever a candidate does wrong is a `Sample` with a status;
HarnessError is for our own failures alone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kernelcrew import proc
from kernelcrew.errors import HarnessError, UserMistake
from kernelcrew.kernels.nouns import Operator
from kernelcrew.record import Record
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools import worker_wire as wire
from kernelcrew.tools.arena import InputRing, OutputRing, outputs_of
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.sandbox import Sandbox, wrap
from kernelcrew.tools.scratch import scratch_bytes
from kernelcrew.tools.worker_process import Inner
from kernelcrew.tools.worker_program import Signature, program


class Sample(Record):
    """One sealed batch of calls, or how it failed."""

    status: Literal["ok", "crashed", "timeout", "protocol"]
    """ok; died or could not be loaded; the time limit; an answer or floating-point environment that is not ours."""
    elapsed_ns: int = 0
    """From the command sent to the answer received, by the parent's monotonic clock."""
    worker_ns: int = 0
    """Around the loop of calls, by the worker's reading of the same clock: a cross-check, never the verdict."""
    detail: str = ""
    """What went wrong, for a person: signal, tensor, slot."""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


class WorkerLimits(Record):
    """What a worker may use."""

    memory_bytes: int = 0
    """Address space, rings included; 0 takes half of the machine's memory, between 1 and 8 GiB."""
    start_s: float = 10.0
    """Seconds to start and to load the candidate."""


GIB = 1 << 30
DEFAULT_LIMITS = WorkerLimits()


class Worker:
    """One worker process. A context manager: leaving it kills the process. Not to be shared between threads."""

    def __init__(self, link: socket.socket, inner: Inner, operator: Operator, signature: Signature) -> None:
        """Used by `start`."""
        self._link = link
        self._inner = inner
        self._operator = operator
        self._signature = signature
        self._failure: Sample | None = None
        self._rings: dict[int, wire.Rings] = {}
        self._next_dead_handle = -1
        self.containment = ""
        """Sandbox kind and whether system calls are filtered, as it really is."""

    @classmethod
    def start(
        cls, build: Build, operator: Operator, settings: Settings, sandbox: Sandbox, core: int | None = None,
        limits: WorkerLimits = DEFAULT_LIMITS,
    ) -> Worker:
        """Start a worker, pin it to `core` and let it load a fresh copy of `build.artifact`.

        The entry called is that of the operator's `c` backend; a build with `scratch_bytes` takes a trailing `void *`.
        A candidate that cannot be loaded, or crashes or hangs while loading, gives a worker that is no longer alive:
        `failure` says why, and every batch returns that. The worker dies with the thread that started it.
        Raises HarnessError when the worker itself cannot start, MissingTool without a compiler, ValueError for a build
        that is not ok.
        """
        if build.status != "ok":
            raise ValueError(f"a build that is {build.status} cannot be run")
        signature = Signature.of(operator, scratch=build.scratch_bytes)
        binary = program(signature, settings)
        link, inner = _launch(binary, sandbox, core, limits)
        worker = cls(link, inner, operator, signature)
        try:
            inner.found(wire.receive_hello(link, limits.start_s))
            worker._load(Path(build.artifact), sandbox, limits.start_s)
        except (OSError, wire.NoHelloError) as error:
            said = f"{error or type(error).__name__}; {inner.cause()}"
            worker.kill()
            raise HarnessError(
                f"the worker did not start in sandbox '{sandbox.kind}': {said}",
                fix="run `kernelcrew doctor`; KERNELCREW_SANDBOX forces another containment",
            ) from error
        except BaseException:
            worker.kill()
            raise
        return worker

    @property
    def failure(self) -> Sample | None:
        """Why this worker is no longer alive; None while it is."""
        return self._failure

    @property
    def pid(self) -> int:
        """The worker's own process, as this machine numbers it (not the sandbox around it)."""
        return self._inner.pid

    def attach(self, inputs: InputRing, outputs: OutputRing) -> int:
        """Hand two rings of equally many slots and equal axes to the worker; the handle names them in `batch`.

        Every page is touched, so that no page fault is timed. Rings may be closed afterwards; the worker keeps its
        mappings until `detach` or its end. On a dead worker this answers a handle whose batches return the failure.
        """
        if inputs.slots != outputs.slots or inputs.axes != outputs.axes:
            raise ValueError("input and output ring differ in slots or axes")
        self.thaw()
        if self._failure is not None:
            return self._dead_handle()
        try:
            scratch = scratch_bytes(self._signature.scratch, inputs.axes)
        except UserMistake as error:
            self._fail("protocol", error.what)
            return self._dead_handle()
        words = wire.attach_words(self._operator, self._signature, inputs, outputs, scratch)
        descriptors = [inputs.worker_fd(), outputs.worker_fd()]
        try:
            reply = self._ask(wire.ATTACH, words, 60.0, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if isinstance(reply, Sample):
            return self._dead_handle()
        if reply.words[0] < 0:
            self.kill()
            size = inputs.plan.total_bytes + outputs.plan.total_bytes
            what = f"the worker cannot map {size} bytes of rings and {scratch} of scratch: {reply.text}"
            raise HarnessError(what, fix="use fewer slots or smaller shapes")
        handle = reply.words[0]
        self._rings[handle] = wire.Rings(inputs.plan, outputs.plan, inputs.slots, reply.words[1], reply.words[2])
        return handle

    def detach(self, handle: int) -> None:
        """Unmap the rings of `handle`."""
        self.thaw()
        if self._rings.pop(handle, None) is not None and self._failure is None:
            self._ask(wire.DETACH, [handle], 10.0)

    def batch(self, handle: int, calls: int, first_rotation: int = 0, limit_s: float = 10.0) -> Sample:
        """Run `calls` calls and stop the worker at once (`freeze`), so that its outputs are at rest when they are read.

        Call c reads input slot c mod R and writes output slot (c + first_rotation + c // R) mod R; `outputs_of` tells
        what each slot must hold. Declared scratch is poisoned before each call, inside the batch; memory of malloc is
        gone after it, and a call that returns without freeing it fails the batch. Over a ring with windows each pass
        but the last reads shifted inputs, so `calls` is a multiple of R there. After any status but ok the worker is
        dead. A worker that is frozen is thawed and has answered once before the clock starts.
        """
        if self._failure is not None:
            return self._failure
        slots = self._rings[handle].slots
        self.thaw()
        if self._failure is not None:
            return self._failure
        ticket = secrets.randbits(62)
        stride, salt = 2 * secrets.randbelow(1 << 20) + 1, secrets.randbits(62)
        message = wire.pack(wire.BATCH, ticket, [handle, calls, first_rotation % slots, stride, salt])
        self._link.settimeout(limit_s)
        started = time.perf_counter_ns()
        try:
            self._link.send(message)
            raw = self._link.recv(wire.REPLY_BYTES)
            elapsed = time.perf_counter_ns() - started
        except TimeoutError:
            return self._fail("timeout", f"no answer within {limit_s:g} s")
        except OSError:
            return self._died()
        self.freeze()
        reply = self._read(wire.BATCH, ticket, raw)
        if isinstance(reply, Sample):
            return reply
        worker_ns, before, after, misused = reply.words[:4]
        if before != after:
            return self._fail("protocol", f"floating-point environment changed from {before:#x} to {after:#x}")
        if misused:
            left = "was still allocated when a call returned: free what it takes"
            return self._fail("protocol", f"memory {left if misused & 1 else 'was freed that was not allocated'}")
        if worker_ns > elapsed or worker_ns < 0:
            return self._fail("protocol", f"the worker counted {worker_ns} ns, the parent {elapsed} ns")
        return Sample(status="ok", elapsed_ns=elapsed, worker_ns=worker_ns)

    def outputs_of(self, handle: int, calls: int, first_rotation: int = 0) -> dict[int, int]:
        """Output slot to input slot after such a batch: `arena.outputs_of` for the rings of `handle`."""
        return outputs_of(self._rings[handle].slots, calls, first_rotation)

    def freeze(self) -> None:
        """Stop the worker, and wait until the kernel says that it stands still. No effect on a dead or frozen one."""
        if self._failure is None:
            self._inner.stop()

    def thaw(self) -> None:
        """Let it go on, and wait for its first answer. No effect on a dead or running one."""
        if self._failure is None and self._inner.go_on():
            self._ask(wire.PING, [], 10.0)

    def kill(self) -> None:
        """End the worker and its sandbox, and free what the parent holds. Can be called again."""
        if self._failure is None:
            self._failure = Sample(status="crashed", detail="the worker was ended by the parent")
        self._inner.kill()
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _load(self, artifact: Path, sandbox: Sandbox, limit_s: float) -> None:
        copy = wire.fresh_copy(artifact)
        try:
            reply = self._ask(wire.LOAD, [], limit_s, [copy])
        finally:
            os.close(copy)
        if isinstance(reply, Sample):
            return
        loaded, seccomp = reply.words[:2]
        self.containment = f"{sandbox.kind}, {'seccomp' if seccomp else 'no seccomp'}"
        if not loaded:
            self._fail("crashed", f"cannot be loaded: {reply.text}")

    def _ask(
        self, command: int, words: Sequence[int], limit_s: float, descriptors: Sequence[int] = ()
    ) -> wire.Reply | Sample:
        """Send a command and wait for its answer; where none comes the worker is ended and the failure returned."""
        ticket = secrets.randbits(62)
        self._link.settimeout(limit_s)
        try:
            socket.send_fds(self._link, [wire.pack(command, ticket, words)], list(descriptors))
            raw = self._link.recv(wire.REPLY_BYTES)
        except TimeoutError:
            return self._fail("timeout", f"no answer to {wire.NAMES[command]} within {limit_s:g} s")
        except OSError:
            return self._died()
        return self._read(command, ticket, raw)

    def _read(self, command: int, ticket: int, raw: bytes) -> wire.Reply | Sample:
        if not raw:
            return self._died()
        reply = wire.unpack(raw)
        if reply is None:
            return self._fail("protocol", f"{len(raw)} bytes that are no answer")
        if reply.command == wire.FAULT:
            return self._fail("crashed", wire.describe_fault(reply, self._rings.values()))
        if reply.command != command or reply.ticket != ticket:
            return self._fail("protocol", "an answer that was not asked for")
        return reply

    def _died(self) -> Sample:
        return self._fail("crashed", self._inner.cause())

    def _fail(self, status: Literal["crashed", "timeout", "protocol"], detail: str) -> Sample:
        self._failure = Sample(status=status, detail=detail)
        self.kill()
        return self._failure

    def _dead_handle(self) -> int:
        self._next_dead_handle -= 1
        return self._next_dead_handle


def _launch(binary: Path, sandbox: Sandbox, core: int | None, limits: WorkerLimits) -> tuple[socket.socket, Inner]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        memory = limits.memory_bytes or _default_memory()
        argv = [str(binary), str(theirs.fileno()), str(-1 if core is None else core), str(memory)]
        line = wrap(sandbox, argv, read_only=[binary.parent])
        try:
            return ours, Inner(proc.start(line, env=child_environment(), pass_fds=(theirs.fileno(),)))
        except OSError as error:
            ours.close()
            raise HarnessError(f"cannot start {line[0]}: {error}", fix="run `kernelcrew doctor`") from error


def _default_memory() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(8 * GIB, max(GIB, physical // 2))
