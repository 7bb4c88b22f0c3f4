/* The trusted program that loads one candidate and calls it. `worker_wire.py` holds the same message numbers.
 *
 * Order: limits and pinning; a first filter of system calls that leaves what loading an object needs; the object; a
 * second filter that leaves what calling it needs. Rings come as file descriptors: inputs are mapped from read-only
 * ones, every guarded tensor ends at a page that cannot be touched. The parent's clock decides; this one's is a check.
 * `forget.h` takes away what a kernel could leave for its next call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "signature.h"
#include "forget.h"

enum { HELLO = 1, LOAD, ATTACH, DETACH, BATCH, PING, FAULT };
enum { HEAD_WORDS = 2, RING_WORDS = 3, TENSOR_WORDS = 4, MAX_HANDLES = 512, LINE = 64 };
enum { ATTACH_WORDS = HEAD_WORDS + 3 + AXES + 2 * RING_WORDS + TENSOR_WORDS * TENSORS, MAX_WORDS = ATTACH_WORDS + 8 };

struct reply {
    int64_t command, ticket, words[6];
    char text[256];
};

struct mapping {
    unsigned char *base;
    size_t bytes;
};

struct ring {
    int used;
    int64_t slots, windows; /* windows: a power of two */
    int axes[AXES + 1];
    size_t bytes[TENSORS + 1];
    struct mapping inputs, outputs, scratch_map;
    void **in, **out; /* [slot * TENSORS + tensor] */
    unsigned char *scratch;
    size_t scratch_bytes;
};

static struct ring rings[MAX_HANDLES];
static int link_fd;
static size_t page;
static kernel_fn kernel;
static int filtered;
static int64_t fp_at_start;
static const int64_t NO_HANDLE = -1;

/* ---- talking ---- */

static void send_reply(struct reply *reply)
{
    ssize_t sent;
    do
        sent = send(link_fd, reply, sizeof *reply, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        _exit(3);
}

static void answer(int64_t command, int64_t ticket, const int64_t *words, int count, const char *text)
{
    struct reply reply;
    memset(&reply, 0, sizeof reply);
    reply.command = command;
    reply.ticket = ticket;
    for (int i = 0; i < count; i++)
        reply.words[i] = words[i];
    snprintf(reply.text, sizeof reply.text, "%s", text);
    send_reply(&reply);
}

/* Words of one command into `words`, descriptors into `fds` (-1 where there is none). 0 at the end of the link. */
static int receive(int64_t *words, int fds[2])
{
    char control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec part = {words, MAX_WORDS * sizeof *words};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got;
    do
        got = recvmsg(link_fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    fds[0] = fds[1] = -1;
    if (got <= 0)
        return 0;
    memset((char *)words + got, 0, MAX_WORDS * sizeof *words - (size_t)got);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
    return 1;
}

/* ---- what a fault says ---- */

static const char *call_name(int number)
{
    switch (number) {
    case SYS_write: return "write";
    case SYS_writev: return "writev";
    case SYS_openat: return "openat";
    case SYS_clone: return "clone";
    case SYS_execve: return "execve";
    case SYS_socket: return "socket";
    case SYS_connect: return "connect";
    case SYS_getpid: return "getpid";
    case SYS_kill: return "kill";
    case SYS_tgkill: return "tgkill";
    case SYS_ptrace: return "ptrace";
    case SYS_mmap: return "mmap of executable pages";
    case SYS_mprotect: return "mprotect";
    case SYS_newfstatat: return "newfstatat";
    case SYS_fstat: return "fstat";
    case SYS_rt_sigaction: return "rt_sigaction";
    case SYS_rt_sigprocmask: return "rt_sigprocmask";
    case SYS_nanosleep: return "nanosleep";
    case SYS_clock_nanosleep: return "clock_nanosleep";
#ifdef SYS_fork
    case SYS_fork: return "fork";
    case SYS_vfork: return "vfork";
    case SYS_open: return "open";
#endif
#ifdef SYS_clone3
    case SYS_clone3: return "clone3";
#endif
    default: return "";
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    static struct reply reply;
    reply.command = FAULT;
    reply.words[0] = number;
    reply.words[1] = (int64_t)(uintptr_t)info->si_addr;
#if defined __x86_64__
    /* Bit 1 of the page fault's error code tells a write from a read. */
    if (number == SIGSEGV)
        reply.words[2] = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? 2 : 1;
#else
    (void)context;
#endif
    if (number == SIGSYS) {
        reply.words[3] = info->si_syscall;
        strncpy(reply.text, call_name(info->si_syscall), sizeof reply.text - 1);
    }
    send_reply(&reply);
    _exit(4);
}

static void catch_faults(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    size_t bytes = 64 * 1024;
    stack_t stack = {.ss_size = bytes, .ss_sp = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
    if (stack.ss_sp != MAP_FAILED)
        sigaltstack(&stack, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

/* ---- system calls ---- */

#if defined __x86_64__
#define HERE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define HERE AUDIT_ARCH_AARCH64
#endif

#ifdef HERE
static const int ALWAYS[] = {
    SYS_munmap, SYS_brk, SYS_mremap, SYS_madvise, SYS_futex, SYS_close, SYS_exit, SYS_exit_group, SYS_clock_gettime,
    SYS_gettimeofday, SYS_rt_sigreturn, SYS_restart_syscall, SYS_sched_yield, SYS_getrandom,
};
static const int ON_LINK[] = {SYS_sendto, SYS_recvmsg};
static const int TO_LOAD[] = {
    SYS_openat, SYS_read, SYS_pread64, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_mprotect, SYS_prctl, SYS_readlinkat,
    SYS_faccessat, SYS_getcwd,
#ifdef SYS_open
    SYS_open, SYS_access, SYS_readlink, SYS_stat,
#endif
#ifdef SYS_statx
    SYS_statx,
#endif
};

#define EMIT(...) (program[length++] = (struct sock_filter)__VA_ARGS__)
#define DATA(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define COUNT(list) (sizeof(list) / sizeof *(list))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TRAP BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)

/* Before loading, whatever `dlopen` needs is open too; afterwards no page can become executable and no call but on the
 * link reads or writes. A trapped call ends the process through `on_fault`, whose handler can no longer be replaced. */
static int filter_calls(int loading)
{
    struct sock_filter program[160];
    unsigned short length = 0;
    EMIT(DATA(arch));
    EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, HERE, 1, 0));
    EMIT(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL));
    EMIT(DATA(nr));
    for (size_t i = 0; i < COUNT(ALWAYS); i++) {
        EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ALWAYS[i], 0, 1));
        EMIT(ALLOW);
    }
    for (size_t i = 0; loading && i < COUNT(TO_LOAD); i++) {
        EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)TO_LOAD[i], 0, 1));
        EMIT(ALLOW);
    }
    for (size_t i = 0; i < COUNT(ON_LINK); i++) {
        EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ON_LINK[i], 0, 4));
        EMIT(DATA(args[0]));
        EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)link_fd, 0, 1));
        EMIT(ALLOW);
        EMIT(TRAP);
    }
    EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3));
    EMIT(DATA(args[2]));
    EMIT(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, loading ? 0 : PROT_EXEC, 1, 0));
    EMIT(ALLOW);
    EMIT(TRAP);
    struct sock_fprog whole = {.len = length, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return 0;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole, 0, 0) == 0;
}
#else
static int filter_calls(int loading)
{
    (void)loading;
    return 0;
}
#endif

/* ---- rings ---- */

static int64_t fp_environment(void)
{
#if defined __x86_64__
    unsigned short control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    /* The low six bits of MXCSR are sticky exception flags, which honest arithmetic sets. */
    return (int64_t)(__builtin_ia32_stmxcsr() & ~0x3Fu) | (int64_t)control << 32;
#elif defined __aarch64__
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return (int64_t)control;
#else
    return fegetround();
#endif
}

static void touch(const unsigned char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += page)
        (void)*(volatile const unsigned char *)(from + i);
}

static int map_piece(struct mapping *whole, int fd, size_t offset, size_t bytes, int protection)
{
    void *at = mmap(whole->base + offset, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, (off_t)offset);
    if (at == MAP_FAILED)
        return 0;
    touch(at, bytes);
    return 1;
}

/* Reserve the whole ring untouchable, then lay its pieces over it: what is left between them are the guards. */
static int map_ring(struct mapping *whole, const int64_t *ring, const int64_t *tensors, int64_t slots, int fd, int input)
{
    size_t stride = (size_t)ring[1];
    int protection = input ? PROT_READ : PROT_READ | PROT_WRITE;
    whole->bytes = (size_t)ring[0];
    whole->base = mmap(NULL, whole->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole->base == MAP_FAILED) {
        whole->base = NULL;
        return 0;
    }
    if (!ring[2])
        return map_piece(whole, fd, page, whole->bytes - 2 * page, protection);
    for (int64_t slot = 0; slot < slots; slot++)
        for (int t = 0; t < TENSORS; t++) {
            const int64_t *tensor = tensors + t * TENSOR_WORDS;
            if (IS_INPUT[t] == input && !map_piece(whole, fd, (size_t)tensor[2] + (size_t)slot * stride, (size_t)tensor[3], protection))
                return 0;
        }
    return 1;
}

static void fill_pointers(struct ring *ring, const int64_t *input_ring, const int64_t *output_ring, const int64_t *tensors)
{
    for (int64_t slot = 0; slot < ring->slots; slot++)
        for (int t = 0; t < TENSORS; t++) {
            int64_t offset = tensors[t * TENSOR_WORDS];
            if (IS_INPUT[t])
                ring->in[slot * TENSORS + t] = ring->inputs.base + offset + slot * input_ring[1];
            else
                ring->out[slot * TENSORS + t] = ring->outputs.base + offset + slot * output_ring[1];
        }
}

/* Aligned to 64 bytes, its end (rounded up to 64) at a guard. */
static int map_scratch(struct ring *ring, size_t bytes)
{
    size_t used = (bytes + 63) / 64 * 64;
    size_t whole = (used + page - 1) / page * page;
    ring->scratch_map.bytes = whole + page;
    void *at = mmap(NULL, whole + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 0;
    ring->scratch_map.base = at;
    if (whole && mmap(at, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) == MAP_FAILED)
        return 0;
    ring->scratch = (unsigned char *)at + whole - used;
    ring->scratch_bytes = bytes;
    return 1;
}

static void unmap(struct mapping *mapping)
{
    if (mapping->base)
        munmap(mapping->base, mapping->bytes);
}

static void drop_ring(struct ring *ring)
{
    unmap(&ring->inputs);
    unmap(&ring->outputs);
    unmap(&ring->scratch_map);
    free(ring->in);
    free(ring->out);
    memset(ring, 0, sizeof *ring);
}

static void attach(int64_t ticket, const int64_t *words, const int fds[2])
{
    int handle = 0;
    while (handle < MAX_HANDLES && rings[handle].used)
        handle++;
    if (handle == MAX_HANDLES) {
        answer(ATTACH, ticket, &NO_HANDLE, 1, "too many rings are attached");
        return;
    }
    struct ring *ring = &rings[handle];
    const int64_t *axes = words + 3, *input_ring = axes + AXES, *output_ring = input_ring + RING_WORDS;
    const int64_t *tensors = output_ring + RING_WORDS;
    ring->used = 1;
    ring->slots = words[0];
    ring->windows = words[2];
    for (int a = 0; a < AXES; a++)
        ring->axes[a] = (int)axes[a];
    for (int t = 0; t < TENSORS; t++)
        ring->bytes[t] = (size_t)tensors[t * TENSOR_WORDS + 1];
    ring->in = calloc((size_t)ring->slots * TENSORS, sizeof *ring->in);
    ring->out = calloc((size_t)ring->slots * TENSORS, sizeof *ring->out);
    int done = ring->in && ring->out && map_ring(&ring->inputs, input_ring, tensors, ring->slots, fds[0], 1)
        && map_ring(&ring->outputs, output_ring, tensors, ring->slots, fds[1], 0) && map_scratch(ring, (size_t)words[1]);
    if (!done) {
        const char *why = strerror(errno);
        drop_ring(ring);
        answer(ATTACH, ticket, &NO_HANDLE, 1, why);
        return;
    }
    fill_pointers(ring, input_ring, output_ring, tensors);
    const int64_t places[] = {handle, (int64_t)(uintptr_t)ring->inputs.base, (int64_t)(uintptr_t)ring->outputs.base};
    answer(ATTACH, ticket, places, 3, "");
}

/* ---- calls ---- */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What a call left in its output slot, changed in a few places that only the parent's seed tells: the exponent's low bit
 * flips, so that the values stay plausible. Nobody reads these answers but a later call that looks for its own. */
static void spoil(const struct ring *ring, void *const *out, uint64_t *state)
{
    for (int t = 0; t < TENSORS; t++) {
        size_t items = ring->bytes[t] / (IS_DOUBLE[t] ? 8 : 4);
        if (IS_INPUT[t] || !items)
            continue;
        for (int k = 0; k < 4; k++) {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            size_t at = (size_t)(((*state >> 32) * (uint64_t)items) >> 32);
            if (IS_DOUBLE[t])
                ((uint64_t *)out[t])[at] ^= 1ull << 52;
            else
                ((uint32_t *)out[t])[at] ^= 1u << 23;
        }
    }
}

/* Call c reads slot c mod R and writes slot (c + first + c / R) mod R. From pass to pass over the ring its inputs begin
 * at another 64-byte line of a slot that is longer than they are, so that no pass sees contents that an earlier one saw;
 * the last pass begins at line 0, which is what the parent compares with. `stride` is odd, so no window comes twice
 * before all came once. */
static void batch(int64_t ticket, const struct ring *ring, const int64_t *words)
{
    int64_t calls = words[0], out = words[1], stride = words[2];
    uint64_t state = (uint64_t)words[3] | 1;
    int64_t slots = ring->slots, in = 0, left = (calls + slots - 1) / slots - 1;
    size_t shift = (size_t)(left * stride & (ring->windows - 1)) * LINE;
    int misused = 0;
    void *moved[TENSORS + 1];
    int64_t started = now_ns();
    for (int64_t c = 0; c < calls; c++) {
        void *const *given = ring->in + in * TENSORS, *const *taken = ring->out + out * TENSORS;
        for (int t = 0; t < TENSORS; t++)
            moved[t] = (char *)given[t] + shift;
        if (ring->scratch_bytes)
            memset(ring->scratch, 0xFF, ring->scratch_bytes);
        call_kernel(kernel, moved, taken, ring->axes, ring->scratch);
        forget_registers();
        misused |= forget_heap();
        if (left && ring->windows > 1)
            spoil(ring, taken, &state);
        if (++out == slots)
            out = 0;
        if (++in == slots) {
            in = 0;
            if (++out == slots)
                out = 0;
            left--;
            shift = (size_t)(left * stride & (ring->windows - 1)) * LINE;
            if (ring->inputs.bytes > LONG_PASS)
                forget_stack();
        }
    }
    int64_t spent = now_ns() - started;
    answer(BATCH, ticket, (const int64_t[]){spent, fp_at_start, fp_environment(), misused}, 4, "");
    /* Behind the answer, so that no clock runs: the parent's next command waits for it. */
    forget_all();
}

static void load(int64_t ticket, int fd)
{
    char path[64], text[200] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (object && !give_heap(object))
        snprintf(text, sizeof text, "its memory functions cannot be replaced");
    else if (object)
        kernel = (kernel_fn)dlsym(object, ENTRY);
    if (!kernel && !*text) {
        const char *why = dlerror();
        snprintf(text, sizeof text, "%s", why ? why : "no entry");
    }
    close(fd);
    filtered = filtered && filter_calls(0);
    answer(LOAD, ticket, (const int64_t[]){kernel != NULL, filtered}, 2, text);
}

static void limit(int what, rlim_t most)
{
    struct rlimit bound = {most, most};
    setrlimit(what, &bound);
}

/* '' or what could not be set. */
static const char *prepare(int core, rlim_t memory_bytes)
{
    static char text[128];
    limit(RLIMIT_AS, memory_bytes);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NPROC, 0);
    limit(RLIMIT_NOFILE, 64);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    catch_faults();
    if (core < 0)
        return text;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0)
        snprintf(text, sizeof text, "cannot pin to core %d: %s", core, strerror(errno));
    return text;
}

int main(int count, char **values)
{
    int64_t words[MAX_WORDS];
    int fds[2];
    if (count != 4)
        return 2;
    link_fd = atoi(values[1]);
    page = (size_t)sysconf(_SC_PAGESIZE);
    const char *trouble = prepare(atoi(values[2]), (rlim_t)strtoull(values[3], NULL, 10));
    fp_at_start = fp_environment();
    answer(HELLO, 0, (const int64_t[]){*trouble != 0}, 1, trouble);
    if (*trouble)
        return 2;
    reserve_heap((size_t)strtoull(values[3], NULL, 10) / 4);
    filtered = filter_calls(1);
    while (receive(words, fds)) {
        int64_t ticket = words[1];
        struct ring *ring = &rings[words[0] == BATCH || words[0] == DETACH ? words[2] % MAX_HANDLES : 0];
        switch (words[0]) {
        case LOAD:
            load(ticket, fds[0]);
            continue;
        case ATTACH:
            attach(ticket, words + HEAD_WORDS, fds);
            break;
        case DETACH:
            drop_ring(ring);
            answer(DETACH, ticket, NULL, 0, "");
            break;
        case BATCH:
            batch(ticket, ring, words + 3);
            break;
        default:
            answer(PING, ticket, NULL, 0, "");
        }
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
    }
    return 0;
}
