/* jpeg_transform.h: the inverse cosine transform of an 8 x 8 block: libjpeg's two integer forms, bit for bit.
   Covers: the accurate transform (13-bit constants) and the fast one (8-bit constants on values scaled by the AAN
   factors), each from 64 dequantised coefficients to 64 bytes.
   Does not cover: coefficients from bits (jpeg_entropy.h), colours (jpeg_colour.h). */
#ifndef PS_JPEG_TRANSFORM_H
#define PS_JPEG_TRANSFORM_H

#include "vectors.h"

/* Eight times what a coefficient of eight-bit pixels can be. Beyond it, libjpeg-turbo's short cut for blocks with one
   row of coefficients overflows, and pixels depend on the way they are computed. */
enum { JPEG_MOST = 8192 };

/* Rows of bytes around zero, two in a vector, to rows around 128. */
PS_INLINE void jpeg_write(const i8x16 rows[4], uint8_t *target, int64_t stride) {
    for (int i = 0; i < 4; i++) {
        i8x16 pixels = rows[i] ^ (int8_t)-128;
        memcpy(target + 2 * i * stride, &pixels, 8);
        memcpy(target + (2 * i + 1) * stride, (const char *)&pixels + 8, 8);
    }
}

/* Eight one-dimensional transforms side by side; results have 13 more bits behind the point. Sums that libjpeg-turbo's
   vectors keep in 16 bits are kept so here too: a damaged file may overflow them. */
PS_INLINE void jpeg_accurate_lines(const i16x8 d[8], i32x8 out[8]) {
    i32x8 even_3 = rotated(d[2], d[6], 10703, 4433), even_2 = rotated(d[2], d[6], 4433, -10704);
    i32x8 even_0 = widened_8(d[0] + d[4]) << 13, even_1 = widened_8(d[0] - d[4]) << 13;
    i16x8 sum_73 = d[7] + d[3], sum_51 = d[5] + d[1];
    i32x8 z3 = rotated(sum_73, sum_51, -6436, 9633), z4 = rotated(sum_73, sum_51, 9633, 6437);
    i32x8 even[4] = {even_0 + even_3, even_1 + even_2, even_1 - even_2, even_0 - even_3};
    i32x8 odd[4] = {rotated(d[1], d[7], 4926, -7373) + z4, rotated(d[3], d[5], 4177, -20995) + z3,
                    rotated(d[3], d[5], -20995, -4176) + z4, rotated(d[1], d[7], -7373, -4927) + z3};
    for (int i = 0; i < 4; i++) {
        out[i] = even[i] + odd[i];
        out[7 - i] = even[i] - odd[i];
    }
}

/* 64 numbers to 8 rows of 8 bytes, `stride` bytes apart. */
PS_INLINE void jpeg_accurate(const int16_t *block, uint8_t *target, int64_t stride) {
    i16x8 d[8];
    i32x8 lines[8];
    i8x16 rows[4];
    for (int i = 0; i < 8; i++) d[i] = load_i16x8(block + 8 * i);
    jpeg_accurate_lines(d, lines);
    for (int i = 0; i < 8; i++) lines[i] = (lines[i] + (1 << 10)) >> 11;
    columns_16_of_32(lines, d);
    jpeg_accurate_lines(d, lines);
    for (int i = 0; i < 8; i++) lines[i] = (lines[i] + (1 << 17)) >> 18;
    columns_8_of_32(lines, rows);
    jpeg_write(rows, target, stride);
}

/* Times a factor with 8 bits behind the point, rounded down, as 16-bit multipliers do it. */
PS_INLINE i16x8 jpeg_times(i16x8 number, int factor) { return times_8(number << 2, (int16_t)(factor * 64)); }

/* Eight one-dimensional transforms side by side, all in 16 bits. */
PS_INLINE void jpeg_fast_lines(i16x8 d[8]) {
    i16x8 both = d[0] + d[4], other = d[0] - d[4], sum_26 = d[2] + d[6];
    i16x8 diff_26 = jpeg_times(d[2] - d[6], 362) - sum_26;
    i16x8 even[4] = {both + sum_26, other + diff_26, other - diff_26, both - sum_26};
    i16x8 z13 = d[5] + d[3], z10 = d[5] - d[3], z11 = d[1] + d[7], z12 = d[1] - d[7];
    i16x8 z5 = jpeg_times(z10 + z12, 473), odd[4];
    odd[0] = z11 + z13;
    odd[1] = jpeg_times(z10, -413) - z10 + z5 - odd[0];
    odd[2] = jpeg_times(z11 - z13, 362) - odd[1];
    odd[3] = z5 - jpeg_times(z12, 277) - odd[2];
    for (int i = 0; i < 4; i++) {
        d[i] = even[i] + odd[i];
        d[7 - i] = even[i] - odd[i];
    }
}

/* As jpeg_accurate, on coefficients that carry the fast transform's scales. */
PS_INLINE void jpeg_fast(const int16_t *block, uint8_t *target, int64_t stride) {
    i16x8 d[8];
    i8x16 rows[4];
    for (int i = 0; i < 8; i++) d[i] = load_i16x8(block + 8 * i);
    jpeg_fast_lines(d);
    turn(d);
    jpeg_fast_lines(d);
    for (int i = 0; i < 8; i++) d[i] >>= 5;
    columns_8(d, rows);
    jpeg_write(rows, target, stride);
}

#endif
