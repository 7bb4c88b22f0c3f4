"""The text of the register-tiled matrix product, piece by piece, for `matmul.py`. Prepared kernels with parameters.

`TILES` stands on its own; each of the other pieces takes the place of one of its lines, which are named here so that a
recipe finds them. The rows of a tile and its vectors are constants of each call, which the compiler unrolls into
registers: `rows * vecs` sums, `vecs` vectors of B, and one broadcast element of A.
"""

from __future__ import annotations

MOST_ROWS = 16
"""Rows of the tallest tile that the text has a case for."""
MOST_VECTORS = 4
"""Vectors of the widest tile that the text has a case for."""


def _row_cases() -> str:
    """One case a number of rows that a block may end with."""
    return "".join(
        f"#if MR > {n}\n    case {n}:\n        tile(a, lda, b, ldb, c, ldc, depth, add, {n}, vecs);\n"
        "        break;\n#endif\n"
        for n in range(1, MOST_ROWS)
    )


def _vector_cases() -> str:
    """One case a width of a strip; the widest one is a case too, so that its code has a constant width."""
    first = "    case 1:\n        down(a, lda, b, ldb, to, step, rows, depth, add, 1);\n        break;\n"
    return first + "".join(
        f"#if NR > {n - 1}\n    case {n}:\n        down(a, lda, b, ldb, to, step, rows, depth, add, {n});\n"
        "        break;\n#endif\n"
        for n in range(2, MOST_VECTORS + 1)
    )


ADVANCE = "        b += ldb;\n"
"""Where a tile goes on to the next row of B: prefetches stand before it."""
SUMS = "    for (int k = 0; k < depth; k++) {\n        tile_v row[NR];\n"
"""The head of a tile's loop over k: a pragma stands before it."""
COPY_WHEN = "        float *const to = panel;\n        const int copied = 0;\n"
"""Where a strip of B is copied to, and whether all of it is."""
READ_A = "    const float *top = a;\n    const size_t step = lda;\n"
"""Where a block reads A: in place, or a copy of its rows."""
PANEL = "    float panel[VEC * VEC * NR]; /* the last rows of a strip that ends within a vector */\n"
"""Where a block has its memory: blocks of rows are parted before it, and panels are taken behind it."""
WHOLE = "    block(A, K, B, N, C, N, M, N, K, 0);\n"
"""The product as one block."""
END = """\
            strip(top + direct, step, to, (size_t)vecs * VEC, c + j, ldc, rows, depth - direct, width, add || direct);
        }
    }
"""
"""The end of a block, behind which it gives its memory back."""

TILES = (
    """\
typedef float tile_v __attribute__((vector_size(VEC * 4), aligned(4), may_alias));

/* register_tile: a tile of C, rows x vecs vectors, is summed up in registers over depth terms, so that C is read and
 * written once a tile and not once a term. Both counts are constants of the call. The sums are added to C, or put. */
static inline __attribute__((always_inline)) void tile(const float *a, size_t lda, const float *b, size_t ldb, float *c,
    size_t ldc, int depth, int add, const int rows, const int vecs)
{
    tile_v sum[MR][NR];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            sum[r][v] = (tile_v){0};
"""
    + SUMS
    + """\
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            row[v] = *(const tile_v *)(b + v * VEC);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                sum[r][v] += a[r * lda + k] * row[v];
"""
    + ADVANCE
    + """\
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            tile_v *at = (tile_v *)(c + r * ldc + v * VEC);
            if (add)
                sum[r][v] += *at;
            *at = sum[r][v];
        }
}

/* All rows of a strip, MR at a time, then those that are left. */
static inline __attribute__((always_inline)) void down(const float *a, size_t lda, const float *b, size_t ldb, float *c,
    size_t ldc, int rows, int depth, int add, const int vecs)
{
    for (; rows >= MR; rows -= MR, a += MR * lda, c += MR * ldc)
        tile(a, lda, b, ldb, c, ldc, depth, add, MR, vecs);
    switch (rows) {
"""
    + _row_cases()
    + """\
    default:
        break;
    }
}

/* One strip of C, width columns. A width that ends within a vector is summed up beside C, MR rows at a time, and only
 * the columns that there are get copied. */
static __attribute__((noinline)) void strip(const float *a, size_t lda, const float *b, size_t ldb, float *c,
    size_t ldc, int rows, int depth, int width, int add)
{
    float beside[MR * VEC * NR];
    const int vecs = (width + VEC - 1) / VEC, whole = width % VEC == 0;
    if (!whole && rows > MR) {
        for (; rows > 0; rows -= MR, a += MR * lda, c += MR * ldc)
            strip(a, lda, b, ldb, c, ldc, rows < MR ? rows : MR, depth, width, add);
        return;
    }
    float *to = whole ? c : beside;
    const size_t step = whole ? ldc : VEC * NR;
    for (int r = 0; r < rows && !whole && add; r++)
        for (int j = 0; j < VEC * NR; j++)
            beside[r * VEC * NR + j] = j < width ? c[r * ldc + j] : 0.0f;
    switch (vecs) {
"""
    + _vector_cases()
    + """\
    default:
        break;
    }
    for (int r = 0; r < rows && !whole; r++)
        for (int j = 0; j < width; j++)
            c[r * ldc + j] = beside[r * VEC * NR + j];
}

/* Rows of a strip of B one behind the other, in whole vectors. Lanes beyond the width hold what follows in B, or zeros
 * in the last `past` rows, behind which B may end; they are never copied to C. */
static void copy_panel(const float *b, size_t ldb, float *to, int depth, int width, int past)
{
    const int vecs = (width + VEC - 1) / VEC, whole = depth > past ? depth - past : 0;
    for (int k = 0; k < whole; k++, b += ldb)
        for (int v = 0; v < vecs; v++, to += VEC)
            *(tile_v *)to = *(const tile_v *)(b + v * VEC);
    for (int k = whole; k < depth; k++, b += ldb)
        for (int j = 0; j < vecs * VEC; j++)
            *to++ = j < width ? b[j] : 0.0f;
}

/* One block of the product, strip by strip: c = or += a b, with depth terms a sum. A strip that ends within a vector is
 * read into what follows in B, which is never copied to C; its last rows, behind which B may end, are copied first. */
static void block(const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, int rows, int columns,
    int depth, int add)
{
"""
    + PANEL
    + READ_A
    + """\
    for (int j = 0, width; j < columns; j += width) {
        const int left = (columns - j + VEC - 1) / VEC; /* vectors; the last two strips share what is left */
        const int vecs = left <= NR ? left : left < 2 * NR ? (left + 1) / 2 : NR;
        width = columns - j < vecs * VEC ? columns - j : vecs * VEC;
"""
    + COPY_WHEN
    + """\
        const int past = (int)((vecs * VEC - width + ldb - 1) / ldb);
        const int direct = copied || past > depth ? 0 : depth - past;
        if (direct > 0 || depth == 0)
            strip(top, step, b + j, ldb, c + j, ldc, rows, direct, width, add);
        if (direct < depth) {
            copy_panel(b + direct * ldb + j, ldb, to, depth - direct, width, past);
"""
    + END
    + """\
}

static void product(const float *A, const float *B, float *C, int M, int N, int K)
{
"""
    + WHOLE
    + "}\n"
)

PREFETCH_C = """\
    /* prefetch_panels: the tile's lines of C, and rows of B further on, are asked for before they are needed. */
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            __builtin_prefetch(c + r * ldc + v * VEC, 1);
"""
PREFETCH_B = """\
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            __builtin_prefetch((const void *)((uintptr_t)b + (AHEAD * ldb + v * VEC) * sizeof(float)));
"""
UNROLL = """\
    /* unroll_terms: fewer counts and branches a term. */
#pragma GCC unroll {terms}
"""
PANEL_B = """\
    /* pack_b: a strip that PACK_MIN rows or more go through is copied once, so that tiles read it in one stream. */
    float *packed = rows >= PACK_MIN ? aligned_alloc(64, ((size_t)depth * VEC * NR * 4 / 64 + 1) * 64) : NULL;
"""
COPY_B = "        float *const to = packed ? packed : panel;\n        const int copied = packed != NULL;\n"
FREE_B = "    free(packed);\n"
COPY_A = """\
    /* pack_a: rows of A side by side in lines of their own: rows a power of two apart would share few cache sets. */
    const float *top = a;
    size_t step = lda;
    float *lines = NULL;
    if (columns >= STRIPS_MIN * VEC * NR && rows >= MR) {
        const size_t own = (size_t)depth / 16 * 16 + 32;
        lines = aligned_alloc(64, rows * own * 4);
        for (int r = 0; r < rows && lines; r++)
            memcpy(lines + r * own, a + r * lda, (size_t)depth * sizeof(float));
        top = lines ? lines : a;
        step = lines ? own : lda;
    }
"""
FREE_A = "    free(lines);\n"
BLOCKS_OF_K = """\
    /* block_k: at most KC terms at a time, so that a strip of B stays in L1 while all rows go through it. Few groups of
     * rows read it too seldom for that, and rows of A are then better read from end to end. */
    const long most = M > 8 * MR ? KC : K + 1L;
    for (long k = 0; k < K || k == 0; k += most)
        block(A + k, K, B + k * N, N, C, N, M, N, K - k < most ? K - k : most, k > 0);
"""
BLOCKS_OF_ROWS = """\
    /* block_rows: at most MC rows at a time, so that they stay in L2 while all strips of B pass. */
    for (; rows > MC; rows -= MC, a += MC * lda, c += MC * ldc)
        block(a, lda, b, ldb, c, ldc, MC, columns, depth, add);
"""
