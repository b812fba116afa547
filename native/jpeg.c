/* jpeg.c: a whole JPEG file to pixels, in two calls.
   Covers: the working memory and its parts, tables that are kept from file to file, restarts, lines of pixels.
   Does not cover: when to use it (penstock/native/jpeg.py). In the order of the data: jpeg_frame.h (what stands before
   the bits), jpeg_tables.h and jpeg_entropy.h (bits to coefficients), jpeg_transform.h (coefficients to samples),
   jpeg_colour.h (samples to pixels). Baseline files; the same pixels as libjpeg-turbo's, or none. */
#include "jpeg_colour.h"
#include "jpeg_entropy.h"

/* Pixels that a side must have: libjpeg filters narrower pictures differently. */
enum { LEAST = 16, MOST_BLOCKS = 6 };

/* What is kept between the two calls, and from file to file. It must be zero when it is new. */
typedef struct {
    int64_t len, room; /* of the file that was surveyed, and the room it needs; 0: none */
    jpeg_head head;
    jpeg_codes made[JPEG_TABLES]; /* what `tables` were made of */
    jpeg_table tables[JPEG_TABLES];
    jpeg_factors factors[4];
    int32_t predictions[JPEG_COMPONENTS];
    int32_t singles[JPEG_LOOKS];
} work_memory;

/* Planes of luma, blue and red; bytes from row to row of luma and chroma; two lines of chroma at full width. */
typedef struct { uint8_t *planes[JPEG_COMPONENTS], *lines[2]; int64_t strides[2], wide, high; } layout;

static const uint8_t ORDER[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                  58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* What the fast transform leaves to the quantisation table: products of the AAN factors for rows and columns, with 14
   bits behind the point, in the order of the file. */
static const int32_t SCALES[64] = {
    16384, 22725, 22725, 21407, 31521, 21407, 19266, 29692, 29692, 19266, 16384, 26722, 27969, 26722, 16384, 12873,
    22725, 25172, 25172, 22725, 12873, 8867,  17855, 21407, 22654, 21407, 17855, 8867,  4520,  12299, 16819, 19266,
    19266, 16819, 12299, 4520,  6270,  11585, 15137, 16384, 15137, 11585, 6270,  5906,  10426, 12873, 12873, 10426,
    5906,  5315,  8867,  10114, 8867,  5315,  4520,  6967,  6967,  4520,  3552,  4799,  3552,  2446,  2446,  1247};

/* Where everything lies in `room`; returns the bytes of room. With room NULL, only that. */
static int64_t lay_out(const jpeg_frame *frame, int64_t len, uint8_t *room, layout *out) {
    int64_t across = 8 * frame->across, down = 8 * frame->down;
    out->wide = (frame->width + across - 1) / across;
    out->high = (frame->height + down - 1) / down;
    int64_t luma = out->strides[0] = out->wide * across + 2 * JPEG_ROOM;
    int64_t chroma = out->strides[1] = out->wide * 8 + 2 * JPEG_ROOM;
    int64_t first = len - frame->start + JPEG_SLACK + JPEG_ROOM, second = first + luma * out->high * down;
    int64_t third = second + chroma * out->high * 8, blue = third + chroma * out->high * 8 + JPEG_ROOM;
    int64_t red = blue + luma + JPEG_ROOM;
    if (room) {
        int64_t starts[] = {first, second, third};
        for (int k = 0; k < JPEG_COMPONENTS; k++) out->planes[k] = room + starts[k];
        out->lines[0] = room + blue;
        out->lines[1] = room + red;
    }
    return red + luma + JPEG_ROOM;
}

/* Make the look-up tables that the file uses, but for those that are there from the file before. */
static int make_tables(work_memory *work) {
    for (int k = 0; k < JPEG_COMPONENTS; k++) {
        for (int is_dc = 0; is_dc < 2; is_dc++) {
            int64_t which = is_dc ? work->head.parts[k].dc : work->head.parts[k].ac;
            const jpeg_codes *codes = &work->head.codes[which];
            jpeg_codes *made = &work->made[which];
            if (made->total == codes->total && !memcmp(made->counts, codes->counts, sizeof made->counts) &&
                !memcmp(made->symbols, codes->symbols, (size_t)codes->total))
                continue;
            made->total = 0;
            int found = jpeg_make_table(&work->tables[which], work->singles, codes, is_dc);
            if (found != JPEG_OK) return found;
            *made = *codes;
        }
    }
    return JPEG_OK;
}

/* What each coefficient is multiplied with, in the order of the file. */
static void make_factors(work_memory *work, int quick) {
    for (int table = 0; table < 4; table++) {
        if (work->head.quants[table][0] < 0) continue;
        for (int k = 0; k < JPEG_FACTORS; k++) {
            int32_t factor = 0, place = JPEG_NOWHERE;
            if (k < 64) {
                factor = work->head.quants[table][k];
                if (quick) factor = (factor * SCALES[k] + 2048) >> 12;
                place = 2 * ORDER[k];
            }
            work->factors[table].at[k] = factor << 16 | place;
        }
    }
}

/* Describe each block of an MCU; returns how many there are. */
static int64_t describe_blocks(work_memory *work, const layout *where, jpeg_block *blocks) {
    int64_t n = 0;
    for (int c = 0; c < JPEG_COMPONENTS; c++) {
        int64_t across = c ? 1 : work->head.frame.across, down = c ? 1 : work->head.frame.down;
        int64_t stride = where->strides[c > 0];
        const jpeg_part *part = &work->head.parts[c];
        for (int64_t y = 0; y < down; y++)
            for (int64_t x = 0; x < across; x++)
                blocks[n++] = (jpeg_block){&work->tables[part->dc], &work->tables[part->ac],
                                           &work->factors[part->quant], &work->predictions[c],
                                           where->planes[c] + 8 * x + 8 * y * stride, stride, 8 * across,
                                           8 * down * stride};
    }
    return n;
}

static int read_run_accurate(jpeg_state *state, const jpeg_block *blocks, int64_t mcus) {
    return jpeg_read_run(state, blocks, mcus, 0);
}

static int read_run_quick(jpeg_state *state, const jpeg_block *blocks, int64_t mcus) {
    return jpeg_read_run(state, blocks, mcus, 1);
}

/* All MCUs, from restart to restart. */
static int read_scan(const uint8_t *data, int64_t len, work_memory *work, uint8_t *bits, const layout *where,
                     int quick) {
    jpeg_block blocks[MOST_BLOCKS];
    jpeg_state state = {bits, bits, 0, 0, where->wide, describe_blocks(work, where, blocks)};
    const uint8_t *source = data + work->head.frame.start, *end = data + len;
    int64_t mcus = where->wide * where->high, between = work->head.frame.restart ? work->head.frame.restart : mcus;
    for (int64_t done = 0, restarts = 0;; restarts++) {
        state.end = jpeg_unstuff(&source, end, bits);
        if (end - source < 2) return JPEG_DAMAGED;
        memset(work->predictions, 0, sizeof work->predictions);
        int64_t count = ps_least(between, mcus - done);
        int found = quick ? read_run_quick(&state, blocks, count) : read_run_accurate(&state, blocks, count);
        if (found != JPEG_OK) return found;
        done += count;
        if (done == mcus) return source[1] == 0xD9 ? JPEG_OK : JPEG_OTHER;
        if (source[1] != 0xD0 + restarts % 8) return JPEG_DAMAGED;
        source += 2;
    }
}

/* Every line of pixels, from the planes. */
static void write_lines(const jpeg_frame *frame, const layout *where, uint8_t *out, int quick, int backwards) {
    int64_t samples = (frame->width + frame->across - 1) / frame->across;
    int64_t rows = (frame->height + frame->down - 1) / frame->down, chroma = where->strides[1];
    int halved = frame->across > 1;
    for (int c = 1; c < JPEG_COMPONENTS && halved && !quick; c++)
        jpeg_close_edges(where->planes[c], chroma, samples, rows);
    for (int64_t y = 0; y < frame->height; y++) {
        int64_t row = y / frame->down;
        uint8_t *target = out + 3 * frame->width * y;
        const uint8_t *colours[2] = {where->planes[1] + row * chroma, where->planes[2] + row * chroma};
        const uint8_t *luma = where->planes[0] + y * where->strides[0];
        if (halved && quick) {
            jpeg_colour_line_of_pairs((jpeg_lines){luma, colours[0], colours[1]}, target, frame->width, backwards);
            continue;
        }
        for (int c = 0; c < 2 && halved; c++) {
            int64_t near = y & 1 ? ps_least(rows - 1, row + 1) : ps_most(0, row - 1);
            const uint8_t *beside = frame->down > 1 ? where->planes[c + 1] + near * chroma : NULL;
            jpeg_widen_line(colours[c], beside, where->lines[c], samples);
            colours[c] = where->lines[c];
        }
        jpeg_colour_line((jpeg_lines){luma, colours[0], colours[1]}, target, frame->width, backwards);
    }
}

/* Bytes of working memory, the same for all files. */
PS_KERNEL(int64_t, jpeg_work_nbytes)(void) { return sizeof(work_memory); }

/* Read what stands before the pixels into `work`; the bytes of room that decoding needs, or 0: not for us. */
PS_KERNEL(int64_t, jpeg_survey)(const uint8_t *data, int64_t len, uint8_t *memory, int64_t memory_len) {
    if (memory_len < (int64_t)sizeof(work_memory) || (uintptr_t)memory % _Alignof(work_memory)) return 0;
    work_memory *work = (work_memory *)memory;
    jpeg_head *head = &work->head;
    layout where;
    work->room = 0;
    work->len = len;
    if (jpeg_read_head(data, len, head) != JPEG_OK) return 0;
    if (head->frame.height < LEAST || head->frame.width < LEAST) return 0;
    for (int k = 0; k < JPEG_COMPONENTS; k++) {
        const jpeg_part *part = &head->parts[k];
        if (head->quants[part->quant][0] < 0 || !head->codes[part->dc].total || !head->codes[part->ac].total) return 0;
    }
    return work->room = lay_out(&head->frame, len, NULL, &where);
}

/* After jpeg_survey of the same data: pixels into `out`, three bytes each, blue first if `backwards`; `quick` is the
   fast form. JPEG_OK, or why not (and then `out` holds anything). */
PS_KERNEL(int32_t, jpeg_decode)(const uint8_t *data, int64_t len, uint8_t *memory, uint8_t *room, int64_t room_len,
                                uint8_t *out, int64_t out_len, int32_t quick, int32_t backwards) {
    work_memory *work = (work_memory *)memory;
    const jpeg_frame *frame = &work->head.frame;
    layout where;
    if (!work->room || work->len != len || room_len < work->room) return JPEG_OTHER;
    if (out_len != 3 * frame->height * frame->width) return JPEG_OTHER;
    int found = make_tables(work);
    if (found != JPEG_OK) return found;
    make_factors(work, quick);
    lay_out(frame, len, room, &where);
    found = read_scan(data, len, work, room, &where, quick);
    if (found == JPEG_OK) write_lines(frame, &where, out, quick, backwards);
    return found;
}
