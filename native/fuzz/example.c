/* example.c: records of any bytes to the parser of Example and SequenceExample, and what it locates to the lists.
   The input is cut into up to four records, so that guesses from one to the next are met. */
#include "../example.c"

#include "../example_lists.c"

#include "fuzz.h"

enum { ROWS = 4, FEATURES = 6, SPANS = 3 };

static void read_lists(const uint8_t *buf, int64_t len, const int64_t *spans, int64_t rows, int32_t kind) {
    int64_t *counts = room(8 * rows), *offsets = room(8 * (rows + 1)), *codes = room(8 * rows);
    ps_example_count_values_fuzz(buf, len, spans, rows, kind, counts);
    for (int64_t i = 0; i < rows; i++) offsets[i + 1] = offsets[i] + ps_most(0, counts[i]);
    int64_t total = offsets[rows], done;
    void *out = room(16 * total);
    if (kind == FLOAT) done = ps_example_write_floats_fuzz(buf, len, spans, rows, offsets, out, total);
    else if (kind == INT) done = ps_example_write_ints_fuzz(buf, len, spans, rows, offsets, out, total);
    else done = ps_example_locate_bytes_fuzz(buf, len, spans, rows, offsets, out, total);
    must(done == rows); /* what was counted is there */
    seen(counts, 8 * rows);
    seen(out, (kind == FLOAT ? 4 : kind == INT ? 8 : 16) * total);
    free(out);
    ps_example_count_steps_fuzz(buf, len, spans, rows, kind, counts, codes);
    for (int64_t i = 0; i < rows; i++) offsets[i + 1] = offsets[i] + (codes[i] == OK ? counts[i] : 0);
    int64_t *steps = room(16 * offsets[rows]);
    must(ps_example_locate_steps_fuzz(buf, len, spans, rows, offsets, steps, offsets[rows]) == rows);
    seen(codes, 8 * rows);
    seen(steps, 16 * offsets[rows]);
    free(steps);
    free(counts);
    free(offsets);
    free(codes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t names[] = "xnktbx"; /* the last is a list of steps, named as a feature is */
    static const int64_t starts[] = {0, 1, 2, 3, 4, 5, 6};
    static const spec specs[FEATURES] = {{FLOAT, 3, 0, 4, 0, 0, 0}, {INT, 1, 3, 4, 1, 0, 0},  {INT, 2, 0, 2, 0, 1, 0},
                                         {BYTES, -1, 0, 0, 0, 1, 0}, {INT, -1, 1, 0, 0, 1, 0}, {FLOAT, -1, 2, 0, 0, 1, 1}};
    int64_t rows = size > 2 ? 1 + data[0] % ROWS : 1, each = (int64_t)size / rows - FRAME, notes = ps_example_notes_nbytes_fuzz();
    if (each < 0) return 0;
    int64_t *offsets = room(8 * rows), *lengths = room(8 * rows), *table = room(8 * 16), *ends = room(8 * 16);
    for (int64_t i = 0; i < rows; i++) {
        offsets[i] = i * (each + FRAME);
        lengths[i] = each;
    }
    must(ps_example_table_fuzz(names, 6, starts, FEATURES, table, 16));
    plan wanted = {names, starts, table, specs, 6, 16, FEATURES, 0, 1};
    output out = {room(16 * rows), room(16 * rows), room(16 * SPANS * rows), room(8 * rows), room(8 * rows),
                  room(8 * FEATURES), room(notes), 4 * rows, 2 * rows, 2 * SPANS * rows, SPANS, rows, notes};
    for (int64_t i = 0; i < SPANS * rows; i++) out.spans[2 * i] = -1;
    int64_t bad = ps_example_parse_fuzz(data, (int64_t)size, offsets, lengths, &wanted, &out);
    must(bad >= 0 && bad <= rows);
    for (int64_t i = 0; i < rows; i++) {
        seen_number(out.codes[i]);
        if (out.codes[i] != OK) continue;
        seen(out.floats + 4 * i, 16);
        seen(out.ints + 2 * i, 16);
        seen(out.spans + 2 * SPANS * i, 16 * SPANS);
    }
    int64_t *spans = room(16 * rows);
    for (int column = 0; column < SPANS; column++) {
        for (int64_t i = 0; i < rows; i++) memcpy(spans + 2 * i, out.spans + 2 * (i * SPANS + column), 16);
        for (int32_t kind = BYTES; kind <= INT; kind++) read_lists(data, (int64_t)size, spans, rows, kind);
    }
    void *all[] = {offsets, lengths, table, ends, spans, out.floats, out.ints, out.spans, out.codes, out.features, out.seen, out.notes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return 0;
}
