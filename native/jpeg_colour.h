/* jpeg_colour.h: planes of samples to pixels: chroma made as wide and high as luma, and YCbCr to RGB, as libjpeg does.
   Covers: libjpeg's triangle filter ("fancy upsampling") for planes of half the width, or half the width and height;
   plain repetition of chroma instead ("merged upsampling"); the conversion to RGB and BGR.
   Does not cover: samples from bits (jpeg_entropy.h).

   All is bit for bit what libjpeg-turbo gives. Sixteen samples at a time; rows may be read and written a little beyond
   their end, for which planes and lines have JPEG_ROOM bytes. */
#ifndef PS_JPEG_COLOUR_H
#define PS_JPEG_COLOUR_H

#include "vectors.h"

/* Samples at a time, and bytes of room on both sides of a row. */
enum { JPEG_WIDE = 16, JPEG_ROOM = 64 };

/* Lines of luma, blue and red. */
typedef struct { const uint8_t *luma, *blue, *red; } jpeg_lines;

typedef struct { i16x16 red, green, blue; } jpeg_tint;

/* Samples of even and odd columns, by turns: as 16-bit numbers, the odd one is the high byte. */
PS_INLINE void jpeg_store_by_turns(uint8_t *target, i16x16 even, i16x16 odd) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    i16x16 both = even | odd << 8;
    memcpy(target, &both, sizeof both);
#else
    for (int i = 0; i < JPEG_WIDE; i++) {
        target[2 * i] = (uint8_t)even[i];
        target[2 * i + 1] = (uint8_t)odd[i];
    }
#endif
}

/* A smooth line of chroma at full width from `count` samples; `near` is the row beside it, NULL at full height. */
PS_INLINE void jpeg_widen_line(const uint8_t *row, const uint8_t *near, uint8_t *target, int64_t count) {
    for (int64_t x = 0; x < count; x += JPEG_WIDE) {
        i16x16 before = load_samples(row + x - 1), here = load_samples(row + x), after = load_samples(row + x + 1);
        if (near) {
            before = before * 3 + load_samples(near + x - 1);
            here = here * 3 + load_samples(near + x);
            after = after * 3 + load_samples(near + x + 1);
            here = here * 3;
            jpeg_store_by_turns(target + 2 * x, (here + before + 8) >> 4, (here + after + 7) >> 4);
        } else {
            here = here * 3;
            jpeg_store_by_turns(target + 2 * x, (here + before + 1) >> 2, (here + after + 2) >> 2);
        }
    }
}

/* What chroma adds to luma. A factor f with 16 bits behind the point is applied in 16 bits, as f * 256c / 2^16, and
   rounded after that. */
PS_INLINE jpeg_tint jpeg_tinted(const uint8_t *blue, const uint8_t *red) {
    i16x16 cb = load_samples(blue) - 128, cr = load_samples(red) - 128;
    jpeg_tint tint;
    tint.red = cr + ((times_16(cr << 8, 26345) + 128) >> 8);
    tint.green = rotated_16(cb, cr, -22554, 18734) - cr;
    tint.blue = cb + cb + ((times_16(cb << 8, -14942) + 128) >> 8);
    return tint;
}

PS_INLINE void jpeg_store_pixels(i16x16 luma, jpeg_tint tint, uint8_t *target, int backwards) {
    u8x16 red = saturated_samples(luma + tint.red), green = saturated_samples(luma + tint.green);
    u8x16 blue = saturated_samples(luma + tint.blue);
    if (backwards) store_three(target, blue, green, red);
    else store_three(target, red, green, blue);
}

PS_INLINE i16x16 jpeg_twice(i16x16 a, int half) {
    return half ? __builtin_shufflevector(a, a, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)
                : __builtin_shufflevector(a, a, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}

/* One line of pixels; what does not fill sixteen goes by way of a spare line. */
PS_INLINE void jpeg_colour_line(jpeg_lines from, uint8_t *target, int64_t width, int backwards) {
    uint8_t spare[3 * JPEG_WIDE];
    for (int64_t x = 0; x < width; x += JPEG_WIDE) {
        int whole = x + JPEG_WIDE <= width;
        jpeg_tint tint = jpeg_tinted(from.blue + x, from.red + x);
        jpeg_store_pixels(load_samples(from.luma + x), tint, whole ? target + 3 * x : spare, backwards);
        if (!whole) memcpy(target + 3 * x, spare, (size_t)(3 * (width - x)));
    }
}

/* As jpeg_colour_line, with half as many samples of blue and red, each for two pixels. */
PS_INLINE void jpeg_colour_line_of_pairs(jpeg_lines from, uint8_t *target, int64_t width, int backwards) {
    uint8_t spare[2 * 3 * JPEG_WIDE];
    for (int64_t x = 0; x < width; x += 2 * JPEG_WIDE) {
        int whole = x + 2 * JPEG_WIDE <= width;
        uint8_t *to = whole ? target + 3 * x : spare;
        jpeg_tint tint = jpeg_tinted(from.blue + x / 2, from.red + x / 2);
        for (int half = 0; half < 2; half++) {
            jpeg_tint twice = {jpeg_twice(tint.red, half), jpeg_twice(tint.green, half), jpeg_twice(tint.blue, half)};
            i16x16 luma = load_samples(from.luma + x + JPEG_WIDE * half);
            jpeg_store_pixels(luma, twice, to + 3 * JPEG_WIDE * half, backwards);
        }
        if (!whole) memcpy(target + 3 * x, spare, (size_t)(3 * (width - x)));
    }
}

/* Samples beside the first and behind the last column are theirs again, for the filter. */
static void jpeg_close_edges(uint8_t *plane, int64_t stride, int64_t width, int64_t height) {
    for (int64_t y = 0; y < height; y++) {
        uint8_t *row = plane + y * stride;
        row[-1] = row[0];
        row[width] = row[width - 1];
    }
}

#endif
