"""Locks across processes: one writer a run, one run a repository, one measurement at a time on a core."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kernelcrew.errors import Busy, StoreError


def hold(path: Path, what: str) -> Callable[[], None]:
    """Take an exclusive lock or raise Busy; returns what gives it back. The lock dies with the process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix="choose a writable --workdir") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(handle, 32).decode(errors="replace").strip()
        os.close(handle)
        raise Busy(
            f"{what} is in use by another kernelcrew (process {holder or 'unknown'})",
            fix="wait for it, or use another --workdir",
        ) from error
    os.truncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return lambda: os.close(handle)


@contextmanager
def held_a_moment(path: Path) -> Iterator[None]:
    """An exclusive lock for a quick write: it waits for others that write. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix="choose a writable --workdir") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def core_lock(
    core: int | None, waits: Callable[[], None] = lambda: None, waited: Callable[[float], None] = lambda seconds: None
) -> Callable[[], AbstractContextManager[None]]:
    """A lock that waits: measurements of other kernelcrew processes on the same core go first. `waits` is told when a
    wait begins, `waited` how long it was."""
    path = Path(tempfile.gettempdir()) / f"kernelcrew-{os.getuid()}-core-{'any' if core is None else core}.lock"

    @contextmanager
    def lock() -> Iterator[None]:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                began = time.monotonic()
                fcntl.flock(handle, fcntl.LOCK_EX)
                waited(time.monotonic() - began)
            yield
        finally:
            os.close(handle)

    return lock
