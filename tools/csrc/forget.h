/* What a kernel could leave for its next call, and how it is taken away: memory of malloc, the stack below the call, and
 * registers. A kernel that remembers answers would otherwise be timed while it copies them.
 *
 * The object's own references to the memory functions are pointed at a heap of the worker's. It starts empty and filled
 * with 0xFF at every call, gives the same addresses to the same requests, and tells what was not freed. */
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER = 48, UNIT = 64, MARK = 0x6b65726e, NEAR_STACK = 16 << 10, DEEP_STACK = 8 << 20, LONG_PASS = 512 << 10 };

struct block {
    size_t begin, end; /* places in the heap */
    uint64_t mark;
};

static struct {
    unsigned char *base;
    size_t room, at, high, ever, live;
    int strange; /* a pointer was freed that is none of its */
} heap;

static void reserve_heap(size_t room)
{
    void *at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return;
    heap.base = at;
    heap.room = room;
}

/* Addresses lie 16 bytes behind a line, as glibc's do: nothing beyond the alignment asked for is given. */
static void *heap_take(size_t bytes, size_t align)
{
    size_t unit = align > UNIT ? align : UNIT;
    size_t user = (heap.at + HEADER + unit - 1) / unit * unit + (align <= 16 ? 16 : 0);
    if (!heap.base || bytes > heap.room || user > heap.room - bytes)
        return NULL;
    size_t end = user + bytes;
    if (end > heap.ever) {
        memset(heap.base + heap.ever, 0xFF, end - heap.ever);
        heap.ever = end;
    }
    struct block block = {heap.at, end, MARK};
    memcpy(heap.base + user - HEADER, &block, sizeof block);
    heap.at = end;
    heap.high = end > heap.high ? end : heap.high;
    heap.live++;
    return heap.base + user;
}

static void *own_malloc(size_t bytes)
{
    return heap_take(bytes, 16);
}

static void *own_calloc(size_t count, size_t bytes)
{
    size_t whole;
    void *found = __builtin_mul_overflow(count, bytes, &whole) ? NULL : heap_take(whole, 16);
    return found ? memset(found, 0, whole) : NULL;
}

static void *own_aligned_alloc(size_t align, size_t bytes)
{
    return align && !(align & (align - 1)) ? heap_take(bytes, align) : NULL;
}

static int own_posix_memalign(void **found, size_t align, size_t bytes)
{
    if (align < sizeof(void *) || align & (align - 1))
        return EINVAL;
    void *at = heap_take(bytes, align);
    if (!at)
        return ENOMEM;
    *found = at;
    return 0;
}

static void own_free(void *pointer)
{
    if (!pointer)
        return;
    size_t user = (size_t)((unsigned char *)pointer - heap.base);
    struct block block;
    memset(&block, 0, sizeof block);
    if (user >= HEADER && user < heap.room)
        memcpy(&block, heap.base + user - HEADER, sizeof block);
    if (block.mark != MARK || block.end < user || block.end > heap.high) {
        heap.strange = 1;
        return;
    }
    memset(heap.base + user - HEADER, 0xFF, sizeof block);
    if (block.end == heap.at)
        heap.at = block.begin;
    if (!--heap.live)
        heap.at = 0;
}

static const struct {
    const char *name;
    void *ours;
} REPLACED[] = {
    {"malloc", own_malloc}, {"calloc", own_calloc}, {"free", own_free}, {"aligned_alloc", own_aligned_alloc},
    {"posix_memalign", own_posix_memalign},
};

/* The reference at `slot` to the function `name`, which the loader has filled and made read-only, to ours. */
static int replace(const char *name, void **slot)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *from = (void *)((uintptr_t)slot / page_bytes * page_bytes);
    for (size_t i = 0; i < sizeof REPLACED / sizeof *REPLACED; i++) {
        if (strcmp(name, REPLACED[i].name) != 0)
            continue;
        if (mprotect(from, page_bytes, PROT_READ | PROT_WRITE) != 0)
            return 0;
        *slot = REPLACED[i].ours;
        return mprotect(from, page_bytes, PROT_READ) == 0;
    }
    return 1;
}

/* Point the object's memory functions at the heap; 0 when its tables cannot be read or changed. */
static int give_heap(void *object)
{
    struct link_map *map;
    if (dlinfo(object, RTLD_DI_LINKMAP, &map) != 0)
        return 0;
    const ElfW(Sym) *symbols = NULL;
    const char *text = NULL;
    uintptr_t table[2] = {0, 0}, bytes[2] = {0, 0};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols = (const void *)entry->d_un.d_ptr; break;
        case DT_STRTAB: text = (const void *)entry->d_un.d_ptr; break;
        case DT_RELA: table[0] = entry->d_un.d_ptr; break;
        case DT_RELASZ: bytes[0] = entry->d_un.d_val; break;
        case DT_JMPREL: table[1] = entry->d_un.d_ptr; break;
        case DT_PLTRELSZ: bytes[1] = entry->d_un.d_val; break;
        }
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; table[t] && i < bytes[t] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *one = (const ElfW(Rela) *)table[t] + i;
            const ElfW(Sym) *symbol = symbols + ELF64_R_SYM(one->r_info);
            if (ELF64_R_SYM(one->r_info) && !replace(text + symbol->st_name, (void **)(map->l_addr + one->r_offset)))
                return 0;
        }
    return 1;
}

/* Every vector and mask register; those that a function must leave as they are hold nothing of the kernel's. */
static inline void forget_registers(void)
{
#if defined __x86_64__
    __asm__ volatile("pxor %%mm0, %%mm0; pxor %%mm1, %%mm1; pxor %%mm2, %%mm2; pxor %%mm3, %%mm3;"
                     "pxor %%mm4, %%mm4; pxor %%mm5, %%mm5; pxor %%mm6, %%mm6; pxor %%mm7, %%mm7; emms"
                     ::: "mm0", "mm1", "mm2", "mm3", "mm4", "mm5", "mm6", "mm7");
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroall" ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    /* The compiler of this file does not use the upper sixteen nor the masks: no clobbers. */
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        __asm__ volatile(".irp r, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
                         "vpxord %%xmm\\r, %%xmm\\r, %%xmm\\r\n.endr\n"
                         ".irp r, 0,1,2,3,4,5,6,7\nkxorq %%k\\r, %%k\\r, %%k\\r\n.endr\n" :::);
#elif defined __aarch64__
    __asm__ volatile(".irp r, 0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
                     "movi v\\r\\().2d, #0\n.endr\n"
                     ::: "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",
                         "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#endif
}

/* An empty heap for the next call; 1 when the last one did not free all, 2 when it freed what it did not have. */
static inline int forget_heap(void)
{
    int found = (heap.live != 0) | heap.strange << 1;
    heap.strange = 0;
    if (heap.high) {
        memset(heap.base, 0xFF, heap.high);
        heap.at = heap.high = heap.live = 0;
    }
    return found;
}

/* The stack near the call, where a kernel's locals lie. */
static __attribute__((noinline)) void forget_stack(void)
{
    volatile unsigned char area[NEAR_STACK];
    memset((void *)area, 0, sizeof area);
    __asm__ volatile("" ::"r"(area) : "memory");
}

/* After a batch, all of the stack below and of the heap beyond what was asked for, where a pointer may have strayed. */
static __attribute__((noinline)) void forget_all(void)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    forget_stack();
    uintptr_t here = (uintptr_t)__builtin_frame_address(0) / page_bytes * page_bytes - NEAR_STACK / 2;
    madvise((void *)(here - DEEP_STACK), DEEP_STACK, MADV_DONTNEED);
    size_t used = (heap.ever + page_bytes - 1) / page_bytes * page_bytes;
    if (!heap.base || used >= heap.room)
        return;
    memset(heap.base + heap.ever, 0xFF, used - heap.ever);
    madvise(heap.base + used, heap.room - used, MADV_DONTNEED);
}
