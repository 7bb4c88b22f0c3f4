"""The builder of Triton sources: ahead of time to a cubin, in a sandboxed child, with no GPU and no torch.

The source is judged first and never imported here. Triton imports it, so that happens in the child: no network, no
keys, no host files but the interpreter and the package, limits on time and memory. What comes back are bytes that the
object policy judges like any other cubin. Triton 3.6 to 3.9.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelcrew import proc
from kernelcrew.errors import MissingTool
from kernelcrew.record import hash_of
from kernelcrew.settings import Settings
from kernelcrew.tools import build_gpu as gpu
from kernelcrew.tools.build_cuda_words import resources
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.nouns_gpu import GpuBuild, TritonPlan
from kernelcrew.tools.policy_cubin import cubin_policy
from kernelcrew.tools.policy_triton import judge_triton
from kernelcrew.tools.sandbox import Sandbox

CHILD = "triton_child.py"
FIX = "pip install 'kernelcrew[triton]'"
ENVIRONMENT = {"TRITON_DEFAULT_FP_FUSION": "1", "TRITON_DUMP_PTXAS_LOG": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""Contraction as in the releases that do not ask, the assembler's report, and nothing left beside the source."""

_TYPE = re.compile(
    r"\*?(?:i1|[iu](?:8|16|32|64)|fp(?:16|32|64)|bf16|fp8e4nv|fp8e4b15|fp8e5)|tensordesc<[a-z0-9]+\[[0-9, ]+\]>"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TEXT = re.compile(r"[A-Za-z0-9_.]{0,32}")


def build_triton(
    source: str, plan: TritonPlan, settings: Settings, sandbox: Sandbox, limits: proc.Limits = gpu.LIMITS
) -> GpuBuild:
    """The cubin of one function under one plan: ok, failed (the compiler's words) or refused (the policy's).

    Raises MissingTool without triton, StoreError when the cache cannot be written, HarnessError when the sandbox fails.
    """
    identity = hash_of(source, plan)
    broken = [*plan_policy(plan), *judge_triton(source)]
    if broken:
        return GpuBuild(
            status="refused", stage="policy", backend="triton", identity=identity, diagnostics=tuple(broken)
        )  # fmt: skip
    site, version = located()
    key = hash_of(identity, version, gpu.code_version())

    def make(folder: Path) -> tuple[GpuBuild, bytes]:
        started = time.monotonic()
        result = _run(source, plan, site, folder, sandbox, limits)
        answer = _answer(folder)
        build = GpuBuild(
            status="failed", backend="triton", identity=identity, toolchain=version, seconds=time.monotonic() - started
        )  # fmt: skip
        if not result.ok or "error" in answer or not answer:
            said = [Diagnostic(kind="error", line=answer["line"], message=answer["error"])] if "error" in answer else []
            return build.model_copy(update={"diagnostics": tuple(gpu.ended_badly(result, said, limits))}), b""
        return finished(build, folder, plan, answer, result.out + result.err)

    return gpu.stored(settings, key, make)


def finished(
    build: GpuBuild, folder: Path, plan: TritonPlan, answer: dict[str, Any], report: str
) -> tuple[GpuBuild, bytes]:
    """What becomes of a compile that went well: the object policy, then figures and limits."""
    refused = cubin_policy(folder / gpu.OBJECT, [plan.kernel])
    if refused:
        return build.model_copy(update={"status": "refused", "stage": "policy", "diagnostics": refused}), b""
    taken = tuple(
        # What ptxas calls shared memory here is what the launch asks for: Triton declares its buffer as external.
        one.model_copy(update={"static_shared_bytes": 0})
        for one in resources(report, [plan.kernel], dynamic_shared_bytes=answer["shared_bytes"])
    )
    update: dict[str, Any] = {
        "resources": taken, "threads": 32 * answer["num_warps"], "scratch_bytes": answer["global_scratch_bytes"],
    }  # fmt: skip
    over = gpu.shared_policy(taken, plan.arch)
    if over or not taken:
        silent = [Diagnostic(kind="error", line=0, message="the assembler reported no figures of the kernel")]
        return build.model_copy(update={**update, "diagnostics": tuple(over or silent)}), b""
    return build.model_copy(update={**update, "status": "ok"}), (folder / gpu.OBJECT).read_bytes()


def plan_policy(plan: TritonPlan) -> Iterator[Diagnostic]:
    """Broken rules of one plan."""
    yield from gpu.arch_policy(plan.arch)
    for name in (plan.kernel, *plan.signature, *plan.constants):
        if not _NAME.fullmatch(name) or name.startswith("__"):
            yield _broken("entry", f"'{name}' is no plain name")
    for name, kind in plan.signature.items():
        if not _TYPE.fullmatch(kind):
            yield _broken(
                "signature", f"'{name}' has type '{kind}': such as *fp32, *bf16, i32, fp32, tensordesc<fp16[64, 64]>"
            )
        if name in plan.constants:
            yield _broken("signature", f"'{name}' is a run-time and a compile-time parameter: keep one")
    for name, value in plan.constants.items():
        if isinstance(value, str) and not _TEXT.fullmatch(value):
            yield _broken("constant", f"'{name}' holds text that is no plain word")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            yield _broken("constant", f"{name}={value} does not fit in 64 bits")
    for name, by in plan.divisible.items():
        if name not in plan.signature or by not in (8, 16):
            yield _broken("signature", f"divisible: '{name}' by {by}; a run-time parameter, by 8 or 16")
    if (
        plan.num_warps not in (1, 2, 4, 8, 16, 32)
        or not 1 <= plan.num_stages <= 16
        or plan.num_ctas not in (1, 2, 4, 8)
    ):
        yield _broken("knob", "num_warps is a power of two up to 32, num_stages from 1 to 16, num_ctas 1, 2, 4 or 8")
    if plan.max_registers is not None and not 16 <= plan.max_registers <= 255:
        yield _broken("knob", f"max_registers={plan.max_registers}: from 16 to 255")


def located() -> tuple[Path, str]:
    """Folder that holds the package, and its release, `triton 3.9.0`; it is not imported. Raises MissingTool."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise MissingTool("triton is not installed", fix=FIX)
    site = Path(spec.origin).parent.parent
    infos = sorted(site.glob("triton-*.dist-info"))
    if not infos:
        raise MissingTool(f"the triton in {site} has no metadata", fix=FIX)
    return site, f"triton {infos[-1].name.split('-')[1].removesuffix('.dist')}"


def _run(
    source: str, plan: TritonPlan, site: Path, folder: Path, sandbox: Sandbox, limits: proc.Limits
) -> proc.ProcResult:
    (folder / "kernel.py").write_text(source, encoding="utf-8")
    match = gpu.ARCH.fullmatch(plan.arch)
    job = {**plan.model_dump(mode="json"), "site": str(site), "capability": int(match["number"]) if match else 0}
    (folder / "job.json").write_text(json.dumps(job))
    shutil.copyfile(Path(__file__).parent / CHILD, folder / CHILD)
    python = Path(sys.executable).resolve()
    shown = gpu.outside_system([python.parent.parent, site / "triton", *site.glob("triton-*.dist-info")])
    line = [str(python), "-I", "-S", str(folder / CHILD), str(folder)]
    extra = {**ENVIRONMENT, "TRITON_CACHE_DIR": str(folder / "cache")}
    return gpu.call(sandbox, line, read_only=shown, writable=[folder], limits=limits, extra=extra)


def _answer(folder: Path) -> dict[str, Any]:
    """What the child left, read as data that may be anything; {} when it left nothing of use."""
    left = folder / "answer.json"
    if left.is_symlink() or not left.is_file():
        return {}
    try:
        found = json.loads(left.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    if "error" in found:
        line = found.get("line")
        return {"error": str(found["error"])[:2000], "line": line if isinstance(line, int) else 0}
    figures = ("shared_bytes", "num_warps", "global_scratch_bytes")
    return found if all(isinstance(found.get(name), int) for name in figures) else {}


def _broken(rule: str, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=0, message=message)
