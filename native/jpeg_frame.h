/* jpeg_frame.h: what a JPEG file says before its pixels: size, components, tables, and where the bits start.
   Covers: baseline files of one interleaved scan in the common layouts of colour; everything else is named OTHER.
   Does not cover: the bits themselves (jpeg_entropy.h).

   Nothing is repaired here: what is not exactly as expected is left to the library, which knows how to warn. */
#ifndef PS_JPEG_FRAME_H
#define PS_JPEG_FRAME_H

#include "kernels.h"

/* Read; not for this decoder; not readable as it stands. */
enum { JPEG_OK = 0, JPEG_OTHER = 1, JPEG_DAMAGED = 2 };

enum { JPEG_COMPONENTS = 3, JPEG_TABLES = 8, JPEG_SYMBOLS = 256 };

/* Size in pixels, luma samples for one chroma sample, MCUs between restarts, start of the bits, components. */
typedef struct { int64_t height, width, across, down, restart, start, components; } jpeg_frame;

/* Which of the tables a component uses. */
typedef struct { int64_t quant, dc, ac; } jpeg_part;

/* A Huffman table as the file has it: codes by length, how many in all, and their symbols. 0 to 3 DC, 4 to 7 AC. */
typedef struct { int32_t counts[16]; int32_t total; uint8_t symbols[JPEG_SYMBOLS]; } jpeg_codes;

typedef struct {
    jpeg_frame frame;
    jpeg_part parts[JPEG_COMPONENTS];
    int32_t quants[4][64]; /* in the order of the file; -1 first: not there */
    jpeg_codes codes[JPEG_TABLES];
} jpeg_head;

static int jpeg_quantisation(const uint8_t *at, const uint8_t *end, jpeg_head *head) {
    for (; at < end; at += 65) {
        if (*at > 3 || end - at < 65) return JPEG_OTHER; /* 16-bit tables are for the library */
        for (int k = 0; k < 64; k++) head->quants[*at][k] = at[1 + k];
    }
    return JPEG_OK;
}

static int jpeg_huffman(const uint8_t *at, const uint8_t *end, jpeg_head *head) {
    while (at < end) {
        if (end - at < 17 || *at >> 4 > 1 || (*at & 15) > 3) return JPEG_DAMAGED;
        jpeg_codes *codes = &head->codes[4 * (*at >> 4) + (*at & 15)];
        int32_t total = 0;
        for (int k = 0; k < 16; k++) total += codes->counts[k] = at[1 + k];
        at += 17;
        if (total > JPEG_SYMBOLS || end - at < total) return JPEG_DAMAGED;
        memcpy(codes->symbols, at, (size_t)total);
        codes->total = total;
        at += total;
    }
    return JPEG_OK;
}

static int jpeg_start_of_frame(const uint8_t *at, const uint8_t *end, jpeg_head *head) {
    jpeg_frame *frame = &head->frame;
    if (frame->components) return JPEG_DAMAGED;
    if (end - at != 6 + 3 * JPEG_COMPONENTS || at[0] != 8 || at[5] != JPEG_COMPONENTS) return JPEG_OTHER;
    frame->height = at[1] << 8 | at[2];
    frame->width = at[3] << 8 | at[4];
    frame->components = JPEG_COMPONENTS;
    for (int k = 0; k < JPEG_COMPONENTS; k++) {
        const uint8_t *part = at + 6 + 3 * k;
        if (part[0] != k + 1 || part[2] > 3) return JPEG_OTHER; /* identifiers other than 1, 2, 3 may mean RGB */
        head->parts[k].quant = part[2];
        if (k == 0) {
            frame->across = part[1] >> 4;
            frame->down = part[1] & 15;
        } else if (part[1] != 0x11) {
            return JPEG_OTHER;
        }
    }
    int known = (frame->across == 1 || frame->across == 2) && (frame->down == 1 || frame->down == frame->across);
    return known ? JPEG_OK : JPEG_OTHER;
}

static int jpeg_start_of_scan(const uint8_t *at, const uint8_t *end, jpeg_head *head) {
    if (!head->frame.components || end - at != 4 + 2 * JPEG_COMPONENTS || at[0] != JPEG_COMPONENTS) return JPEG_OTHER;
    for (int k = 0; k < JPEG_COMPONENTS; k++) {
        int dc = at[2 + 2 * k] >> 4, ac = at[2 + 2 * k] & 15;
        if (at[1 + 2 * k] != k + 1 || dc > 3 || ac > 3) return JPEG_OTHER;
        head->parts[k].dc = dc;
        head->parts[k].ac = 4 + ac;
    }
    const uint8_t *last = at + 1 + 2 * JPEG_COMPONENTS;
    return last[0] == 0 && last[1] == 63 && last[2] == 0 ? JPEG_OK : JPEG_OTHER;
}

/* One segment but the start of the scan; the body reaches from `at` to `end`. */
static int jpeg_segment(int marker, const uint8_t *at, const uint8_t *end, jpeg_head *head) {
    switch (marker) {
        case 0xDB: return jpeg_quantisation(at, end, head);
        case 0xC4: return jpeg_huffman(at, end, head);
        case 0xC0: return jpeg_start_of_frame(at, end, head);
        case 0xDD:
            if (end - at != 2) return JPEG_DAMAGED;
            head->frame.restart = at[0] << 8 | at[1];
            return JPEG_OK;
        case 0xE0: /* JFIF, unless in a version that the library warns of */
            return end - at >= 12 && at[0] == 'J' && at[5] != 1 ? JPEG_OTHER : JPEG_OK;
        case 0xEE: return JPEG_OTHER; /* Adobe's mark may mean other colours than YCbCr */
        default: return (marker >= 0xE1 && marker <= 0xEF) || marker == 0xFE ? JPEG_OK : JPEG_OTHER;
    }
}

/* Fill the head up to the start of the bits. */
static int jpeg_read_head(const uint8_t *data, int64_t len, jpeg_head *head) {
    memset(&head->frame, 0, sizeof head->frame);
    for (int k = 0; k < 4; k++) head->quants[k][0] = -1;
    for (int k = 0; k < JPEG_TABLES; k++) head->codes[k].total = 0;
    for (int64_t at = 2; at + 4 <= len;) {
        if (data[at] != 0xFF) return JPEG_DAMAGED;
        int64_t length = data[at + 2] << 8 | data[at + 3], end = at + 2 + length;
        if (length < 2 || end > len) return JPEG_DAMAGED;
        if (data[at + 1] == 0xDA) {
            head->frame.start = end;
            return jpeg_start_of_scan(data + at + 4, data + end, head);
        }
        int found = jpeg_segment(data[at + 1], data + at + 4, data + end, head);
        if (found != JPEG_OK) return found;
        at = end;
    }
    return JPEG_DAMAGED;
}

#endif
