/* json_rows.c: any text as JSON lines with three keys: one of a matrix, a float and an integer of their own. */
#include "../json_rows.c"

#include "fuzz.h"

enum { COLUMNS = 3, ROWS = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int64_t kinds[] = {MATRIX, FLOAT, INTEGER}, slots[] = {0, 0, 0}, key_ends[] = {4, 9, 13};
    for (int64_t item = 4; item <= 8; item += 4) {
        json_job job = {
            .head = {
                .text = data, .text_len = (int64_t)size, .kinds = kinds, .slots = slots, .columns = COLUMNS,
                .matrix = room(item * ROWS), .width = 1, .item = item,
                .floats = room(8 * ROWS), .floats_len = 1, .integers = room(8 * ROWS), .integers_len = 1, .rows = ROWS,
            },
            .keys = (const uint8_t *)"\"a\":\"bb\":\"c\":", .key_ends = key_ends,
        };
        int32_t why = ps_json_rows_fuzz(&job);
        must(why >= JSON_DONE && why <= JSON_ROWS && job.head.rows_done >= 0 && job.head.rows_done <= ROWS);
        must(job.head.bytes_done >= 0 && job.head.bytes_done <= (int64_t)size);
        seen_number(why);
        seen_number(job.head.bytes_done);
        seen(job.head.matrix, 1 * item * job.head.rows_done);
        seen(job.head.floats, 8 * job.head.rows_done);
        seen(job.head.integers, 8 * job.head.rows_done);
        free(job.head.matrix);
        free(job.head.floats);
        free(job.head.integers);
    }
    return 0;
}
