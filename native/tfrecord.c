/* tfrecord.c: the frames of a stretch of a TFRecord file.
   Covers: finding them with the checksums of their lengths, checking the records' checksums.
   Does not cover: what is in the records (example.c). */
#include "tfrecord.h"

enum { AHEAD = 6, LARGE = 256 }; /* headers of large records are asked for before they are read, so many ahead */

/* Why no frame was found at `place`: the bytes there end, or are damaged. OK where they are only not in `buf`. */
static int32_t why_none(const uint8_t *buf, int64_t buf_len, int64_t left, int32_t check, int64_t longest,
                        int64_t place) {
    if (place >= left) return OK;
    if (HEADER > left - place) return TRUNCATED;
    if (place > buf_len || HEADER > buf_len - place) return OK;
    if (check && masked_crc32c_of(buf + place, 8) != load_u32(buf + place + 8)) return BAD_LENGTH;
    uint64_t length = load_u64(buf + place);
    if (longest < 0 || length > (uint64_t)longest) return TOO_LONG;
    return left - place < FRAME || length > (uint64_t)(left - place - FRAME) ? TRUNCATED : OK;
}

/* Notes the frames that begin in `buf`: `progress` becomes how many, and where the next one begins (perhaps beyond
   `buf`). `left` is the number of bytes from `buf` to the end of the file. Returns OK or why it stopped. */
PS_KERNEL(int32_t, tfrecord_walk)(const uint8_t *buf, int64_t buf_len, int64_t left, int32_t check, int64_t longest,
                                  int64_t *offsets, int64_t *lengths, int64_t room, int64_t progress[2]) {
    int64_t found = 0, place = 0, last = longest < 0 ? -1 : ps_least(buf_len - HEADER, left - FRAME);
    uint64_t most = (uint64_t)ps_least(longest, left); /* so that no sum below wraps around */
    const uint8_t *header = buf;
    uint64_t length = place <= last ? load_u64(header) : 0;
    while (found < room && place <= last) {
        if (check && PS_UNLIKELY(masked_crc32c_of(header, 8) != load_u32(header + 8))) break;
        if (PS_UNLIKELY(length > most)) break;
        int64_t after = place + FRAME + (int64_t)length;
        if (PS_UNLIKELY(after > left)) break;
        offsets[found] = place;
        lengths[found++] = (int64_t)length;
        /* Records are mostly alike: some of them ahead the next header lies about there, and is not cached. */
        if (PS_UNLIKELY(length >= LARGE))
            __builtin_prefetch((const void *)((uintptr_t)header + (1 + AHEAD) * (FRAME + length)));
        place = after;
        if (place > last) break;
        /* A length is known only after the one before. What waits for it is kept to a load alone: its address is a sum
           of two registers, of which one is there before. Compilers would load from the sum that is made for `header`,
           one addition later, or load where the length is used, at the beginning of the loop. */
        const uint8_t *next = header + FRAME, *base = next;
        __asm__("" : "+r"(base));
        header = next + length;
        length = load_u64(base + length);
        __asm__("" : "+r"(length));
    }
    progress[0] = found;
    progress[1] = place;
    return found < room ? why_none(buf, buf_len, left, check, longest, place) : OK;
}

/* Checks the frames at `offsets` without looking into the records; the number whose code is not OK. */
PS_KERNEL(int64_t, tfrecord_check)(const uint8_t *buf, int64_t buf_len, const int64_t *offsets, const int64_t *lengths,
                                   int64_t rows, int32_t check, int64_t *codes) {
    int64_t bad = 0;
    for (int64_t row = 0; row < rows; row++) {
        codes[row] = frame_code(buf, buf_len, offsets[row], lengths[row], check);
        bad += codes[row] != OK;
    }
    return bad;
}
