"""What both builders for GPUs share: the sandboxed call, the cache by content, limits of the architectures."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from kernelcrew import proc
from kernelcrew.errors import HarnessError, MissingTool, StoreError
from kernelcrew.record import hash_of
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.nouns_gpu import GpuBuild, Resources
from kernelcrew.tools.sandbox import Sandbox, wrap

LIMITS = proc.Limits(time_s=180.0, memory_bytes=16 << 30, output_bytes=64 << 20)
"""What one compiler process may use."""
OBJECT = "kernel.cubin"
RECORD = "build.json"
ARCH = re.compile(r"sm_(?P<number>75|80|86|87|88|89|90|100|103|110|120|121)(?P<feature>[af]?)")

SHARED_BYTES = {
    75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 88: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10,
    103: 227 << 10, 110: 227 << 10, 120: 99 << 10, 121: 99 << 10,
}  # fmt: skip
"""Shared memory that one block can ask for. CUDA C++ Programming Guide 13.0, table of technical specifications."""


def arch_policy(arch: str) -> list[Diagnostic]:
    """A broken rule for an architecture that the toolchain does not know."""
    if ARCH.fullmatch(arch):
        return []
    known = ", ".join(f"sm_{number}" for number in sorted(SHARED_BYTES))
    return [Diagnostic(kind="arch", line=0, message=f"'{arch}' is none of {known} (with a or f behind some)")]


def shared_policy(resources: Sequence[Resources], arch: str) -> list[Diagnostic]:
    """An error for each kernel that asks for more shared memory than a block can have: the assembler does not say so
    of memory that the launch asks for."""
    match = ARCH.fullmatch(arch)
    most = SHARED_BYTES[int(match["number"])] if match else 0
    found = []
    for one in resources:
        asked = one.static_shared_bytes + one.dynamic_shared_bytes
        if match and asked > most:
            words = f"kernel '{one.kernel}' needs {asked} bytes of shared memory a block, {arch} has {most}"
            found.append(Diagnostic(kind="error", line=0, message=f"{words}: make tiles or num_stages smaller"))
    return found


def stored(settings: Settings, key: str, make: Callable[[Path], tuple[GpuBuild, bytes]]) -> GpuBuild:
    """The build kept under `key`, or a fresh one by `make`, which works in the folder it is given; what is ok is kept.

    Raises StoreError when the cache cannot be written.
    """
    base = settings.home / "cache" / "cubins"
    place = base / key
    kept = _kept(place)
    if kept is not None:
        return kept
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base, prefix="new-") as name:
            build, data = make(Path(name))
            if build.status != "ok":
                return build
            build = build.model_copy(update={"artifact": str(place / OBJECT), "artifact_hash": _digest(data)})
            _keep(build, data, Path(name), place)
            return build
    except OSError as error:
        what = f"the build cache {base} cannot be written: {error.strerror or error}"
        raise StoreError(what, fix="free space there, or choose another --workdir") from error


def call(
    sandbox: Sandbox,
    line: Sequence[str],
    *,
    read_only: Sequence[Path],
    writable: Sequence[Path],
    limits: proc.Limits = LIMITS,
    extra: Mapping[str, str] | None = None,
) -> proc.ProcResult:
    """One program in the sandbox, with no environment of ours but `extra`. Raises MissingTool, HarnessError."""
    argv = wrap(sandbox, line, read_only=read_only, writable=writable)
    result = proc.run(argv, env={**child_environment(), **(extra or {})}, limits=limits)
    if result.status == "missing":
        raise MissingTool(f"{argv[0]} cannot be started ({result.err})", fix="run `kernelcrew doctor`")
    if not result.ok and result.err.startswith(("bwrap:", "unshare:", "setpriv:")):
        raise HarnessError(f"the sandbox failed: {result.err.strip()[:300]}", fix="run `kernelcrew doctor`")
    return result


def outside_system(paths: Sequence[Path]) -> list[Path]:
    """Those of the paths that a sandbox does not show anyway."""
    return [p for p in dict.fromkeys(paths) if not p.is_relative_to("/usr")]


def ended_badly(result: proc.ProcResult, found: Sequence[Diagnostic], limits: proc.Limits) -> list[Diagnostic]:
    """Diagnostics of a compiler that failed: never empty, always with an error."""
    if result.status == "timeout":
        words = f"the compiler did not finish within {limits.time_s:g} s: make the source smaller"
    elif result.status == "killed":
        words = f"the compiler was stopped by signal {-result.code}: the source makes it use too much memory or output"
    elif any(d.kind == "error" for d in found):
        return list(found)
    else:
        words = "the compiler failed: " + (" ".join(result.err.split())[-300:] or f"exit status {result.code}")
    return [Diagnostic(kind="error", line=0, message=words), *found]


@cache
def code_version() -> str:
    """Hash of the modules that decide what a cubin is and whether it passes."""
    here = Path(__file__).parent
    files = sorted({*here.glob("build_*.py"), *here.glob("policy*.py"), here / "triton_child.py", here / "elf.py"})
    return hash_of([_digest(path.read_bytes()) for path in files])


def _kept(place: Path) -> GpuBuild | None:
    """The build that lies in the cache, whole and unchanged, or None."""
    try:
        build = GpuBuild.model_validate_json((place / RECORD).read_bytes())
        held = (place / OBJECT).read_bytes()
    except (OSError, ValidationError):
        return None
    if _digest(held) != build.artifact_hash:
        return None
    return build.model_copy(update={"artifact": str(place / OBJECT), "seconds": 0.0})


def _keep(build: GpuBuild, data: bytes, folder: Path, place: Path) -> None:
    """Put cubin and record in place in one step; whoever came first stays, unless it is damaged."""
    ready = folder / "ready"
    ready.mkdir()
    (ready / OBJECT).write_bytes(data)
    (ready / RECORD).write_text(build.model_dump_json())
    try:
        ready.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        if _kept(place) is None:
            for name in (OBJECT, RECORD):
                os.replace(ready / name, place / name)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
