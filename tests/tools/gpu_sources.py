"""Honest GPU kernels in the state an engineer would hand in: each must pass its gate and compile."""

from __future__ import annotations

TRITON: dict[str, str] = {}
"""Name to source of a module; the entry has the name of the key."""

TRITON["matmul"] = '''"""Tiled product; programs go through L2 in groups of rows."""

import triton
import triton.language as tl


@triton.jit
def swizzle(pid, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Programs of one group share their rows."""
    rows = tl.cdiv(M, BM)
    cols = tl.cdiv(N, BN)
    width = GROUP * cols
    first = (pid // width) * GROUP
    size = min(rows - first, GROUP)
    return first + (pid % width) % size, (pid % width) // size


@triton.jit
def matmul(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr = 8):
    m, n = swizzle(tl.program_id(0), M, N, BM, BN, GROUP)
    rm = (m * BM + tl.arange(0, BM)) % M
    rn = (n * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    pa = a + rm[:, None] * sa + rk[None, :]
    pb = b + rk[:, None] * sb + rn[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = K - k * BK
        x = tl.load(pa, mask=rk[None, :] < left, other=0.0)
        y = tl.load(pb, mask=rk[:, None] < left, other=0.0)
        acc = tl.dot(x, y, acc)
        pa += BK
        pb += BK * sb
    om = m * BM + tl.arange(0, BM)
    on = n * BN + tl.arange(0, BN)
    mask = (om[:, None] < M) & (on[None, :] < N)
    tl.store(c + om[:, None] * sc + on[None, :], acc.to(c.dtype.element_ty), mask=mask)
'''

TRITON["softmax"] = """import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax(x, y, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    v = (v - tl.max(v, axis=0)) * LOG2E
    e = tl.math.exp2(v)
    s = tl.sum(e, 0)
    tl.store(y + row * stride + at, libdevice.div_rn(e, s + tl.zeros_like(e)), mask=at < n)
"""

TRITON["attention"] = """import triton
import triton.language as tl


@triton.jit
def inner(
    acc, l_i, m_i, q, pk, pv, start, qi, N,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):
    at = tl.arange(0, BN)
    d = tl.arange(0, D)
    hi = (start + 1) * BM if CAUSAL else N
    for j in tl.range(0, hi, BN, num_stages=2):
        k = tl.load(pk + (j + at)[None, :] * D + d[:, None], mask=(j + at)[None, :] < N, other=0.0)
        s = tl.dot(q, k)
        keep = (j + at)[None, :] < N
        if CAUSAL:
            keep = keep & (qi[:, None] >= (j + at)[None, :])
        s = tl.where(keep, s, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(pv + (j + at)[:, None] * D + d[None, :], mask=(j + at)[:, None] < N, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def attention(Q, K, V, O, N, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    start = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * N * D
    qi = start * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + head + qi[:, None] * D + d[None, :], mask=qi[:, None] < N, other=0.0)
    q = (q * scale).to(Q.dtype.element_ty)
    m_i = tl.full([BM], -1.0e30, dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    acc, l_i, m_i = inner(acc, l_i, m_i, q, K + head, V + head, start, qi, N, BM, BN, D, CAUSAL)
    acc = acc / l_i[:, None]
    tl.store(O + head + qi[:, None] * D + d[None, :], acc.to(O.dtype.element_ty), mask=qi[:, None] < N)
"""

TRITON["scan_sum"] = """import triton
import triton.language as tl
from triton import jit

TYPES = (tl.float32, 4)


@jit
def combine(a, b):
    return a + b


@triton.jit(do_not_specialize=["n"])
def scan_sum(x, y, count, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    tl.static_assert(BLOCK % 32 == 0, "whole warps")
    pid = tl.program_id(axis=0)
    total = 0.0
    i = pid * BLOCK
    while i < n:
        at = i + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < n, other=0.0, eviction_policy="evict_first").to(tl.float32)
        total += tl.reduce(v, 0, combine)
        i += tl.num_programs(0) * BLOCK
    for _ in tl.static_range(STEPS):
        total = total * 1.0
    if pid == 0:
        tl.atomic_add(count, 1, sem="relaxed")
    else:
        pass
    tl.atomic_add(y, total)
"""

TRITON["bits"] = """import triton
import triton.language as tl


@triton.jit
def bits(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    e = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + at, e, mask=at < n)
"""

CUDA: dict[str, str] = {}
"""Name to source of a translation unit."""

CUDA["gemm_mma"] = r"""// Tiled bf16 product: cp.async double buffering, ldmatrix, mma.sync with float32 accumulators.
#include <cuda_bf16.h>
#include <cstdint>

#ifndef BM
#define BM 64
#endif
#define BN 64
#define BK 32
#define CP_ASYNC(dst, src) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(dst), "l"(src))
#define CEIL(a, b) (((a) + (b) - 1) / (b))

constexpr int THREADS = 128;

struct alignas(16) Frag {
    uint32_t r[4];
};

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void ldmatrix(Frag &f, uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(at));
}

template <bool TRANS>
__device__ __forceinline__ void ldmatrix2(uint32_t (&b)[2], uint32_t at)
{
    if constexpr (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
                     : "=r"(b[0]), "=r"(b[1])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n" : "=r"(b[0]), "=r"(b[1]) : "r"(at));
}

__device__ __forceinline__ void mma(float (&c)[4], const Frag &a, const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_mma(const __nv_bfloat16 *__restrict__ A, const __nv_bfloat16 *__restrict__ B, float *__restrict__ C,
         int M, int N, int K)
{
    __shared__ __align__(16) __nv_bfloat16 sa[2][BM][BK + 8];
    __shared__ __align__(16) __nv_bfloat16 sb[2][BK][BN + 8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    float acc[BN / 8][4] = {};
    auto load = [&](int stage, int k0) {
        for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
            int r = i / (BK / 8), c = i % (BK / 8) * 8;
            CP_ASYNC(shared_address(&sa[stage][r][c]), A + (size_t)(m0 + r) * K + k0 + c);
        }
        for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
            int r = i / (BN / 8), c = i % (BN / 8) * 8;
            CP_ASYNC(shared_address(&sb[stage][r][c]), B + (size_t)(k0 + r) * N + n0 + c);
        }
        asm volatile("cp.async.commit_group;\n" ::);
    };
    load(0, 0);
    int stage = 0;
    for (int k = 0; k < K; k += BK, stage ^= 1) {
        if (k + BK < K) {
            load(stage ^ 1, k + BK);
            asm volatile("cp.async.wait_group 1;\n" ::);
        } else {
            asm volatile("cp.async.wait_group 0;\n" ::);
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            Frag a;
            ldmatrix(a, shared_address(&sa[stage][warp * 16 + lane % 16][kk + lane / 16 * 8]));
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                uint32_t b[2];
                ldmatrix2<true>(b, shared_address(&sb[stage][kk + lane % 16][j * 8]));
                mma(acc[j], a, b);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < BN / 8; j++) {
        int r = m0 + warp * 16 + lane / 4, c = n0 + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2 *>(&C[(size_t)r * N + c]) = make_float2(acc[j][0], acc[j][1]);
        *reinterpret_cast<float2 *>(&C[(size_t)(r + 8) * N + c]) = make_float2(acc[j][2], acc[j][3]);
    }
}
"""

CUDA["gemm_wmma"] = r"""// One warp a tile of 16x16, fragments of the warp matrix interface.
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

extern "C" __global__ void gemm_wmma(const half *a, const half *b, float *c, int m, int n, int k)
{
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + row * k + i, k);
        wmma::load_matrix_sync(fb, b + i * n + col, n);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    wmma::store_matrix_sync(c + row * n + col, acc, n, wmma::mem_row_major);
}
"""

CUDA["reduce_cg"] = r"""// Warp shuffles through cooperative groups, one atomic a block.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

template <typename T, typename Op>
__device__ T fold(T v, Op op)
{
    for (int d = 16; d > 0; d /= 2)
        v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

struct Plus {
    template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};

extern "C" __global__ void reduce_cg(const float *__restrict__ x, float *y, long n)
{
    extern __shared__ float held[];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    float s = 0.0f;
    const float4 *x4 = reinterpret_cast<const float4 *>(x);
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n / 4; i += (long)gridDim.x * blockDim.x) {
        float4 v = __ldcs(&x4[i]);
        s += (v.x + v.y) + (v.z + v.w);
    }
    s = cg::reduce(warp, s, cg::plus<float>());
    if (warp.thread_rank() == 0)
        held[warp.meta_group_rank()] = s;
    block.sync();
    if (threadIdx.x < 32) {
        float t = threadIdx.x < (blockDim.x + 31) / 32 ? held[threadIdx.x] : 0.0f;
        t = fold(t, Plus());
        t = fold(t, [](float a, float b) { return fmaxf(a, b); });
        if (threadIdx.x == 0)
            atomicAdd(y, t);
    }
}
"""

CUDA["reduce_cub"] = r"""// A block's sum by the library.
#include <cub/block/block_reduce.cuh>

template <int THREADS, typename T> struct Sum {
    using Block = cub::BlockReduce<T, THREADS>;
    typename Block::TempStorage &held;
    __device__ explicit Sum(typename Block::TempStorage &storage) : held(storage) {}
    __device__ T operator()(T v) { return Block(held).Sum(v); }
};

extern "C" __global__ void reduce_cub(const float *x, float *y, int n)
{
    using BlockReduce = cub::BlockReduce<float, 256>;
    __shared__ typename BlockReduce::TempStorage temp;
    float v = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256)
        v += x[blockIdx.x * (size_t)n + i];
    float total = BlockReduce(temp).Sum(v);
    if (threadIdx.x == 0)
        y[blockIdx.x] = total;
}
"""

CUDA["pipeline_mbarrier"] = r"""// A bulk copy behind an mbarrier, waited for with try_wait; sm_90.
#include <cstdint>
extern "C" __global__ void pipeline_mbarrier(const float *x, float *y, int n)
{
    __shared__ alignas(128) float tile[256];
    __shared__ uint64_t bar;
    uint32_t b = (uint32_t)__cvta_generic_to_shared(&bar);
    uint32_t s = (uint32_t)__cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(1));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(1024) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(s),
                     "l"(x + blockIdx.x * 256), "r"(1024), "r"(b)
                     : "memory");
    }
    asm volatile("{\n"
                 ".reg .pred P1;\n"
                 "LAB_WAIT:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
                 "@P1 bra DONE;\n"
                 "bra LAB_WAIT;\n"
                 "DONE:\n"
                 "}\n" ::"r"(b), "r"(0));
    float v;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(tile[threadIdx.x]));
    float w;
    asm("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(w) : "l"(x + threadIdx.x));
    y[blockIdx.x * 256 + threadIdx.x] = v + w;
}
"""

CUDA[
    "trig_table"
] = r"""/* A table in constant memory, a switch, trigonometry with its own table of the compiler's, division. */
#include <cuda_fp16.h>
enum class Mode : int { Sine = 0, Cosine, Ratio };
__constant__ float weights[4] = {0.25f, 0.5f, 0.75f, 1.0f};
typedef unsigned int word;
namespace inner {
constexpr float half_pi = 1.57079632f;
__device__ __noinline__ float turn(float v, float w) { return v / w + half_pi; }
}  // namespace inner

static __device__ float apply(Mode mode, float v)
{
    switch (mode) {
    case Mode::Sine: return sinf(v);
    case Mode::Cosine: return cosf(v);
    default: return inner::turn(v, 3.0f);
    }
}

extern "C" {
__global__ void trig_table(const half *x, float *y, int n, int mode)
{
    static_assert(sizeof(word) == 4, "word");
    word i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (n > (int)(mode))) {
        float v = __half2float(x[i]) * weights[i & 3];
        y[i] = apply(static_cast<Mode>(mode), v);
    }
}
}
"""

TRITON_PLANS: dict[str, tuple[dict[str, str], dict[str, bool | int]]] = {
    "matmul": (
        {"a": "*bf16", "b": "*bf16", "c": "*fp32", **dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32")},
        {"BM": 64, "BN": 64, "BK": 32, "GROUP": 8},
    ),
    "softmax": ({"x": "*fp32", "y": "*fp32", "n": "i32", "stride": "i32"}, {"BLOCK": 1024}),
    "attention": (
        {"Q": "*fp16", "K": "*fp16", "V": "*fp16", "O": "*fp16", "N": "i32", "scale": "fp32"},
        {"BM": 64, "BN": 32, "D": 64, "CAUSAL": True},
    ),
    "scan_sum": ({"x": "*bf16", "y": "*fp32", "count": "*i32", "n": "i32"}, {"BLOCK": 256, "STEPS": 2}),
    "bits": ({"x": "*fp32", "y": "*fp32", "n": "i32"}, {"BLOCK": 256}),
}
"""Name to run-time and compile-time parameters."""
