/* array_memory.c: memory for the arrays that users' functions make, used again and again.
   Covers: what NumPy asks of an allocator (NEP 49), large blocks kept for the next array, how many bytes are kept.
   Does not cover: who pays for them and when it is used (penstock/engine/buffers/array_memory.py).

   A fresh page costs more than the number that is written to it. Every block begins at 64 bytes, where JAX and TensorFlow
   take it without a copy. Compiled once, not once for each level. */
#define _GNU_SOURCE
#include "kernels.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sys/mman.h>
#define PS_MAPPED 1
#endif

enum { ALIGN = 64, PAGE = 4096, LARGE = 256000, MOST = 64, LARGER = 8, HUGE_FROM = 4 << 20 };

/* In front of the bytes of every block; ALIGN bytes are left for it. */
typedef struct { size_t room, mapped; } head;

static head *idle[MOST]; /* large blocks, the one that has waited longest first */
static int idle_count;
static int64_t idle_bytes, most_bytes;
static atomic_flag taken = ATOMIC_FLAG_INIT;

static void lock(void) { while (atomic_flag_test_and_set_explicit(&taken, memory_order_acquire)) { } }
static void unlock(void) { atomic_flag_clear_explicit(&taken, memory_order_release); }

static head *head_of(void *bytes) { return (head *)((char *)bytes - ALIGN); }
static void *bytes_of(head *block) { return (char *)block + ALIGN; }

static void give_up(head *block) {
#ifdef PS_MAPPED
    if (block->mapped) { munmap(block, block->mapped); return; }
#endif
    free(block);
}

static void remove_idle(int at) {
    idle_bytes -= (int64_t)idle[at]->room;
    memmove(idle + at, idle + at + 1, (size_t)(--idle_count - at) * sizeof *idle);
}

static head *idle_block(size_t nbytes) {
    head *found = NULL;
    lock();
    for (int at = idle_count - 1; at >= 0; at--)
        if (idle[at]->room >= nbytes && idle[at]->room <= nbytes + nbytes / LARGER) {
            found = idle[at];
            remove_idle(at);
            break;
        }
    unlock();
    return found;
}

static head *fresh_block(size_t nbytes) {
    head *block = NULL;
    size_t mapped = 0;
    if (nbytes > SIZE_MAX - 2 * PAGE) return NULL;
#ifdef PS_MAPPED
    if (nbytes >= LARGE) {
        mapped = (nbytes + ALIGN + PAGE - 1) / PAGE * PAGE;
        void *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        block = map == MAP_FAILED ? NULL : map;
#ifdef MADV_HUGEPAGE
        if (block && mapped >= HUGE_FROM) madvise(block, mapped, MADV_HUGEPAGE); /* fewer faults the first time too */
#endif
    }
#endif
    if (!mapped) block = aligned_alloc(ALIGN, (nbytes + 2 * ALIGN - 1) / ALIGN * ALIGN);
    if (block) *block = (head){mapped ? mapped - ALIGN : nbytes, mapped};
    return block;
}

static void *take(void *unused, size_t nbytes) {
    (void)unused;
    head *block = nbytes >= LARGE ? idle_block(nbytes) : NULL;
    if (!block) block = fresh_block(nbytes);
    return block ? bytes_of(block) : NULL;
}

static void *take_zeros(void *unused, size_t count, size_t each) {
    (void)unused;
    if (each && count > SIZE_MAX / each) return NULL;
    head *block = fresh_block(count * each); /* a new map is zero already, page by page as it is touched */
    if (!block) return NULL;
    return block->mapped ? bytes_of(block) : memset(bytes_of(block), 0, count * each);
}

static void put_back(void *unused, void *bytes, size_t nbytes) {
    (void)unused, (void)nbytes;
    if (!bytes) return;
    head *block = head_of(bytes), *surplus[MOST];
    int count = 0;
    if (!block->mapped) { give_up(block); return; }
    lock();
    if ((int64_t)block->room > most_bytes) {
        surplus[count++] = block;
    } else {
        while (idle_count && (idle_count == MOST || idle_bytes + (int64_t)block->room > most_bytes)) {
            surplus[count++] = idle[0];
            remove_idle(0);
        }
        idle[idle_count++] = block;
        idle_bytes += (int64_t)block->room;
    }
    unlock();
    while (count) give_up(surplus[--count]);
}

static void *take_more(void *unused, void *bytes, size_t nbytes) {
    if (!bytes) return take(unused, nbytes);
    size_t room = head_of(bytes)->room;
    if (room >= nbytes && room / 2 <= nbytes) return bytes;
    void *more = take(unused, nbytes);
    if (!more) return NULL;
    memcpy(more, bytes, room < nbytes ? room : nbytes);
    put_back(unused, bytes, room);
    return more;
}

/* As numpy/ndarraytypes.h declares them. */
typedef struct {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
} numpy_allocator;
static struct { char name[127]; uint8_t version; numpy_allocator allocator; } handler = {
    "penstock", 1, {NULL, take, take_zeros, take_more, put_back}
};

/* The handler for PyDataMem_SetHandler, the same at every call. */
PS_EXPORT void *ps_array_handler(void);
PS_EXPORT void *ps_array_handler(void) {
#ifdef PS_MAPPED
    static atomic_flag asked = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&asked)) pthread_atfork(lock, unlock, unlock); /* no child begins with the lock held */
#endif
    return &handler;
}

/* Keep at most so many bytes that nobody uses; returns how many are kept now. */
PS_EXPORT int64_t ps_array_keep(int64_t nbytes);
PS_EXPORT int64_t ps_array_keep(int64_t nbytes) {
    head *surplus[MOST];
    int count = 0;
    lock();
    most_bytes = nbytes;
    while (idle_count && idle_bytes > most_bytes) {
        surplus[count++] = idle[0];
        remove_idle(0);
    }
    int64_t kept = idle_bytes;
    unlock();
    while (count) give_up(surplus[--count]);
    return kept;
}
