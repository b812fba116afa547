/* copy_rows.c: rows of PostgreSQL's binary COPY straight into the buffers of Arrow columns.
   Covers: numbers and times (byte order, epoch), text and bytes, missing values, `numeric` as float64 where that is one
   correctly rounded operation; every bound checked.
   Does not cover: the connection (penstock/sources/sql/copy.py), columns around the buffers.

   A row is: the number of fields (2 bytes), and for each field its length (4, or -1 for NULL) and its bytes. A number
   of fields of -1 ends the data. All numbers are big-endian. */
#include "kernels.h"

enum { MORE, FULL, DAMAGED, OVER }; /* why rows end: the input is used up, no room for this row, nonsense, the end */
enum { BYTE, SHORT, WORD, LONG, DAY, MOMENT, OPEN }; /* 1, 2, 4, 8 bytes, days, microseconds, bytes of open length */

/* PostgreSQL counts from the year 2000. */
#define EPOCH_DAYS 10957
#define EPOCH_US 946684800000000

/* A column: `values` has room for as many rows as the batch (offsets, one more, if it is open; the first is 0), `valid`
   a byte for each row that says whether there is a value, `data` room for `data_len` bytes of open values. */
typedef struct {
    uint8_t *values, *valid, *data;
    int64_t data_len, nulls, kind;
} column;

PS_INLINE uint16_t big_u16(const uint8_t *from) { return __builtin_bswap16(load_u16(from)); }
PS_INLINE uint32_t big_u32(const uint8_t *from) { return __builtin_bswap32(load_u32(from)); }
PS_INLINE uint64_t big_u64(const uint8_t *from) { return __builtin_bswap64(load_u64(from)); }

static const uint8_t widths[] = {1, 2, 4, 8, 4, 8, 0};

/* Notes that a row has no value; numbers get a zero, open columns no bytes. */
static void put_missing(column *to, int64_t row) {
    to->valid[row] = 0;
    to->nulls++;
    if (to->kind == OPEN) store_u32(to->values + 4 * row + 4, load_u32(to->values + 4 * row));
    else memset(to->values + widths[to->kind] * row, 0, widths[to->kind]);
}

static void put_number(const uint8_t *from, column *to, int64_t row) {
    switch (to->kind) {
        case WORD: store_u32(to->values + 4 * row, big_u32(from)); break;
        case LONG: store_u64(to->values + 8 * row, big_u64(from)); break;
        case SHORT: store_u16(to->values + 2 * row, big_u16(from)); break;
        case BYTE: to->values[row] = *from; break;
        case MOMENT: { /* the least and the greatest stand for the infinities, which no array of times can hold */
            int64_t moment = (int64_t)big_u64(from);
            if (moment == INT64_MIN || moment > INT64_MAX - EPOCH_US) put_missing(to, row);
            else store_i64(to->values + 8 * row, moment + EPOCH_US);
            break;
        }
        default: {
            int32_t day = (int32_t)big_u32(from);
            if (day == INT32_MIN || day > INT32_MAX - EPOCH_DAYS) put_missing(to, row);
            else store_i32(to->values + 4 * row, day + EPOCH_DAYS);
        }
    }
}

/* Stores the fields of one row and moves `place` behind it. */
static int32_t put_row(const uint8_t **place, const uint8_t *end, column *columns, int64_t count, int64_t row) {
    const uint8_t *from = *place;
    for (int64_t i = 0; i < count; i++) {
        column *to = columns + i;
        if (end - from < 4) return MORE;
        int64_t length = (int32_t)big_u32(from);
        from += 4;
        if (length == -1) {
            put_missing(to, row);
            continue;
        }
        if (length < 0) return DAMAGED;
        if (length > end - from) return MORE;
        if (to->kind == OPEN) {
            int64_t first = load_u32(to->values + 4 * row);
            if (length > to->data_len - first) return FULL;
            if (length) memcpy(to->data + first, from, (size_t)length);
            store_u32(to->values + 4 * row + 4, (uint32_t)(first + length));
        } else {
            if (length != widths[to->kind]) return DAMAGED;
            put_number(from, to, row);
        }
        from += length;
    }
    *place = from;
    return OVER;
}

/* A row that was not finished leaves no trace of missing values. */
static void forget_row(column *columns, int64_t count, int64_t row) {
    for (int64_t i = 0; i < count; i++)
        if (!columns[i].valid[row]) {
            columns[i].valid[row] = 1;
            columns[i].nulls--;
        }
}

/* Stores the rows that lie whole in `buf`, from number progress[0] on, at most `capacity` in all; `valid` is 1 before.
   `progress` becomes the next row and the bytes that were used. Returns why it stopped. */
PS_KERNEL(int32_t, copy_rows)(const uint8_t *buf, int64_t buf_len, column *columns, int64_t count, int64_t capacity,
                              int64_t progress[2]) {
    const uint8_t *place = buf, *end = buf + buf_len;
    int64_t row = progress[0];
    int32_t why = MORE;
    for (int64_t i = 0; i < count; i++)
        if (columns[i].kind < BYTE || columns[i].kind > OPEN) why = DAMAGED;
    if (row < 0) why = DAMAGED;
    while (why == MORE && end - place >= 2) {
        int64_t fields = big_u16(place);
        if (fields == 0xFFFF) { why = OVER; place += 2; break; }
        if (fields != count) { why = DAMAGED; break; }
        if (row >= capacity) { why = FULL; break; }
        const uint8_t *after = place + 2;
        int32_t code = put_row(&after, end, columns, count, row);
        if (code != OVER) {
            forget_row(columns, count, row);
            why = code;
            break;
        }
        place = after;
        row++;
    }
    progress[0] = row;
    progress[1] = place - buf;
    return why;
}

/* `numeric` values as float64; `odd` gets the rows that are not one exact operation, and their number is returned, or
   -1 if a value is damaged. A value is digits of base 10,000: how many, the weight of the first, a sign, a scale, and
   the digits; an empty one is missing. `offsets` has a number more than there are rows. */
PS_KERNEL(int64_t, copy_numeric)(const uint8_t *data, int64_t data_len, const int32_t *offsets, int64_t rows,
                                 double *out, int64_t *odd) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    int64_t found = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = offsets[row], end = offsets[row + 1], whole = 0;
        out[row] = 0;
        if (start < 0 || end < start || end > data_len) return -1;
        if (end == start) continue;
        if (end - start < 8) return -1;
        const uint8_t *from = data + start;
        int64_t digits = big_u16(from), weight = (int16_t)big_u16(from + 2), sign = big_u16(from + 4);
        if (end - start != 8 + 2 * digits) return -1;
        int64_t power = 4 * (weight - digits + 1);
        for (int64_t i = 0; i < digits && digits <= 4; i++) whole = whole * 10000 + big_u16(from + 8 + 2 * i);
        if (digits > 4 || (sign != 0 && sign != 0x4000) || power > 22 || power < -22 || whole > (int64_t)1 << 53) {
            odd[found++] = row;
            continue;
        }
        double value = power >= 0 ? (double)whole * powers[power] : (double)whole / powers[-power];
        out[row] = sign ? -value : value;
    }
    return found;
}
