/* Measures the ceilings of one core: streaming read, copy and multiply-add over given footprints, multiply-add out of
 * registers, and the latency of a serial chain of float additions.
 *
 *   peaks CORE SLICE_MS LARGEST [KIND LEVEL FOOTPRINT]...
 *
 * Pins itself to CORE unless that is negative, spends about SLICE_MS milliseconds on each loop and prints one line a loop:
 *   KIND LEVEL FOOTPRINT LOOP BEST MEDIAN
 * in GB/s, GFLOP/s or, for add_latency, ns. Exit status 3: it could not be pinned; 4: no memory.
 *
 * Buffers are shared memory of small pages, as those of a candidate are, so that address translation costs both the same.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#define AHEAD_BYTES 2048
#define REPEATS 31
#define GROUP 8
#define MIN_REPEATS 3
#define SAMPLE_S 0.0015

typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES), aligned(VECTOR_BYTES), may_alias));
typedef float floats __attribute__((vector_size(VECTOR_BYTES), aligned(VECTOR_BYTES), may_alias));
typedef void (*loop_fn)(char *buffer, size_t bytes, long passes);

static volatile uint32_t sink;
static volatile float float_sink;

#define OVER_GROUP(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
#define BARRIER __asm__ volatile("" ::: "memory")

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep_words(words v)
{
    uint32_t sum = 0;
    for (size_t k = 0; k < VECTOR_BYTES / 4; k++)
        sum += v[k];
    sink = sum;
}

static void keep_floats(floats v)
{
    float sum = 0;
    for (size_t k = 0; k < VECTOR_BYTES / 4; k++)
        sum += v[k];
    float_sink = sum;
}

/* Integer additions into eight accumulators: one cycle each, so that loads alone set the pace. */
static inline void read_with(char *buffer, size_t bytes, long passes, int prefetch)
{
    const size_t step = GROUP * sizeof(words);
    words a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, a4 = {0}, a5 = {0}, a6 = {0}, a7 = {0};
    for (long pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at + step <= bytes; at += step) {
            const words *p = (const words *)(buffer + at);
            if (prefetch)
                for (size_t line = 0; line < step; line += 64)
                    __builtin_prefetch(buffer + at + AHEAD_BYTES + line);
#define STEP(k) a##k += p[k];
            OVER_GROUP(STEP)
#undef STEP
        }
        BARRIER;
    }
    keep_words(((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)));
}

static void read_plain(char *buffer, size_t bytes, long passes)
{
    read_with(buffer, bytes, passes, 0);
}

static void read_prefetch(char *buffer, size_t bytes, long passes)
{
    read_with(buffer, bytes, passes, 1);
}

/* Four streams at once keep more hardware prefetchers at work, as a kernel that reads four rows together does. */
static void read_streams(char *buffer, size_t bytes, long passes)
{
    const size_t step = 2 * sizeof(words), quarter = bytes / 4 / step * step;
    words a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, a4 = {0}, a5 = {0}, a6 = {0}, a7 = {0};
    for (long pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at < quarter; at += step) {
            const words *p = (const words *)(buffer + at), *q = (const words *)(buffer + quarter + at);
            const words *r = (const words *)(buffer + 2 * quarter + at), *s = (const words *)(buffer + 3 * quarter + at);
            a0 += p[0]; a1 += p[1]; a2 += q[0]; a3 += q[1];
            a4 += r[0]; a5 += r[1]; a6 += s[0]; a7 += s[1];
        }
        BARRIER;
    }
    keep_words(((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)));
}

static void copy_plain(char *buffer, size_t bytes, long passes)
{
    const size_t half = bytes / 2, step = GROUP * sizeof(words);
    for (long pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at + step <= half; at += step) {
            const words *p = (const words *)(buffer + at);
            words *q = (words *)(buffer + half + at);
#define STEP(k) words v##k = p[k];
            OVER_GROUP(STEP)
#undef STEP
#define STEP(k) q[k] = v##k;
            OVER_GROUP(STEP)
#undef STEP
        }
        BARRIER;
    }
}

/* The library's copy goes round the cache where the footprint is large, which saves the read for ownership. */
static void copy_library(char *buffer, size_t bytes, long passes)
{
    for (long pass = 0; pass < passes; pass++) {
        memcpy(buffer + bytes / 2, buffer, bytes / 2);
        BARRIER;
    }
}

/* A dot product of the two halves: two loads a multiply-add. */
static void fma_stream(char *buffer, size_t bytes, long passes)
{
    const size_t half = bytes / 2, step = GROUP * sizeof(floats);
    floats a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, a4 = {0}, a5 = {0}, a6 = {0}, a7 = {0};
    for (long pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at + step <= half; at += step) {
            const floats *p = (const floats *)(buffer + at), *q = (const floats *)(buffer + half + at);
#define STEP(k) a##k += p[k] * q[k];
            OVER_GROUP(STEP)
#undef STEP
        }
        BARRIER;
    }
    keep_floats(((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)));
}

/* Twelve chains fill two pipes of up to six cycles and still fit in sixteen registers. The bytes only count steps. */
static void fma_registers(char *buffer, size_t bytes, long passes)
{
    floats x = *(floats *)buffer, m = x * 0.0f + 0.999f, c = x * 0.0f + 0.001f;
    floats a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x, aa = x, ab = x;
    for (long step = 0; step < passes * (long)bytes; step++) {
#define STEP(k) a##k = a##k * m + c;
        OVER_GROUP(STEP) STEP(8) STEP(9) STEP(a) STEP(b)
#undef STEP
    }
    keep_floats(((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)) + ((a8 + a9) + (aa + ab)));
}

/* Additions of floats may not be reordered without leave, so this is one serial chain. */
static void add_chain(char *buffer, size_t bytes, long passes)
{
    const float *x = (const float *)buffer;
    float sum = 0;
    for (long pass = 0; pass < passes; pass++)
        for (size_t k = 0; k < bytes / 4; k++)
            sum += x[k];
    float_sink = sum;
}

struct loop {
    const char *kind, *name;
    loop_fn run;
};

static const struct loop LOOPS[] = {
    {"read", "plain", read_plain},       {"read", "prefetch", read_prefetch}, {"read", "streams", read_streams},
    {"copy", "plain", copy_plain},       {"copy", "library", copy_library},   {"fma", "stream", fma_stream},
    {"fma", "registers", fma_registers}, {"add_latency", "chain", add_chain},
};

/* Work of one pass, such that work / ns is the figure in GB/s or GFLOP/s; additions for the chain. */
static double work_of(const struct loop *loop, size_t bytes)
{
    if (loop->run == fma_registers)
        return (double)bytes * 12 * 2 * (VECTOR_BYTES / 4);
    if (loop->run == fma_stream)
        return (double)(bytes / 8) * 2;
    if (loop->run == add_chain)
        return (double)(bytes / 4);
    return (double)bytes;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double time_of(const struct loop *loop, char *buffer, size_t bytes, long passes)
{
    double start = now_s();
    loop->run(buffer, bytes, passes);
    return now_s() - start;
}

static void measure(const struct loop *loop, const char *level, char *buffer, size_t bytes, double slice_s)
{
    double each[REPEATS], begin, spent;
    long passes = 1;
    int repeats = 0;
    loop->run(buffer, bytes, 1);
    while ((spent = time_of(loop, buffer, bytes, passes)) < SAMPLE_S && passes < (1L << 40))
        passes = spent < SAMPLE_S / 16 ? passes * 8 : (long)((double)passes * SAMPLE_S / spent) + 1;
    begin = now_s();
    while (repeats < REPEATS && (repeats < MIN_REPEATS || now_s() - begin < slice_s))
        each[repeats++] = time_of(loop, buffer, bytes, passes) / (double)passes;
    qsort(each, (size_t)repeats, sizeof each[0], ascending);
    double work = work_of(loop, bytes), best = each[0] * 1e9, median = each[repeats / 2] * 1e9;
    int latency = loop->run == add_chain;
    printf("%s %s %zu %s %.6g %.6g\n", loop->kind, level, bytes, loop->name, latency ? best / work : work / best,
           latency ? median / work : work / median);
    fflush(stdout);
}

static int pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static char *shared_buffer(size_t bytes)
{
    int fd = memfd_create("peaks", 0);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return NULL;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

int main(int argc, char **argv)
{
    if (argc < 4 || (argc - 4) % 3 != 0)
        return 2;
    int core = atoi(argv[1]);
    if (core >= 0 && pin(core) != 0) {
        perror("sched_setaffinity");
        return 3;
    }
    double slice_s = 1e-3 * atof(argv[2]);
    size_t largest = strtoull(argv[3], NULL, 10) / 4096 * 4096;
    char *buffer = shared_buffer(largest + AHEAD_BYTES + 4096);
    if (buffer == NULL) {
        perror("memfd");
        return 4;
    }
    float *fill = (float *)buffer;
    for (size_t k = 0; k < largest / 4; k++)
        fill[k] = 1e-3f * (float)(k % 61);
    for (int at = 4; at < argc; at += 3) {
        int core_only = strcmp(argv[at + 1], "core") == 0;
        size_t bytes = strtoull(argv[at + 2], NULL, 10) / 4096 * 4096;
        if (bytes == 0 || bytes > largest)
            return 2;
        for (size_t k = 0; k < sizeof LOOPS / sizeof LOOPS[0]; k++) {
            const struct loop *loop = &LOOPS[k];
            int registers = loop->run == fma_registers || loop->run == add_chain;
            if (strcmp(loop->kind, argv[at]) == 0 && registers == core_only)
                measure(loop, argv[at + 1], buffer, bytes, slice_s);
        }
    }
    return 0;
}
