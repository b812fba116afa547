/* matrix.c: columns in memory to the rows of a matrix.
   Covers: float32 from floats and integers, eight-byte numbers as they are.
   Does not cover: missing values, other types, when it is used (sources/tables/).

   Tiles of rows and columns keep the part that is written in the first cache and the columns that are read few enough
   for the page tables, however many there are. */
#include "kernels.h"

enum { ROWS = 128, WIDE_ROWS = 256, COLUMNS = 32, SQUARE = 4 };
enum { FROM_F32 = 0, FROM_F64 = 1, FROM_I32 = 2, FROM_I64 = 3 };

typedef uint32_t square_line __attribute__((vector_size(4 * SQUARE)));

#define COLUMN_TO_F32(name, type)                                                    \
    static void name##_to_f32(const uint8_t *from, int64_t count, float *to) {       \
        for (int64_t row = 0; row < count; row++)                                    \
            to[row] = (float)load_##name(from + (int64_t)sizeof(type) * row);        \
    }
COLUMN_TO_F32(f64, double)
COLUMN_TO_F32(i32, int32_t)
COLUMN_TO_F32(i64, int64_t)

/* `count` numbers of a column from row `top` on, as float32: where they are, or in `spare`. */
static const uint8_t *as_f32(const uint8_t *column, int kind, int64_t top, int64_t count, float *spare) {
    switch (kind) {
        case FROM_F32: return column + 4 * top;
        case FROM_F64: f64_to_f32(column + 8 * top, count, spare); break;
        case FROM_I32: i32_to_f32(column + 4 * top, count, spare); break;
        default: i64_to_f32(column + 8 * top, count, spare);
    }
    return (const uint8_t *)spare;
}

PS_INLINE square_line load_line(const uint8_t *from) { square_line it; memcpy(&it, from, sizeof it); return it; }
PS_INLINE void store_line(uint8_t *to, square_line it) { memcpy(to, &it, sizeof it); }

/* Four columns of numbers of four bytes to neighbouring columns of `count` rows, four rows at a time. */
static void turn(const uint8_t *const from[SQUARE], int64_t count, uint8_t *target, int64_t step) {
    int64_t row = 0;
    for (; row + SQUARE <= count; row += SQUARE) {
        square_line a = load_line(from[0] + 4 * row), b = load_line(from[1] + 4 * row);
        square_line c = load_line(from[2] + 4 * row), d = load_line(from[3] + 4 * row);
        square_line ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_end = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        square_line cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_end = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        uint8_t *line = target + step * row;
        store_line(line, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
        store_line(line + step, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
        store_line(line + 2 * step, __builtin_shufflevector(ab_end, cd_end, 0, 1, 4, 5));
        store_line(line + 3 * step, __builtin_shufflevector(ab_end, cd_end, 2, 3, 6, 7));
    }
    for (; row < count; row++)
        for (int k = 0; k < SQUARE; k++) store_u32(target + step * row + 4 * k, load_u32(from[k] + 4 * row));
}

/* `count` columns of `nrows` numbers, of the kinds float32, float64, int32, int64 (0 to 3), to neighbouring float32
   columns of a matrix whose rows are `step` bytes apart, from `target` on. Returns 1, or 0 if they do not fit. */
PS_KERNEL(int32_t, matrix_to_f32)(const uint8_t *const *columns, const uint8_t *kinds, int64_t count, int64_t nrows,
                                  uint8_t *target, int64_t step) {
    float spare[SQUARE][ROWS];
    if (4 * count > step) return 0;
    for (int64_t column = 0; column < count; column++)
        if (kinds[column] > FROM_I64) return 0;
    for (int64_t top = 0; top < nrows; top += ROWS) {
        int64_t rows = ps_least(ROWS, nrows - top);
        for (int64_t left = 0; left < count; left += SQUARE) {
            int64_t wide = ps_least(SQUARE, count - left);
            const uint8_t *from[SQUARE];
            uint8_t *place = target + step * top + 4 * left;
            for (int64_t k = 0; k < wide; k++) from[k] = as_f32(columns[left + k], kinds[left + k], top, rows, spare[k]);
            if (wide == SQUARE) {
                turn(from, rows, place, step);
                continue;
            }
            for (int64_t k = 0; k < wide; k++)
                for (int64_t row = 0; row < rows; row++) store_u32(place + step * row + 4 * k, load_u32(from[k] + 4 * row));
        }
    }
    return 1;
}

/* As matrix_to_f32, for eight-byte numbers that are copied as they are. */
PS_KERNEL(int32_t, matrix_copy_u64)(const uint8_t *const *columns, int64_t count, int64_t nrows, uint8_t *target,
                                    int64_t step) {
    if (8 * count > step) return 0;
    for (int64_t top = 0; top < nrows; top += WIDE_ROWS) {
        int64_t bottom = ps_least(nrows, top + WIDE_ROWS);
        for (int64_t left = 0; left < count; left += COLUMNS) {
            int64_t right = ps_least(count, left + COLUMNS);
            for (int64_t row = top; row < bottom; row++)
                for (int64_t column = left; column < right; column++)
                    store_u64(target + step * row + 8 * column, load_u64(columns[column] + 8 * row));
        }
    }
    return 1;
}
