/* copy_rows.c: any bytes as PostgreSQL's binary COPY, a column of each kind, with much and with little room. */
#include "../copy_rows.c"

#include "fuzz.h"

enum { COLUMNS = 7 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int small = 0; small < 2; small++) {
        int64_t capacity = small ? 2 : 20, open = small ? 8 : 300, progress[2] = {0, 0};
        column columns[COLUMNS];
        for (int kind = 0; kind < COLUMNS; kind++) {
            int64_t nbytes = kind == OPEN ? 4 * (capacity + 1) : widths[kind] * capacity;
            columns[kind] = (column){room(nbytes), room(capacity), room(kind == OPEN ? open : 0), kind == OPEN ? open : 0, 0, kind};
            memset(columns[kind].valid, 1, (size_t)capacity);
        }
        int32_t why = ps_copy_rows_fuzz(data, (int64_t)size, columns, COLUMNS, capacity, progress);
        must(why >= MORE && why <= OVER && progress[0] >= 0 && progress[0] <= capacity);
        must(progress[1] >= 0 && progress[1] <= (int64_t)size);
        double *floats = room(8 * capacity);
        int64_t *odd = room(8 * capacity);
        int64_t oddities = ps_copy_numeric_fuzz(columns[OPEN].data, open, (const int32_t *)(const void *)columns[OPEN].values,
                                                progress[0], floats, odd);
        must(oddities <= progress[0]);
        seen_number(why);
        seen(progress, sizeof progress);
        seen_number(oddities);
        if (oddities == 0) seen(floats, 8 * progress[0]);
        free(floats);
        free(odd);
        for (int kind = 0; kind < COLUMNS; kind++) {
            must(columns[kind].nulls >= 0 && columns[kind].nulls <= progress[0]);
            seen_number(columns[kind].nulls);
            seen(columns[kind].values, kind == OPEN ? 4 * (progress[0] + 1) : widths[kind] * progress[0]);
            seen(columns[kind].valid, progress[0]);
            if (kind == OPEN) seen(columns[kind].data, load_i32(columns[kind].values + 4 * progress[0]));
            free(columns[kind].values);
            free(columns[kind].valid);
            free(columns[kind].data);
        }
    }
    return 0;
}
