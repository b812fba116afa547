/* json_rows.c: lines of JSON objects of plain numbers to rows of a matrix and to columns of their own.
   Covers: objects that hold the expected keys in the expected order, each with a plain number.
   Does not cover: anything else: the call ends there and PyArrow reads the text (sources/json/parse.py). Numbers from
   digits: cells.h, decimal.h. */
#include "number_rows.h"

/* Why a call ended: all is read; a line is not for this kernel; no room for another row. */
enum { JSON_DONE = 0, JSON_OTHER = 1, JSON_ROWS = 2 };

typedef struct {
    number_rows head;
    const uint8_t *keys; /* each with its quotes and colon, one behind the other */
    const int64_t *key_ends;
} json_job;

PS_INLINE int64_t skip_spaces(const uint8_t *text, int64_t at, int64_t n) {
    while (at < n && text[at] == ' ') at++;
    return at;
}

/* Where `byte` stands next, or the text's end. */
PS_INLINE int64_t find(const uint8_t *text, int64_t at, int64_t n, uint8_t byte) {
#if defined(__SSE2__)
    for (; at + 16 <= n; at += 16) {
        __m128i some = _mm_loadu_si128((const __m128i *)(text + at));
        uint32_t same = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(some, _mm_set1_epi8((char)byte)));
        if (same) return at + __builtin_ctz(same);
    }
#endif
    while (at < n && text[at] != byte) at++;
    return at;
}

/* Whether a number that was read is one that JSON allows: no leading zeros, digits on both sides of the point. */
PS_INLINE int is_strict(const uint8_t *at, const uint8_t *end) {
    at += *at == '-';
    if (at == end || (uint8_t)(*at - '0') > 9) return 0;
    if (*at == '0') return end - at == 1 || (uint8_t)(at[1] - '0') > 9;
    return 1;
}

PS_INLINE int has_digit_behind_point(const uint8_t *at, const uint8_t *end) {
    const uint8_t *point = memchr(at, '.', (size_t)(end - at));
    return !point || (end - point > 1 && (uint8_t)(point[1] - '0') <= 9);
}

/* Whether a number is written without a point or an exponent. */
static int is_whole(const uint8_t *at, const uint8_t *end) {
    for (; at < end; at++)
        if (*at == '.' || (*at | 32) == 'e') return 0;
    return 1;
}

/* One number, from `start` to `end`, to its place; whether it is one for this kernel. */
PS_INLINE int read_number(json_job *job, int64_t row, int64_t column, int64_t start, int64_t end) {
    const uint8_t *text = job->head.text;
    int64_t kind = job->head.kinds[column], slot = job->head.slots[column];
    if (start >= end || !is_strict(text + start, text + end)) return 0;
    if (kind == INTEGER) {
        ps_text digits = {text, text + start, text + end};
        return ps_integer(digits, &job->head.integers[slot * job->head.rows + row]);
    }
    double number; /* as PyArrow does it: a double first, then whatever the matrix holds */
    if (cells_short(text, start, end, 0, &number)) {
        if (text[end - 1] == '.') return 0;
    } else if (!cells_any(text, text + start, text + end, 0, &number) ||
               !has_digit_behind_point(text + start, text + end)) {
        return 0;
    }
    /* A whole number that a double may have rounded: sources/json/rounding.py decides. */
    if (kind == FLOAT && PS_UNLIKELY(number >= 0x1p53 || number <= -0x1p53) && is_whole(text + start, text + end))
        return 0;
    if (kind == FLOAT) job->head.floats[slot * job->head.rows + row] = number;
    else if (kind == MATRIX) put(job->head.matrix, row * job->head.width + slot, number, job->head.item == 4);
    return 1;
}

/* One object that begins behind its brace at `at`; where it ends, behind the other brace, or -1. */
PS_INLINE int64_t read_object(json_job *job, int64_t row, int64_t at) {
    const uint8_t *text = job->head.text;
    int64_t n = job->head.text_len, columns = job->head.columns, begin = 0;
    for (int64_t column = 0; column < columns; column++) {
        int64_t length = job->key_ends[column] - begin;
        at = skip_spaces(text, at, n);
        if (n - at < length || memcmp(text + at, job->keys + begin, (size_t)length)) return -1;
        begin += length;
        at = skip_spaces(text, at + length, n);
        int64_t end = find(text, at, n, column + 1 < columns ? ',' : '}');
        if (end == n || !read_number(job, row, column, at, end)) return -1;
        at = end + 1;
    }
    return at;
}

static int fits(const json_job *job) {
    if (!columns_fit(&job->head)) return 0;
    for (int64_t k = 0, begin = 0; k < job->head.columns; begin = job->key_ends[k++])
        if (job->key_ends[k] < begin) return 0;
    return 1;
}

/* Every line of the text. JSON_DONE, or why it stopped. */
PS_KERNEL(int32_t, json_rows)(json_job *job) {
    const uint8_t *text = job->head.text;
    int64_t n = job->head.text_len, at = 0, row = 0;
    job->head.rows_done = job->head.bytes_done = 0;
    if (!fits(job)) return ARGUMENTS;
    while (at < n) {
        if (text[at] != '{') return JSON_OTHER;
        if (row == job->head.rows) return JSON_ROWS;
        at = read_object(job, row, at + 1);
        if (at < 0) return JSON_OTHER;
        at += at < n && text[at] == '\r';
        if (at < n && text[at] != '\n') return JSON_OTHER;
        job->head.bytes_done = at = ps_least(n, at + 1);
        job->head.rows_done = ++row;
    }
    return JSON_DONE;
}
