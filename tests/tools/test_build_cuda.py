"""nvcc in the sandbox: cubins with their figures, errors with their lines, refusals before and behind the compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.errors import MissingTool
from kernelcrew.tools import build_cuda as builder
from kernelcrew.tools.build_cuda_words import diagnostics, resources
from kernelcrew.tools.nouns_gpu import CudaPlan, GpuBuild

sys.path.insert(0, str(Path(__file__).parent))
from gpu_kit import needs_nvcc, sandbox, settings
from gpu_sources import CUDA

SMALL = 'extern "C" __global__ void k(float *x, int n)\n{\n    x[threadIdx.x] = BODY;\n}\n'


def built(source: str, folder: Path, limits: proc.Limits | None = None, **plan: object) -> GpuBuild:
    whole = CudaPlan.model_validate({"kernels": ("k",), **plan})
    return builder.build_cuda(source, whole, settings(folder), sandbox(), limits or builder.gpu.LIMITS)


@needs_nvcc
@pytest.mark.parametrize("name", CUDA)
def test_an_honest_kernel_builds(name: str, tmp_path: Path) -> None:
    build = built(CUDA[name], tmp_path, kernels=(name,))
    assert build.status == "ok", build.diagnostics
    assert Path(build.artifact).read_bytes()[:4] == b"\x7fELF" and build.artifact_hash
    (taken,) = build.resources
    assert taken.kernel == name and taken.arch == "sm_90" and 8 <= taken.registers <= 255
    assert str(tmp_path) not in "".join(build.commands) and build.toolchain.startswith("nvcc ")


@needs_nvcc
def test_a_build_is_kept_and_a_damaged_one_made_again(tmp_path: Path) -> None:
    first = built(SMALL.replace("BODY", "n"), tmp_path)
    second = built(SMALL.replace("BODY", "n"), tmp_path)
    assert first.seconds > 0 and second.seconds == 0 and second.artifact == first.artifact
    Path(first.artifact).write_bytes(b"other")
    third = built(SMALL.replace("BODY", "n"), tmp_path)
    assert third.seconds > 0 and third.artifact == first.artifact
    assert Path(third.artifact).read_bytes()[:4] == b"\x7fELF"
    assert built(SMALL.replace("BODY", "n + 1"), tmp_path).artifact != first.artifact


@needs_nvcc
def test_a_knob_is_a_define(tmp_path: Path) -> None:
    source = SMALL.replace("BODY", "s[n]").replace("{\n", "{\n    __shared__ float s[SIZE]; s[threadIdx.x] = x[0];\n")
    for size in (64, 128):
        build = built(source, tmp_path, defines={"SIZE": size})
        assert build.status == "ok" and build.resources[0].static_shared_bytes == 4 * size
    broken = built(source, tmp_path)
    assert broken.status == "failed"
    assert (3, 'identifier "SIZE" is undefined') in {(d.line, d.message) for d in broken.diagnostics}


@needs_nvcc
def test_an_error_names_its_line_and_a_warning_stays(tmp_path: Path) -> None:
    build = built(SMALL.replace("BODY", "undefined_thing"), tmp_path)
    assert build.status == "failed" and build.artifact == ""
    assert [(d.kind, d.line) for d in build.diagnostics if d.kind == "error"] == [("error", 3)]
    warned = built(SMALL.replace("{\n", "{\n    int unused = 3;\n").replace("BODY", "1"), tmp_path)
    assert warned.status == "ok"
    assert [(d.line, d.option) for d in warned.warnings] == [(3, "#177-D")]


@needs_nvcc
def test_too_much_shared_memory_fails_with_the_figures(tmp_path: Path) -> None:
    source = SMALL.replace("BODY", "s[n]").replace("{\n", "{\n    __shared__ float s[20000]; s[threadIdx.x] = x[0];\n")
    build = built(source, tmp_path)
    assert build.status == "failed"
    assert any("uses too much shared data" in d.message and "0xc000 max" in d.message for d in build.diagnostics)


@needs_nvcc
def test_spills_are_counted(tmp_path: Path) -> None:
    source = (
        'extern "C" __global__ void k(float *x, int n)\n{\n    float v[64];\n#pragma unroll\n'
        "    for (int i = 0; i < 64; i++) v[i] = x[i * n];\n    __syncthreads();\n#pragma unroll\n"
        "    for (int i = 0; i < 64; i++) x[i * n + 1] = v[63 - i] * v[i] + v[(i * 7) % 64];\n}\n"
    )
    free, tight = built(source, tmp_path), built(source, tmp_path, flags=("-maxrregcount=32",))
    assert free.status == tight.status == "ok"
    assert free.resources[0].spill_store_bytes == 0 < tight.resources[0].spill_store_bytes
    assert tight.resources[0].registers <= 32 < free.resources[0].registers
    assert any("spill" in d.message.lower() for d in tight.warnings)


@needs_nvcc
def test_the_object_is_judged_behind_the_compiler(tmp_path: Path) -> None:
    source = SMALL.replace("BODY", "t[n & 3]").replace("{\n", "{\n    static constexpr float t[4] = {1, 2, 3, 4};\n")
    build = built(source, tmp_path)
    assert (build.status, build.stage) == ("refused", "policy")
    assert [d.kind for d in build.diagnostics if d.kind == "state"] == ["state"]
    assert not Path(build.artifact).is_file()


@needs_nvcc
def test_the_time_limit_ends_the_compiler(tmp_path: Path) -> None:
    build = built(SMALL.replace("BODY", "1"), tmp_path, proc.Limits(time_s=0.05))
    assert build.status == "failed"
    assert "did not finish within 0.05 s" in build.diagnostics[0].message


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ({"flags": ("--use_fast_math",)}, "flag"), ({"flags": ("-ftz=true",)}, "flag"),
        ({"flags": ("-I/etc",)}, "flag"),
        ({"flags": ("-include", "/etc/passwd")}, "flag"), ({"flags": ("-ccbin=/tmp/x",)}, "flag"),
        ({"flags": ("-Xptxas=-v;rm",)}, "flag"), ({"flags": ("-maxrregcount=300",)}, "flag"),
        ({"defines": {"float": 1}}, "define"), ({"defines": {"__device__": 1}}, "define"),
        ({"defines": {"A-B": 1}}, "define"),
        ({"defines": {"A": 1 << 40}}, "define"), ({"defines": {"atomicAdd": 1}}, "define"), ({"arch": "sm_70"}, "arch"),
        ({"arch": "sm_90 -x"}, "arch"), ({"kernels": ()}, "entry"), ({"kernels": ("a b",)}, "entry"),
    ],
)  # fmt: skip
def test_a_plan_is_judged_first(plan: dict[str, object], rule: str, tmp_path: Path) -> None:
    build = built(SMALL.replace("BODY", "1"), tmp_path, **plan)
    assert (build.status, build.stage) == ("refused", "policy")
    assert rule in {d.kind for d in build.diagnostics}
    assert not (tmp_path / ".kernelcrew").exists()


def test_a_source_is_judged_before_the_compiler(tmp_path: Path) -> None:
    build = built("int main() { return 0; }\n", tmp_path)
    assert (build.status, build.stage) == ("refused", "policy") and not (tmp_path / ".kernelcrew").exists()


def test_without_nvcc_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "USUAL_PLACES", ())
    nowhere = settings(tmp_path).model_copy(update={"nvcc": "no-such-nvcc"})
    with pytest.raises(MissingTool, match="no compiler 'no-such-nvcc'"):
        builder.build_cuda(SMALL.replace("BODY", "1"), CudaPlan(kernels=("k",)), nowhere, sandbox())


REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 8192+16 bytes smem, 400 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for helper
    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""


def test_the_report_of_the_assembler_is_read() -> None:
    b, a = resources(REPORT, ["b", "a", "c"], dynamic_shared_bytes=64)
    assert (a.registers, a.barriers, a.stack_bytes, a.spill_store_bytes, a.spill_load_bytes) == (40, 2, 16, 24, 32)
    assert (a.static_shared_bytes, a.constant_bytes, a.dynamic_shared_bytes, a.arch) == (8192, 408, 64, "sm_80")
    assert (b.kernel, b.registers, b.static_shared_bytes) == ("b", 8, 0)


def test_the_words_of_the_compiler_are_read() -> None:
    text = (
        'kernel.cu(7): error: identifier "y" is undefined\n    x = y;\n        ^\n'
        "kernel.cu(9): warning #177-D: variable never referenced\n"
        "/usr/include/other.h(3): error: in a header\n"
        "ptxas error   : Entry function 'k' uses too much shared data (0x20000 bytes, 0xc000 max)\n"
        "ptxas /tmp/a.ptx, line 83; error   : Feature 'cp.async' requires .target sm_80 or higher\n"
        "kernel.cu:2:10: fatal error: no.h: No such file or directory\n"
        "nvcc fatal   : Unsupported gpu architecture 'compute_10'\n"
        'kernel.cu(7): error: identifier "y" is undefined\n'
    )
    found = [(d.kind, d.line, d.option) for d in diagnostics(text, "kernel.cu")]
    assert found == [
        ("error", 7, ""), ("warning", 9, "#177-D"), ("error", 0, ""), ("error", 0, ""), ("error", 0, ""),
        ("error", 2, ""), ("error", 0, ""),
    ]  # fmt: skip
