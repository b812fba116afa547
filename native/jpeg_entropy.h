/* jpeg_entropy.h: bits to samples: the Huffman codes of a baseline scan, dequantised and transformed block by block.
   Covers: stuffed bytes taken out, runs of MCUs between restarts, planes of samples.
   Does not cover: look-up tables (jpeg_tables.h), what stands before the bits (jpeg_frame.h), the transform
   (jpeg_transform.h), colours (jpeg_colour.h).

   Most of a JPEG's time goes here, and most of that into a chain in which each code must be known before the next can
   be looked at. So a look at 11 bits yields run, value and length at once wherever code and value fit into them
   (nineteen of twenty times); bits are refilled eight bytes at a time without a branch; stuffed bytes are taken out
   beforehand. Any irregularity ends the attempt: the library then decodes the file, warns or refuses. */
#ifndef PS_JPEG_ENTROPY_H
#define PS_JPEG_ENTROPY_H

#include "jpeg_frame.h"
#include "jpeg_tables.h"
#include "jpeg_transform.h"

enum {
    JPEG_SLACK = 4096,  /* bytes behind the unstuffed bits that may be looked at: more than an MCU of the longest codes */
    JPEG_FACTORS = 160, /* entries of a table of factors: more than a damaged block can step to */
    JPEG_NOWHERE = 2 * 64,
    JPEG_BLOCK = 72 /* numbers of a block, with the place at JPEG_NOWHERE bytes that nobody reads */
};

/* A factor is a place in the block (its bytes from the start, low 8 bits) and what a coefficient there is multiplied
   with (the 16 bits on top), in the order of the file. Those behind 63 lead to JPEG_NOWHERE: what a damaged file steps
   to is not looked at before it is stored. */
typedef struct { int32_t at[JPEG_FACTORS]; } jpeg_factors;

/* What is known of each block of an MCU: tables, plane, and steps from one MCU to the next. */
typedef struct {
    const jpeg_table *dc, *ac;
    const jpeg_factors *factors;
    int32_t *prediction;
    uint8_t *plane;
    int64_t stride, right, down;
} jpeg_block;

/* A block between its bits and its samples: coefficients, and where the samples go. */
typedef struct { _Alignas(64) int16_t at[JPEG_BLOCK]; uint8_t *target; int64_t stride; } jpeg_coefficients;

/* Bits on top of the buffer, how many, and where the next ones are. */
typedef struct { uint64_t buffer, have; const uint8_t *at; } jpeg_bits;

/* Where a scan is: the bits, and the MCU that is next. */
typedef struct { const uint8_t *bits, *end; int64_t column, row, wide, blocks; } jpeg_state;

/* Copy bits up to the next marker without stuffed zeros. Returns the end of the copy; `*from` becomes the marker's
   place, or `end`. Writes up to eight bytes more than it copies. */
static uint8_t *jpeg_unstuff(const uint8_t **from, const uint8_t *end, uint8_t *target) {
    const uint8_t *source = *from;
    while (end - source >= 9) {
        uint64_t word = load_u64(source);
        store_u64(target, word);
        uint64_t marks = (~word - 0x0101010101010101u) & word & 0x8080808080808080u;
        if (!marks) {
            source += 8;
            target += 8;
            continue;
        }
        /* Only the lowest mark is certain: a borrow may set those above it. */
        int64_t here = (__builtin_ctzll(marks) >> 3) + 1;
        source += here;
        target += here;
        if (*source != 0) {
            *from = source - 1;
            return target - 1;
        }
        source++;
    }
    while (source < end) {
        if (*source == 0xFF) {
            if (source + 1 == end || source[1] != 0) break;
            *target++ = *source;
            source += 2;
        } else {
            *target++ = *source++;
        }
    }
    *from = source;
    return target;
}

/* At least 56 bits. There is no branch that could be missed. */
PS_INLINE void jpeg_refill(jpeg_bits *bits) {
    bits->buffer |= __builtin_bswap64(load_u64(bits->at)) >> bits->have;
    bits->at += (63 - bits->have) >> 3;
    bits->have |= 56;
}

PS_INLINE void jpeg_drop(jpeg_bits *bits, uint64_t count) {
    bits->buffer <<= count;
    bits->have -= count;
}

PS_INLINE int32_t jpeg_look(const jpeg_table *table, uint64_t buffer) {
    return table->looks[buffer >> (64 - JPEG_LOOK)];
}

/* Store the coefficient of place `k`, dequantised. */
PS_INLINE void jpeg_put(int16_t *block, const jpeg_factors *factors, int64_t k, int32_t value) {
    int32_t factor = factors->at[k];
    *(int16_t *)((char *)block + (factor & 255)) = (int16_t)(value * (factor >> 16));
}

/* The value whose `size` bits stand on top. Its sign is as good as random, so that there is no branch on it. */
PS_INLINE int32_t jpeg_signed(uint64_t buffer, int32_t size) {
    int32_t extra = (int32_t)(buffer >> 1 >> (63 - size)), if_negative = (int32_t)(buffer >> 63) - 1;
    return extra + (if_negative & (1 - (1 << size)));
}

/* The difference of a DC coefficient to the one before; returns the bits it takes, 0 where it is damaged. */
PS_INLINE uint64_t jpeg_first(const jpeg_table *table, uint64_t buffer, int32_t *value) {
    int32_t entry = jpeg_look(table, buffer);
    if (PS_LIKELY(entry & 15)) {
        *value = entry >> 16;
        return (uint64_t)(entry & 15);
    }
    if (!entry) entry = jpeg_code(table, buffer);
    int32_t size = entry >> 8 & 255, length = entry >> 16;
    *value = jpeg_signed(buffer << length, size);
    return length ? (uint64_t)(length + size) : 0;
}

/* The AC coefficients of a block into their places; returns whether the block was sound. */
PS_INLINE int jpeg_others(const jpeg_table *table, const jpeg_factors *factors, int16_t *block, jpeg_bits *from) {
    jpeg_bits bits = *from;
    int64_t k = 0, first = 0, step = 0;
    int32_t entry = 0;
    uint64_t taken = 0, before = 0;
    while (k < 63) {
        jpeg_refill(&bits);
        for (int look = 0; look < JPEG_LOOKS_A_REFILL; look++) {
            entry = jpeg_look(table, bits.buffer);
            taken = (uint64_t)(entry & 15);
            if (PS_UNLIKELY(!taken)) break;
            before = bits.buffer;
            jpeg_drop(&bits, taken);
            step = entry >> 10 & 63;
            first = k + (entry >> 4 & 63);
            k = first + step;
            jpeg_put(block, factors, first, (int8_t)(entry >> 16));
            jpeg_put(block, factors, k, entry >> 24);
            if (k > 62) break;
        }
        if (PS_UNLIKELY(!taken)) { /* longer than a look */
            jpeg_refill(&bits);
            if (!entry) entry = jpeg_code(table, bits.buffer);
            int32_t symbol = entry >> 8 & 255, length = entry >> 16, size = symbol & 15;
            if (!length) return 0;
            step = size || symbol == JPEG_ZEROS ? (symbol >> 4) + 1 : JPEG_END;
            k += step;
            jpeg_put(block, factors, k, jpeg_signed(bits.buffer << length, size));
            jpeg_drop(&bits, (uint64_t)(length + size));
        }
    }
    if (taken && step == 0) {
        step = entry >> 4 & 63;
    } else if (taken && first >= 63) { /* full with the first coefficient: the second is the next block's */
        entry = jpeg_code(table, before);
        uint64_t used = (uint64_t)((entry >> 16) + (entry >> 8 & 15));
        bits.buffer = before << used;
        bits.have += taken - used;
        k = first;
        step = 0;
    }
    *from = bits;
    return k == 63 || step == JPEG_END;
}

/* Zeros into a block. GCC makes a string instruction of a memset of this size, which takes a seventh of all. */
PS_INLINE void jpeg_clear(int16_t *block) {
    const i16x8 zeros = {0};
    for (int i = 0; i < 8; i++) memcpy(block + 8 * i, &zeros, sizeof zeros);
}

/* A block's coefficients become samples; returns whether they are those of eight-bit pixels. */
PS_INLINE int jpeg_finish(const jpeg_coefficients *block, int quick) {
    if (any_beyond(load_i16x8(block->at), JPEG_MOST)) return 0;
    if (quick) jpeg_fast(block->at, block->target, block->stride);
    else jpeg_accurate(block->at, block->target, block->stride);
    return 1;
}

/* Decode MCUs one after the other, from the first bit of a run. A block is transformed when the next one's bits have been
   read: vectors cannot be loaded from what was just stored two bytes at a time before all of that has left the
   processor, and meanwhile it would have nothing to do. */
PS_INLINE int jpeg_read_run(jpeg_state *state, const jpeg_block *blocks, int64_t mcus, int quick) {
    jpeg_coefficients two[2], *block = two, *before = NULL;
    jpeg_bits bits = {0, 0, state->bits};
    for (int64_t mcu = 0; mcu < mcus; mcu++) {
        for (int64_t b = 0; b < state->blocks; b++) {
            const jpeg_block *info = &blocks[b];
            int32_t value;
            jpeg_clear(block->at);
            jpeg_refill(&bits);
            uint64_t taken = jpeg_first(info->dc, bits.buffer, &value);
            if (!taken) return JPEG_DAMAGED;
            jpeg_drop(&bits, taken);
            *info->prediction += value;
            jpeg_put(block->at, info->factors, 0, *info->prediction);
            if (!jpeg_others(info->ac, info->factors, block->at, &bits)) return JPEG_DAMAGED;
            if (before && !jpeg_finish(before, quick)) return JPEG_DAMAGED;
            block->target = info->plane + state->column * info->right + state->row * info->down;
            block->stride = info->stride;
            before = block;
            block = block == two ? two + 1 : two;
        }
        if (++state->column == state->wide) {
            state->column = 0;
            state->row++;
        }
        if (bits.at > state->end + 8) return JPEG_DAMAGED;
    }
    if (before && !jpeg_finish(before, quick)) return JPEG_DAMAGED;
    int64_t left = 8 * (state->end - bits.at) + (int64_t)bits.have;
    return left >= 0 && left < 8 ? JPEG_OK : JPEG_DAMAGED;
}

#endif
