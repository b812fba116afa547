/* gather.c: rows of several blocks, in any order, copied one after the other.
   Covers: which block a row of a window lies in, and the copy of one column's rows.
   Does not cover: which rows are wanted, columns that are not plain bytes. */
#include "vectors.h"

/* Rows asked for ahead of the copy, and bytes of each: a row lies anywhere in the window, so it is not cached. */
enum { AHEAD = 8, AHEAD_BYTES = 8 * 64 };

/* Bytes that are copied at once. */
enum { PART = 32 };

/* Rows that are located together, and the most blocks for which comparing with all is quicker than a search: none
   where vectors of 64 bits cannot be compared (SSE2). */
#if defined(__AVX2__) || defined(__aarch64__)
enum { LANES = 8, FEW = 16 };
#else
enum { LANES = 8, FEW = 0 };
#endif

/* The block of one row and its row there, by a search without a branch: each would be a coin's toss. */
PS_INLINE void locate_row(int64_t row, const int64_t *ends, int64_t blocks, int64_t *which, int64_t *place) {
    int64_t low = 0;
    for (int64_t left = blocks, half; left > 1; left -= half) {
        half = left >> 1;
        low += half & -(int64_t)(row >= ends[low + half - 1]);
    }
    *which = low;
    *place = row - (low ? ends[low - 1] : 0);
}

/* The same of LANES rows by comparing them with every end. Returns 0, and writes nothing, when a row is outside. */
PS_INLINE int locate_lanes(const int64_t *order, const int64_t *ends, int64_t blocks, int64_t *which, int64_t *rows) {
    i64x4 row[LANES / 4], low[LANES / 4] = {0}, start[LANES / 4] = {0}, outside = {0};
    memcpy(row, order, sizeof row);
    for (int k = 0; k < LANES / 4; k++) outside |= (row[k] < 0) | (row[k] >= ends[blocks - 1]);
    if (outside[0] | outside[1] | outside[2] | outside[3]) return 0;
    for (int64_t block = 0; block < blocks - 1; block++) {
        i64x4 end = (i64x4){0} + ends[block];
        for (int k = 0; k < LANES / 4; k++) {
            i64x4 behind = row[k] >= end; /* -1 or 0 */
            low[k] -= behind;
            start[k] = PS_SELECT(behind, end, start[k]);
        }
    }
    for (int k = 0; k < LANES / 4; k++) row[k] -= start[k];
    memcpy(which, low, sizeof low);
    memcpy(rows, row, sizeof row);
    return 1;
}

/* The block of each row of the window, and its row there. `ends` are the blocks' ends, rising. Returns how many rows
   were found: fewer than `count` when one lies before the first block or behind the last. */
PS_KERNEL(int64_t, gather_locate)(const int64_t *order, int64_t count, const int64_t *ends, int64_t blocks,
                                  int64_t *which, int64_t *rows) {
    int64_t at = 0;
    if (blocks < 1) return 0;
    if (blocks <= FEW)
        while (at + LANES <= count && locate_lanes(order + at, ends, blocks, which + at, rows + at)) at += LANES;
    for (; at < count; at++) {
        if (order[at] < 0 || order[at] >= ends[blocks - 1]) return at;
        locate_row(order[at], ends, blocks, which + at, rows + at);
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
