/* cells_eight.h: eight short plain numbers of a line at once, with AVX2.
   Covers: the digits of two cells in each register, all eight joined, divided and checked together.
   Does not cover: other cells, and processors without AVX2 (cells.h, which gives the same numbers).

   The sixteen bytes before a cell's end are loaded once. A point is among the last fifteen of them or of no matter, so
   the bytes before it move one place to the right, over it, and no digit is lost. */
#ifndef PS_CELLS_EIGHT_H
#define PS_CELLS_EIGHT_H

/* Where each byte comes from when the point has so many places behind it; 128: from nowhere. The last row has no point. */
static const uint8_t CELLS_MOVES[16][16] __attribute__((aligned(64))) = {
    {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15},
    {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15}, {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15},
    {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15}, {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15},
    {128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15}, {128, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15},
    {128, 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15}, {128, 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {128, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {128, 0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {128, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {128, 0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {128, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};

/* Of a cell: its digits, the row of CELLS_MOVES, what it is divided by. */
typedef struct { int64_t count, moves; const double *scale; } cells_shape;

/* Its length is from 1 to 15, and bit 31 of `points` is whether its last byte is a point, and so on. */
PS_INLINE cells_shape cells_shape_of(const uint8_t *text, int64_t start, int64_t end, uint32_t points) {
    int64_t minus = text[start] == '-', own = end - start - minus, places = __builtin_clz(points | 1u << 16);
    int64_t point = places < own, moves = point ? places : CELLS_NO_POINT;
    return (cells_shape){own - point, moves, &CELLS_SCALES[minus][moves]};
}

PS_INLINE __m256i cells_two(const uint8_t *left, const uint8_t *right) {
    return _mm256_set_m128i(_mm_loadu_si128((const __m128i *)right), _mm_loadu_si128((const __m128i *)left));
}

/* Four numbers of eight digits, and four that follow them, as one double each: both parts and their sum are exact. */
PS_INLINE __m256d cells_whole(__m128i high, __m128i low) {
    return _mm256_add_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(high), _mm256_set1_pd(1e8)), _mm256_cvtepi32_pd(low));
}

/* Whether none of four doubles lies just between two floats (see cells_fits_float). */
PS_INLINE int cells_four_fit(__m256d numbers) {
    __m256i bits = _mm256_and_si256(_mm256_castpd_si256(numbers), _mm256_set1_epi64x(0x1FFFFFFF));
    __m256i between = _mm256_cmpeq_epi64(bits, _mm256_set1_epi64x(0x10000000));
    return _mm256_testz_si256(between, between);
}

/* The numbers of even and of odd cells, to where they belong. */
PS_INLINE void cells_store_eight(__m256d even, __m256d odd, uint8_t *out, int single) {
    if (single) {
        __m128 some = _mm256_cvtpd_ps(even), others = _mm256_cvtpd_ps(odd);
        _mm_storeu_ps((float *)(void *)out, _mm_unpacklo_ps(some, others));
        _mm_storeu_ps((float *)(void *)(out + 16), _mm_unpackhi_ps(some, others));
    } else {
        __m256d some = _mm256_unpacklo_pd(even, odd), others = _mm256_unpackhi_pd(even, odd); /* 0 1 4 5, 2 3 6 7 */
        _mm256_storeu_pd((double *)(void *)out, _mm256_permute2f128_pd(some, others, 0x20));
        _mm256_storeu_pd((double *)(void *)(out + 32), _mm256_permute2f128_pd(some, others, 0x31));
    }
}

/* Eight cells of 1 to 15 bytes, plain numbers with a delimiter behind each, from `start` on. Whether all are final, and
   written to `out`. */
PS_INLINE int cells_eight(const uint8_t *text, int64_t start, const int64_t *ends, uint8_t delimiter, uint8_t *out,
                          int single) {
    __m256i wrong = _mm256_setzero_si256(), fours[4];
    const double *scales[CELLS_TOGETHER];
    if (ends[0] < CELLS_WIDTH) return 0;
    for (int k = 0; k < 4; k++) {
        int64_t left = ends[2 * k], right = ends[2 * k + 1], middle = left + 1;
        if (PS_UNLIKELY((uint64_t)(left - start - 1) >= CELLS_WIDTH - 1)) return 0;
        if (PS_UNLIKELY((uint64_t)(right - middle - 1) >= CELLS_WIDTH - 1)) return 0;
        if (PS_UNLIKELY(text[left] != delimiter) || PS_UNLIKELY(text[right] != delimiter)) return 0;
        __m256i last = cells_two(text + left - CELLS_WIDTH, text + right - CELLS_WIDTH);
        uint32_t points = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(last, _mm256_set1_epi8('.')));
        cells_shape one = cells_shape_of(text, start, left, points << 16);
        cells_shape other = cells_shape_of(text, middle, right, points);
        if (PS_UNLIKELY(one.count == 0) || PS_UNLIKELY(other.count == 0)) return 0;
        __m256i digits = _mm256_shuffle_epi8(last, cells_two(CELLS_MOVES[one.moves], CELLS_MOVES[other.moves]));
        digits = _mm256_xor_si256(digits, _mm256_set1_epi8('0'));
        const uint8_t *own = CELLS_MASKS + CELLS_WIDTH;
        digits = _mm256_and_si256(digits, cells_two(own + one.count, own + other.count));
        wrong = _mm256_or_si256(wrong, _mm256_subs_epu8(digits, _mm256_set1_epi8(9)));
        digits = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(1 << 8 | 10));
        fours[k] = _mm256_madd_epi16(digits, _mm256_set1_epi32(1 << 16 | 100));
        scales[2 * k] = one.scale;
        scales[2 * k + 1] = other.scale;
        start = right + 1;
    }
    if (PS_UNLIKELY(!_mm256_testz_si256(wrong, wrong))) return 0;
    const __m256i ten_thousand = _mm256_set1_epi32(1 << 16 | 10000);
    /* In each half by turns eight digits and the eight that follow: cells 0 and 2, 1 and 3; 4 and 6, 5 and 7. */
    __m256 front = _mm256_castsi256_ps(_mm256_madd_epi16(_mm256_packs_epi32(fours[0], fours[1]), ten_thousand));
    __m256 back = _mm256_castsi256_ps(_mm256_madd_epi16(_mm256_packs_epi32(fours[2], fours[3]), ten_thousand));
    __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(front, back, 0x88));
    __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(front, back, 0xDD));
    __m256d even = cells_whole(_mm256_castsi256_si128(high), _mm256_castsi256_si128(low));
    __m256d odd = cells_whole(_mm256_extracti128_si256(high, 1), _mm256_extracti128_si256(low, 1));
    even = _mm256_div_pd(even, _mm256_set_pd(*scales[6], *scales[4], *scales[2], *scales[0]));
    odd = _mm256_div_pd(odd, _mm256_set_pd(*scales[7], *scales[5], *scales[3], *scales[1]));
    if (single && (!cells_four_fit(even) || !cells_four_fit(odd))) return 0;
    cells_store_eight(even, odd, out, single);
    return 1;
}

#endif
