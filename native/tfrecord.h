/* tfrecord.h: how a TFRecord frame is laid out, and why a frame or its record cannot be read.
   Covers: the numbers that tfrecord.c, example.c, example_lists.c and penstock/native/tfrecord.py share.
   Does not cover: reading.

   A frame is: the record's length (8 bytes), masked CRC-32C of the length (4), the record, its masked CRC-32C (4). */
#ifndef PS_TFRECORD_H
#define PS_TFRECORD_H

#include "crc32c.h"

enum { HEADER = 12, FRAME = 16 }; /* bytes before a record; before and after it together */

enum {
    OK = 0, BAD_LENGTH, TOO_LONG, TRUNCATED, BAD_CHECKSUM, BAD_WIRE, MISSING, WRONG_KIND, WRONG_COUNT
};

/* Whether the frame at `offset` with a record of `length` bytes lies in the buffer and matches its checksum. */
PS_INLINE int32_t frame_code(const uint8_t *buf, int64_t buf_len, int64_t offset, int64_t length, int32_t check) {
    if (offset < 0 || length < 0 || offset > buf_len - FRAME || length > buf_len - FRAME - offset) return TRUNCATED;
    const uint8_t *record = buf + offset + HEADER;
    if (check && masked_crc32c_of(record, length) != load_u32(record + length)) return BAD_CHECKSUM;
    return OK;
}

#endif
