/* example.c: tf.train.Example and SequenceExample records straight into arrays.
   Covers: the checksum of each record, features of a fixed number of values written to their place, the places of all
   other features noted.
   Does not cover: frames (tfrecord.c), the wire format (protobuf.h), values of features of varying length
   (example_lists.c), what features are called and become (penstock/sources/tfrecord/features.py).

   Nothing is believed from one record to the next except as a guess that is compared. Records of one writer mostly
   list their features in the same order and layout, so what stands before the values of a feature (tags, lengths, the
   key) is compared with the same place in the record before, 8 bytes at a time; if it is equal, the values are where
   they were then, and a scalar feature takes a comparison and a copy instead of reading six nested messages. */
#include "protobuf.h"
#include "tfrecord.h"

/* Features of a record whose place is remembered for the next record. */
enum { GUESSED = 512 };

/* A feature that is wanted: `count` values from `base` + row * `stride` on, in the floats or the integers; or, with a
   `count` of -1, located in column `base` of the spans. */
typedef struct { int64_t kind, count, base, stride, as_float, optional, listed; } spec;

/* What to take out of a record: names one after the other (name i is names[starts[i] .. starts[i + 1]]), and a hash
   table of `slots` (a power of two) feature numbers, -1 where there is none. */
typedef struct {
    const uint8_t *names;
    const int64_t *starts, *table;
    const spec *specs;
    int64_t names_len, slots, count;
    int32_t check, sequence;
} plan;

/* Where it goes: flat numbers; (start, length) of what is located, `row_spans` of them in each row; a code and the
   feature at fault for each row. `seen` has a number for each feature, `notes` what example_notes_nbytes says. */
typedef struct {
    float *floats;
    int64_t *ints, *spans, *codes, *features, *seen;
    void *notes;
    int64_t floats_len, ints_len, spans_len, row_spans, rows, notes_nbytes;
} output;

typedef enum { NOT_ALIKE, ONE_FLOAT, FLOATS, AS_INT, INT_AS_FLOAT } way;

/* What is remembered of an entry: its key and feature; and, if it ends with its values, where it began, the bytes
   before its values (at least 8), those of the values, and how and where they are stored. */
typedef struct {
    at key, entry;
    int64_t key_len, feature, prefix, payload, base, stride;
    way how;
} note;

typedef struct { const plan *wanted; const output *out; at buf; int64_t row; } job;

PS_INLINE int64_t hash_of(at place, int64_t length) {
    uint64_t value = 0xCBF29CE484222325u; /* FNV-1a */
    for (int64_t i = 0; i < length; i++) value = (value ^ place[i]) * 0x100000001B3u;
    return (int64_t)(value >> 20);
}

/* Fills the hash table of a plan; 0 if it has no room or the names are not where the starts say. */
PS_KERNEL(int32_t, example_table)(const uint8_t *names, int64_t names_len, const int64_t *starts, int64_t count,
                                  int64_t *table, int64_t slots) {
    if (slots <= count || (slots & (slots - 1))) return 0;
    for (int64_t i = 0; i < slots; i++) table[i] = -1;
    for (int64_t i = 0; i < count; i++) {
        if (starts[i] < 0 || starts[i] > starts[i + 1] || starts[i + 1] > names_len) return 0;
        int64_t slot = hash_of(names + starts[i], starts[i + 1] - starts[i]) & (slots - 1);
        while (table[slot] >= 0) slot = (slot + 1) & (slots - 1);
        table[slot] = i;
    }
    return 1;
}

/* The feature of this name, or -1. Context and steps may share a name. */
static int64_t find_feature(at key, int64_t length, int64_t listed, const plan *wanted) {
    int64_t mask = wanted->slots - 1, slot = hash_of(key, length) & mask;
    for (int64_t feature; (feature = wanted->table[slot]) >= 0; slot = (slot + 1) & mask) {
        int64_t first = wanted->starts[feature], after = wanted->starts[feature + 1];
        if (after - first == length && wanted->specs[feature].listed == listed &&
            same_bytes(key, wanted->names + first, length))
            return feature;
    }
    return -1;
}

/* The feature of a key: that of the record before at this place if the key is the same, else looked up. */
PS_INLINE int64_t guess_feature(message key, int64_t listed, note *noted, const plan *wanted) {
    int64_t length = key.end - key.start;
    if (noted->key_len == length && same_bytes(key.start, noted->key, length)) return noted->feature;
    noted->key = key.start;
    noted->key_len = length;
    noted->feature = find_feature(key.start, length, listed, wanted);
    return noted->feature;
}

/* Notes the layout of an entry that was just stored, if it ends with one packed list of a fixed number of values. */
static void remember(at begin, message value, int64_t feature, note *noted, const plan *wanted) {
    const spec *asked = &wanted->specs[feature];
    message list;
    uint64_t tag;
    int32_t kind = read_feature(value, &list);
    if (list.end != value.end || asked->count < 1 || (kind != FLOAT && asked->count != 1)) return;
    at place = read_varint(list.start, list.end, &tag);
    if (place == NULL || tag != FIRST) return;
    message packed = read_message(place, list.end);
    if (packed.end != value.end || packed.start - begin < 8) return;
    if (kind == FLOAT && packed.end - packed.start != 4 * asked->count) return;
    noted->entry = begin;
    noted->prefix = packed.start - begin;
    noted->payload = packed.end - packed.start;
    noted->base = asked->base;
    noted->stride = asked->stride;
    if (kind == FLOAT) noted->how = asked->count == 1 ? ONE_FLOAT : FLOATS;
    else noted->how = asked->as_float ? INT_AS_FLOAT : AS_INT;
}

/* Stores an entry that is laid out as the one before; the place after it, or NULL if it is not. */
PS_INLINE at put_alike(at place, at end, const note *noted, const job *now) {
    int64_t prefix = noted->prefix;
    if (noted->how == NOT_ALIKE || prefix + noted->payload > end - place) return NULL;
    at values = place + prefix, after = values + noted->payload;
    if (load_u64(values - 8) != load_u64(noted->entry + prefix - 8)) return NULL;
    for (int64_t i = 0; i < prefix - 8; i += 8)
        if (load_u64(place + i) != load_u64(noted->entry + i)) return NULL;
    int64_t target = noted->base + now->row * noted->stride;
    uint64_t value;
    switch (noted->how) {
        case ONE_FLOAT: store_f32(now->out->floats + target, load_f32(values)); break;
        case FLOATS: memcpy(now->out->floats + target, values, (size_t)noted->payload); break;
        default:
            if (read_varint(values, after, &value) != after) return NULL;
            if (noted->how == AS_INT) store_i64(now->out->ints + target, (int64_t)value);
            else store_f32(now->out->floats + target, (float)(int64_t)value);
    }
    now->out->seen[noted->feature] = now->row + 1;
    return after;
}

PS_INLINE int32_t locate(message list, const spec *asked, const job *now) {
    int64_t *span = now->out->spans + 2 * (now->row * now->out->row_spans + asked->base);
    span[0] = list.start - now->buf;
    span[1] = list.end - list.start;
    return OK;
}

/* Stores one feature of a record. Returns a code, or -1 where the feature is there but unset. */
static int32_t put(message value, const spec *asked, const job *now) {
    message list;
    int32_t kind = read_feature(value, &list);
    if (kind <= 0) return kind == 0 ? -1 : BAD_WIRE;
    if (kind != asked->kind) return WRONG_KIND;
    if (asked->count < 0) return locate(list, asked, now);
    int64_t target = asked->base + now->row * asked->stride, found;
    if (kind == FLOAT) found = read_floats(list, now->out->floats + target, asked->count);
    else if (asked->as_float) found = read_ints(list, NULL, now->out->floats + target, asked->count);
    else found = read_ints(list, now->out->ints + target, NULL, asked->count);
    if (found < 0) return BAD_WIRE;
    return found == asked->count ? OK : WRONG_COUNT;
}

/* Stores one entry of a map of features (or of feature lists), if it is wanted; `begin` is the place of its tag. */
static int32_t put_entry(at begin, message entry, int64_t listed, note *noted, const job *now) {
    message key, value;
    if (!read_entry(entry, &key, &value)) return BAD_WIRE;
    int64_t feature = guess_feature(key, listed, noted, now->wanted);
    noted->how = NOT_ALIKE; /* it was of the feature that stood here before, until this one is sound */
    if (feature < 0) return OK;
    const spec *asked = &now->wanted->specs[feature];
    now->out->features[now->row] = feature;
    int32_t code = listed ? locate(value, asked, now) : put(value, asked, now);
    if (!listed && code == OK && value.end == entry.end) remember(begin, value, feature, noted, now->wanted);
    now->out->seen[feature] = code == OK ? now->row + 1 : 0;
    return code > OK ? code : OK;
}

/* Goes through a map of features (or of feature lists) and stores those that are wanted. */
static int32_t put_features(message map, int64_t listed, const job *now) {
    note *notes = (note *)now->out->notes + (listed ? GUESSED : 0);
    at place = map.start;
    for (int64_t nth = 0; place < map.end;) {
        note *noted = notes + ps_least(nth, GUESSED - 1);
        at after = put_alike(place, map.end, noted, now), begin = place;
        if (after != NULL) {
            place = after;
            nth++;
            continue;
        }
        uint64_t tag;
        place = read_varint(place, map.end, &tag);
        if (place == NULL) return BAD_WIRE;
        if (tag == FIRST) {
            message entry = read_message(place, map.end);
            if (entry.end == NULL) return BAD_WIRE;
            int32_t code = put_entry(begin, entry, listed, noted, now);
            if (code != OK) return code;
            place = entry.end;
            nth++;
        } else {
            place = skip_field(tag, place, map.end);
            if (place == NULL) return BAD_WIRE;
        }
    }
    return OK;
}

/* Parses one Example or SequenceExample. */
static int32_t put_record(message record, const job *now) {
    at place = record.start;
    uint64_t tag;
    while (place < record.end) {
        place = read_varint(place, record.end, &tag);
        if (place == NULL) return BAD_WIRE;
        if (tag == FIRST || (tag == SECOND && now->wanted->sequence)) {
            message map = read_message(place, record.end);
            if (map.end == NULL) return BAD_WIRE;
            int32_t code = put_features(map, tag == SECOND, now);
            if (code != OK) return code;
            place = map.end;
        } else {
            place = skip_field(tag, place, record.end);
            if (place == NULL) return BAD_WIRE;
        }
    }
    for (int64_t feature = 0; feature < now->wanted->count; feature++)
        if (now->out->seen[feature] != now->row + 1 && !now->wanted->specs[feature].optional) {
            now->out->features[now->row] = feature;
            return MISSING;
        }
    return OK;
}

/* Whether what is wanted has its place in the output, for each row. */
static int fits(const plan *wanted, const output *out) {
    if (out->rows < 0 || wanted->slots <= wanted->count || (wanted->slots & (wanted->slots - 1))) return 0;
    if (out->notes_nbytes < (int64_t)(2 * GUESSED * sizeof(note))) return 0;
    if (out->row_spans < 0 || (out->row_spans && out->spans_len / 2 / out->row_spans < out->rows)) return 0;
    for (int64_t i = 0; i < wanted->count; i++) {
        const spec *asked = &wanted->specs[i];
        if (asked->base < 0 || wanted->starts[i] < 0 || wanted->starts[i] > wanted->starts[i + 1]) return 0;
        if (asked->count < 0 || asked->listed) {
            if (asked->base >= out->row_spans) return 0;
            continue;
        }
        int64_t room = asked->kind == FLOAT || asked->as_float ? out->floats_len : out->ints_len, last;
        if (asked->stride < 0 || (asked->kind != FLOAT && asked->kind != INT)) return 0;
        if (out->rows == 0) continue;
        if (__builtin_mul_overflow(asked->stride, out->rows - 1, &last)) return 0;
        if (__builtin_add_overflow(last, asked->base, &last) || asked->count > room || last > room - asked->count)
            return 0;
    }
    return wanted->starts[wanted->count] <= wanted->names_len;
}

PS_KERNEL(int64_t, example_notes_nbytes)(void) { return 2 * GUESSED * sizeof(note); }

/* Parses the frames at `offsets`, a row of the output each. Returns the number of rows whose code is not OK, or -1 if
   the plan does not fit the output. */
PS_KERNEL(int64_t, example_parse)(const uint8_t *buf, int64_t buf_len, const int64_t *offsets, const int64_t *lengths,
                                  const plan *wanted, const output *out) {
    if (!fits(wanted, out)) return -1;
    note *notes = out->notes;
    for (int64_t i = 0; i < 2 * GUESSED; i++) {
        notes[i].key_len = -1;
        notes[i].how = NOT_ALIKE;
    }
    for (int64_t i = 0; i < wanted->count; i++) out->seen[i] = 0;
    int64_t bad = 0;
    for (int64_t row = 0; row < out->rows; row++) {
        out->features[row] = -1;
        int32_t code = frame_code(buf, buf_len, offsets[row], lengths[row], wanted->check);
        if (code == OK) {
            at start = buf + offsets[row] + HEADER;
            job now = {wanted, out, buf, row};
            code = put_record((message){start, start + lengths[row]}, &now);
        }
        out->codes[row] = code;
        bad += code != OK;
    }
    return bad;
}
