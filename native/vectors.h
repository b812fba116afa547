/* vectors.h: many numbers at a time, in the compiler's own words, and the few operations for which those are too slow.
   Covers: 8 and 16 numbers of 16 bits, 8 of 32 bits, 4 of 64 bits; products, saturation, turning squares, three channels by turns.
   Does not cover: what is computed (jpeg_transform.h, jpeg_colour.h).

   What stands outside of `#if defined(__AVX2__)` is right on every processor, and is what ARM and the baseline use. */
#ifndef PS_VECTORS_H
#define PS_VECTORS_H

#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

typedef int8_t i8x8 __attribute__((vector_size(8)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef int64_t i64x4 __attribute__((vector_size(32)));

/* Eight 16-bit numbers in 32 bits. GCC 12 converts vectors in halves. */
PS_INLINE i32x8 widened_8(i16x8 a) {
#if defined(__AVX2__)
    return (i32x8)_mm256_cvtepi16_epi32((__m128i)a);
#else
    return __builtin_convertvector(a, i32x8);
#endif
}

/* What is beyond the bounds becomes the nearest. */
#define PS_SELECT(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#define PS_WITHIN(type, a, low, high) \
    PS_SELECT((type)((a) > (high)), (type){} + (high), PS_SELECT((type)((a) < (low)), (type){} + (low), a))

PS_INLINE i16x8 load_i16x8(const int16_t *from) { i16x8 it; memcpy(&it, from, sizeof it); return it; }

/* Sixteen bytes as 16-bit numbers. */
PS_INLINE i16x16 load_samples(const uint8_t *from) {
    u8x16 it;
    memcpy(&it, from, sizeof it);
#if defined(__AVX2__)
    return (i16x16)_mm256_cvtepu8_epi16((__m128i)it);
#else
    return __builtin_convertvector(it, i16x16);
#endif
}

/* a * p + b * q, in 32 bits. */
PS_INLINE i32x8 rotated(i16x8 a, i16x8 b, int16_t p, int16_t q) {
#if defined(__AVX2__)
    __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi16((__m128i)a, (__m128i)b), _mm_unpacklo_epi16((__m128i)a, (__m128i)b));
    uint32_t factors = (uint32_t)(uint16_t)p | (uint32_t)(uint16_t)q << 16;
    return (i32x8)_mm256_madd_epi16(pairs, _mm256_set1_epi32((int32_t)factors));
#else
    return widened_8(a) * p + widened_8(b) * q;
#endif
}

/* 16-bit numbers times a fraction of 2^16, rounded down. */
PS_INLINE i16x8 times_8(i16x8 a, int16_t factor) {
#if defined(__AVX2__)
    return (i16x8)_mm_mulhi_epi16((__m128i)a, _mm_set1_epi16(factor));
#else
    return __builtin_convertvector((widened_8(a) * factor) >> 16, i16x8);
#endif
}

PS_INLINE i16x16 times_16(i16x16 a, int16_t factor) {
#if defined(__AVX2__)
    return (i16x16)_mm256_mulhi_epi16((__m256i)a, _mm256_set1_epi16(factor));
#else
    return __builtin_convertvector((__builtin_convertvector(a, i32x16) * factor) >> 16, i16x16);
#endif
}

/* (a * p + b * q + 2^15) >> 16. */
PS_INLINE i16x16 rotated_16(i16x16 a, i16x16 b, int16_t p, int16_t q) {
#if defined(__AVX2__)
    uint32_t factors = (uint32_t)(uint16_t)p | (uint32_t)(uint16_t)q << 16;
    __m256i both = _mm256_set1_epi32((int32_t)factors), half = _mm256_set1_epi32(32768);
    __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16((__m256i)a, (__m256i)b), both);
    __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16((__m256i)a, (__m256i)b), both);
    low = _mm256_srai_epi32(_mm256_add_epi32(low, half), 16);
    high = _mm256_srai_epi32(_mm256_add_epi32(high, half), 16);
    return (i16x16)_mm256_packs_epi32(low, high);
#else
    i32x16 sum = __builtin_convertvector(a, i32x16) * p + __builtin_convertvector(b, i32x16) * q;
    return __builtin_convertvector((sum + 32768) >> 16, i16x16);
#endif
}

/* As 16-bit numbers; what is beyond them becomes the nearest. */
PS_INLINE i16x8 saturated_8(i32x8 a) {
    a = PS_WITHIN(i32x8, a, -32768, 32767);
    return __builtin_convertvector(a, i16x8);
}

/* Two lines of 16-bit numbers as signed bytes, the left one first; what is beyond becomes the nearest. */
PS_INLINE i8x16 saturated_bytes(i16x8 left, i16x8 right) {
#if defined(__AVX2__)
    return (i8x16)_mm_packs_epi16((__m128i)left, (__m128i)right);
#else
    i16x16 a = __builtin_shufflevector(left, right, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    a = PS_WITHIN(i16x16, a, -128, 127);
    return __builtin_convertvector(a, i8x16);
#endif
}

/* 16-bit numbers as bytes; what is beyond 0 and 255 becomes the nearest. */
PS_INLINE u8x16 saturated_samples(i16x16 a) {
#if defined(__AVX2__)
    return (u8x16)_mm_packus_epi16(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
#else
    a = PS_WITHIN(i16x16, a, 0, 255);
    return __builtin_convertvector(a, u8x16);
#endif
}

/* Whether any of eight numbers is beyond -most .. most - 1. */
PS_INLINE int any_beyond(i16x8 a, int16_t most) {
#if defined(__AVX2__)
    __m128i low = _mm_cmpgt_epi16(_mm_set1_epi16((int16_t)-most), (__m128i)a);
    __m128i high = _mm_cmpgt_epi16((__m128i)a, _mm_set1_epi16((int16_t)(most - 1)));
    return !_mm_testz_si128(_mm_or_si128(low, high), _mm_set1_epi8(-1));
#else
    i16x8 beyond = (a < (int16_t)-most) | (a >= most);
    uint64_t halves[2];
    memcpy(halves, &beyond, sizeof halves);
    return (halves[0] | halves[1]) != 0;
#endif
}

/* Rows of an 8 x 8 square, those four apart taken by turns: three times, and they are its columns. From one array to
   another: GCC moves a copy through memory, in pieces that the next loads do not match. */
PS_INLINE void turn_once(const i16x8 from[8], i16x8 to[8]) {
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __builtin_shufflevector(from[i], from[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

PS_INLINE void turn(i16x8 rows[8]) {
    i16x8 once[8], twice[8];
    turn_once(rows, once);
    turn_once(once, twice);
    turn_once(twice, rows);
}

/* Rows of sixteen bytes, those two apart taken by turns. */
PS_INLINE void turn_bytes(const i8x16 from[4], i8x16 to[4]) {
    for (int i = 0; i < 2; i++) {
        to[2 * i] = __builtin_shufflevector(from[i], from[i + 2], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 2], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                                30, 15, 31);
    }
}

/* The columns of a square as bytes, two in a vector; what is beyond becomes the nearest. */
PS_INLINE void columns_8(const i16x8 lines[8], i8x16 to[4]) {
    i8x16 pairs[4], once[4];
    for (int i = 0; i < 4; i++) {
        i8x16 both = saturated_bytes(lines[i], lines[i + 4]);
        pairs[i] = __builtin_shufflevector(both, both, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    turn_bytes(pairs, once);
    turn_bytes(once, to);
}

/* The columns of a square of 32-bit numbers, as 16-bit numbers and as bytes; what is beyond becomes the nearest. AVX2
   narrows and turns both halves of two lines at once, which takes half of the instructions. */
#if defined(__AVX2__)

PS_INLINE __m256i narrowed(i32x8 a, i32x8 b) { return _mm256_packs_epi32((__m256i)a, (__m256i)b); }

PS_INLINE void columns_16_of_32(const i32x8 lines[8], i16x8 to[8]) {
    const __m256i by_turns = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    __m256i once[4], twice[4];
    for (int i = 0; i < 4; i++) once[i] = _mm256_shuffle_epi8(narrowed(lines[i], lines[i + 4]), by_turns);
    for (int i = 0; i < 2; i++) {
        twice[2 * i] = _mm256_unpacklo_epi16(once[i], once[i + 2]);
        twice[2 * i + 1] = _mm256_unpackhi_epi16(once[i], once[i + 2]);
    }
    for (int i = 0; i < 4; i++) {
        __m256i from = twice[i / 2], beside = twice[i / 2 + 2];
        __m256i two = i % 2 ? _mm256_unpackhi_epi16(from, beside) : _mm256_unpacklo_epi16(from, beside);
        to[i] = (i16x8)_mm256_castsi256_si128(two);
        to[i + 4] = (i16x8)_mm256_extracti128_si256(two, 1);
    }
}

PS_INLINE __m256i four_by_turns(const i32x8 lines[4]) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm256_shuffle_epi8(_mm256_packs_epi16(narrowed(lines[0], lines[1]), narrowed(lines[2], lines[3])), order);
}

PS_INLINE void columns_8_of_32(const i32x8 lines[8], i8x16 to[4]) {
    __m256i first = four_by_turns(lines), second = four_by_turns(lines + 4);
    for (int i = 0; i < 2; i++) {
        __m256i two = i ? _mm256_unpackhi_epi32(first, second) : _mm256_unpacklo_epi32(first, second);
        to[i] = (i8x16)_mm256_castsi256_si128(two);
        to[i + 2] = (i8x16)_mm256_extracti128_si256(two, 1);
    }
}

#else

PS_INLINE void columns_16_of_32(const i32x8 lines[8], i16x8 to[8]) {
    for (int i = 0; i < 8; i++) to[i] = saturated_8(lines[i]);
    turn(to);
}

PS_INLINE void columns_8_of_32(const i32x8 lines[8], i8x16 to[4]) {
    i16x8 narrow[8];
    for (int i = 0; i < 8; i++) narrow[i] = saturated_8(lines[i]);
    columns_8(narrow, to);
}

#endif

/* Sixteen pixels of three bytes, from a vector for each channel. */
PS_INLINE void store_three(uint8_t *to, u8x16 a, u8x16 b, u8x16 c) {
#if defined(__AVX2__)
    const __m128i a0 = _mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5);
    const __m128i b0 = _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1);
    const __m128i c0 = _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1);
    const __m128i a1 = _mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1);
    const __m128i b1 = _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10);
    const __m128i c1 = _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1);
    const __m128i a2 = _mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1);
    const __m128i b2 = _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1);
    const __m128i c2 = _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15);
    const __m128i order[3][3] = {{a0, b0, c0}, {a1, b1, c1}, {a2, b2, c2}};
    for (int part = 0; part < 3; part++) {
        __m128i two = _mm_or_si128(_mm_shuffle_epi8((__m128i)a, order[part][0]), _mm_shuffle_epi8((__m128i)b, order[part][1]));
        _mm_storeu_si128((__m128i *)(to + 16 * part), _mm_or_si128(two, _mm_shuffle_epi8((__m128i)c, order[part][2])));
    }
#elif defined(__ARM_NEON)
    uint8x16x3_t all = {{(uint8x16_t)a, (uint8x16_t)b, (uint8x16_t)c}};
    vst3q_u8(to, all);
#else
    for (int i = 0; i < 16; i++) {
        to[3 * i] = a[i];
        to[3 * i + 1] = b[i];
        to[3 * i + 2] = c[i];
    }
#endif
}

#endif
