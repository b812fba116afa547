/* mapped.c: rows of a mapped file, copied so that a file which is cut short meanwhile is an error and no signal.
   Covers: the copy, and SIGBUS of the thread that makes it.
   Does not cover: mapping files, which rows are wanted.

   A page behind the end of a file cannot be read: the kernel sends SIGBUS, which ends the process unless somebody
   expects it. pread would return less instead, but costs a call for each row (100 times as long for rows of 4 bytes).
   The handler is put in place when it is not, and passes on every signal that is not about the rows being copied. */
#define _XOPEN_SOURCE 700
#include "kernels.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

/* The copy that this thread is making: the pages it reads, and where it goes on when one is gone. */
typedef struct {
    const uint8_t *low, *high;
    sigjmp_buf back;
} Copy;

static _Thread_local Copy *volatile current;
static struct sigaction before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void on_bus(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    Copy *mine = current;
    const uint8_t *at = info->si_addr;
    if (mine && at >= mine->low && at < mine->high) siglongjmp(mine->back, 1);
    sigaction(SIGBUS, &before, NULL); /* not ours: the access is repeated, and meets whoever was there before */
}

static void expect_bus(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus)) return;
    pthread_mutex_lock(&lock);
    if (!sigaction(SIGBUS, NULL, &now) && !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus)) {
        struct sigaction mine = {0};
        mine.sa_sigaction = on_bus;
        /* NODEFER: the handler is left by a jump, which must not leave the signal blocked. */
        mine.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        sigemptyset(&mine.sa_mask);
        before = now;
        sigaction(SIGBUS, &mine, NULL);
    }
    pthread_mutex_unlock(&lock);
}

/* Rows `rows[0..count)` of `nbytes` each, out of `all` rows mapped at `base`, one after the other to `target`. Returns
   1, or 0 when a page of them is no longer in the file. Rows outside of `all` are the caller's mistake: -1. */
PS_KERNEL(int64_t, mapped_take)(const uint8_t *base, int64_t all, const int64_t *rows, int64_t count, int64_t nbytes,
                                uint8_t *target) {
    for (int64_t at = 0; at < count; at++)
        if (rows[at] < 0 || rows[at] >= all) return -1;
    Copy copy;
    copy.low = base - 4096; /* the address told may be that of the page */
    copy.high = base + all * nbytes;
    expect_bus();
    if (sigsetjmp(copy.back, 0)) {
        current = NULL;
        return 0;
    }
    current = &copy;
    switch (nbytes) { /* small rows are single loads and stores when their size is known here */
        case 4: for (int64_t at = 0; at < count; at++) memcpy(target + 4 * at, base + 4 * rows[at], 4); break;
        case 8: for (int64_t at = 0; at < count; at++) memcpy(target + 8 * at, base + 8 * rows[at], 8); break;
        default:
            for (int64_t at = 0; at < count; at++)
                memcpy(target + nbytes * at, base + nbytes * rows[at], (size_t)nbytes);
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the compiler may not move a copy behind this */
    current = NULL;
    return 1;
}
