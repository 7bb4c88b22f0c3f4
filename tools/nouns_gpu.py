"""What the builders for GPUs take and give: plans of one cubin, its resources, the build."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelcrew.record import Record
from kernelcrew.tools.nouns import Diagnostic, Stage

Constant = bool | int | float | str | None
"""What a compile-time parameter of Triton may hold."""


class CudaPlan(Record):
    """How one CUDA source becomes a cubin."""

    kernels: tuple[str, ...]
    """Entries that the cubin must export, no others: `extern "C" __global__` functions."""
    arch: str = "sm_90"
    """`sm_75` to `sm_120`, with `a` or `f` for features of one architecture."""
    std: Literal["c++17", "c++20"] = "c++17"
    """Language standard."""
    defines: dict[str, int] = Field(default_factory=dict)
    """Knobs, given as `-D`."""
    flags: tuple[str, ...] = ()
    """Further flags, from the builder's list."""


class TritonPlan(Record):
    """How one `@triton.jit` function becomes a cubin: one specialisation."""

    kernel: str
    """The function's name."""
    arch: str = "sm_90"
    """`sm_75` to `sm_120`."""
    signature: dict[str, str]
    """Run-time parameters in order with their types: `*fp32`, `i32`, `tensordesc<fp16[64, 32]>`."""
    constants: dict[str, Constant] = Field(default_factory=dict)
    """Compile-time parameters and their values, arguments that equal 1 among them."""
    divisible: dict[str, int] = Field(default_factory=dict)
    """Run-time parameter to 8 or 16: addresses or numbers that are multiples of it."""
    num_warps: int = 4
    """Warps a block."""
    num_stages: int = 3
    """Stages of software pipelining."""
    num_ctas: int = 1
    """Blocks a cluster."""
    max_registers: int | None = None
    """Registers a thread at most; None leaves it to the compiler."""


class Resources(Record):
    """What one kernel takes of a multiprocessor, as the assembler says."""

    kernel: str
    """Its name in the cubin."""
    arch: str = ""
    """Architecture it was assembled for."""
    registers: int = 0
    """Registers a thread."""
    barriers: int = 0
    """Named barriers."""
    stack_bytes: int = 0
    """Stack frame a thread."""
    spill_store_bytes: int = 0
    """Bytes a thread stores because registers ran out."""
    spill_load_bytes: int = 0
    """Bytes a thread loads back."""
    static_shared_bytes: int = 0
    """Shared memory a block, declared in the source."""
    dynamic_shared_bytes: int = 0
    """Shared memory a block that the launch must ask for; 0 for CUDA sources, where the launch plan says it."""
    constant_bytes: int = 0
    """Constant memory, arguments included."""


class GpuBuild(Record):
    """One source as a cubin, or why there is none."""

    status: Literal["ok", "failed", "refused"]
    """ok; the compiler failed; the policy refused source, plan or object."""
    stage: Stage = "build"
    """Where it stopped: policy or build."""
    backend: Literal["cuda", "triton"]
    """Which compiler."""
    identity: str
    """Hash of source and plan."""
    artifact: str = ""
    """Path of the cubin in the cache; empty when not ok."""
    artifact_hash: str = ""
    """SHA-256 (16 digits) of its bytes."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Errors, warnings and broken rules."""
    resources: tuple[Resources, ...] = ()
    """One a kernel, in the plan's order."""
    threads: int = 0
    """Threads a block, where the compiler has fixed them (Triton)."""
    scratch_bytes: int = 0
    """Global scratch a program, which the launch passes as a further argument (Triton)."""
    toolchain: str = ""
    """Compiler and version."""
    commands: tuple[str, ...] = ()
    """Command lines, paths shortened."""
    seconds: float = 0.0
    """Compile time; 0 when it came from the cache."""

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.kind == "warning")
