/* Sum over the first axis of a row-major matrix: y[i] is the sum of column i of x. */
void reduction_batch(const float *x, float *y, int batch, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = 0.0f;
    for (int b = 0; b < batch; b++) {
        const float *p = x + (long)b * n;
        for (int i = 0; i < n; i++)
            y[i] += p[i];
    }
}
