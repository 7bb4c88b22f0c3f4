"""The builder of CUDA sources: nvcc to a cubin in the sandbox, on a machine with or without a GPU.

Policy before the compiler, policy before anything is loaded; cubins are kept by content.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kernelcrew import proc
from kernelcrew.errors import MissingTool
from kernelcrew.record import hash_of
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools import build_gpu as gpu
from kernelcrew.tools import policy_cuda_names as names
from kernelcrew.tools.build_cuda_words import diagnostics, resources
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.nouns_gpu import CudaPlan, GpuBuild
from kernelcrew.tools.policy_cubin import cubin_policy
from kernelcrew.tools.policy_cuda import judge_cuda
from kernelcrew.tools.sandbox import Sandbox

SOURCE = "kernel.cu"
MAX_DEFINES = 32
BASE_FLAGS = (
    "-cubin", "-O3", "-lineinfo", "--expt-relaxed-constexpr", "-Xptxas=-v,-warn-spills,-warn-lmem-usage",
)  # fmt: skip
USUAL_PLACES = ("/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc")

FLAGS = re.compile(
    r"-maxrregcount=(?:[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])|-Xptxas=-O[1-3]|-Xptxas=-dlcm=c[ag]|-fmad=(?:true|false)"
    r"|--extra-device-vectorization|-restrict|-Xptxas=--allow-expensive-optimizations=(?:true|false)"
)
VALUE_FLAGS = {
    "--use_fast_math": "it flushes denormals and makes division, roots and functions approximate",
    "-use_fast_math": "it flushes denormals and makes division, roots and functions approximate",
    "-ftz=true": "it flushes denormals to zero",
    "--ftz=true": "it flushes denormals to zero",
    "-prec-div=false": "it makes division approximate",
    "--prec-div=false": "it makes division approximate",
    "-prec-sqrt=false": "it makes square roots approximate",
    "--prec-sqrt=false": "it makes square roots approximate",
}


def build_cuda(
    source: str, plan: CudaPlan, settings: Settings, sandbox: Sandbox, limits: proc.Limits = gpu.LIMITS
) -> GpuBuild:
    """The cubin of one source under one plan: ok, failed (nvcc's diagnostics) or refused (the policy's).

    Raises MissingTool without nvcc, StoreError when the cache cannot be written, HarnessError when the sandbox fails.
    """
    identity = hash_of(source, plan)
    broken = [*plan_policy(plan), *judge_cuda(source)]
    if broken:
        return GpuBuild(
            status="refused", stage="policy", backend="cuda", identity=identity, diagnostics=tuple(broken)
        )  # fmt: skip
    compiler, version = located(settings)
    key = hash_of(identity, version, gpu.code_version())

    def make(folder: Path) -> tuple[GpuBuild, bytes]:
        started = time.monotonic()
        line = compile_line(compiler, plan, folder)
        (folder / SOURCE).write_text(source, encoding="utf-8")
        read_only = gpu.outside_system([compiler.resolve().parent.parent])
        result = gpu.call(sandbox, line, read_only=read_only, writable=[folder], limits=limits)
        said = diagnostics(result.err + result.out, SOURCE)
        build = GpuBuild(
            status="failed", backend="cuda", identity=identity, toolchain=version, diagnostics=tuple(said),
            commands=(shortened(line, compiler),), seconds=time.monotonic() - started,
        )  # fmt: skip
        if not result.ok:
            return build.model_copy(update={"diagnostics": tuple(gpu.ended_badly(result, said, limits))}), b""
        return finished(build, folder, plan, result.err + result.out)

    return gpu.stored(settings, key, make)


def finished(build: GpuBuild, folder: Path, plan: CudaPlan, report: str) -> tuple[GpuBuild, bytes]:
    """What becomes of a compile that went well: the object policy, then figures and limits."""
    refused = cubin_policy(folder / gpu.OBJECT, plan.kernels)
    if refused:
        update = {"status": "refused", "stage": "policy", "diagnostics": (*refused, *build.diagnostics)}
        return build.model_copy(update=update), b""
    taken = resources(report, plan.kernels)
    over = gpu.shared_policy(taken, plan.arch)
    if over:
        update = {"resources": taken, "diagnostics": (*over, *build.diagnostics)}
        return build.model_copy(update=update), b""
    data = (folder / gpu.OBJECT).read_bytes()
    return build.model_copy(update={"status": "ok", "resources": taken}), data


def plan_policy(plan: CudaPlan) -> Iterator[Diagnostic]:
    """Broken rules of one plan."""
    yield from gpu.arch_policy(plan.arch)
    for kernel in plan.kernels:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,127}", kernel):
            yield _broken("entry", f"'{kernel}' is no plain name: export kernels with extern \"C\"")
    if not plan.kernels:
        yield _broken("entry", "the plan names no kernel")
    for flag in plan.flags:
        if flag in VALUE_FLAGS:
            yield _broken("flag", f"{flag} changes values: {VALUE_FLAGS[flag]}; leave it out")
        elif not FLAGS.fullmatch(flag):
            listed = (
                "-maxrregcount=N, -fmad=, -restrict, -Xptxas=-O1..3, -Xptxas=-dlcm=ca|cg, --extra-device-vectorization"
            )
            yield _broken("flag", f"{flag} is not on the list: {listed}")
    if len(plan.defines) > MAX_DEFINES:
        yield _broken("define", f"{len(plan.defines)} defines: at most {MAX_DEFINES}")
    for name, value in plan.defines.items():
        known = name in names.KEYWORDS or names.is_type(name) or names.is_callable(name) or name in plan.kernels
        known = (
            known or name in names.LIBRARY or name in names.REFUSED_KEYWORDS or name in names.NAMESPACES | names.OTHERS
        )
        if known or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
            yield _broken("define", f"'{name}' cannot be a knob: use a plain name of your own such as BLOCK")
        elif not -(1 << 31) <= value < 1 << 31:
            yield _broken("define", f"{name}={value} does not fit in an int: choose a smaller value")


def compile_line(compiler: Path, plan: CudaPlan, folder: Path) -> list[str]:
    """The command line, run in the folder of the source."""
    defines = [f"-D{name}={value}" for name, value in sorted(plan.defines.items())]
    line = ["env", "-C", str(folder), str(compiler), *BASE_FLAGS, f"-arch={plan.arch}", f"-std={plan.std}"]
    return [*line, *plan.flags, *defines, "-o", gpu.OBJECT, SOURCE]


def shortened(line: list[str], compiler: Path) -> str:
    """The command line for a person: no paths of this machine."""
    return " ".join(compiler.name if word == str(compiler) else word for word in line[3:])


def located(settings: Settings) -> tuple[Path, str]:
    """nvcc and its release, `nvcc 13.0.88`. Raises MissingTool."""
    found = next((w for name in (settings.nvcc, *USUAL_PLACES) if (w := shutil.which(name))), None)
    if found is None:
        fix = "install the CUDA toolkit's compiler (13 or newer), or set KERNELCREW_NVCC to its path"
        raise MissingTool(f"no compiler '{settings.nvcc}'", fix=fix)
    return Path(found), _release(found)


@cache
def _release(compiler: str) -> str:
    result = proc.run([compiler, "--version"], env=child_environment(), limits=proc.Limits(time_s=20.0))
    match = re.search(r"V(\d+\.\d+\.\d+)", result.out)
    if match is None:
        raise MissingTool(f"'{compiler} --version' names no release", fix="set KERNELCREW_NVCC to a working nvcc")
    return f"nvcc {match[1]}"


def _broken(rule: str, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=0, message=message)
