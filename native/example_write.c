/* example_write.c: whole blocks as framed tf.train.Example records.
   Covers: lengths, tags and both checksums; columns come as payloads (float bytes, varints, text) with offsets.
   Does not cover: making payloads of anything but integers (penstock/native/example/write.py).

   A record is Example{1: Features}, and Features is one entry for each column: {1: {1: key, 2: Feature}}. First the
   size of each record is summed up over the columns, so that each record's place is known; then record after record is
   written and summed up while it is in the cache. What stands before a payload depends on its length alone: where that
   is the same as in the record before, it is copied from there. */
#include "protobuf.h"
#include "tfrecord.h"

typedef struct {
    const uint8_t *key; /* a whole field: tag, length, name */
    const uint8_t *data;
    const int64_t *ends; /* row i's payload is data[ends[i]:ends[i + 1]] */
    int64_t key_len, data_len, kind;
    int64_t last_payload, last_head, last_head_len; /* scratch: the entry before, -1 at first */
} column;

PS_INLINE int64_t varint_width(uint64_t value) { return (70 - __builtin_clzll(value | 1)) / 7; }

PS_INLINE uint8_t *put_varint(uint8_t *to, uint64_t value) {
    for (; value > 127; value >>= 7) *to++ = (uint8_t)(value | 128);
    *to++ = (uint8_t)value;
    return to;
}

/* A field that holds so many bytes: its tag, its length and them. */
PS_INLINE int64_t field_nbytes(int64_t inside) { return 1 + varint_width((uint64_t)inside) + inside; }

PS_INLINE uint8_t *put_field(uint8_t *to, uint8_t tag, int64_t inside) {
    *to = tag;
    return put_varint(to + 1, (uint64_t)inside);
}

/* memcpy, without a call for the few bytes that heads and single numbers have. */
PS_INLINE void copy_few(uint8_t *to, const uint8_t *from, int64_t count) {
    if (count >= 16 && count <= 32) {
        uint64_t last[2] = {load_u64(from + count - 16), load_u64(from + count - 8)};
        uint64_t first[2] = {load_u64(from), load_u64(from + 8)};
        memcpy(to, first, 16);
        memcpy(to + count - 16, last, 16);
    } else if (count >= 8 && count < 16) {
        uint64_t last = load_u64(from + count - 8);
        store_u64(to, load_u64(from));
        store_u64(to + count - 8, last);
    } else if (count >= 4 && count < 8) {
        uint32_t last = load_u32(from + count - 4);
        store_u32(to, load_u32(from));
        store_u32(to + count - 4, last);
    } else if (count) {
        memcpy(to, from, (size_t)count);
    }
}

/* Where the varints of each row of a matrix of numbers will end; the bytes of all. */
PS_KERNEL(int64_t, example_varint_ends)(const uint64_t *numbers, int64_t rows, int64_t columns, int64_t *ends) {
    int64_t at = 0;
    ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) at += varint_width(numbers[row * columns + column]);
        ends[row + 1] = at;
    }
    return at;
}

/* Numbers as varints, one after the other; how many were written. */
PS_KERNEL(int64_t, example_varints)(const uint64_t *numbers, int64_t count, uint8_t *out, int64_t out_len) {
    uint8_t *to = out, *end = out + out_len;
    for (int64_t i = 0; i < count; i++) {
        if (end - to < 10 && end - to < varint_width(numbers[i])) return i;
        to = put_varint(to, numbers[i]);
    }
    return count;
}

PS_INLINE int64_t entry_nbytes(int64_t key_len, int64_t payload) {
    return key_len + field_nbytes(field_nbytes(field_nbytes(payload)));
}

/* The bytes of each row's Features, and where its frame begins; the bytes of all, or -1 if offsets are not in order.
   `starts` has a number more than there are rows. */
PS_KERNEL(int64_t, example_sizes)(const column *columns, int64_t count, int64_t rows, int64_t *sizes, int64_t *starts) {
    memset(sizes, 0, (size_t)rows * sizeof *sizes);
    for (int64_t k = 0; k < count; k++) {
        const int64_t *ends = columns[k].ends;
        int64_t payload_before = -1, entry = 0; /* most payloads of a column are of one length */
        for (int64_t row = 0; row < rows; row++) {
            int64_t payload = ends[row + 1] - ends[row];
            if (ends[row] < 0 || payload < 0 || ends[row + 1] > columns[k].data_len) return -1;
            if (payload != payload_before) entry = field_nbytes(entry_nbytes(columns[k].key_len, payload));
            payload_before = payload;
            sizes[row] += entry;
        }
    }
    starts[0] = 0;
    for (int64_t row = 0; row < rows; row++) starts[row + 1] = starts[row] + FRAME + field_nbytes(sizes[row]);
    return starts[rows];
}

/* Writes what stands before a payload: tags, lengths and the key. */
static uint8_t *put_head(uint8_t *to, const column *of, int64_t payload) {
    int64_t list = field_nbytes(payload), feature = field_nbytes(list);
    to = put_field(to, FIRST, entry_nbytes(of->key_len, payload));
    copy_few(to, of->key, of->key_len);
    to = put_field(to + of->key_len, SECOND, feature);
    to = put_field(to, (uint8_t)(of->kind << 3 | 2), list);
    return put_field(to, FIRST, payload);
}

/* Writes one column's entry at `at`; where the next one goes, or -1 if it does not fit before `end`. */
PS_INLINE int64_t put_entry(uint8_t *out, int64_t at, int64_t end, column *of, int64_t row) {
    int64_t first = of->ends[row], payload = of->ends[row + 1] - first;
    if (PS_UNLIKELY(first < 0 || payload < 0 || of->ends[row + 1] > of->data_len)) return -1;
    if (PS_LIKELY(payload == of->last_payload)) {
        if (PS_UNLIKELY(of->last_head_len + payload > end - at)) return -1;
        copy_few(out + at, out + of->last_head, of->last_head_len);
    } else {
        if (PS_UNLIKELY(field_nbytes(entry_nbytes(of->key_len, payload)) > end - at)) return -1;
        of->last_head_len = put_head(out + at, of, payload) - (out + at);
        of->last_payload = payload;
    }
    of->last_head = at;
    copy_few(out + at + of->last_head_len, of->data + first, payload);
    return at + of->last_head_len + payload;
}

/* Writes all records with their lengths and checksums, to the places that example_sizes has given; how many were
   written: it stops at a row that does not fit. */
PS_KERNEL(int64_t, example_write)(column *columns, int64_t count, int64_t rows, const int64_t *sizes,
                                  const int64_t *starts, uint8_t *out, int64_t out_len) {
    for (int64_t k = 0; k < count; k++) columns[k].last_payload = -1;
    for (int64_t row = 0; row < rows; row++) {
        int64_t first = starts[row], last = starts[row + 1], length = last - first - FRAME;
        if (first < 0 || sizes[row] < 0 || last > out_len || length != field_nbytes(sizes[row])) return row;
        uint8_t *frame = out + first;
        int64_t at = put_field(frame + HEADER, FIRST, sizes[row]) - out, end = last - (FRAME - HEADER);
        for (int64_t k = 0; k < count && at >= 0; k++) at = put_entry(out, at, end, &columns[k], row);
        if (at != end) return row;
        store_u64(frame, (uint64_t)length);
        store_u32(frame + 8, masked_crc32c_of(frame, 8));
        store_u32(out + end, masked_crc32c_of(frame + HEADER, length));
    }
    return rows;
}
