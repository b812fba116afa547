/* csv_rows.c: any text as CSV lines of four columns: two of a matrix, a float and an integer of their own. */
#include "../csv_rows.c"

#include "fuzz.h"

enum { COLUMNS = 4, ROWS = 12, LISTED = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int64_t kinds[] = {MATRIX, MATRIX, FLOAT, INTEGER}, slots[] = {0, 1, 0, 0}, runs[] = {1, 0, 0, 0};
    static const int64_t word_ends[] = {2, 5};
    for (int64_t item = 4; item <= 8; item += 4) {
        int64_t ends_len = COLUMNS + 3 * CELLS_STRIDE;
        csv_job job = {
            .head = {
                .text = data, .text_len = (int64_t)size, .kinds = kinds, .slots = slots, .columns = COLUMNS,
                .matrix = room(2 * item * ROWS), .width = 2, .item = item,
                .floats = room(8 * ROWS), .floats_len = 1, .integers = room(8 * ROWS), .integers_len = 1, .rows = ROWS,
            },
            .runs = runs, .words = (const uint8_t *)"NAnan", .word_ends = word_ends, .words_len = 2,
            .listed = room(32 * LISTED), .listed_len = LISTED, .ends = room(8 * ends_len), .ends_len = ends_len,
            .delimiter = ',',
        };
        int32_t why = ps_csv_rows_fuzz(&job);
        must(why >= CSV_DONE && why <= CSV_ROWS && job.head.rows_done >= 0 && job.head.rows_done <= ROWS);
        must(job.listed_done >= 0 && job.listed_done <= LISTED);
        must(job.head.bytes_done >= 0 && job.head.bytes_done <= (int64_t)size);
        void *all[] = {job.head.matrix, job.head.floats, job.head.integers, job.listed, job.ends};
        for (int i = 0; i < 5; i++) free(all[i]);
    }
    return 0;
}
