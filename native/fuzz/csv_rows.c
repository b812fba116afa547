/* csv_rows.c: any text as CSV lines: of four columns, two of a matrix, a float and an integer of their own; and of twelve
   columns of a matrix, where eight are read at once. */
#include "../csv_rows.c"

#include "fuzz.h"

enum { WIDE = 12, ROWS = 12, LISTED = 6 };

static void read_text(const uint8_t *data, size_t size, int64_t item, int wide) {
    static const int64_t kinds[2][WIDE] = {{MATRIX, MATRIX, FLOAT, INTEGER},
                                           {MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, MATRIX,
                                            MATRIX, MATRIX, MATRIX}};
    static const int64_t slots[2][WIDE] = {{0, 1, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
    static const int64_t runs[2][WIDE] = {{1, 0, 0, 0}, {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}}, word_ends[] = {2, 5};
    int64_t columns = wide ? WIDE : 4, width = wide ? WIDE : 2, ends_len = columns + 3 * CELLS_STRIDE;
    csv_job job = {
        .head = {
            .text = data, .text_len = (int64_t)size, .kinds = kinds[wide], .slots = slots[wide], .columns = columns,
            .matrix = room(width * item * ROWS), .width = width, .item = item,
            .floats = room(8 * ROWS), .floats_len = 1, .integers = room(8 * ROWS), .integers_len = 1, .rows = ROWS,
        },
        .runs = runs[wide], .words = (const uint8_t *)"NAnan", .word_ends = word_ends, .words_len = 2,
        .listed = room(32 * LISTED), .listed_len = LISTED, .ends = room(8 * ends_len), .ends_len = ends_len,
        .delimiter = ',',
    };
    int32_t why = ps_csv_rows_fuzz(&job);
    must(why >= CSV_DONE && why <= CSV_ROWS && job.head.rows_done >= 0 && job.head.rows_done <= ROWS);
    must(job.listed_done >= 0 && job.listed_done <= LISTED);
    must(job.head.bytes_done >= 0 && job.head.bytes_done <= (int64_t)size);
    seen_number(why);
    seen_number(job.head.bytes_done);
    seen(job.head.matrix, width * item * job.head.rows_done);
    seen(job.head.floats, 8 * job.head.rows_done);
    seen(job.head.integers, 8 * job.head.rows_done);
    seen(job.listed, 32 * job.listed_done);
    void *all[] = {job.head.matrix, job.head.floats, job.head.integers, job.listed, job.ends};
    for (int i = 0; i < 5; i++) free(all[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int64_t item = 4; item <= 8; item += 4)
        for (int wide = 0; wide < 2; wide++) read_text(data, size, item, wide);
    return 0;
}
