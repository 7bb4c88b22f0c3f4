/* Sum over the last axis of a row-major matrix: y[r] is the sum of the n elements of row r of x. */
void reduction(const float *x, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        const float *p = x + (long)r * n;
        float s = 0.0f;
        for (int i = 0; i < n; i++)
            s += p[i];
        y[r] = s;
    }
}
