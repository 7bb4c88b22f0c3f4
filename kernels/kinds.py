"""The words that a manifest may use: kinds of distributions, precisions, backends, names and flags of C."""

from __future__ import annotations

import re

DRAWN = ("normal", "uniform", "wide", "cancelling", "tiny", "huge", "denormal", "zeros", "special", "signs", "spike")
"""Kinds of distributions; `kernelcrew.tools.data` draws each."""
SYMMETRIC = frozenset(("normal", "wide", "tiny", "huge", "denormal"))
"""Kinds whose values may change sign and stay what they are."""
TIMED = SYMMETRIC | {"uniform"}
"""Kinds without a structure along rows: what timed inputs may be drawn from."""
PRECISIONS = ("float16", "bfloat16", "tf32", "float32", "float64", "int32")
BACKENDS = ("c", "cuda", "triton")
C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
C_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while _Alignas
    _Alignof _Atomic _Bool _Complex _Generic _Imaginary _Noreturn _Static_assert _Thread_local asm typeof main
        """,
    )
)
"""Words of C, and the one function that a program has already."""

VALUE_FLAGS = {
    "-ffast-math": "it lets NaN, infinities and signed zeros be wrong and links a constructor that flushes denormals",
    "-Ofast": "it includes -ffast-math",
    "-funsafe-math-optimizations": "it links a constructor that flushes denormals",
    "-ffinite-math-only": "it lets NaN and infinities be wrong",
    "-freciprocal-math": "it changes the value of divisions beyond rounding of the contract",
    "-mdaz-ftz": "it flushes denormals",
    "-mrecip": "it replaces divisions by estimates",
    "-fsingle-precision-constant": "it rounds constants to float",
    "-fcx-limited-range": "it lets complex products be wrong",
}
"""Flags that change values, and what they break."""
FLAG = re.compile(
    r"-O[0123s]"
    r"|-m[a-z0-9][a-z0-9.]*(-[a-z0-9.]+)*(=[A-Za-z0-9._+-]+)?"
    r"|-std=[a-z0-9:]+|-g[0-3]?|-w|-W[a-z0-9=-]*|-pedantic"
    r"|-f(no-)?(associative-math|signed-zeros|trapping-math|math-errno|rounding-math|signaling-nans|fp-int-builtin-inexact"
    r"|strict-aliasing|strict-overflow|wrapv|omit-frame-pointer|plt|PIC|pic|common|semantic-interposition|jump-tables"
    r"|openmp|openmp-simd|ivopts|predictive-commoning|rename-registers|web|tracer|prefetch-loop-arrays|gcse[a-z-]*"
    r"|if-conversion2?|cse-[a-z-]+|crossjumping|delete-null-pointer-checks|expensive-optimizations|stack-protector"
    r"|modulo-sched[a-z-]*|selective-scheduling2?|variable-expansion-in-unroller|section-anchors|vectorize"
    r"|(tree|ipa|ira|sched|schedule|loop|unroll|peel|split|unswitch|inline|align|reorder|move|code-hoisting|graphite|slp)"
    r"(-[a-z0-9-]+)?)(=[a-z0-9]+)?"
    r"|-f(vect-cost-model|simd-cost-model|fp-contract|excess-precision|inline-limit|align-loops|align-functions)=[a-z0-9-]+"
    r"|--param=[a-z0-9-]+=[0-9]+"
)
"""What a manifest may put on the compiler's command line: optimisation and target, never a file or a program."""


def flag_trouble(flag: str) -> str:
    """Why a flag cannot stand in a manifest or plan; '' when it may."""
    bare = flag.partition("=")[0]
    if flag in VALUE_FLAGS or bare in VALUE_FLAGS:
        return f"{flag} changes values: {VALUE_FLAGS.get(flag) or VALUE_FLAGS[bare]}"
    if not FLAG.fullmatch(flag):
        return f"{flag} is no flag that chooses an optimisation or a target"
    return ""


def is_c_name(name: str) -> bool:
    """Whether a C function or parameter may be called so."""
    return C_NAME.fullmatch(name) is not None and name not in C_KEYWORDS
