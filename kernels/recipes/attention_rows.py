"""The C of the recipes that speed up attention row by row."""

from __future__ import annotations

SCORES = """\
/* Lanes with bit h clear become a[i] + a[i + h], those with bit h set b[i - h] + b[i]. */
static inline __attribute__((always_inline)) void fold_pair(vec_f *a, const vec_f *b, int h)
{
    vec_i lane = {0};
    for (int k = 0; k < VEC; k++)
        lane[k] = k;
    const vec_i from_b = ((lane & h) != 0) & VEC;
    *a = __builtin_shuffle(*a, *b, lane + from_b) + __builtin_shuffle(*a, *b, (lane ^ h) + from_b);
}

/* vector_scores: logits of one query against `seen` keys, VEC keys at once: VEC sums over vectors do not wait for each
 * other, share each load of the query, and are turned into one vector of logits by a tree of shuffles. What is left
 * of d after whole vectors is masked in its last VEC elements. Returns the largest logit. */
static float score_row(const float *q, const float *key, float *p, int seen, int d, float scale)
{
    vec_i lane = {0};
    for (int k = 0; k < VEC; k++)
        lane[k] = k;
    const int whole = d / VEC * VEC, rest = d >= VEC ? d - whole : 0;
    const vec_i keep = lane >= VEC - rest;
    vec_f most = (vec_f){0} - INFINITY;
    for (int j = 0; j < seen; j += VEC) {
        vec_f acc[VEC];
        long at[VEC];
#pragma GCC unroll 16
        for (int k = 0; k < VEC; k++) {
            at[k] = (long)(j + k < seen ? j + k : seen - 1) * d;
            acc[k] = (vec_f){0};
        }
        for (int c = 0; c < whole; c += VEC) {
            const vec_f t = *(const vec_f *)(q + c);
#pragma GCC unroll 16
            for (int k = 0; k < VEC; k++)
                acc[k] += t * *(const vec_f *)(key + at[k] + c);
        }
        if (rest) {
            const vec_f t = *(const vec_f *)(q + d - VEC);
#pragma GCC unroll 16
            for (int k = 0; k < VEC; k++)
                acc[k] += (vec_f)((vec_i)(t * *(const vec_f *)(key + at[k] + d - VEC)) & keep);
        } else {
            for (int c = whole; c < d; c++)
#pragma GCC unroll 16
                for (int k = 0; k < VEC; k++)
                    acc[k][0] += q[c] * key[at[k] + c];
        }
#pragma GCC unroll 8
        for (int h = VEC / 2; h > 0; h /= 2)
#pragma GCC unroll 16
            for (int k = 0; k < h; k++)
                fold_pair(&acc[k], &acc[k + h], h);
        const vec_f s = acc[0] * scale;
        const vec_i more = s > most;
        most = (vec_f)(((vec_i)s & more) | ((vec_i)most & ~more));
        if (seen - j >= VEC)
            *(vec_f *)(p + j) = s;
        else
            for (int k = 0; k < seen - j; k++)
                p[j + k] = s[k];
    }
    float top = -INFINITY;
    for (int k = 0; k < VEC; k++)
        top = most[k] > top ? most[k] : top;
    return top;
}
"""

EXP_ROW = """\
/* Logits of a row to weights, in place; their sum is returned. Lanes beyond the row hold -inf and add 0. */
static float exp_row(float *p, int seen, float top)
{
    vec_f sum = {0};
    int j = 0;
    for (; seen - j >= VEC; j += VEC) {
        vec_f t = *(const vec_f *)(p + j) - top;
        exp_lanes(&t);
        *(vec_f *)(p + j) = t;
        sum += t;
    }
    if (j < seen) {
        vec_f t = (vec_f){0} - INFINITY;
        for (int k = 0; k < seen - j; k++)
            t[k] = p[j + k] - top;
        exp_lanes(&t);
        for (int k = 0; k < seen - j; k++)
            p[j + k] = t[k];
        sum += t;
    }
    float total = 0.0f;
    for (int k = 0; k < VEC; k++)
        total += sum[k];
    return total;
}
"""

VALUES = """\
/* `wide` vectors of columns: the weighted sum over the keys stays in registers, even and odd keys apart, so that an
 * addition need not wait for the one before it. */
static inline __attribute__((always_inline)) void value_columns(
    const float *p, const float *v, float *o, int seen, long d, float part, const int wide)
{
    vec_f even[COLUMNS], odd[COLUMNS];
#pragma GCC unroll 8
    for (int b = 0; b < wide; b++)
        even[b] = odd[b] = (vec_f){0};
    int j = 0;
    for (; j + 2 <= seen; j += 2) {
        const float w = p[j] / part, u = p[j + 1] / part;
#pragma GCC unroll 8
        for (int b = 0; b < wide; b++) {
            even[b] += w * *(const vec_f *)(v + j * d + b * VEC);
            odd[b] += u * *(const vec_f *)(v + (j + 1) * d + b * VEC);
        }
    }
    if (j < seen) {
        const float w = p[j] / part;
#pragma GCC unroll 8
        for (int b = 0; b < wide; b++)
            even[b] += w * *(const vec_f *)(v + j * d + b * VEC);
    }
#pragma GCC unroll 8
    for (int b = 0; b < wide; b++)
        *(vec_f *)(o + b * VEC) = even[b] + odd[b];
}

/* value_registers: o = sum of w v, some columns at a time over all keys, so that o is stored once and not once a key.
 * What is left of d is done in its last VEC columns again: each column is written from its own sum alone. */
static inline void value_row(const float *p, const float *v, float *o, int seen, int d, float part)
{
    int c = 0;
    for (; c + COLUMNS * VEC <= d; c += COLUMNS * VEC)
        value_columns(p, v + c, o + c, seen, d, part, COLUMNS);
    for (; c + VEC <= d; c += VEC)
        value_columns(p, v + c, o + c, seen, d, part, 1);
    if (c < d && d >= VEC) {
        value_columns(p, v + d - VEC, o + d - VEC, seen, d, part, 1);
        c = d;
    }
    for (; c < d; c++) {
        float sum = 0.0f;
        for (int j = 0; j < seen; j++)
            sum += p[j] / part * v[(long)j * d + c];
        o[c] = sum;
    }
}
"""
