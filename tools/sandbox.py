"""Containment for programs that compile or run a candidate, the best kind that works here.

    bwrap        bubblewrap: no host files but the system's programs, no network, own processes, no capabilities
    namespaces   `unshare`: no network, own processes, own mounts and /proc; the host's files stay visible
    rlimits      nothing but the limits that the program sets itself

Every kind is tried by running `true` in it. Inside each of them the worker also installs a seccomp filter where the
kernel has one (`tools/csrc/worker.c`); `Sandbox.detail` says whether it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from shutil import which
from typing import Literal

from kernelcrew import proc
from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.record import Record
from kernelcrew.settings import Settings, child_environment

Kind = Literal["bwrap", "namespaces", "rlimits"]
KINDS: tuple[Kind, ...] = ("bwrap", "namespaces", "rlimits")
SYSTEM_PATHS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
SECCOMP_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")


class Sandbox(Record):
    """Which containment is used, and what that means."""

    kind: Kind
    """bwrap, namespaces or rlimits."""
    detail: str = ""
    """For a person and for the record: what it contains, why no better kind was taken, and whether seccomp is there."""


class Refusal(Record):
    """A kind that does not work here."""

    kind: str
    """Its name."""
    because: str
    """The program's own words, or that it is not installed."""


def choose(settings: Settings) -> Sandbox:
    """The sandbox that the settings force, else the best one usable. Raises UserMistake for a forced one that fails."""
    wanted = settings.sandbox
    if wanted != "auto" and wanted not in KINDS:
        raise UnknownName("sandbox", wanted, ("auto", *KINDS), fix="set KERNELCREW_SANDBOX to one of them")
    if wanted != "auto":
        forced = KINDS[[str(kind) for kind in KINDS].index(wanted)]
        refusal = _try(forced)
        if refusal:
            what = f"sandbox '{wanted}' cannot be used here: {refusal}"
            raise UserMistake(what, fix="unset KERNELCREW_SANDBOX, or repair it")
        return Sandbox(kind=forced, detail=_detail(forced, ["forced by KERNELCREW_SANDBOX"]))
    passed_over: list[str] = []
    for kind in KINDS:
        refusal = _try(kind)
        if not refusal:
            return Sandbox(kind=kind, detail=_detail(kind, passed_over))
        passed_over.append(f"{kind} not usable: {refusal}")
    raise AssertionError("rlimits always works")


def usable() -> dict[Kind, str]:
    """Each kind, with '' when it works here and the reason when it does not."""
    return {kind: _try(kind) for kind in KINDS}


def wrap(
    sandbox: Sandbox, argv: Sequence[str], read_only: Sequence[Path] = (), writable: Sequence[Path] = ()
) -> list[str]:
    """The command line that runs `argv` in the sandbox.

    `read_only` and `writable` are existing paths that the program needs beside the system's own; they keep their names.
    Give `child_environment()` as the environment; open file descriptors are inherited; killing the started process
    ends everything in it. The program dies with the thread that started it. Under bwrap the working directory is
    `/tmp`, empty at the start.
    """
    return _WRAPPERS[sandbox.kind](list(argv), [p.absolute() for p in read_only], [p.absolute() for p in writable])


def seccomp_available() -> bool:
    """Whether this kernel filters system calls."""
    return SECCOMP_ACTIONS.exists()


def _bwrap(argv: list[str], read_only: list[Path], writable: list[Path]) -> list[str]:
    line = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    line += ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_PATHS:
        line += ["--ro-bind-try", name, name]
    line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in read_only:
        line += ["--ro-bind", str(path), str(path)]
    for path in writable:
        line += ["--bind", str(path), str(path)]
    return [*line, "--chdir", "/tmp", "--", *argv]


def _namespaces(argv: list[str], read_only: list[Path], writable: list[Path]) -> list[str]:
    line = ["unshare", "--user", "--map-root-user", "--net", "--ipc", "--uts", "--mount", "--pid", "--fork"]
    line += ["--kill-child=SIGKILL", "--mount-proc", "--", *argv]
    # unshare itself outlives a killed caller, and its child with it, unless the kernel is told to end it.
    return ["setpriv", "--pdeathsig", "KILL", "--", *line] if which("setpriv") else line


def _rlimits(argv: list[str], read_only: list[Path], writable: list[Path]) -> list[str]:
    return argv


_WRAPPERS: dict[Kind, Callable[[list[str], list[Path], list[Path]], list[str]]] = {
    "bwrap": _bwrap,
    "namespaces": _namespaces,
    "rlimits": _rlimits,
}
_CONTAINS: dict[Kind, str] = {
    "bwrap": "own mounts, processes and network; no host files; no capabilities",
    "namespaces": "own processes and network; host files visible",
    "rlimits": "limits only; host files and network not hidden",
}


@cache
def _try(kind: Kind) -> str:
    """'' when `true` runs in it, else why not."""
    if kind == "rlimits":
        return ""
    result = proc.run(wrap(Sandbox(kind=kind), ["true"]), env=child_environment(), limits=proc.Limits(time_s=10.0))
    if result.ok:
        return ""
    if result.status == "missing":
        return f"{'bubblewrap' if kind == 'bwrap' else 'unshare'} is not installed"
    words = " ".join(result.err.split())[:200]
    return words or f"{result.status}, exit status {result.code}"


def _detail(kind: Kind, remarks: Sequence[str]) -> str:
    seccomp = "seccomp filter in the worker" if seccomp_available() else "no seccomp in this kernel"
    return "; ".join([f"{kind}: {_CONTAINS[kind]}", seccomp, *remarks])
