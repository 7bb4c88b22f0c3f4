"""The text of the paths for products of few rows or few columns, for `matmul.py`. Prepared kernels with parameters."""

from __future__ import annotations

SKINNY_WIDE = """\
#if defined(__AVX512F__)
#define WIDE 16
#elif defined(__AVX__)
#define WIDE 8
#else
#define WIDE 4
#endif
typedef float wide_v __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));
typedef int wide_i __attribute__((vector_size(WIDE * 4)));
"""
"""The machine's vectors; both paths share it."""

SKINNY_ROWS = """\
/* skinny_rows: few rows of A leave nothing to reuse B for, so that B is to be read once, in order. ROW_TERMS rows of B
 * are added to the rows of C at a time, which are then loaded and stored that much less often. */
static inline __attribute__((always_inline)) void rows_at_once(const float *A, const float *B, float *C, int N, int K,
    const int rows)
{
    for (int j0 = 0; j0 < N; j0 += 2048) { /* columns of C that stay in L1 */
        const int width = N - j0 < 2048 ? N - j0 : 2048, whole = width / WIDE * WIDE;
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < width; j++)
                C[(size_t)r * N + j0 + j] = 0.0f;
        int k = 0;
        for (; k + ROW_TERMS <= K; k += ROW_TERMS) {
            const float *b = B + (size_t)k * N + j0;
            for (int j = 0; j < whole; j += WIDE) {
                wide_v term[ROW_TERMS];
#pragma GCC unroll 16
                for (int t = 0; t < ROW_TERMS; t++)
                    term[t] = *(const wide_v *)(b + (size_t)t * N + j);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    wide_v sum = *(const wide_v *)(C + (size_t)r * N + j0 + j);
#pragma GCC unroll 16
                    for (int t = 0; t < ROW_TERMS; t++)
                        sum += A[(size_t)r * K + k + t] * term[t];
                    *(wide_v *)(C + (size_t)r * N + j0 + j) = sum;
                }
            }
            for (int r = 0; r < rows; r++)
                for (int j = whole; j < width; j++) {
                    float sum = C[(size_t)r * N + j0 + j];
#pragma GCC unroll 16
                    for (int t = 0; t < ROW_TERMS; t++)
                        sum += A[(size_t)r * K + k + t] * b[(size_t)t * N + j];
                    C[(size_t)r * N + j0 + j] = sum;
                }
        }
        for (; k < K; k++)
            for (int r = 0; r < rows; r++) {
                const float a = A[(size_t)r * K + k];
                for (int j = 0; j < width; j++)
                    C[(size_t)r * N + j0 + j] += a * B[(size_t)k * N + j0 + j];
            }
    }
}

static void few_rows(const float *restrict A, const float *restrict B, float *restrict C, int M, int N, int K)
{
    for (; M >= 4; M -= 4, A += (size_t)4 * K, C += (size_t)4 * N)
        rows_at_once(A, B, C, N, K, 4);
    switch (M) {
    case 1:
        rows_at_once(A, B, C, N, K, 1);
        break;
    case 2:
        rows_at_once(A, B, C, N, K, 2);
        break;
    case 3:
        rows_at_once(A, B, C, N, K, 3);
        break;
    default:
        break;
    }
}
"""

SKINNY_ROWS_CALL = """
    /* skinny_rows: few rows have a path of their own. */
    if ({M} <= ROWS_MAX && {N} >= 2 * WIDE) {{
        few_rows({A}, {B}, {C}, {M}, {N}, {K});
        return;
    }}"""

SKINNY_COLUMNS = """\
/* skinny_columns: few columns leave most lanes of a row of B empty. The columns are laid out as rows, and each element
 * of C is a product of two rows, DOT_ROWS x columns of them side by side, which are as many chains of additions. */
static inline __attribute__((always_inline)) void dots(const float *a, size_t lda, const float *b, size_t ldb, float *c,
    size_t ldc, int K, const int rows, const int columns)
{
    wide_v sum[DOT_ROWS][DOT_COLUMNS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++)
            sum[r][v] = (wide_v){0};
    int k = 0;
    for (; k + WIDE <= K; k += WIDE) {
        wide_v column[DOT_COLUMNS];
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++)
            column[v] = *(const wide_v *)(b + v * ldb + k);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const wide_v row = *(const wide_v *)(a + r * lda + k);
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++)
                sum[r][v] += row * column[v];
        }
    }
    if (k < K) { /* the last WIDE terms, those that were added before masked */
        wide_i lane = {0};
        for (int l = 0; l < WIDE; l++)
            lane[l] = l;
        const wide_i keep = lane >= WIDE - (K - k);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const wide_v row = (wide_v)((wide_i)*(const wide_v *)(a + r * lda + K - WIDE) & keep);
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++)
                sum[r][v] += row * (wide_v)((wide_i)*(const wide_v *)(b + v * ldb + K - WIDE) & keep);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) {
            wide_v all = sum[r][v];
            wide_i lane = {0};
            for (int l = 0; l < WIDE; l++)
                lane[l] = l;
#pragma GCC unroll 8
            for (int h = WIDE / 2; h > 0; h /= 2)
                all += __builtin_shuffle(all, lane ^ h);
            c[r * ldc + v] = all[0];
        }
}

/* Returns 0 without memory. One column lies as a row already. */
static int few_columns(const float *A, const float *B, float *C, int M, int N, int K)
{
    float *own = N > 1 ? malloc((size_t)N * K * sizeof(float)) : NULL;
    if (N > 1 && !own)
        return 0;
    for (int k = 0; k < K && own; k++)
        for (int j = 0; j < N; j++)
            own[(size_t)j * K + k] = B[(size_t)k * N + j];
    const float *b = own ? own : B;
    int i = 0;
    for (; i + DOT_ROWS <= M; i += DOT_ROWS) {
        const float *a = A + (size_t)i * K;
        float *c = C + (size_t)i * N;
        int j = 0;
        for (; j + DOT_COLUMNS <= N; j += DOT_COLUMNS)
            dots(a, K, b + (size_t)j * K, K, c + j, N, K, DOT_ROWS, DOT_COLUMNS);
        for (; j < N; j++)
            dots(a, K, b + (size_t)j * K, K, c + j, N, K, DOT_ROWS, 1);
    }
    for (; i < M; i++)
        for (int j = 0; j < N; j++)
            dots(A + (size_t)i * K, K, b + (size_t)j * K, K, C + (size_t)i * N + j, N, K, 1, 1);
    free(own);
    return 1;
}
"""

SKINNY_COLUMNS_CALL = """
    /* skinny_columns: few columns have a path of their own. */
    if ({N} <= COLUMNS_MAX && {K} >= 4 * WIDE && few_columns({A}, {B}, {C}, {M}, {N}, {K}))
        return;"""
