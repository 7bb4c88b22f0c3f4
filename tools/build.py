"""The builder: a candidate as a shared object, or the reason why there is none.

Policy before the compiler, the compiler in the sandbox, policy before anything is loaded. An object is kept by content
under `.kernelcrew/cache/builds`; the key covers sources, plans, flags, compiler and this code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from kernelcrew import proc
from kernelcrew.errors import HarnessError, MissingTool, StoreError
from kernelcrew.kernels.nouns import Backend, Candidate, Operator
from kernelcrew.platforms.nouns import Machine, Toolchain
from kernelcrew.record import Record, hash_of
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools import build_lines as lines
from kernelcrew.tools import elf
from kernelcrew.tools.build_words import diagnostics, loop_remarks
from kernelcrew.tools.nouns import Build, Diagnostic, LoopRemark
from kernelcrew.tools.policy import source_policy
from kernelcrew.tools.policy_object import object_policy
from kernelcrew.tools.sandbox import Sandbox, wrap

LIMITS = proc.Limits(time_s=60.0, memory_bytes=4 << 30, output_bytes=64 << 20)
"""What one compiler process may use."""
DISK_FULL = ("No space left on device", "Disk quota exceeded")
RECORD = "build.json"


class _Failed(Exception):
    """Ends one build from within a step; never leaves this module."""

    def __init__(self, found: Sequence[Diagnostic]) -> None:
        super().__init__()
        self.found = tuple(found)


class _Made(Record):
    """What the compiler left."""

    object: bytes
    """The shared object."""
    disassembly: str
    """Its instructions as text."""
    diagnostics: tuple[Diagnostic, ...]
    """Warnings of all variants."""
    loops: tuple[LoopRemark, ...]
    """Remarks of the first variant."""
    commands: tuple[str, ...]
    """Command lines, paths shortened."""


class Builder:
    """Builds candidates of one operator on this machine."""

    def __init__(
        self, operator: Operator, settings: Settings, sandbox: Sandbox, machine: Machine, limits: proc.Limits = LIMITS
    ) -> None:
        """`limits` bound each compiler process. Raises MissingTool without the compiler."""
        self._operator = operator
        self._sandbox = sandbox
        self._machine = machine
        self._toolchain = _located(machine.toolchain)
        self._limits = limits
        self._folder = settings.home / "cache" / "builds"

    def build(self, candidate: Candidate) -> Build:
        """The build of one candidate: ok, failed (the compiler's diagnostics) or refused (the policy's).

        Raises StoreError when the cache cannot be written, MissingTool without a compiler, HarnessError when the
        sandbox itself fails.
        """
        broken = source_policy(candidate, self._operator)
        if broken:
            return Build(status="refused", stage="policy", identity=candidate.identity, diagnostics=broken)
        backend = self._operator.backends[candidate.backend]
        place = self._folder / self._key(candidate, backend)
        kept = _kept(place)
        if kept is not None:
            return kept
        with _disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix="new-") as name:
                return self._fresh(candidate, backend, Path(name), place)

    def build_many(self, candidates: Sequence[Candidate]) -> list[Build]:
        """Builds of several candidates, in parallel, in their order."""
        if len(candidates) < 2:
            return [self.build(c) for c in candidates]
        workers = max(1, min(len(candidates), self._machine.fingerprint.cores, 16))
        with ThreadPoolExecutor(max_workers=workers) as pool:
            return list(pool.map(self.build, candidates))

    def _key(self, candidate: Candidate, backend: Backend) -> str:
        tensors = [t.model_dump(mode="json") for t in self._operator.tensors]
        signature = [list(backend.args), list(backend.base_flags), backend.entry, tensors]
        return hash_of(candidate.identity, signature, self._toolchain, _code_version())

    def _fresh(self, candidate: Candidate, backend: Backend, folder: Path, place: Path) -> Build:
        started = time.monotonic()
        try:
            made = self._compile(candidate, backend, folder)
        except _Failed as failure:
            seconds = time.monotonic() - started
            return Build(status="failed", identity=candidate.identity, diagnostics=failure.found, seconds=seconds)
        threads = max(v.plan.threads for v in candidate.variants)
        broken = object_policy(folder / lines.OBJECT, backend.entry, threads, made.disassembly)
        seconds = time.monotonic() - started
        if broken:
            return Build(
                status="refused", stage="policy", identity=candidate.identity, diagnostics=(*broken, *made.diagnostics),
                seconds=seconds,
            )
        text = next((s.size for s in elf.read(made.object).sections if s.name == ".text"), 0)
        build = Build(
            status="ok", identity=candidate.identity, artifact=str(place / lines.OBJECT),
            artifact_hash=_digest(made.object), scratch_bytes=lines.scratch_of(candidate), diagnostics=made.diagnostics,
            loops=made.loops, commands=made.commands, text_bytes=text, seconds=seconds,
        )
        _keep(build, made.object, folder, place)
        return build

    def _compile(self, candidate: Candidate, backend: Backend, folder: Path) -> _Made:
        """Compile, link and disassemble. Raises _Failed with the compiler's words."""
        toolchain = self._toolchain
        several = len(candidate.variants) > 1
        self._write(candidate, backend, folder)
        commands: list[str] = []
        objects: list[str] = []
        said: list[Diagnostic] = []
        loops: tuple[LoopRemark, ...] = ()
        for number, variant in enumerate(candidate.variants, 1):
            part = folder / f"v{number}"
            rename = f"{backend.entry}_v{number}" if several else ""
            line = lines.compile_line(toolchain, backend, variant, part, rename)
            name = lines.source_name(variant)
            said += self._run(line, folder, commands, name)
            if several:
                self._run(lines.keep_line(part, rename), folder, commands, name)
            if number == 1:
                remarks = part / lines.REMARKS
                loops = loop_remarks(remarks.read_text(errors="replace"), name) if remarks.is_file() else ()
            objects.append(f"v{number}/kernel.o")
        if several:
            self._run(lines.dispatch_line(toolchain, folder), folder, commands, lines.DISPATCH)
            objects.append("dispatch.o")
        threads = max(v.plan.threads for v in candidate.variants)
        self._run(lines.link_line(toolchain, folder, objects, threads), folder, commands, "")
        result = self._call(lines.disassemble_line(folder), folder)
        if not result.ok:
            raise MissingTool("objdump did not read the object", fix="install binutils (apt install binutils)")
        return _Made(
            object=(folder / lines.OBJECT).read_bytes(), disassembly=result.out, diagnostics=tuple(said), loops=loops,
            commands=tuple(commands),
        )

    def _write(self, candidate: Candidate, backend: Backend, folder: Path) -> None:
        for number, variant in enumerate(candidate.variants, 1):
            part = folder / f"v{number}"
            part.mkdir()
            (part / lines.source_name(variant)).write_text(variant.source.text, encoding="utf-8")
            own = bool(variant.plan.scratch_bytes)
            (part / lines.CONTRACT).write_text(lines.contract_header(self._operator, backend, own))
        scratch = bool(lines.scratch_of(candidate))
        (folder / lines.CONTRACT).write_text(lines.contract_header(self._operator, backend, scratch))
        (folder / lines.EXPORTS).write_text(lines.exports(backend.entry))
        if len(candidate.variants) > 1:
            (folder / lines.DISPATCH).write_text(lines.dispatcher(self._operator, backend, candidate))

    def _run(self, line: Sequence[str], folder: Path, commands: list[str], source: str) -> list[Diagnostic]:
        """One command to its end; its warnings. Raises _Failed."""
        commands.append(_short(line, folder, self._toolchain.path))
        result = self._call(line, folder)
        found = diagnostics(result.err, source or "\0")
        if result.ok:
            return found
        if any(words in result.err for words in DISK_FULL):
            raise OSError(errno.ENOSPC, "no space left on the device")
        raise _Failed(_failure(result, found, self._limits))

    def _call(self, line: Sequence[str], folder: Path) -> proc.ProcResult:
        compiler = Path(self._toolchain.path).resolve()
        extra = [] if compiler.is_relative_to("/usr") else [compiler.parent.parent]
        argv = wrap(self._sandbox, line, read_only=extra, writable=[folder])
        result = proc.run(argv, env=child_environment(), limits=self._limits)
        if result.status == "missing":
            raise MissingTool(f"{argv[0]} cannot be started ({result.err})", fix="run `kernelcrew doctor`")
        if not result.ok and result.err.startswith(("bwrap:", "unshare:", "setpriv:")):
            raise HarnessError(f"the sandbox failed: {result.err.strip()[:300]}", fix="run `kernelcrew doctor`")
        return result


def _located(toolchain: Toolchain) -> Toolchain:
    found = shutil.which(toolchain.path)
    if found is None:
        raise MissingTool(f"no compiler '{toolchain.path}'", fix="install gcc (apt install gcc), or set KERNELCREW_CC")
    return toolchain.model_copy(update={"path": found})


def _failure(result: proc.ProcResult, found: list[Diagnostic], limits: proc.Limits) -> list[Diagnostic]:
    """Diagnostics of a command that failed: never empty, always with an error."""
    if result.status == "timeout":
        words = f"the compiler did not finish within {limits.time_s:g} s: make the source smaller"
    elif result.status == "killed":
        words = f"the compiler was stopped by signal {-result.code}: the source makes it use too much memory or output"
    elif any(d.kind == "error" for d in found):
        return found
    else:
        words = "the compiler failed: " + (" ".join(result.err.split())[:300] or f"exit status {result.code}")
    return [Diagnostic(kind="error", line=0, message=words), *found]


def _kept(place: Path) -> Build | None:
    """The build that lies in the cache, whole and unchanged, or None."""
    try:
        build = Build.model_validate_json((place / RECORD).read_bytes())
        held = (place / lines.OBJECT).read_bytes()
    except (OSError, ValidationError, json.JSONDecodeError):
        return None
    if _digest(held) != build.artifact_hash:
        return None
    return build.model_copy(update={"artifact": str(place / lines.OBJECT), "seconds": 0.0})


def _keep(build: Build, held: bytes, folder: Path, place: Path) -> None:
    """Put object and record in place in one step; whoever came first stays, unless it is damaged."""
    ready = folder / "ready"
    ready.mkdir()
    (ready / lines.OBJECT).write_bytes(held)
    (ready / RECORD).write_text(build.model_dump_json())
    try:
        ready.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if _kept(place) is None:
            for name in (lines.OBJECT, RECORD):
                os.replace(ready / name, place / name)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the build cache {folder} cannot be written: {error.strerror or error}",
            fix="free space there, or choose another --workdir",
        ) from error


def _short(line: Sequence[str], folder: Path, compiler: str) -> str:
    words = list(line)
    if words[:2] == ["env", "-C"]:
        words = words[3:]
    words = [Path(compiler).name if w == compiler else w.replace(str(folder), ".") for w in words]
    return " ".join(words)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@cache
def _code_version() -> str:
    """Hash of the modules that decide what an object is and whether it passes."""
    here = Path(__file__).parent
    return hash_of([_digest(path.read_bytes()) for path in sorted((*here.glob("build*.py"), *here.glob("policy*.py")))])
