/* example_lists.c: the values of features whose number differs from record to record.
   Covers: counting and writing the values of located lists, the steps of a SequenceExample, gathering bytes.
   Does not cover: locating the lists (example.c), columns of the values (penstock/sources/tfrecord/lists.py).

   `spans` are pairs: start in the buffer and length, as example_parse notes them. A start of -1 is a missing list, which
   is empty; a list that does not lie in the buffer is damaged. Kernels that write return how many lists they wrote, and
   stop at one that does not have as many values as `offsets` have room for. */
#include "protobuf.h"
#include "tfrecord.h"

/* The list at a pair; start is NULL if it does not lie in the buffer. A missing one is empty. */
PS_INLINE message list_at(const uint8_t *buf, int64_t buf_len, const int64_t *span) {
    if (span[0] < 0) return (message){buf, buf};
    if (span[0] > buf_len || span[1] < 0 || span[1] > buf_len - span[0]) return (message){NULL, NULL};
    return (message){buf + span[0], buf + span[0] + span[1]};
}

/* The values of packed integers, or -1 if the last one is cut short: each ends with its only byte below 128. */
PS_INLINE int64_t packed_ints(message packed) {
    int64_t found = 0, run = 0;
    for (at place = packed.start; place < packed.end; place++) {
        run = *place < 128 ? 0 : run + 1;
        if (run == 10) return -1; /* more than ten bytes are no number */
        found += *place < 128;
    }
    return run ? -1 : found;
}

/* The number of values in one list, or -1 if it is damaged. */
PS_INLINE int64_t values_in(message list, int32_t kind) {
    int64_t found = 0;
    at place = list.start;
    uint64_t tag;
    if (place == NULL) return -1;
    while (place < list.end) {
        place = read_varint(place, list.end, &tag);
        if (place == NULL) return -1;
        if (tag == FIRST) {
            message packed = read_message(place, list.end);
            if (packed.end == NULL) return -1;
            int64_t nbytes = packed.end - packed.start, some = 1;
            if (kind == FLOAT) some = nbytes & 3 ? -1 : nbytes >> 2;
            else if (kind == INT) some = packed_ints(packed);
            if (some < 0) return -1;
            found += some;
            place = packed.end;
            continue;
        }
        found += (tag == FIRST_FIXED && kind == FLOAT) || (tag == FIRST_VARINT && kind == INT);
        place = skip_field(tag, place, list.end);
        if (place == NULL) return -1;
    }
    return found;
}

/* Counts the values of each list; a damaged one counts -1. Returns the number of damaged ones. */
PS_KERNEL(int64_t, example_count_values)(const uint8_t *buf, int64_t buf_len, const int64_t *spans, int64_t rows,
                                         int32_t kind, int64_t *counts) {
    int64_t bad = 0;
    for (int64_t row = 0; row < rows; row++) {
        counts[row] = values_in(list_at(buf, buf_len, spans + 2 * row), kind);
        bad += counts[row] < 0;
    }
    return bad;
}

/* Whether row's part of an output of `out_len` values is sound. */
PS_INLINE int has_room(const int64_t *offsets, int64_t row, int64_t out_len) {
    return offsets[row] >= 0 && offsets[row] <= offsets[row + 1] && offsets[row + 1] <= out_len;
}

/* Writes each list to out[offsets[row] .. offsets[row + 1]]; a row without room is left out. */
PS_KERNEL(int64_t, example_write_floats)(const uint8_t *buf, int64_t buf_len, const int64_t *spans, int64_t rows,
                                         const int64_t *offsets, float *out, int64_t out_len) {
    for (int64_t row = 0; row < rows; row++) {
        if (!has_room(offsets, row, out_len)) return row;
        int64_t room = offsets[row + 1] - offsets[row];
        message list = list_at(buf, buf_len, spans + 2 * row);
        if (room && (list.start == NULL || read_floats(list, out + offsets[row], room) != room)) return row;
    }
    return rows;
}

/* As example_write_floats, for integers. */
PS_KERNEL(int64_t, example_write_ints)(const uint8_t *buf, int64_t buf_len, const int64_t *spans, int64_t rows,
                                       const int64_t *offsets, int64_t *out, int64_t out_len) {
    for (int64_t row = 0; row < rows; row++) {
        if (!has_room(offsets, row, out_len)) return row;
        int64_t room = offsets[row + 1] - offsets[row];
        message list = list_at(buf, buf_len, spans + 2 * row);
        if (room && (list.start == NULL || read_ints(list, out + offsets[row], NULL, room) != room)) return row;
    }
    return rows;
}

/* Reads up to the next field 1 of a message; its contents, or NULLs at the end or at damage. */
PS_INLINE message next_first(at *place, at end) {
    uint64_t tag;
    while (*place != NULL && *place < end) {
        *place = read_varint(*place, end, &tag);
        if (*place == NULL) break;
        if (tag == FIRST) {
            message found = read_message(*place, end);
            *place = found.end;
            return found;
        }
        *place = skip_field(tag, *place, end);
    }
    return (message){NULL, NULL};
}

/* Notes where each value of each list of bytes lies, as (start, length); `room` pairs fit. */
PS_KERNEL(int64_t, example_locate_bytes)(const uint8_t *buf, int64_t buf_len, const int64_t *spans, int64_t rows,
                                         const int64_t *offsets, int64_t *places, int64_t room) {
    for (int64_t row = 0; row < rows; row++) {
        if (!has_room(offsets, row, room)) return row;
        message list = list_at(buf, buf_len, spans + 2 * row);
        at place = list.start;
        for (int64_t i = offsets[row]; i < offsets[row + 1]; i++) {
            message value = next_first(&place, list.end);
            if (value.start == NULL) return row;
            places[2 * i] = value.start - buf;
            places[2 * i + 1] = value.end - value.start;
        }
    }
    return rows;
}

/* Copies stretches of the buffer to out[offsets[i]] and on; how many. */
PS_KERNEL(int64_t, example_gather_bytes)(const uint8_t *buf, int64_t buf_len, const int64_t *places, int64_t count,
                                         const int64_t *offsets, uint8_t *out, int64_t out_len) {
    for (int64_t i = 0; i < count; i++) {
        int64_t start = places[2 * i], length = places[2 * i + 1], to = offsets[i];
        if (start < 0 || start > buf_len || length < 0 || length > buf_len - start) return i;
        if (to < 0 || to > out_len || length > out_len - to) return i;
        if (length) memcpy(out + to, buf + start, (size_t)length);
    }
    return count;
}

PS_INLINE int32_t steps_in(message list, int32_t kind, int64_t *count) {
    at place = list.start;
    *count = 0;
    if (place == NULL) return BAD_WIRE;
    while (place != NULL && place < list.end) {
        message step = next_first(&place, list.end), values;
        if (step.start == NULL) break;
        int32_t found = read_feature(step, &values);
        ++*count;
        if (found < 0) return BAD_WIRE;
        if (found != 0 && found != kind) return WRONG_KIND;
    }
    return place == NULL ? BAD_WIRE : OK;
}

/* Counts the steps of each FeatureList, and sees that each is of the kind. Returns the number of damaged lists. */
PS_KERNEL(int64_t, example_count_steps)(const uint8_t *buf, int64_t buf_len, const int64_t *spans, int64_t rows,
                                        int32_t kind, int64_t *counts, int64_t *codes) {
    int64_t bad = 0;
    for (int64_t row = 0; row < rows; row++) {
        codes[row] = steps_in(list_at(buf, buf_len, spans + 2 * row), kind, counts + row);
        bad += codes[row] != OK;
    }
    return bad;
}

/* Notes where the list of each step lies; an unset step is an empty list. */
PS_KERNEL(int64_t, example_locate_steps)(const uint8_t *buf, int64_t buf_len, const int64_t *spans, int64_t rows,
                                         const int64_t *offsets, int64_t *steps, int64_t room) {
    for (int64_t row = 0; row < rows; row++) {
        if (!has_room(offsets, row, room)) return row;
        message list = list_at(buf, buf_len, spans + 2 * row);
        at place = list.start;
        for (int64_t i = offsets[row]; i < offsets[row + 1]; i++) {
            message step = next_first(&place, list.end), values;
            if (step.start == NULL || read_feature(step, &values) < 0) return row;
            steps[2 * i] = values.start - buf;
            steps[2 * i + 1] = values.end - values.start;
        }
    }
    return rows;
}
