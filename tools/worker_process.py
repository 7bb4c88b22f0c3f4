"""The worker's own process, inside whatever sandbox it was started in: stop it, let it go on, end it."""

from __future__ import annotations

import os
import signal
import time

from kernelcrew import proc
from kernelcrew.errors import HarnessError

STOP_LIMIT_S = 2.0


class Inner:
    """One worker process. `child` is what was started, a sandbox perhaps; the worker in it has a pid of its own."""

    def __init__(self, child: proc.Child) -> None:
        self._child = child
        self.pid = child.pid
        self._handle = self._stat = -1
        self._frozen = False

    def found(self, pid: int) -> None:
        """Name the worker's process, as this machine numbers it; signals go to it even if the number is reused."""
        self.pid = pid
        try:
            self._handle = os.pidfd_open(pid)
        except OSError:
            # Kernels before 5.3 and some emulated ones have no such call: the number must do.
            self._handle = -1
        self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def stop(self) -> None:
        """Stop it and wait until it stands still. A process that is gone stays gone; the next message shows it."""
        if self._frozen:
            return
        self._frozen = True
        self._signal(signal.SIGSTOP)
        until = time.monotonic() + STOP_LIMIT_S
        while self._state() not in "TtZX":
            if time.monotonic() > until:
                raise HarnessError(f"process {self.pid} does not stop", fix="see whether /proc is there and readable")
            time.sleep(0)

    def go_on(self) -> bool:
        """Let it run again; whether it was stopped before."""
        if not self._frozen:
            return False
        self._frozen = False
        self._signal(signal.SIGCONT)
        return True

    def kill(self) -> None:
        """End it, with the sandbox around it, and reap the child. Can be called again."""
        if self._child.returncode is None:
            self._signal(signal.SIGKILL)
            proc.kill(self._child)
        for descriptor in (self._handle, self._stat):
            if descriptor >= 0:
                os.close(descriptor)
        self._handle = self._stat = -1

    def cause(self) -> str:
        """How it ended, in words: the status, or the signal, which a sandbox may pass on as 128 plus its number."""
        until = time.monotonic() + STOP_LIMIT_S
        while (code := self._child.poll()) is None:
            if time.monotonic() > until:
                return "closed its socket and goes on"
            time.sleep(0.001)
        number = -code if code < 0 else code - 128
        if number > 0:
            try:
                return f"ended by {signal.Signals(number).name}"
            except ValueError:
                return f"ended by signal {number}"
        return f"ended with exit status {code}"

    def _signal(self, number: signal.Signals) -> None:
        try:
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def _state(self) -> str:
        try:
            text = os.pread(self._stat, 512, 0)
        except ProcessLookupError:
            return "X"
        return text.rpartition(b")")[2].split()[0].decode()
