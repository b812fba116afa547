/* protobuf.h: the protocol buffer wire format, read with every bound checked.
   Covers: variable-length integers, nested messages, unknown fields, map entries, the lists of a tf.train.Feature.
   Does not cover: which features are wanted and where they go (example.c, example_lists.c).

   A message is a pair (place, end). A NULL for a place says that the message is damaged. Nothing reads at or beyond
   `end`, so that the caller has only to make sure of the outermost pair. */
#ifndef PS_PROTOBUF_H
#define PS_PROTOBUF_H

#include "kernels.h"

enum { BYTES = 1, FLOAT = 2, INT = 3 };          /* kinds of feature: their field numbers in Feature */
enum { FIRST = 0x0A, SECOND = 0x12, THIRD = 0x1A }; /* tags of a length-delimited field 1, 2 and 3 */
enum { FIRST_VARINT = 0x08, FIRST_FIXED = 0x0D };  /* tags of field 1 in lists that were written unpacked */

typedef const uint8_t *at;
typedef struct { at start, end; } message; /* start is NULL if it is damaged */

/* A variable-length integer to `value`; the place after it. */
PS_INLINE at read_varint(at place, at end, uint64_t *value) {
    *value = 0;
    if (place >= end) return NULL;
    uint64_t found = *place++;
    if (PS_LIKELY(found < 128)) {
        *value = found;
        return place;
    }
    found &= 127;
    for (int shift = 7; shift < 70; shift += 7) {
        if (place >= end) return NULL;
        uint8_t byte = *place++;
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = found;
            return place;
        }
    }
    return NULL;
}

/* The length-delimited field whose tag was just read. */
PS_INLINE message read_message(at place, at end) {
    uint64_t length;
    at start = read_varint(place, end, &length);
    if (start == NULL || length > (uint64_t)(end - start)) return (message){NULL, NULL};
    return (message){start, start + length};
}

/* The place after a field that nobody asked for. */
PS_INLINE at skip_field(uint64_t tag, at place, at end) {
    uint64_t unused;
    switch (tag & 7) {
        case 0: return read_varint(place, end, &unused);
        case 1: return end - place < 8 ? NULL : place + 8;
        case 2: return read_message(place, end).end;
        case 5: return end - place < 4 ? NULL : place + 4;
        default: return NULL;
    }
}

/* Key and value of a map entry: an entry without one has it empty. Returns whether it is sound. */
PS_INLINE int read_entry(message entry, message *key, message *value) {
    at place = entry.start;
    uint64_t tag;
    *key = (message){entry.start, entry.start};
    *value = (message){entry.end, entry.end};
    while (place < entry.end) {
        place = read_varint(place, entry.end, &tag);
        if (place == NULL) return 0;
        if (tag == FIRST || tag == SECOND) {
            message found = read_message(place, entry.end);
            *(tag == FIRST ? key : value) = found;
            place = found.end;
        } else {
            place = skip_field(tag, place, entry.end);
        }
        if (place == NULL) return 0;
    }
    return 1;
}

/* The list of a Feature, and its kind: 0 if it is unset, -1 if it is damaged. The last list counts. */
PS_INLINE int32_t read_feature(message feature, message *list) {
    int32_t kind = 0;
    at place = feature.start;
    uint64_t tag;
    *list = (message){feature.start, feature.start};
    while (place < feature.end) {
        place = read_varint(place, feature.end, &tag);
        if (place == NULL) return -1;
        if (tag == FIRST || tag == SECOND || tag == THIRD) {
            *list = read_message(place, feature.end);
            kind = (int32_t)(tag >> 3);
            place = list->end;
        } else {
            place = skip_field(tag, place, feature.end);
        }
        if (place == NULL) return -1;
    }
    return kind;
}

/* A FloatList to `target`; the number of values, `room` + 1 if there are more, or -1 if it is damaged. */
PS_INLINE int64_t read_floats(message list, float *target, int64_t room) {
    int64_t found = 0;
    at place = list.start;
    uint64_t tag;
    while (place < list.end) {
        place = read_varint(place, list.end, &tag);
        if (place == NULL) return -1;
        if (tag == FIRST) {
            message packed = read_message(place, list.end);
            int64_t nbytes = packed.end - packed.start;
            if (packed.end == NULL || nbytes & 3) return -1;
            if (nbytes >> 2 > room - found) return room + 1;
            memcpy(target + found, packed.start, (size_t)nbytes);
            found += nbytes >> 2;
            place = packed.end;
        } else if (tag == FIRST_FIXED) {
            if (list.end - place < 4) return -1;
            if (found == room) return room + 1;
            store_f32(target + found++, load_f32(place));
            place += 4;
        } else {
            place = skip_field(tag, place, list.end);
            if (place == NULL) return -1;
        }
    }
    return found;
}

/* An Int64List to `ints`, or to `floats` if that is not NULL; returns as read_floats does. */
PS_INLINE int64_t read_ints(message list, int64_t *ints, float *floats, int64_t room) {
    int64_t found = 0;
    at place = list.start;
    uint64_t tag, value;
    while (place < list.end) {
        place = read_varint(place, list.end, &tag);
        if (place == NULL) return -1;
        if (tag != FIRST && tag != FIRST_VARINT) {
            place = skip_field(tag, place, list.end);
            if (place == NULL) return -1;
            continue;
        }
        at last = list.end;
        if (tag == FIRST) {
            message packed = read_message(place, list.end);
            if (packed.end == NULL) return -1;
            place = packed.start;
            last = packed.end;
        }
        while (place < last || tag == FIRST_VARINT) { /* one that is not packed must be there */
            place = read_varint(place, last, &value);
            if (place == NULL) return -1;
            if (found == room) return room + 1;
            if (floats != NULL) store_f32(floats + found, (float)(int64_t)value);
            else store_i64(ints + found, (int64_t)value);
            found++;
            if (tag == FIRST_VARINT) break;
        }
    }
    return found;
}

/* Whether two stretches of bytes are equal. */
PS_INLINE int same_bytes(at left, at right, int64_t length) {
    if (length < 8) {
        for (int64_t i = 0; i < length; i++)
            if (left[i] != right[i]) return 0;
        return 1;
    }
    for (int64_t i = 0; i < length - 8; i += 8)
        if (load_u64(left + i) != load_u64(right + i)) return 0;
    return load_u64(left + length - 8) == load_u64(right + length - 8);
}

#endif
