"""The words that a Triton kernel may use: the language's own functions, and no door out of it.

Names of Triton 3.6 to 3.9. Left out on purpose: whatever prints, stops the program, reads clocks or processors, reaches
the compiler's insides (`core`, `semantic`, `standard`), or runs host code.
"""

from __future__ import annotations

from kernelcrew.tools.policy_names import words

DTYPES = words(
    """
    int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float8e4nv float8e4b8 float8e4b15 float8e5 float8e5b16
    float16 bfloat16 float32 float64 pi32_t void
    """
)

_MATH = words("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi")

LANGUAGE = (
    DTYPES
    | _MATH
    | words(
        """
    add sub mul arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_load atomic_max
    atomic_min atomic_or atomic_store atomic_xchg atomic_xor broadcast broadcast_to cast cat cdiv clamp constexpr
    cumprod cumsum debug_barrier dot dot_scaled dtype expand_dims flip full gather histogram inline_asm_elementwise
    interleave join load load_tensor_descriptor make_block_ptr make_tensor_descriptor advance max max_constancy
    max_contiguous maximum min minimum multiple_of num_programs permute pointer_type philox program_id rand rand4x
    randint randint4x randn randn4x range ravel reduce reduce_or reshape sigmoid softmax sort split squeeze
    static_assert static_range store store_tensor_descriptor sum swizzle2d tensor tensor_descriptor topk trans tuple
    unsqueeze view where xor_sum zeros zeros_like PropagateNan
    """
    )
)

MATH = _MATH

_ROUNDED = frozenset(
    f"{name}_{mode}"
    for name in (
        "add", "sub", "mul", "div", "fma", "rcp", "sqrt", "float2int", "float2uint", "float2ll", "float2ull",
        "int2float",
        "uint2float", "ll2float", "ull2float", "double2float", "double2int", "double2uint", "double2ll", "double2ull",
        "ll2double", "ull2double",
    )
    for mode in ("rd", "rn", "ru", "rz")
)  # fmt: skip
LIBDEVICE = _ROUNDED | words(
    """
    abs acos acosh asin asinh atan atan2 atanh brev byte_perm cbrt ceil clz copysign cos cosh cospi cyl_bessel_i0
    cyl_bessel_i1 double2hiint double2loint double_as_longlong erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1
    fast_cosf fast_dividef fast_exp10f fast_expf fast_log10f fast_log2f fast_logf fast_powf fast_sinf fast_tanf
    fast_tanhf fdim ffs finitef float_as_int float_as_uint floor fma fmod hadd hiloint2double hypot ilogb
    int2double_rn int_as_float isfinited isinf isnan j0 j1 jn ldexp lgamma llrint llround log log10 log1p log2 logb
    longlong_as_double mul24 mulhi nearbyint nextafter norm3d norm4d normcdf normcdfinv popc pow rcbrt rcp64h
    remainder rhadd rhypot rint rnorm3d rnorm4d round rsqrt rsqrt_rn sad saturatef scalbn signbit sin sinh sinpi sqrt
    tan tanh tgamma trunc uint2double_rn uint_as_float y0 y1 yn
    """
)

HOST = words("cdiv next_power_of_2")
"""Functions of `triton` itself that a kernel may call."""

METHODS = words(
    """
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
    atomic_xchg atomic_xor broadcast_to cast ceil cos cumprod cumsum dtype element_ty erf exp exp2 expand_dims flip
    floor gather histogram item load log log2 logical_and logical_or max min numel permute primitive_bitwidth ravel
    reduce reduce_or reshape rsqrt scatter shape sigmoid sin softmax sort split sqrt sqrt_rn store sum to trans type
    value view xor_sum block_shape block_type is_floating is_fp8 is_int int_bitwidth fp_mantissa_width is_ptr scalar
    strides
    """
)
"""Attributes of tensors, dtypes, constants and descriptors."""

BUILTINS = words("range min max abs len int float bool")

JIT_OPTIONS = words("do_not_specialize do_not_specialize_on_alignment noinline")

DECORATORS = {
    "autotune": "the plan's knobs and num_warps are what the harness tunes",
    "heuristics": "give the value as a constexpr of the plan",
}
"""Decorators that an honest kernel often carries, and what takes their place."""
