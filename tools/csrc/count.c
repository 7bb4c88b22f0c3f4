/* Calls a candidate once for each of several shapes, so that a simulator, hardware counters or single steps count it.
 *
 *   count MODE OBJECT ENTRY [BYTES of each tensor, VALUE of each axis, SCRATCH bytes]...
 *
 * MODE `once`: one call a shape, made by `kernelcrew_counted_call`, which callgrind is told to watch.
 * MODE `counters`: a call to warm up and CALLS more; prints a line `counted INDEX INSTRUCTIONS CYCLES` with the least
 * of them.
 * MODE `steps`: one call a shape in a child that is single-stepped; prints a line `stepped INDEX INSTRUCTIONS` and for
 * each address of the object that was executed a line `at INDEX OFFSET TIMES`.
 * Exit status 5: the counters or steps cannot be had, with the reason on stderr; 6: the object cannot be loaded; 7: no
 * memory; 8: the stepped child ended early. The shape of the call stands in the generated `shim.h`. Runs in a sandboxed
 * child: it loads a candidate.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

#define CALLS 3
#define GROUP (TENSORS + AXES + 1)
#define TEXT_BYTES (1u << 20)
#define ALONE (-1)
#define STEPPED (-2)

#if defined(__x86_64__)
#define PC_OF(r) ((r).rip)
#elif defined(__aarch64__)
#define PC_OF(r) ((r).pc)
#endif

__attribute__((noinline)) void kernelcrew_counted_call(entry_type entry, void *const *tensors, const int *axes, void *scratch)
{
    enter(entry, tensors, axes, scratch);
    /* Keeps this frame: a tail call would leave it before the candidate is done. */
    __asm__ volatile("" ::: "memory");
}

/* Where the tracer stops to step: the same address in both processes, since the child is its fork. */
__attribute__((noinline)) void kernelcrew_counted_end(void)
{
    __asm__ volatile("" ::: "memory");
}

static int counter(uint64_t config, int leader)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_HARDWARE;
    attr.config = config;
    attr.disabled = leader < 0;
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    attr.read_format = PERF_FORMAT_GROUP;
    return (int)syscall(SYS_perf_event_open, &attr, 0, -1, leader, 0);
}

static void *room(size_t bytes)
{
    void *at = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void fill(void *at, size_t bytes, char element)
{
    if (element == 'f')
        for (size_t k = 0; k < bytes / 4; k++)
            ((float *)at)[k] = 1e-3f * (float)(k % 61) - 0.03f;
    else if (element == 'd')
        for (size_t k = 0; k < bytes / 8; k++)
            ((double *)at)[k] = 1e-3 * (double)(k % 61) - 0.03;
}

static int count_calls(int leader, entry_type entry, void *const *tensors, const int *axes, void *scratch, int index)
{
    uint64_t least[2] = {UINT64_MAX, UINT64_MAX}, now[3];
    kernelcrew_counted_call(entry, tensors, axes, scratch);
    for (int call = 0; call < CALLS; call++) {
        ioctl(leader, PERF_EVENT_IOC_RESET, PERF_IOC_FLAG_GROUP);
        ioctl(leader, PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP);
        kernelcrew_counted_call(entry, tensors, axes, scratch);
        ioctl(leader, PERF_EVENT_IOC_DISABLE, PERF_IOC_FLAG_GROUP);
        if (read(leader, now, sizeof now) != (ssize_t)sizeof now)
            return -1;
        for (int k = 0; k < 2; k++)
            least[k] = now[k + 1] < least[k] ? now[k + 1] : least[k];
    }
    printf("counted %d %llu %llu\n", index, (unsigned long long)least[0], (unsigned long long)least[1]);
    fflush(stdout);
    return 0;
}

static int run_group(char **words, entry_type entry, int leader, int index)
{
    void *tensors[TENSORS + 1];
    int axes[AXES + 1];
    for (int k = 0; k < TENSORS; k++) {
        size_t bytes = strtoull(words[k], NULL, 10);
        if ((tensors[k] = room(bytes)) == NULL)
            return 7;
        fill(tensors[k], bytes, ELEMENTS[k]);
    }
    for (int k = 0; k < AXES; k++)
        axes[k] = atoi(words[TENSORS + k]);
    void *scratch = room(strtoull(words[TENSORS + AXES], NULL, 10));
    if (scratch == NULL)
        return 7;
    if (leader == STEPPED) {
        raise(SIGSTOP);
        kernelcrew_counted_call(entry, tensors, axes, scratch);
        kernelcrew_counted_end();
    } else if (leader == ALONE)
        kernelcrew_counted_call(entry, tensors, axes, scratch);
    else if (count_calls(leader, entry, tensors, axes, scratch, index) != 0)
        return 5;
    for (int k = 0; k < TENSORS; k++)
        munmap(tensors[k], strtoull(words[k], NULL, 10) + 4096);
    return 0;
}

static int run_groups(int argc, char **argv, int leader, uintptr_t *base)
{
    void *object = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    entry_type entry = object == NULL ? NULL : (entry_type)dlsym(object, argv[3]);
    Dl_info info;
    if (entry == NULL || dladdr((void *)entry, &info) == 0) {
        fprintf(stderr, "%s\n", dlerror());
        return 6;
    }
    if (base != NULL)
        *base = (uintptr_t)info.dli_fbase;
    for (int at = 4, index = 0; at < argc; at += GROUP, index++) {
        int status = run_group(argv + at, entry, leader, index);
        if (status != 0)
            return status;
    }
    return 0;
}

#ifdef PC_OF
static uintptr_t pc_of(pid_t child)
{
    struct user_regs_struct registers;
    struct iovec place = {&registers, sizeof registers};
    return ptrace(PTRACE_GETREGSET, child, (void *)NT_PRSTATUS, &place) == 0 ? (uintptr_t)PC_OF(registers) : 0;
}

/* Steps the child through one counted call. Returns its instructions, or -1 when the child ended or was hit by a signal. */
static long step_call(pid_t child, uintptr_t base, uint32_t *times)
{
    const uintptr_t begin = (uintptr_t)kernelcrew_counted_call, end = (uintptr_t)kernelcrew_counted_end;
    long steps = 0;
    int status, inside = 0;
    for (;;) {
        uintptr_t pc = pc_of(child);
        if (pc == end && inside)
            return steps;
        inside |= pc == begin;
        steps += inside;
        if (inside && pc - base < TEXT_BYTES)
            times[pc - base]++;
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child)
            return -1;
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            return -1;
    }
}

static int trace(pid_t child, const uintptr_t *base, int groups)
{
    uint32_t *times = malloc(TEXT_BYTES * sizeof *times);
    int status;
    if (times == NULL)
        return 7;
    for (int index = 0; index < groups; index++) {
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            return WIFEXITED(status) ? WEXITSTATUS(status) : 8;
        ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)PTRACE_O_EXITKILL);
        memset(times, 0, TEXT_BYTES * sizeof *times);
        long steps = step_call(child, *base, times);
        if (steps < 0)
            return 8;
        printf("stepped %d %ld\n", index, steps);
        for (unsigned offset = 0; offset < TEXT_BYTES; offset++)
            if (times[offset] > 0)
                printf("at %d %u %u\n", index, offset, times[offset]);
        fflush(stdout);
        ptrace(PTRACE_CONT, child, NULL, NULL);
    }
    return 0;
}

static int run_stepped(int argc, char **argv)
{
    uintptr_t *base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cpu_set_t one;
    if (base == MAP_FAILED)
        return 7;
    /* Both on one core: they take turns, and waking each other there is cheapest. */
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            fprintf(stderr, "ptrace: %s\n", strerror(errno));
            _exit(5);
        }
        _exit(run_groups(argc, argv, STEPPED, base));
    }
    int status = child < 0 ? 7 : trace(child, base, (argc - 4) / GROUP);
    if (child > 0)
        kill(child, SIGKILL);
    return status;
}
#else
static int run_stepped(int argc, char **argv)
{
    (void)argc;
    fprintf(stderr, "%s: no single steps on this architecture\n", argv[0]);
    return 5;
}
#endif

int main(int argc, char **argv)
{
    int leader = ALONE;
    if (argc < 4 || (argc - 4) % GROUP != 0)
        return 2;
    if (strcmp(argv[1], "steps") == 0)
        return run_stepped(argc, argv);
    if (strcmp(argv[1], "counters") == 0) {
        leader = counter(PERF_COUNT_HW_INSTRUCTIONS, -1);
        if (leader < 0 || counter(PERF_COUNT_HW_CPU_CYCLES, leader) < 0) {
            fprintf(stderr, "%s\n", strerror(errno));
            return 5;
        }
    }
    return run_groups(argc, argv, leader, NULL);
}
