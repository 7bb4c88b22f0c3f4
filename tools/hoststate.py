"""What else the host did while something was measured: load, stolen time, time taken from a sample.

A file of /proc that is not there (another system, a container that hides it) gives zeros: the figures explain noise,
they never make a result valid.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelcrew.record import Record

PROC = Path("/proc")


class HostReading(Record):
    """The host's counters at one moment, since boot."""

    load1: float = 0.0
    """Runnable tasks, mean over the last minute."""
    total: float = 0.0
    """Clock ticks of the measured core, all states."""
    idle: float = 0.0
    """Ticks it was idle."""
    steal: float = 0.0
    """Ticks the hypervisor gave to another guest."""


class HostUse(Record):
    """What happened between two readings."""

    load1: float
    """At the end."""
    steal_share: float
    """Share of the measured core's time that the hypervisor took."""
    busy_share: float
    """Share of its time that it was not idle, our own samples included."""


def read_host(core: int | None = None, proc: Path = PROC) -> HostReading:
    """The counters of one core, or of all together."""
    fields = _stat_line(proc / "stat", "cpu" if core is None else f"cpu{core}")
    if len(fields) < 8:
        return HostReading(load1=_load(proc / "loadavg"))
    idle = fields[3] + fields[4]
    return HostReading(load1=_load(proc / "loadavg"), total=sum(fields[:8]), idle=idle, steal=fields[7])


def between(before: HostReading, after: HostReading) -> HostUse:
    """Shares of the time between two readings; 0 when no tick passed."""
    ticks = after.total - before.total
    if ticks <= 0:
        return HostUse(load1=after.load1, steal_share=0.0, busy_share=0.0)
    steal = (after.steal - before.steal) / ticks
    return HostUse(load1=after.load1, steal_share=steal, busy_share=1 - (after.idle - before.idle) / ticks)


def cpu_ns(pid: int) -> int:
    """Processor time of a process so far in ns, all threads; -1 where the system does not say.

    It stands still while the process is put aside for another, or (where the kernel accounts for it) while the
    hypervisor runs another guest: wall clock minus this is time that was taken from a sample.
    """
    # The number of a process's clock is made from its id, as clock_getcpuclockid(3) does it.
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return -1


def last_level_cache_bytes(core: int | None = None, sys: Path = Path("/sys/devices/system/cpu")) -> int:
    """Size of the largest cache that a core sees; 32 MiB where the system does not say."""
    sizes = cache_bytes(core, sys)
    return max(sizes.values(), default=32 << 20)


def cache_bytes(core: int | None = None, sys: Path = Path("/sys/devices/system/cpu")) -> dict[int, int]:
    """Data or unified cache sizes of a core by level."""
    found: dict[int, int] = {}
    for folder in sorted((sys / f"cpu{core or 0}" / "cache").glob("index*")):
        if _text(folder / "type") != "Instruction":
            size = _text(folder / "size").upper()
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
            digits = size.rstrip("KMG")
            level = _text(folder / "level")
            if digits.isdigit() and level.isdigit():
                found[int(level)] = int(digits) * unit
    return found


@contextmanager
def quiet_parent(core: int | None) -> Iterator[None]:
    """Keep this process off the measured core and its garbage collector still while samples run.

    Both are put back at the end. On one core, or without the right to choose, the process stays where it is.
    """
    before = os.sched_getaffinity(0)
    others = before - {core}
    collecting = gc.isenabled()
    gc.disable()
    if others and others != before:
        os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        if collecting:
            gc.enable()


def _stat_line(path: Path, name: str) -> list[float]:
    for line in _text(path).splitlines():
        head, _, rest = line.partition(" ")
        if head == name:
            return [float(field) for field in rest.split()]
    return []


def _load(path: Path) -> float:
    first = _text(path).split(" ", 1)[0]
    return float(first) if first else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
