"""The C of `query_lanes`: blocks of queries side by side in vectors, and what it shares with the row by row recipes."""

from __future__ import annotations

WIDTH = """\
/* As many floats as the machine's widest vector takes. */
#ifndef VEC
#if defined(__AVX512F__)
#define VEC 16
#elif defined(__AVX__)
#define VEC 8
#else
#define VEC 4
#endif
#endif
/* Vectors that may be loaded from any float's address. */
typedef float vec_f __attribute__((vector_size(VEC * 4), aligned(4), may_alias));
typedef int vec_i __attribute__((vector_size(VEC * 4)));
"""

EXP_SLOW = """\
/* exp of each lane, in place. */
static inline void exp_lanes(vec_f *v)
{
    for (int k = 0; k < VEC; k++)
        (*v)[k] = expf((*v)[k]);
}
"""

EXP_FAST = """\
/* poly_exp: e^x = 2^n e^r with n = round(x / ln 2), |r| <= 0.35, and a polynomial of degree 7 for e^r. At most 1.02
 * ulp off, as all x in [-87.3, 0] showed; below, 2^n is two factors, so that the result goes down through the denormal
 * numbers to 0 as expf does. -inf gives 0, NaN stays NaN. For x <= 88 alone, as a softmax has. What is 0 in the end is
 * computed as 1 and masked, since a product that underflows costs a hundred cycles. */
static inline void exp_lanes(vec_f *v)
{
    const vec_f given = *v;
    const vec_i low = given < -104.0f;
    const vec_f x = (vec_f)((vec_i)given & ~low);
    const float shifter = 12582912.0f;
    const vec_f t = x * 1.44269504f + shifter;
    const vec_f n = t - shifter;
    const vec_f r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec_f p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    const vec_i e = (vec_i)t - 0x4B400000;
    const vec_i half = e >> 1;
    *v = (vec_f)((vec_i)(p * (vec_f)((half + 127) << 23) * (vec_f)((e - half + 127) << 23)) & ~low);
}
"""

_TURN = """\
/* Rows of logits or values that a tile keeps in registers: half of 32 or of 16 of them hold its sums. */
#ifndef TILE
#if VEC >= 16
#define TILE 8
#else
#define TILE 4
#endif
#endif

/* Element k of vector j becomes element j of vector k: pairs h apart swap halves, for h from VEC / 2 down to 1. */
static inline __attribute__((always_inline)) void turn(vec_f *t)
{
    vec_i lane = {0};
    for (int k = 0; k < VEC; k++)
        lane[k] = k;
#pragma GCC unroll 8
    for (int h = VEC / 2; h > 0; h /= 2)
#pragma GCC unroll 16
        for (int k = 0; k < VEC; k++)
            if ((k & h) == 0) {
                const vec_i up = ((lane & h) != 0) & (VEC - h);
                const vec_f a = t[k], b = t[k + h];
                t[k] = __builtin_shuffle(a, b, lane + up);
                t[k + h] = __builtin_shuffle(a, b, lane + h + up);
            }
}

/* `rows` queries to d vectors over queries, `wide` vectors side by side; lanes beyond `rows` repeat the last query. */
static inline __attribute__((always_inline)) void pack_queries(
    const float *Q, vec_f *q, int rows, int d, const int wide)
{
    for (int b = 0; b < wide; b++) {
        int c = 0;
        for (; c + VEC <= d; c += VEC) {
            vec_f t[VEC];
#pragma GCC unroll 16
            for (int k = 0; k < VEC; k++)
                t[k] = *(const vec_f *)(Q + (long)(b * VEC + k < rows ? b * VEC + k : rows - 1) * d + c);
            turn(t);
#pragma GCC unroll 16
            for (int k = 0; k < VEC; k++)
                q[(long)(c + k) * wide + b] = t[k];
        }
        for (; c < d; c++)
            for (int k = 0; k < VEC; k++)
                q[(long)c * wide + b][k] = Q[(long)(b * VEC + k < rows ? b * VEC + k : rows - 1) * d + c];
    }
}

/* The way back: d vectors over queries to the rows of O. */
static inline __attribute__((always_inline)) void unpack_rows(const vec_f *o, float *O, int rows, int d, const int wide)
{
    for (int b = 0; b < wide; b++) {
        int c = 0;
        for (; c + VEC <= d; c += VEC) {
            vec_f t[VEC];
#pragma GCC unroll 16
            for (int k = 0; k < VEC; k++)
                t[k] = o[(long)(c + k) * wide + b];
            turn(t);
            for (int k = 0; k < VEC && b * VEC + k < rows; k++)
                *(vec_f *)(O + (long)(b * VEC + k) * d + c) = t[k];
        }
        for (; c < d; c++)
            for (int k = 0; k < VEC && b * VEC + k < rows; k++)
                O[(long)(b * VEC + k) * d + c] = o[(long)c * wide + b][k];
    }
}
"""

_TILES = """\
/* For each lane: the largest logit and the sum of weights so far, what older sums shrink by, how many keys it sees. */
typedef struct {
    vec_f top[QUERY_VECTORS], sum[QUERY_VECTORS], fix[QUERY_VECTORS];
    vec_i limit[QUERY_VECTORS];
} lane_state;

/* Logits of `keys` keys against all lanes: each vector of queries that is loaded serves every key. */
static inline __attribute__((always_inline)) void score_tile(
    const float *k, const vec_f *q, vec_f *s, int d, float scale, const int keys, const int wide)
{
    vec_f acc[TILE][QUERY_VECTORS];
#pragma GCC unroll 16
    for (int a = 0; a < keys; a++)
#pragma GCC unroll 4
        for (int b = 0; b < wide; b++)
            acc[a][b] = (vec_f){0};
    for (int c = 0; c < d; c++)
#pragma GCC unroll 16
        for (int a = 0; a < keys; a++)
#pragma GCC unroll 4
            for (int b = 0; b < wide; b++)
                acc[a][b] += k[(long)a * d + c] * q[(long)c * wide + b];
#pragma GCC unroll 16
    for (int a = 0; a < keys; a++)
#pragma GCC unroll 4
        for (int b = 0; b < wide; b++)
            s[a * wide + b] = acc[a][b] * scale;
}

/* `columns` columns of the output: what was there times `fix`, and the values of the keys times their weights. The last
 * keys are masked: 0 times an infinity that a lane does not see would be NaN. */
static inline __attribute__((always_inline)) void value_tile(
    const float *v, const vec_f *p, vec_f *o, const int *size, const lane_state *state, const int columns,
    const int wide)
{
    const int keys = size[0], clear = size[1], d = size[2], first = size[3];
    vec_f acc[TILE][QUERY_VECTORS];
#pragma GCC unroll 16
    for (int a = 0; a < columns; a++)
#pragma GCC unroll 4
        for (int b = 0; b < wide; b++)
            acc[a][b] = o[a * wide + b] * state->fix[b];
    for (int j = 0; j < clear; j++)
#pragma GCC unroll 16
        for (int a = 0; a < columns; a++)
#pragma GCC unroll 4
            for (int b = 0; b < wide; b++)
                acc[a][b] += v[(long)j * d + a] * p[j * wide + b];
    for (int j = clear; j < keys; j++)
#pragma GCC unroll 16
        for (int a = 0; a < columns; a++)
#pragma GCC unroll 4
            for (int b = 0; b < wide; b++) {
                const vec_i value = (vec_i)((vec_f){0} + v[(long)j * d + a]) & (state->limit[b] > first + j);
                acc[a][b] += (vec_f)value * p[j * wide + b];
            }
#pragma GCC unroll 16
    for (int a = 0; a < columns; a++)
#pragma GCC unroll 4
        for (int b = 0; b < wide; b++)
            o[a * wide + b] = acc[a][b];
}

static inline __attribute__((always_inline)) void score_block(
    const float *k, const vec_f *q, vec_f *s, int keys, int d, const int wide)
{
    const float scale = 1.0f / sqrtf((float)d);
    int a = 0;
    for (; a + TILE <= keys; a += TILE)
        score_tile(k + (long)a * d, q, s + a * wide, d, scale, TILE, wide);
    for (; a + TILE / 2 <= keys; a += TILE / 2)
        score_tile(k + (long)a * d, q, s + a * wide, d, scale, TILE / 2, wide);
    for (; a < keys; a++)
        score_tile(k + (long)a * d, q, s + a * wide, d, scale, 1, wide);
}

static inline __attribute__((always_inline)) void value_block(
    const float *v, const vec_f *p, vec_f *o, const int *size, const lane_state *state, const int wide)
{
    const int d = size[2];
    int c = 0;
    for (; c + TILE <= d; c += TILE)
        value_tile(v + c, p, o + c * wide, size, state, TILE, wide);
    for (; c + TILE / 2 <= d; c += TILE / 2)
        value_tile(v + c, p, o + c * wide, size, state, TILE / 2, wide);
    for (; c < d; c++)
        value_tile(v + c, p, o + c * wide, size, state, 1, wide);
}

/* Logits to weights in place. A lane that has met nothing but -inf takes 0 off, not its maximum, so that finite logits
 * after it still count. */
static inline __attribute__((always_inline)) void weigh_block(vec_f *s, int keys, lane_state *state, const int wide)
{
    vec_f base[QUERY_VECTORS], sum[QUERY_VECTORS];
#pragma GCC unroll 4
    for (int b = 0; b < wide; b++) {
        vec_f most = state->top[b];
        for (int a = 0; a < keys; a++) {
            const vec_f t = s[a * wide + b];
            const vec_i more = t > most;
            most = (vec_f)(((vec_i)t & more) | ((vec_i)most & ~more));
        }
        base[b] = (vec_f)((vec_i)most & (most > (vec_f){0} - INFINITY));
        vec_f fix = state->top[b] - base[b];
        exp_lanes(&fix);
        sum[b] = state->sum[b] * fix;
        state->fix[b] = fix;
        state->top[b] = most;
    }
    for (int a = 0; a < keys; a++)
#pragma GCC unroll 4
        for (int b = 0; b < wide; b++) {
            vec_f t = s[a * wide + b] - base[b];
            exp_lanes(&t);
            s[a * wide + b] = t;
            sum[b] += t;
        }
#pragma GCC unroll 4
    for (int b = 0; b < wide; b++)
        state->sum[b] = sum[b];
}
"""

_BLOCK = """\
/* `rows` queries of one head; lane i sees the first min(see + i * causal, n) keys. Keys that only some lanes see are at
 * the end: their logits become -inf. */
static inline __attribute__((always_inline)) void lane_block(
    const float *const *in, float *O, vec_f *room, const int *size, int causal, const int wide)
{
    const int rows = size[0], n = size[1], d = size[2], see = size[3];
    const int last = causal && see + rows - 1 < n ? see + rows - 1 : n;
    vec_f *q = room, *o = q + (long)d * wide, *s = o + (long)d * wide;
    lane_state state;
    for (int b = 0; b < wide; b++) {
        vec_i limit = {0};
        for (int k = 0; k < VEC; k++)
            limit[k] = causal ? see + (b * VEC + k < rows ? b * VEC + k : rows - 1) : n;
        state.limit[b] = limit;
        state.top[b] = (vec_f){0} - INFINITY;
        state.sum[b] = (vec_f){0};
    }
    pack_queries(in[0], q, rows, d, wide);
    for (long c = 0; c < (long)d * wide; c++)
        o[c] = (vec_f){0};
    for (int j = 0; j < last; j += KEY_BLOCK) {
        const int keys = last - j < KEY_BLOCK ? last - j : KEY_BLOCK;
        const int clear = !causal || see > j + keys ? keys : see > j ? see - j : 0;
        score_block(in[1] + (long)j * d, q, s, keys, d, wide);
        for (int a = clear; a < keys; a++)
            for (int b = 0; b < wide; b++) {
                const vec_i seen = state.limit[b] > j + a;
                s[a * wide + b] = (vec_f)(((vec_i)s[a * wide + b] & seen) | ((vec_i)((vec_f){0} - INFINITY) & ~seen));
            }
        weigh_block(s, keys, &state, wide);
        value_block(in[2] + (long)j * d, s, o, (const int[]){keys, clear, d, j}, &state, wide);
    }
    for (int b = 0; b < wide; b++) {
        const vec_f part = 1.0f / state.sum[b];
        for (int c = 0; c < d; c++)
            o[c * wide + b] = (vec_f)((vec_i)(o[c * wide + b] * part) & (state.limit[b] > 0));
    }
    unpack_rows(o, O, rows, d, wide);
}
"""

_ENTRY = """\
/* Length of a query up to which the room for a block lies on the stack. */
#define NEAR 128

/* query_lanes: each lane of a vector is a query, so that maxima, sums and masks need no shuffles, and keys and values
 * are read where they lie, one float for all lanes. KEY_BLOCK keys at a time stay in cache while their logits become
 * weights; the maximum so far is corrected as it grows. Returns how many queries of the head were done: fewer than
 * FEW_QUERIES are left, since most lanes would idle. */
static int query_lanes(const float *const *in, float *O, int m, int n, int d, int causal)
{
    if (m < FEW_QUERIES || n < 1)
        return 0;
    vec_f near[(2 * NEAR + KEY_BLOCK) * QUERY_VECTORS] __attribute__((aligned(64)));
    const size_t bytes = ((size_t)2 * d + KEY_BLOCK) * QUERY_VECTORS * sizeof(vec_f);
    vec_f *room = d <= NEAR ? near : aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!room)
        return 0;
    int i = 0;
    while (m - i >= FEW_QUERIES) {
        const int wide = m - i > VEC ? QUERY_VECTORS : 1;
        const int rows = m - i < wide * VEC ? m - i : wide * VEC;
        const int size[] = {rows, n, d, causal ? i + n - m + 1 : n};
        const float *const from[] = {in[0] + (long)i * d, in[1], in[2]};
        if (wide == 1)
            lane_block(from, O + (long)i * d, room, size, causal, 1);
        else
            lane_block(from, O + (long)i * d, room, size, causal, QUERY_VECTORS);
        i += rows;
    }
    if (room != near)
        free(room);
    return i;
}
"""

LANES = "\n".join((_TURN, _TILES, _BLOCK, _ENTRY))
"""All of `query_lanes` but the vector types and `exp_lanes`."""
