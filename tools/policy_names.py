"""The words that a C kernel may use: headers, functions, intrinsics, attributes. Whatever is not here is refused."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


HEADERS = words(
    "stddef.h stdint.h stdbool.h string.h math.h float.h limits.h stdlib.h immintrin.h arm_neon.h omp.h"
)

DIRECTIVES = frozenset(
    ("include", "define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "pragma", "error", "warning")
)

OMP_WORDS = words("simd for parallel declare barrier critical atomic single master ordered section sections")

TYPE_WORDS = words(
    """
    void char short int long float double signed unsigned const volatile restrict struct union enum _Bool bool
    _Float16 __restrict __restrict__ __const__ __const __signed__ __volatile__ __int128 _Atomic size_t ptrdiff_t
    intptr_t uintptr_t intmax_t uintmax_t max_align_t wchar_t
    """
) | frozenset(
    f"{u}int{least}{bits}_t" for u in ("", "u") for least in ("", "_least", "_fast") for bits in (8, 16, 32, 64)
)

KEYWORDS = TYPE_WORDS | words(
    """
    auto break case continue default do else extern for goto if inline register return sizeof static switch
    typedef while _Alignas _Alignof alignas alignof _Generic _Noreturn _Static_assert static_assert _Pragma
    typeof __typeof__ __typeof __alignof__ __alignof __inline __inline__ __extension__ __attribute__ __attribute
    __func__ __label__ true false NULL __auto_type
    """
)

BEFORE_PAREN = words(
    """
    if for while switch return sizeof _Alignas _Alignof alignas alignof _Generic _Static_assert static_assert
    typeof __typeof__ __typeof __alignof__ __alignof __attribute__ __attribute _Pragma case else do goto defined
    offsetof
    """
)
"""Words that may stand before `(` without being a call."""

RESERVED_OK = re.compile(
    r"__(AVX|SSE|SSSE|FMA|F16C|BMI|LZCNT|POPCNT|ARM_|GNUC|OPTIMIZE|SIZEOF|BYTE_ORDER|ORDER_|FLT_|DBL_|INT|UINT|SIZE_|FAST_MATH|"
    r"FINITE_MATH|clang|aarch64|x86_64|x86|NO_|STDC|CHAR_BIT|COUNTER|FP_FAST|LINE)[A-Za-z0-9_]*"
    r"|__(m64|m128|m256|m512|mmask)[a-z0-9_]*|__v[0-9]+[a-z]+|__fp16|__bf16|__VA_ARGS__|__VA_OPT__|_MM_[A-Z0-9_]+|_CMP_[A-Z_]+"
    r"|_Float(16|32|64)|_OPENMP"
)
"""Names with a leading double underscore, or underscore and capital, that are no inner part of the C library."""

_MATH = words(
    """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor
    fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf
    nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc
    """
)
MATH = frozenset(name + suffix for name in _MATH for suffix in ("", "f", "l"))

MEMORY = words("malloc calloc free aligned_alloc posix_memalign memcpy memmove memset memcmp")

LIBRARY = MATH | MEMORY | words(
    """
    abs labs llabs isnan isinf isfinite isnormal signbit fpclassify isgreater isgreaterequal isless islessequal
    isunordered INT8_C INT16_C INT32_C INT64_C UINT8_C UINT16_C UINT32_C UINT64_C
    """
)

OMP_CALLS = frozenset(("omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads"))

_BUILTINS = words(
    """
    expect expect_with_probability prefetch assume_aligned unreachable constant_p choose_expr types_compatible_p
    shuffle shufflevector convertvector offsetof isnan isinf isfinite isnormal signbit isgreater isless
    isunordered inf inff huge_val huge_valf nan nanf popcount popcountl popcountll clz clzl clzll ctz ctzl ctzll
    ffs ffsl ffsll parity bswap16 bswap32 bswap64 abs labs memcpy memmove memset memcmp object_size add_overflow
    sub_overflow mul_overflow complex assoc_barrier trap
    """
)
BUILTINS = frozenset(f"__builtin_{name}" for name in (*_BUILTINS, *MATH))

_INTRINSICS = re.compile(
    r"_mm(256|512)?_[a-z0-9_]+|_MM_(SHUFFLE2?|TRANSPOSE4_PS|GET_EXPONENT)|_k[a-z]+_mask(8|16|32|64)(_u8)?"
    r"|_cvt(sh_ss|ss_sh|mask(8|16|32|64)_u32|mask64_u64|u32_mask(8|16|32)|u64_mask64)|_(load|store)_mask(8|16|32|64)"
    r"|_(pdep|pext|bzhi|bextr|bextr2|blsr|blsi|blsmsk|andn|lzcnt|tzcnt|mulx)_u(32|64)|_(bit_scan_forward|bit_scan_reverse)"
    r"|v[a-z0-9]+(_[a-z0-9]+)*_(f|s|u|p|bf)(8|16|32|64)(_x[234])?"
)
_NOT_PURE = re.compile(
    r"_mm_(setcsr|getcsr|clflush|clflushopt|clwb|cldemote|monitor|mwait|rd[a-z0-9_]*)"
    r"|_MM_(SET|GET)_[A-Z_]+(MODE|STATE|MASK)"
)

_VECTOR_TYPE = re.compile(
    r"(float|int|uint|poly|bfloat)[0-9]+x[0-9]+(x[0-9])?_t|float(16|32|64)_t|__m(64|128|256|512)[a-z0-9]*|__mmask[0-9]+"
)

ATTRIBUTES = words(
    """
    aligned vector_size may_alias always_inline noinline noclone hot cold unused const pure flatten gnu_inline
    artificial packed nothrow leaf malloc alloc_size assume_aligned nonnull returns_nonnull warn_unused_result
    fallthrough target maybe_unused deprecated noreturn nodiscard no_reorder
    """
)


def is_type(name: str) -> bool:
    """Whether `name` is a type of the language or of an allowed header."""
    return name in TYPE_WORDS or _VECTOR_TYPE.fullmatch(name) is not None


def is_intrinsic(name: str) -> bool:
    """Whether `name` is a vector or bit intrinsic that touches nothing but its arguments."""
    return _INTRINSICS.fullmatch(name) is not None and _NOT_PURE.fullmatch(name) is None


def is_not_pure(name: str) -> bool:
    """Whether `name` is an intrinsic that reads or changes the processor's state."""
    return _NOT_PURE.fullmatch(name) is not None


def is_callable(name: str, threads: int) -> bool:
    """Whether a kernel may call `name` without defining it."""
    return name in LIBRARY or name in BUILTINS or is_intrinsic(name) or (threads > 1 and name in OMP_CALLS)


def is_reserved(name: str) -> bool:
    """Whether `name` belongs to the compiler or C library and is not on the lists above."""
    if not (name.startswith("__") or (name.startswith("_") and name[1:2].isupper())):
        return False
    if name in KEYWORDS or name in BUILTINS or is_type(name) or is_intrinsic(name):
        return False
    return RESERVED_OK.fullmatch(name) is None
