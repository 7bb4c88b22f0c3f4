/* Product of two row-major matrices: C[i][j] is the sum over k of A[i][k] * B[k][j]. */
void gemm(const float *A, const float *B, float *C, int M, int N, int K)
{
    for (int i = 0; i < M; i++) {
        float *c = C + (long)i * N;
        for (int j = 0; j < N; j++)
            c[j] = 0.0f;
        for (int k = 0; k < K; k++) {
            const float a = A[(long)i * K + k];
            const float *b = B + (long)k * N;
            for (int j = 0; j < N; j++)
                c[j] += a * b[j];
        }
    }
}
