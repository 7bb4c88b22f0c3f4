"""The source policy of CUDA kernels: what it refuses, with rule and line, and what it lets through."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from kernelcrew.tools.policy_cuda import judge_cuda, kernels

sys.path.insert(0, str(Path(__file__).parent))
from gpu_sources import CUDA

KERNEL = 'extern "C" __global__ void k(float *x, int n)\n{\n'
HONEST = KERNEL + "    x[threadIdx.x] = 1.0f;\n}\n"

FILE = {
    "host function": ("host", "void launch(float *x) { x[0] = 1; }"),
    "static host function": ("host", "static int add(int a, int b) { return a + b; }"),
    "host main": ("host", "int main() { return 0; }"),
    "host and device": ("host", "__host__ __device__ int f(int a) { return a; }"),
    "host constructor": ("host", "struct A { int v; A() { v = 1; } };"),
    "host prototype": ("host", 'extern "C" int puts_(const char *);'),
    "device global": ("state", "__device__ int counter;"),
    "static device global": ("state", "static __device__ float kept[4] = {1, 2, 3, 4};"),
    "device constant array": ("state", "__device__ const float t[2] = {1, 2};"),
    "managed": ("state", "__managed__ int counter;"),
    "plain global": ("state", "int counter = 0;"),
    "global in a namespace": ("state", "namespace a { namespace b { __device__ int z; } }"),
    "global in extern C": ("state", 'extern "C" { __device__ int z; }'),
    "global behind a struct": ("state", "struct A { int v; } shared_one;"),
    "empty constant": ("state", "__constant__ float t[4];"),
    "static member": ("state", "struct A { static int v; };"),
    "system include": ("include", "#include <stdio.h>"),
    "runtime api include": ("include", "#include <cuda_profiler_api.h>"),
    "clock of the library": ("include", "#include <cuda/std/chrono>"),
    "barrier of the library": ("include", "#include <cuda/barrier>"),
    "ptx of the library": ("include", "#include <cuda/ptx>"),
    "device algorithms": ("include", "#include <cub/device/device_reduce.cuh>"),
    "path out of cub": ("include", "#include <cub/block/../../thrust/sort.h>"),
    "file": ("include", '#include "/etc/passwd"'),
    "computed include": ("include", "#define H <mma.h>\n#include H"),
    "next include": ("directive", "#include_next <mma.h>"),
    "line": ("directive", '#line 7 "x"'),
    "diagnostic pragma": ("pragma", "#pragma nv_diag_suppress 177"),
    "gcc pragma": ("pragma", "#pragma GCC optimize(3)"),
    "pragma operator": ("pragma", '_Pragma("nv_exec_check_disable")'),
    "pasting": ("macro", "#define JOIN(a, b) a##b"),
    "keyword macro": ("macro", "#define float double"),
    "qualifier macro": ("macro", "#define __device__"),
    "assembler macro": ("macro", "#define asm"),
    "intrinsic macro": ("macro", "#define __syncthreads()"),
    "call in a macro": ("call", '#define SAY(x) printf("%d", x)'),
    "assembler in a macro": ("asm", '#define NOW(t) asm volatile("mov.u64 %0, %%clock64;" : "=l"(t))'),
    "assembler from pieces": ("asm", "#define RUN(s) asm volatile(s)"),
    "assembler by stringification": ("asm", "#define RUN(s) asm volatile(#s)"),
    "clock in a pointer's place": ("call", "namespace q { using ::clock64; }"),
    "clock as a template's argument": (
        "call",
        "template <long long (*F)()> __device__ long long r() { return F(); }\n"
        "__device__ long long now() { return r<clock64>(); }",
    ),
    "raw string": ("text", 'constexpr char s[] = R"(x)";'),
    "open comment": ("text", "/* never"),
    "unicode": ("text", "constexpr int \u00e4 = 1;"),
    "escaped name": ("text", "constexpr int \\u0061sm = 1;"),
    "branches that do not match": ("text", "#if A\n__device__ int f() {\n#else\n__device__ int g() {\n#endif\n"),
    "probe": ("name", '#if __has_include("/etc/passwd")\n#endif'),
    "date": ("name", "constexpr char d[] = __DATE__;"),
    "virtual": ("keyword", "struct A { __device__ virtual int f() { return 1; } };"),
    "namespace of the library": (
        "declaration",
        "namespace cuda { namespace std { __device__ inline int f() { return 1; } } }",
    ),
    "alias of a namespace": ("name", "namespace s = std;"),
    "using a namespace": ("name", "using namespace thrust;"),
    "state in a macro": ("state", "#define KEPT static\n__device__ int f() { KEPT int c; return c++; }"),
    "state through a macro": ("state", "#define SAME(t) t\nSAME(__device__ int c;)"),
    "pointer that can be moved": ("state", "__device__ int f() { static const int *p = 0; return p++ != 0; }"),
    "member pointer": ("state", "struct A { static const int *p; };"),
    "variable template": ("state", "template <class T> __device__ T kept;"),
    "several": ("state", "__device__ float w[4] = {}, v;"),
    "pasted attribute": ("name", "__attribute__((device)) int v;"),
    "file assembler": ("host", 'asm(".global .u32 g;");'),
    "other linkage": ("declaration", 'extern "D" __global__ void q(int *x) { x[0] = 1; }'),
    "pointer to a function": (
        "call",
        "typedef float (*F)(float);\n__device__ float g(F f, float v) { return (*f)(v); }",
    ),
}

BODY = {
    "printf": ("call", 'printf("x");'),
    "qualified printf": ("call", '::printf("x");'),
    "malloc": ("call", "float *p = (float *)malloc(4);"),
    "new": ("keyword", "float *p = new float[4];"),
    "delete": ("keyword", "delete x;"),
    "assert": ("call", "assert(n > 0);"),
    "trap": ("call", "__trap();"),
    "clock": ("call", "x[0] = clock();"),
    "clock64": ("call", "x[0] = clock64();"),
    "address of the clock": ("call", "auto f = &clock64;"),
    "nanosleep": ("call", "__nanosleep(100);"),
    "throw": ("keyword", "throw 1;"),
    "goto": ("keyword", "goto out; out: ;"),
    "launch": ("launch", "k<<<1, 1>>>(x, n);"),
    "runtime call": ("call", "cudaDeviceSynchronize();"),
    "driver call": ("call", "cuLaunchKernel(0);"),
    "internal name": ("name", "x[0] = __nv_sinf(1.0f);"),
    "internal builtin": ("name", "x[0] = __nvvm_read_ptx_sreg_clock();"),
    "builtin": ("name", "x[0] = __builtin_clock();"),
    "unknown function": ("call", "helper(x);"),
    "std": ("name", "x[0] = std::cout;"),
    "other namespace": ("name", "thrust::sort(x, x + n);"),
    "chrono": ("name", "auto t = cuda::std::chrono::system_clock::now();"),
    "tag of a library": ("name", "*(char *)&cub::ignore = 1;"),
    "static local": ("state", "static int count = 0; count++;"),
    "static array": ("state", "static float kept[4];"),
    "thread-local": ("keyword", "thread_local int v;"),
    "through a pointer": ("call", "void (*p)(int) = 0;"),
    "through an element": ("call", "x[n](1);"),
    "through a cast": ("call", "((void (*)(int))x)(1);"),
    "through a local": ("call", "auto p = x; p(1);"),
    "attribute": ("attribute", "[[gnu::used]] int v;"),
    "gnu attribute": ("name", "int v __attribute__((used));"),
    "separator that hides": ("text", "int a = 1'0 + clock() + 1'0;"),
    "comparison that hides a call": ("call", "int a = n > hidden(1);"),
    "asm clock": ("asm", 'unsigned t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t));'),
    "asm timer": ("asm", 'long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));'),
    "asm processor": ("asm", 'int t; asm volatile("mov.u32 %0, %%smid;" : "=r"(t));'),
    "asm trap": ("asm", 'asm volatile("trap;");'),
    "asm exit": ("asm", 'asm volatile("exit;");'),
    "asm sleep": ("asm", 'asm volatile("nanosleep.u32 100;");'),
    "asm call": ("asm", 'asm volatile("call vprintf, (%0, %1);" :: "l"(x), "l"(x));'),
    "asm second statement": ("asm", 'asm volatile("cp.async.commit_group; trap;");'),
    "asm after a label": ("asm", 'asm volatile("{ L: trap; }");'),
    "asm behind a comment": ("asm", 'asm volatile("/* cp.async */ brkpt;");'),
    "asm guarded": ("asm", 'asm volatile("{.reg .pred p; @p trap;}");'),
    "asm upper case": ("asm", 'asm volatile("TRAP;");'),
    "asm hidden by an escape": ("asm", 'asm volatile("\\x74rap;");'),
    "asm prefix": ("asm", 'asm volatile(u8"trap;");'),
    "asm joined": ("asm", 'asm volatile("tr" "ap;");'),
    "asm directive": ("asm", 'asm volatile(".global .u32 kept;");'),
    "asm symbol": ("asm", 'long t; asm volatile("mov.u64 %0, kept;" : "=l"(t));'),
    "asm address": ("asm", 'float v; asm volatile("ld.global.f32 %0, [4096];" : "=f"(v));'),
    "asm volatile load": ("asm", 'float v; asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(v) : "l"(x));'),
    "asm system scope": ("asm", 'float v; asm volatile("ld.acquire.sys.global.f32 %0, [%1];" : "=f"(v) : "l"(x));'),
    "asm atomics": ("asm", 'asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(n) : "l"(x));'),
    "asm multimem": ("asm", 'asm volatile("multimem.red.add.u32 [%0], 1;" :: "l"(x));'),
    "asm discard": ("asm", 'asm volatile("discard.global.L2 [%0], 128;" :: "l"(x));'),
    "asm profiler": ("asm", 'asm volatile("pmevent 1;");'),
    "asm macro": ("asm", "asm volatile(TEXT);"),
    "asm goto": ("asm", 'asm goto("trap;");'),
}


@pytest.mark.parametrize("name", FILE)
def test_refuses_in_a_file(name: str) -> None:
    rule, text = FILE[name]
    found = judge_cuda(f"{text}\n{HONEST}")
    assert rule in {d.kind for d in found}, found


@pytest.mark.parametrize("name", BODY)
def test_refuses_in_a_kernel(name: str) -> None:
    rule, text = BODY[name]
    found = judge_cuda(f"{KERNEL}    {text}\n}}\n")
    assert (rule, 3) in {(d.kind, d.line) for d in found}, found


@pytest.mark.parametrize("name", CUDA)
def test_an_honest_kernel_passes(name: str) -> None:
    assert judge_cuda(CUDA[name]) == []
    assert kernels(CUDA[name]) == (name,)


@pytest.mark.parametrize(
    "text",
    [
        "if (a < b && c > (d)) x[0] = 1;", "float4 v(make_float4(1, 2, 3, 4));", "dim3 v{1, 2, 3};",
        "half2 h(x[0], x[1]);",
        "int v = (int)(x[0]) + int(x[1]) + static_cast<int>(x[2]);", "auto f = [&](int i) { return x[i]; }; f(1);",
        "extern __shared__ float4 held[];",
        "float (*p)[4] = reinterpret_cast<float (*)[4]>(x); p[0][1] = 1;",
        "static __shared__ float held[4];", "static constexpr int m = 4;",
        "#pragma unroll 4\nfor (;;) {}", "__shared__ alignas(16) float s[4]; x[0] = s[n];",
        "float (&r)[4] = held; r[0] = 1;",
        "x[0] = __shfl_down_sync(~0u, x[0], 1) + __expf(x[1]) + rsqrtf(x[2]) + __fmaf_rn(x[1], x[2], x[3]);",
        "__half2 h = __floats2half2_rn(x[0], x[1]); h = __hfma2(h, h, h); x[0] = __low2float(h);",
        "__nv_bfloat16 b = __float2bfloat16_rn(x[0]); x[0] = __bfloat162float(b);",
        "atomicAdd(&x[0], 1.0f); __threadfence(); __syncwarp();", "[[maybe_unused]] int v = 0;",
        'asm volatile("bar.sync %0, %1;" :: "r"(1), "r"(128) : "memory");',
        'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");',
        'asm volatile("{ .reg .pred p; elect.sync _|p, %1; selp.b32 %0, 1, 0, p; }" : "=r"(n) : "r"(-1));',
        'asm volatile("st.global.cs.v4.f32 [%0 + 16], {%1, %1, %1, %1};" :: "l"(x), "f"(x[0]));',
        'asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(n) : "f"(x[0]));',
        'asm volatile("mov.u32 %0, %%laneid;" : "=r"(n));',
    ],
)  # fmt: skip
def test_ordinary_device_code_passes(text: str) -> None:
    assert judge_cuda(f"{KERNEL}    {text}\n}}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "const int tile = 64;", "constexpr float pi = 3.14f;", "__constant__ float t[2] = {1, 2};",
        "enum Kind { A, B };",
        "template <int N> constexpr int twice() { return 2 * N; }", "struct A { float v; int n = 0; };",
        "using F = float;",
        "template <typename T> struct V { T v[4]; __device__ T operator[](int i) const { return v[i]; } };",
        "namespace cg = cooperative_groups;", "#define SQUARE(v) ((v) * (v))", "#if __CUDA_ARCH__ >= 900\n#endif",
        "template <int N> __device__ float f(float v) { return v; }\ntemplate __device__ float f<4>(float);",
        "struct P { int a; __device__ P(int v) : a(v) {} P() = default; };", "#include \"cuda_fp16.h\"",
        "template <typename T> __device__ float f(T v);\ntemplate <> __device__ float f<int>(int v) { return v; }\n"
        "__device__ float g(int v) { return f(v) + f<int>(v); }",
        "struct Op { __device__ float operator()(const float &a, float b) const { return a + b; } };\n"
        "template <typename F> __device__ float apply(float v, F const &op) { return op(v, v); }",
        "#define MAKE(t, n) template <int N> __device__ t n(t v) { return v; }\nMAKE(float, one)",
        "#include <cute/tensor.hpp>\nusing namespace cute;", "#include <cub/cub.cuh>",
        "static_assert(sizeof(int) == 4);",
    ],
)  # fmt: skip
def test_ordinary_declarations_pass(text: str) -> None:
    assert judge_cuda(f"{text}\n{HONEST}") == []


def test_a_file_without_a_kernel_is_refused() -> None:
    assert [d.kind for d in judge_cuda("__device__ int f(int a) { return a; }\n")] == ["declaration"]


def test_a_comment_and_a_string_are_no_code() -> None:
    assert judge_cuda(f'// printf(1); asm("trap;")\n/* clock64() */\n{HONEST}') == []


def test_the_judge_is_fast_on_what_is_large() -> None:
    started = time.process_time()
    assert judge_cuda(KERNEL + "    x[0] = x[1] + (x[2]);\n" * 5000 + "}\n") == []
    assert {d.kind for d in judge_cuda("a" * (300 << 10))} == {"size"}
    for text in ("(" * 60000, "<" * 60000, "namespace a {" * 9000 + "}" * 9000, "template <" * 9000, "a > (b " * 20000):
        assert judge_cuda(text)
    assert time.process_time() - started < 40.0
