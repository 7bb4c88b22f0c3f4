/* Attention: each row of O is the mean of the rows of V, weighted by softmax of Q K^T / sqrt(d). With a causal mask
 * query i sees keys 0 to i + n - m; a query that sees none gets zeros. */
#include <math.h>
#include <stdlib.h>

void attention(const float *Q, const float *K, const float *V, float *O, int heads, int m, int n, int d, int causal)
{
    float *p = malloc((size_t)(n > 0 ? n : 1) * sizeof(float));
    if (!p)
        return;
    const float scale = 1.0f / sqrtf((float)d);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < m; i++) {
            const float *q = Q + ((long)h * m + i) * d;
            float *o = O + ((long)h * m + i) * d;
            const int seen = causal && i + n - m + 1 < n ? i + n - m + 1 : n;
            float top = -INFINITY, sum = 0.0f;
            for (int j = 0; j < seen; j++) {
                const float *k = K + ((long)h * n + j) * d;
                float s = 0.0f;
                for (int c = 0; c < d; c++)
                    s += q[c] * k[c];
                p[j] = s * scale;
                top = p[j] > top ? p[j] : top;
            }
            for (int j = 0; j < seen; j++) {
                p[j] = expf(p[j] - top);
                sum += p[j];
            }
            for (int c = 0; c < d; c++)
                o[c] = 0.0f;
            for (int j = 0; j < seen; j++) {
                const float *v = V + ((long)h * n + j) * d;
                const float w = p[j] / sum;
                for (int c = 0; c < d; c++)
                    o[c] += w * v[c];
            }
        }
    free(p);
}
