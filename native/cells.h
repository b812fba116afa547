/* cells.h: the characters of a cell all at once, in vectors.
   Covers: which of 64 bytes end a cell; the digits of a short plain number, without a branch.
   Does not cover: longer numbers and exponents (decimal.h), lines (csv_rows.c, json_rows.c).

   Walking from digit to digit costs a branch that is guessed wrong in most cells, and no cell can be begun before the
   one before it has ended. So the ends are found first, 64 bytes at a time. Then the sixteen bytes before an end are
   loaded twice, the second time one byte earlier; the part behind the point is taken from the first and the part before
   it from the second, and the digits stand together. */
#ifndef PS_CELLS_H
#define PS_CELLS_H

#include "decimal.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    CELLS_STRIDE = 64, /* bytes that are searched for ends at a time */
    CELLS_WIDTH = 16,  /* bytes that are loaded before an end; a cell is shorter, so its digits are an exact double */
    CELLS_BEFORE = CELLS_WIDTH + 1 /* bytes before a cell's end that are loaded, whether they are the cell's or not */
};

/* Loaded from 16 - k on: the first k bytes are set. Loaded from k on, 16 further: the last k. */
static const uint8_t CELLS_MASKS[48] __attribute__((aligned(64))) = {
    255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0,   0,   0,   0,   0,   0,   0,   0,
    0,   0,   0,   0,   0,   0,   0,   0,   255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

enum { CELLS_NO_POINT = 15 }; /* places behind the point of a cell without one: no short cell has as many */

/* What the digits are divided by: by sign and places behind the point. */
static const double CELLS_SCALES[2][16] = {
    {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e0},
    {-1e0, -1e1, -1e2, -1e3, -1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e10, -1e11, -1e12, -1e13, -1e14, -1e0}};

/* Which of 64 bytes are `one`, `other` or `third`, a bit each. */
PS_INLINE uint64_t cells_find(const uint8_t *from, uint8_t one, uint8_t other, uint8_t third) {
    uint64_t found = 0;
#if defined(__AVX512BW__)
    __m512i some = _mm512_loadu_si512(from);
    found = _mm512_cmpeq_epi8_mask(some, _mm512_set1_epi8((char)one)) |
            _mm512_cmpeq_epi8_mask(some, _mm512_set1_epi8((char)other)) |
            _mm512_cmpeq_epi8_mask(some, _mm512_set1_epi8((char)third));
#elif defined(__AVX2__)
    __m256i a = _mm256_set1_epi8((char)one), b = _mm256_set1_epi8((char)other), c = _mm256_set1_epi8((char)third);
    for (int k = 0; k < 2; k++) {
        __m256i some = _mm256_loadu_si256((const __m256i *)(from + 32 * k));
        __m256i both = _mm256_or_si256(_mm256_cmpeq_epi8(some, a), _mm256_cmpeq_epi8(some, b));
        both = _mm256_or_si256(both, _mm256_cmpeq_epi8(some, c));
        found |= (uint64_t)(uint32_t)_mm256_movemask_epi8(both) << 32 * k;
    }
#elif defined(__SSE2__)
    __m128i a = _mm_set1_epi8((char)one), b = _mm_set1_epi8((char)other), c = _mm_set1_epi8((char)third);
    for (int k = 0; k < 4; k++) {
        __m128i some = _mm_loadu_si128((const __m128i *)(from + 16 * k));
        __m128i both = _mm_or_si128(_mm_cmpeq_epi8(some, a), _mm_cmpeq_epi8(some, b));
        both = _mm_or_si128(both, _mm_cmpeq_epi8(some, c));
        found |= (uint64_t)(uint32_t)_mm_movemask_epi8(both) << 16 * k;
    }
#else
    for (int k = 0; k < 8; k++) {
        uint64_t word = ps_word(from + 8 * k), marks = 0;
        const uint8_t bytes[3] = {one, other, third};
        for (int b = 0; b < 3; b++) { /* the high bit of each byte that is equal; exact, without borrows */
            uint64_t same = word ^ PS_ONES * bytes[b];
            marks |= ~(((same & 0x7F * PS_ONES) + 0x7F * PS_ONES) | same) & 0x80 * PS_ONES;
        }
        found |= ((marks >> 7) * 0x0102040810204080u >> 56) << 8 * k;
    }
#endif
    return found;
}

/* The number that sixteen digits, values 0 to 9, write: pairs, pairs of pairs and so on, the first counting most. */
#if defined(__SSE2__)
PS_INLINE uint64_t cells_joined(__m128i digits) {
#if defined(__SSSE3__)
    __m128i pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16(1 << 8 | 10));
#else
    __m128i pairs = _mm_srli_epi16(_mm_mullo_epi16(digits, _mm_set1_epi16(10 * 256 + 1)), 8);
#endif
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(1 << 16 | 100));
    __m128i eights = _mm_madd_epi16(_mm_packs_epi32(fours, fours), _mm_set1_epi32(1 << 16 | 10000));
    uint64_t both = (uint64_t)_mm_cvtsi128_si64(eights);
    return (both & 0xFFFFFFFFu) * 100000000u + (both >> 32);
}

/* Whether sixteen bytes before `end` hold a plain number of `digits` digits behind `point` places; its digits. */
PS_INLINE int cells_digits(const uint8_t *end, int64_t digits, int64_t early, uint64_t *value) {
    __m128i last = _mm_loadu_si128((const __m128i *)(end - CELLS_WIDTH));
    __m128i earlier = _mm_loadu_si128((const __m128i *)(end - CELLS_BEFORE));
    __m128i before = _mm_loadu_si128((const __m128i *)(CELLS_MASKS + CELLS_WIDTH - early));
    __m128i own = _mm_loadu_si128((const __m128i *)(CELLS_MASKS + CELLS_WIDTH + digits));
    __m128i together = _mm_or_si128(_mm_and_si128(earlier, before), _mm_andnot_si128(before, last));
    together = _mm_and_si128(_mm_xor_si128(together, _mm_set1_epi8('0')), own);
    *value = cells_joined(together);
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(together, _mm_set1_epi8(9)), _mm_set1_epi8(9))) == 0xFFFF;
}

/* Characters behind the last point of the sixteen before `end`, 15 if there is none. */
PS_INLINE int64_t cells_places(const uint8_t *end) {
    __m128i last = _mm_loadu_si128((const __m128i *)(end - CELLS_WIDTH));
    uint32_t points = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(last, _mm_set1_epi8('.')));
    return __builtin_clz(points << 16 | 1u << 16);
}
#else
PS_INLINE int64_t cells_places(const uint8_t *end) {
    int64_t places = 0;
    while (places < CELLS_WIDTH - 1 && end[-1 - places] != '.') places++;
    return places;
}

PS_INLINE int cells_digits(const uint8_t *end, int64_t digits, int64_t early, uint64_t *value) {
    uint8_t sixteen[CELLS_WIDTH], wrong = 0;
    for (int k = 0; k < CELLS_WIDTH; k++) {
        uint8_t byte = k < early ? end[k - CELLS_BEFORE] : end[k - CELLS_WIDTH];
        sixteen[k] = k >= CELLS_WIDTH - digits ? byte ^ '0' : 0;
        wrong |= sixteen[k] > 9;
    }
    uint64_t left, right;
    for (int k = 0; k < CELLS_WIDTH; k++) sixteen[k] += '0';
    ps_leading_digits(ps_word(sixteen), &left);
    ps_leading_digits(ps_word(sixteen + 8), &right);
    *value = left * 100000000u + right;
    return !wrong;
}
#endif

/* The digits of the cell from `start` to `end` of a text as a number, and what to divide it by, both exact; whether the
   cell is a plain number of 1 to 15 bytes. */
PS_INLINE int cells_plain(const uint8_t *text, int64_t start, int64_t end, double *digits, double *scale) {
    uint64_t length = (uint64_t)(end - start);
    if ((length - 1 >= CELLS_WIDTH - 1) | (end < CELLS_BEFORE)) return 0;
    int64_t minus = text[start] == '-', own = (int64_t)length - minus, places = cells_places(text + end);
    int64_t point = places < own, count = own - point;
    uint64_t value;
    int good = cells_digits(text + end, count, point ? CELLS_WIDTH - places : 0, &value) & (count > 0);
    *digits = (double)(int64_t)value;
    *scale = CELLS_SCALES[minus][point ? places : CELLS_NO_POINT];
    return good;
}

/* Whether a double that is the nearest to a short plain number can be rounded again, to float32: it is never beyond
   those, but it may lie between two of them and have been rounded to do so. */
PS_INLINE int cells_fits_float(double number) { return (ps_as_bits(number) & 0x1FFFFFFF) != 0x10000000; }

/* The number in the cell from `start` to `end` of a text, and whether it is final, which it is only for a plain one of 1
   to 15 bytes. `single` asks for one that can be rounded again. */
PS_INLINE int cells_short(const uint8_t *text, int64_t start, int64_t end, int single, double *number) {
    double digits, scale;
    if (!cells_plain(text, start, end, &digits, &scale)) return 0;
    *number = digits / scale; /* both exact: it rounds once (Clinger) */
    return !single || cells_fits_float(*number);
}

enum { CELLS_TOGETHER = 8 }; /* cells that are read and divided at once */

#if defined(__AVX2__)
#include "cells_eight.h"
#else
/* CELLS_TOGETHER cells as cells_plain gives them, each with a delimiter behind it, then divided: one division of a vector
   costs little more than one of a number. Whether all are final, and written to `out`. */
PS_INLINE int cells_eight(const uint8_t *text, int64_t start, const int64_t *ends, uint8_t delimiter, uint8_t *out,
                          int single) {
    double numbers[CELLS_TOGETHER], scales[CELLS_TOGETHER];
    int good = 1;
    for (int k = 0; k < CELLS_TOGETHER; start = ends[k++] + 1) {
        if (!cells_plain(text, start, ends[k], &numbers[k], &scales[k])) return 0;
        good &= text[ends[k]] == delimiter;
    }
    for (int k = 0; k < CELLS_TOGETHER; k++) numbers[k] /= scales[k];
    for (int k = 0; k < CELLS_TOGETHER && single; k++) good &= cells_fits_float(numbers[k]);
    if (!good) return 0;
    for (int k = 0; k < CELLS_TOGETHER; k++) {
        if (single) store_f32(out + 4 * k, (float)numbers[k]);
        else store_f64(out + 8 * k, numbers[k]);
    }
    return 1;
}
#endif

/* As cells_short for a number of any length or shape; `first` is where the text begins. */
static __attribute__((noinline)) int cells_any(const uint8_t *first, const uint8_t *start, const uint8_t *end,
                                               int single, double *number) {
    ps_text text = {first, start, end};
    uint64_t bits = ps_decimal(&text);
    *number = ps_as_double(bits);
    return text.at == end && bits != PS_OPEN && (!single || ps_fits_float(bits));
}

#endif
