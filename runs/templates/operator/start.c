/* The sum of each row of a row-major matrix, times the row's factor: y[r] = factor[r] * (x[r][0] + ... + x[r][n-1]). */
void my_op(const float *x, const float *factor, float *y, int rows, int n)
{
    for (int r = 0; r < rows; r++) {
        const float *row = x + (long)r * n;
        float sum = 0.0f;
        for (int i = 0; i < n; i++)
            sum += row[i];
        y[r] = factor[r] * sum;
    }
}
