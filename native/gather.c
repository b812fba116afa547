/* gather.c: rows of several blocks, in any order, copied one after the other.
   Covers: which block a row of a window lies in, and the copy of one column's rows.
   Does not cover: which rows are wanted, columns that are not plain bytes. */
#include "kernels.h"

/* Rows asked for ahead of the copy, and bytes of each: a row lies anywhere in the window, so it is not cached. */
enum { AHEAD = 8, AHEAD_BYTES = 8 * 64 };

/* Bytes that are copied at once. */
enum { PART = 32 };

/* The block of each row of the window, and its row there. `ends` are the blocks' ends, rising. Returns how many rows
   were found: fewer than `count` when one lies before the first block or behind the last. */
PS_KERNEL(int64_t, gather_locate)(const int64_t *order, int64_t count, const int64_t *ends, int64_t blocks,
                                  int64_t *which, int64_t *rows) {
    if (blocks < 1) return 0;
    for (int64_t at = 0; at < count; at++) {
        int64_t row = order[at], low = 0;
        if (row < 0 || row >= ends[blocks - 1]) return at;
        for (int64_t left = blocks, half; left > 1; left -= half) { /* without a branch: each would be a coin's toss */
            half = left >> 1;
            low += half & -(int64_t)(row >= ends[low + half - 1]);
        }
        which[at] = low;
        rows[at] = row - (low ? ends[low - 1] : 0);
    }
    return count;
}

/* One row. Rows of some cache lines are copied here, the last part of them over the one before it: as many steps for
   each row, and no call. */
PS_INLINE void copy_row(uint8_t *target, const uint8_t *from, int64_t nbytes, int medium) {
    if (!medium) {
        memcpy(target, from, (size_t)nbytes);
        return;
    }
    for (int64_t at = 0; at < nbytes - PART; at += PART) memcpy(target + at, from + at, PART);
    memcpy(target + nbytes - PART, from + nbytes - PART, PART);
}

PS_INLINE void copy_rows(const uint8_t *const *bases, const int64_t *which, const int64_t *rows, int64_t count,
                         int64_t nbytes, int medium, uint8_t *target) {
    int64_t soon = count - AHEAD, lines = ps_least(nbytes, AHEAD_BYTES);
    for (int64_t at = 0; at < count; at++) {
        if (at < soon) {
            const uint8_t *next = bases[which[at + AHEAD]] + nbytes * rows[at + AHEAD];
            for (int64_t line = 0; line < lines; line += 64) __builtin_prefetch(next + line);
        }
        copy_row(target + nbytes * at, bases[which[at]] + nbytes * rows[at], nbytes, medium);
    }
}

/* Rows of `nbytes` bytes from the blocks, whose first rows lie at `bases`, one after the other to `target`.
   `which` and `rows` are gather_locate's. */
PS_KERNEL(void, gather_copy)(const uint8_t *const *bases, const int64_t *which, const int64_t *rows, int64_t count,
                             int64_t nbytes, uint8_t *target) {
    switch (nbytes) { /* small rows are single loads and stores when their size is known here */
        case 4: copy_rows(bases, which, rows, count, 4, 0, target); return;
        case 8: copy_rows(bases, which, rows, count, 8, 0, target); return;
        case 16: copy_rows(bases, which, rows, count, 16, 0, target); return;
    }
    if (nbytes >= PART && nbytes <= AHEAD_BYTES) copy_rows(bases, which, rows, count, nbytes, 1, target);
    else copy_rows(bases, which, rows, count, nbytes, 0, target);
}
