"""The one module that starts outside programs and waits for them.

Output goes to files of bounded size, not to pipes, so an orphan that keeps a pipe open cannot hold the parent; the
whole process group is killed at the time limit. Limits are set by util-linux's `prlimit` before the program begins
(code between fork and exec is unsafe beside threads), and from the parent where that tool is missing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelcrew.record import Record

Child = subprocess.Popen[bytes]
"""A running child, as `start` gives it."""


class Limits(Record):
    """What a child may use before it is stopped."""

    time_s: float = 60.0
    """Wall-clock seconds; the process group is killed at the end of them."""
    memory_bytes: int | None = None
    """Address space; None leaves it alone."""
    processes: int | None = None
    """Processes of this user at once; None leaves it alone."""
    output_bytes: int = 8 << 20
    """Largest file the child may write, its captured output included."""


class ProcResult(Record):
    """How a child ended."""

    status: str
    """`ok`, `failed` (non-zero exit), `killed` (by a signal), `timeout` or `missing` (no such program)."""
    code: int
    """Exit status; negative for a signal; -1 where there is none."""
    out: str
    """Standard output, at most the limit, undecodable bytes replaced."""
    err: str
    """Standard error, likewise."""
    seconds: float
    """Wall-clock seconds."""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    stdin: str = "",
) -> ProcResult:
    """Run `argv` to its end or its limits. A failure is a value. `env` replaces the environment when given."""
    bounds = limits or Limits()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as fed:
        fed.write(stdin.encode())
        fed.seek(0)
        started = time.monotonic()
        try:
            _must_exist(argv[0], env)
            child = subprocess.Popen(
                _limited(argv, bounds),
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=fed,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            _limit_late(child, bounds)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            return ProcResult(status="missing", code=-1, out="", err=str(error), seconds=0.0)
        timed_out = False
        try:
            child.wait(timeout=bounds.time_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill_group(child)
        seconds = time.monotonic() - started
        code = child.returncode
        status = "timeout" if timed_out else "ok" if code == 0 else "killed" if code < 0 else "failed"
        cap = bounds.output_bytes
        return ProcResult(status=status, code=code, out=_read(out, cap), err=_read(err, cap), seconds=seconds)


def start(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    limits: Limits | None = None,
) -> Child:
    """Start a long-lived child in its own session with no inherited output; the caller kills and reaps it."""
    bounds = limits or Limits()
    _must_exist(argv[0], env)
    child = subprocess.Popen(
        _limited(argv, bounds),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    )
    _limit_late(child, bounds)
    return child


def kill(child: Child) -> None:
    """Kill a child started by `start` with its whole process group, and reap it."""
    _kill_group(child)


RESOURCES = {
    "core": resource.RLIMIT_CORE,
    "fsize": resource.RLIMIT_FSIZE,
    "as": resource.RLIMIT_AS,
    "nproc": resource.RLIMIT_NPROC,
}


def _bounds(bounds: Limits) -> dict[str, int]:
    """What is to be set, never above the hard limit that this process is under itself: asking for more would fail."""
    wanted = {"core": 0, "fsize": bounds.output_bytes, "as": bounds.memory_bytes, "nproc": bounds.processes}
    return {name: _capped(name, value) for name, value in wanted.items() if value is not None}


def _capped(name: str, value: int) -> int:
    hard = resource.getrlimit(RESOURCES[name])[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _limited(argv: Sequence[str], bounds: Limits) -> list[str]:
    tool = shutil.which("prlimit")
    limits = [f"--{name}={value}" for name, value in _bounds(bounds).items()]
    return [tool, *limits, "--", *argv] if tool else list(argv)


def _limit_late(child: Child, bounds: Limits) -> None:
    if shutil.which("prlimit"):
        return
    with contextlib.suppress(ProcessLookupError):
        for name, value in _bounds(bounds).items():
            resource.prlimit(child.pid, RESOURCES[name], (value, value))


def _must_exist(name: str, env: Mapping[str, str] | None) -> None:
    path = None if env is None else env.get("PATH", os.defpath)
    if shutil.which(name, path=path) is None:
        raise FileNotFoundError(f"{name}: no such program")


def _kill_group(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(handle: object, cap: int) -> str:
    handle.seek(0)  # type: ignore[attr-defined]
    return handle.read(cap).decode(errors="replace")  # type: ignore[attr-defined,no-any-return]
