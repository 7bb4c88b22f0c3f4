"""The words that CUDA device code may use: headers, intrinsics, functions, namespaces. What is not here is refused."""

from __future__ import annotations

import re

from kernelcrew.tools.policy_names import MATH, words

HEADERS = words(
    """
    cuda_fp16.h cuda_bf16.h cuda_fp8.h mma.h cooperative_groups.h cooperative_groups/memcpy_async.h
    cooperative_groups/reduce.h cooperative_groups/scan.h cuda_pipeline.h cuda_pipeline_primitives.h cuda_runtime.h
    math_constants.h vector_types.h stdint.h stddef.h float.h limits.h math.h cstdint cstddef cfloat climits cmath
    cuda.h cuda/atomic type_traits limits cuda/std/type_traits cuda/std/limits cuda/std/cstdint cuda/std/array
    cuda/std/bit cuda/std/cmath
    """
)
"""Headers by name; whole folders of device libraries are in `HEADER_FOLDERS`. `cuda/barrier` and `cuda/pipeline` are
left out: their waits read the clock. `cuda/ptx` is left out: it spells instructions past the list of inline PTX."""
HEADER_FOLDERS = re.compile(
    r"cub/(?:cub|block/block_[a-z0-9_]+|warp/warp_[a-z0-9_]+|thread/thread_(?:load|store|reduce|operators)|util_type|"
    r"util_arch)\.cuh|cute/(?:[a-z0-9_]+/){0,3}[a-z0-9_]+\.hpp"
)

DIRECTIVES = words("include define undef if ifdef ifndef elif else endif pragma error warning")

PRAGMAS = words("unroll once")

KEYWORDS = words(
    """
    alignas alignof auto bool break case char char16_t char32_t const const_cast constexpr continue decltype default
    do double else enum explicit extern false final float for friend if inline int long mutable namespace noexcept
    nullptr operator override private protected public reinterpret_cast return short signed sizeof static
    static_assert static_cast struct switch template this true typedef typename union unsigned using void volatile
    wchar_t while and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq delete defined NULL register
    """
)
"""Keywords of C++17 that device code needs; `delete` is there for `= delete`."""
REFUSED_KEYWORDS = {
    "new": "device memory is allocated by the harness: declare scratch in the plan",
    "throw": "device code raises nothing",
    "try": "device code raises nothing",
    "catch": "device code raises nothing",
    "virtual": "a virtual call goes where a pointer says: use a template",
    "dynamic_cast": "it needs type information that device code has not",
    "typeid": "it needs type information that device code has not",
    "thread_local": "nothing is kept between launches",
    "goto": "write a loop",
    "co_await": "device code has no coroutines",
    "co_return": "device code has no coroutines",
    "co_yield": "device code has no coroutines",
    "import": "name a header of the list",
    "module": "name a header of the list",
    "export": "name the entries in the plan",
    "concept": "use static_assert",
    "requires": "use static_assert",
}

LIBRARY = words(
    """
    printf fprintf puts putchar malloc calloc realloc free alloca assert abort exit clock clock64 trap system getenv
    memcpy_s __nanosleep __trap __brkpt __prof_trigger __assertfail vprintf globaltimer setjmp longjmp
    """
)
"""Functions that device code could reach without a header and that print, allocate, stop or read a clock."""
HOST_API = re.compile(r"cuda[A-Z]\w*|cu[A-Z][a-z]\w*|nvrtc\w*|nvml\w*|cublas\w*|cudnn\w*|CUDART_API\w*")
"""Names of the host's or the device's runtime API; `cudaXxx` in device code starts other kernels or allocates."""

TYPE_WORDS = words(
    """
    void bool char short int long float double signed unsigned wchar_t auto const volatile size_t ptrdiff_t intptr_t
    uintptr_t half half2 nv_half nv_half2 nv_bfloat16 nv_bfloat162 dim3 uint ushort uchar ulong CUtensorMap
    """
) | frozenset(f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64))

_VECTORS = re.compile(r"u?(?:char|short|int|long|longlong)[1-4](?:_16a|_32a)?|(?:float|double)[1-4](?:_16a|_32a)?")
_INTERNAL_TYPE = re.compile(
    r"__half(?:2|_raw|2_raw)?|__nv_(?:bfloat16|bfloat162|bfloat16_raw|fp8_(?:e4m3|e5m2|e8m0)|fp8x[24]_(?:e4m3|e5m2)|"
    r"fp8_storage_t|fp8x2_storage_t|fp8x4_storage_t|fp8_interpretation_t|saturation_t)|__int128|__uint128_t|__int128_t"
)

QUALIFIERS = words(
    """
    __global__ __device__ __shared__ __constant__ __restrict__ __restrict __launch_bounds__ __maxnreg__
    __grid_constant__ __cluster_dims__ __block_size__ __forceinline__ __noinline__ __inline__ __inline __align__
    __builtin_align__ __volatile__
    """
)
TAKES_LIST = words("__launch_bounds__ __maxnreg__ __cluster_dims__ __block_size__ __align__ __builtin_align__")

RESERVED_OK = re.compile(
    r"__CUDA_ARCH__|__CUDA_ARCH_FEAT_\w+|__CUDA_ARCH_SPECIFIC__|__CUDA_ARCH_FAMILY_SPECIFIC__|__CUDACC__|"
    r"__CUDACC_VER_MAJOR__|__CUDACC_VER_MINOR__|__cplusplus|__LINE__|__VA_ARGS__|__VA_OPT__|CUDART_\w+|_OPENMP"
)
_INTRINSICS = re.compile(
    r"__sync(?:threads|warp)(?:_count|_and|_or)?|__threadfence(?:_block|_system)?|__activemask|__popcl{0,2}|__clz(?:ll)?|"
    r"__ffs(?:ll)?|__brev(?:ll)?|__byte_perm|__funnelshift_(?:l|r|lc|rc)|__u?mulhi|__u?mul64hi|__u?mul24|__u?s?sad|"
    r"__u?r?hadd|__dp[24]a(?:_lo|_hi)?|"
    r"__(?:shfl(?:_up|_down|_xor)?|ballot|any|all|match_any|match_all)_sync|__reduce_(?:add|min|max|and|or|xor)_sync|"
    r"__reduce_(?:min|max)_(?:abs_)?(?:NaN_)?sync|"
    r"__ld(?:g|cg|ca|cs|lu|cv)|__st(?:wb|cg|cs|wt)|__(?:ldg|ldcg)\w{0,4}|"
    r"__(?:exp|exp10|log|log2|log10|sin|cos|tan|tanh|pow|sincos|fdivide|saturate)f|__tanhf|__fdividef|"
    r"__(?:f|d)(?:add|sub|mul|div|ma|maf|rcp|sqrt|rsqrt)_r[nzud]|__fma(?:f)?_(?:ieee_)?r[nzud]|__frsqrt_rn|__fsqrt_r[nzud]|"
    r"__f(?:add|mul|fma)2_r[nzud]|__ffma2_r[nzud]|"
    r"__(?:int|uint|ll|ull|float|double|half|bfloat16|short|ushort|char|uchar|longlong|hiloint|float22|half22|bfloat162|"
    r"half2|halves|floats|low|high|lows|highs|double22|bfloat1622)\w*2\w*(?:_r[nzud])?|"
    r"__(?:int|uint|float|double|longlong|short|ushort|half|bfloat16|ll|ull)_as_\w+|"
    r"__(?:low|high)(?:s?2(?:half|half2|float|bfloat16|bfloat162)|)\w*|__halves2\w+|__float2tf32_rn|__float_to_tf32|"
    r"__h(?:add|sub|mul|fma|div|neg|abs|max|min|eq|ne|lt|le|gt|ge|isnan|isinf|cmadd|exp|equ|neu|ltu|leu|gtu|geu|mad)"
    r"(?:2)?(?:_sat|_relu|_rn|_nan|_mask)?|__hb(?:eq|ne|lt|le|gt|ge)2u?|__hfma2_relu|"
    r"__v(?:abs|add|sub|max|min|avg|hadd|cmp|set|neg|ssum)\w*|__vi(?:add)?(?:max|min)\w*|"
    r"__cvta_(?:generic_to_(?:shared|global|local|constant|grid_constant)|(?:shared|global)_to_generic)|"
    r"__isGlobal|__isShared|__isConstant|__nv_cvt_\w+|__pipeline_(?:memcpy_async|commit|wait_prior|arrive_on)|"
    r"__cluster_(?:barrier_(?:arrive|wait|arrive_relaxed)|dims|relative_block_rank|map_shared_rank)|__launch_bounds__|"
    r"__builtin_(?:assume|assume_aligned|expect|unreachable)|__habs2?|__nan\w*|__signbit\w*|__isnan\w*|__isinf\w*|"
    r"__finite\w*"
)

_EXTRA_MATH = words(
    """
    rsqrt rsqrtf rcbrt rcbrtf sinpi sinpif cospi cospif sincos sincosf sincospi sincospif exp10 exp10f erfinv erfinvf
    erfcinv erfcinvf erfcx erfcxf normcdf normcdff normcdfinv normcdfinvf norm3d norm3df norm4d norm4df rnorm3d
    rnorm3df rnorm4d rnorm4df norm normf rhypot rhypotf j0 j0f j1 j1f y0 y0f y1 y1f cyl_bessel_i0 cyl_bessel_i0f
    fdividef max min umax umin llmax llmin ullmax ullmin abs labs llabs isnan isinf isfinite signbit memcpy memset
    memmove hexp hexp2 hlog hlog2 hsin hcos hsqrt hrsqrt hrcp hfloor hceil hrint htrunc htanh htanh_approx h2exp
    h2exp2 h2log h2log2 h2sin h2cos h2sqrt h2rsqrt h2rcp h2floor h2ceil h2rint h2trunc h2tanh h2tanh_approx h2div hdiv
    atomicAdd atomicSub atomicExch atomicMin atomicMax atomicInc atomicDec atomicCAS atomicAnd atomicOr atomicXor
    atomicAdd_block atomicMax_block atomicMin_block atomicCAS_block atomicExch_block
    """
)
FUNCTIONS = MATH | _EXTRA_MATH
_MAKERS = re.compile(r"make_(?:[a-z]+[0-9]?|half2|bfloat162|float2|float4|uint4|int4)")
_CASTS = words(
    "static_cast reinterpret_cast const_cast sizeof alignof alignas decltype static_assert noexcept explicit"
)

BEFORE_PAREN = (
    _CASTS | TAKES_LIST | words("if for while switch return else do case asm __asm__ volatile operator defined")
)
"""Words that may stand before `(` without being a call."""

NAMESPACES = words("cooperative_groups cg nvcuda wmma cub cute")
"""Namespaces of device libraries, any member."""
TAGS = words("ignore piecewise_construct in_place unreachable_sentinel seq par ranges placeholders nullopt execution")
"""Members that no kernel names: objects of the libraries that live in device memory."""
OTHERS = words("cuda std thrust nv cub cute nvcuda cooperative_groups")
"""Namespaces that belong to libraries: a kernel declares nothing in them."""
STD = words(
    """
    size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t ptrdiff_t numeric_limits is_same
    is_same_v enable_if enable_if_t conditional conditional_t integral_constant bool_constant true_type false_type
    is_integral_v is_floating_point_v is_integral is_floating_point remove_reference_t remove_cv_t decay_t is_const_v
    min max move forward declval void_t is_signed_v is_unsigned_v make_unsigned_t make_signed_t array bit_cast
    underlying_type_t nullptr_t index_sequence make_index_sequence integer_sequence fma sqrt abs fabs exp log pow
    floor ceil round trunc isnan isinf
    """
)
"""Members of `std` and `cuda::std`."""
ATOMICS = words(
    """
    atomic_ref thread_scope_device thread_scope_block memory_order_relaxed memory_order_acquire memory_order_release
    memory_order_acq_rel memory_order_seq_cst thread_scope_thread
    """
)
"""Members of `cuda`, beside `cuda::std`."""

ATTRIBUTES = words("maybe_unused nodiscard fallthrough likely unlikely no_unique_address")

KERNEL = "__global__"
DEVICE = "__device__"

LIBRARY_NAMES = words(
    "threadIdx blockIdx blockDim gridDim warpSize thread_block_tile thread_block grid_group tiled_partition"
)
"""What the compiler declares, and what an honest `using namespace` brings."""
USING_CALLS = words(
    """
    this_thread_block this_grid this_cluster tiled_partition coalesced_threads sync wait wait_prior memcpy_async
    reduce inclusive_scan exclusive_scan fill_fragment load_matrix_sync store_matrix_sync mma_sync make_tensor
    make_layout make_shape make_stride make_coord local_tile local_partition copy gemm size make_gmem_ptr
    make_smem_ptr cp_async_fence cp_async_wait partition_D partition_S make_tiled_mma make_tiled_copy
    make_fragment_like clear cosize ceil_div append
    """
)
"""Functions that `using namespace` of a device library brings into reach."""


def is_type(name: str) -> bool:
    """Whether `name` is a type that needs no declaration in the file."""
    return name in TYPE_WORDS or bool(_VECTORS.fullmatch(name) or _INTERNAL_TYPE.fullmatch(name))


def is_intrinsic(name: str) -> bool:
    """Whether `name` is a device intrinsic that touches registers, memory it is given, or its thread block."""
    return _INTRINSICS.fullmatch(name) is not None and name not in LIBRARY


def is_callable(name: str) -> bool:
    """Whether device code may call `name` without defining it."""
    return name in FUNCTIONS or name in USING_CALLS or is_intrinsic(name) or _MAKERS.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    """Whether `name` belongs to the compiler or its libraries and is not on the lists above."""
    if not (name.startswith("__") or (name.startswith("_") and name[1:2].isupper())):
        return False
    if name in KEYWORDS or name in QUALIFIERS or is_type(name) or is_intrinsic(name):
        return False
    return RESERVED_OK.fullmatch(name) is None
