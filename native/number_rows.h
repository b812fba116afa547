/* number_rows.h: what every kernel that turns lines of text into rows of numbers is told.
   Covers: the text, what becomes of each column, where it goes, how far a call got.
   Does not cover: how lines and cells are found (csv_rows.c, json_rows.c). */
#ifndef PS_NUMBER_ROWS_H
#define PS_NUMBER_ROWS_H

#include "cells.h"

enum { ARGUMENTS = -1 }; /* a call ended because the arguments do not fit each other */

enum { SKIP = 0, MATRIX = 1, FLOAT = 2, INTEGER = 3 };

/* The head of csv_job and json_job; RowsJob in penstock/native/csv.py has the same fields in the same order. */
typedef struct {
    const uint8_t *text;
    int64_t text_len;
    const int64_t *kinds, *slots; /* of each column */
    int64_t columns;
    uint8_t *matrix; /* rows x width numbers of `item` bytes, 4 or 8 */
    int64_t width, item;
    double *floats; /* each column is `rows` numbers */
    int64_t floats_len;
    int64_t *integers;
    int64_t integers_len;
    int64_t rows; /* that there is room for */
    int64_t rows_done, bytes_done; /* how far it got */
} number_rows;

/* Whether every column has its place. */
static int columns_fit(const number_rows *head) {
    const int64_t room[] = {INT64_MAX, head->width, head->floats_len, head->integers_len};
    if (head->columns < 1 || (head->item != 4 && head->item != 8)) return 0;
    for (int64_t k = 0; k < head->columns; k++) {
        int64_t kind = head->kinds[k], slot = head->slots[k];
        if (kind < SKIP || kind > INTEGER || slot < 0 || slot >= room[kind]) return 0;
    }
    return 1;
}

/* A number to its place in the matrix, which is of floats where `single`. */
PS_INLINE void put(uint8_t *matrix, int64_t at, double number, int single) {
    if (single) store_f32(matrix + 4 * at, (float)number);
    else store_f64(matrix + 8 * at, number);
}

#endif
