/* csv_rows.c: lines of numbers to rows of a matrix and to columns of their own.
   Covers: the walk over lines and cells, words for missing values, listing what it cannot settle.
   Does not cover: quotes (such texts are not given here), numbers from digits (cells.h, decimal.h), when to use it
   (sources/csv/numbers.py). */
#include "number_rows.h"

/* Why a call ended: all is read; a line has more or fewer cells; a cell is no integer; there is no room for another
   unsettled cell, or for another row. */
enum { CSV_DONE = 0, CSV_CELLS = 1, CSV_INTEGER = 2, CSV_LISTED = 3, CSV_ROWS = 4 };

typedef struct {
    number_rows head;
    const int64_t *runs;  /* of each column: how many from it on lie side by side in line and matrix */
    const uint8_t *words; /* for missing values, one behind the other */
    const int64_t *word_ends;
    int64_t words_len;
    int64_t *listed; /* cells that are not settled: row, column, start, end */
    int64_t listed_len, listed_done;
    int64_t *ends; /* scratch */
    int64_t ends_len, delimiter;
} csv_job;

static int is_missing(const csv_job *job, int64_t start, int64_t end) {
    int64_t from = 0;
    for (int64_t k = 0; k < job->words_len; from = job->word_ends[k++])
        if (job->word_ends[k] - from == end - start &&
            !memcmp(job->words + from, job->head.text + start, (size_t)(end - start)))
            return 1;
    return 0;
}

/* List the ends of cells from `at` on, the text's own among them, while there is room; returns how many. */
static int64_t find_ends(const csv_job *job, int64_t at) {
    const uint8_t *text = job->head.text;
    int64_t n = job->head.text_len, found = 0, *ends = job->ends;
    uint8_t delimiter = (uint8_t)job->delimiter;
    for (; at + CELLS_STRIDE <= n; at += CELLS_STRIDE) {
        if (found + 2 * CELLS_STRIDE > job->ends_len) return found;
        uint64_t bits = cells_find(text + at, '\n', '\r', delimiter);
        int64_t count = __builtin_popcountll(bits);
        for (int64_t done = 0; done < count; done += 8) /* eight at once: how many are needed is guessed wrong too often */
            for (int k = 0; k < 8; k++) {
                ends[found + done + k] = at + __builtin_ctzll(bits | (uint64_t)1 << 63);
                bits &= bits - 1;
            }
        found += count;
    }
    if (found + 2 * CELLS_STRIDE > job->ends_len) return found;
    for (; at < n; at++)
        if (text[at] == delimiter || text[at] == '\n' || text[at] == '\r') ends[found++] = at;
    if (text[n - 1] != '\n') ends[found++] = n;
    return found;
}

/* How many of the listed ends a line's end at `at` is: 1, 2 for carriage return and newline, 0 if it is none. */
PS_INLINE int64_t line_end(const uint8_t *text, int64_t at, int64_t n) {
    if (at == n || text[at] == '\n') return 1;
    return text[at] == '\r' && at + 1 < n && text[at + 1] == '\n' ? 2 : 0;
}

/* Short plain numbers with a delimiter behind each, for as long as they are ones; returns how many. Each end lies before
   the text's. A loop of its own, with little in it: what read_lines keeps at hand would be fetched for each cell. */
PS_INLINE int64_t short_run(const uint8_t *text, int64_t start, const int64_t *ends, int64_t count, uint8_t delimiter,
                            uint8_t *out, int single) {
    int64_t k = 0, item = single ? 4 : 8, first = start;
    while (k < count && count >= CELLS_TOGETHER) {
        int64_t at = ps_least(k, count - CELLS_TOGETHER); /* the last eight once more rather than a few by themselves */
        if (!cells_eight(text, at ? ends[at - 1] + 1 : first, ends + at, delimiter, out + item * at, single)) break;
        k = at + CELLS_TOGETHER;
    }
    if (k) start = ends[k - 1] + 1;
    for (; k < count; start = ends[k++] + 1) {
        double number;
        if (!cells_short(text, start, ends[k], single, &number) || text[ends[k]] != delimiter) return k;
        put(out, k, number, single);
    }
    return count;
}

static __attribute__((noinline)) int64_t short_run_f32(const uint8_t *text, int64_t start, const int64_t *ends,
                                                       int64_t count, uint8_t delimiter, uint8_t *out) {
    return short_run(text, start, ends, count, delimiter, out, 1);
}

static __attribute__((noinline)) int64_t short_run_f64(const uint8_t *text, int64_t start, const int64_t *ends,
                                                       int64_t count, uint8_t delimiter, uint8_t *out) {
    return short_run(text, start, ends, count, delimiter, out, 0);
}

/* One cell by itself, to its place. */
PS_INLINE int read_cell(csv_job *job, int64_t row, int64_t column, int64_t start, int64_t end, int single) {
    int64_t kind = job->head.kinds[column], slot = job->head.slots[column];
    if (kind == SKIP) return CSV_DONE;
    if (kind == INTEGER) {
        ps_text text = {job->head.text, job->head.text + start, job->head.text + end};
        return ps_integer(text, &job->head.integers[slot * job->head.rows + row]) ? CSV_DONE : CSV_INTEGER;
    }
    double number;
    int narrow = single && kind == MATRIX;
    if (!cells_short(job->head.text, start, end, narrow, &number) &&
        !cells_any(job->head.text, job->head.text + start, job->head.text + end, narrow, &number)) {
        number = __builtin_nan("");
        if (!is_missing(job, start, end)) {
            if (job->listed_done == job->listed_len) return CSV_LISTED;
            int64_t *cell = job->listed + 4 * job->listed_done++;
            cell[0] = row;
            cell[1] = column;
            cell[2] = start;
            cell[3] = end;
        }
    }
    if (kind == MATRIX) put(job->head.matrix, row * job->head.width + slot, number, single);
    else job->head.floats[slot * job->head.rows + row] = number;
    return CSV_DONE;
}

/* The cells of one line, whose ends are listed: `ends` has one for each column, all but the last before the text's. */
PS_INLINE int read_line(csv_job *job, int64_t row, int64_t at, const int64_t *ends, int single) {
    const uint8_t *text = job->head.text;
    uint8_t delimiter = (uint8_t)job->delimiter;
    int64_t columns = job->head.columns;
    for (int64_t column = 0; column < columns;) {
        int64_t run = job->runs[column];
        if (run > 0) {
            uint8_t *out = job->head.matrix + job->head.item * (row * job->head.width + job->head.slots[column]);
            int64_t done = single ? short_run_f32(text, at, ends + column, run, delimiter, out)
                                  : short_run_f64(text, at, ends + column, run, delimiter, out);
            if (done) {
                column += done;
                at = ends[column - 1] + 1;
                continue;
            }
        }
        int found = read_cell(job, row, column, at, ends[column], single);
        if (found != CSV_DONE) return found;
        at = ends[column];
        if (++column < columns && text[at++] != delimiter) return CSV_CELLS;
    }
    return CSV_DONE;
}

PS_INLINE int read_lines(csv_job *job, int single) {
    const uint8_t *text = job->head.text;
    int64_t n = job->head.text_len, columns = job->head.columns, cell = 0, found = 0, at = 0, row = 0;
    while (at < n) {
        if (cell + columns > found) {
            cell = 0;
            found = find_ends(job, at);
        }
        int64_t passed = job->ends[cell] == at ? line_end(text, at, n) : 0;
        if (passed) { /* an empty line */
            cell += passed;
            job->head.bytes_done = at += passed;
            continue;
        }
        if (cell + columns > found) return CSV_CELLS;
        if (row == job->head.rows) return CSV_ROWS;
        int why = read_line(job, row, at, job->ends + cell, single);
        if (why != CSV_DONE) return why;
        at = job->ends[cell + columns - 1];
        passed = line_end(text, at, n);
        if (!passed) return CSV_CELLS;
        cell += columns - 1 + passed;
        job->head.bytes_done = at = ps_least(n, at + passed);
        job->head.rows_done = ++row;
    }
    return CSV_DONE;
}

static int read_lines_f32(csv_job *job) { return read_lines(job, 1); }
static int read_lines_f64(csv_job *job) { return read_lines(job, 0); }

/* Whether the arguments fit each other: every run stays inside of line and matrix. */
static int fits(const csv_job *job) {
    const number_rows *head = &job->head;
    if (!columns_fit(head) || job->ends_len < head->columns + 3 * CELLS_STRIDE) return 0;
    for (int64_t k = 0; k < head->columns; k++) {
        int64_t run = job->runs[k];
        if (!run) continue;
        if (run < 0 || head->kinds[k] != MATRIX) return 0;
        if (k + run >= head->columns || head->slots[k] + run > head->width) return 0;
    }
    return 1;
}

/* Every line of the text; what it cannot settle is listed. CSV_DONE, or why it stopped. */
PS_KERNEL(int32_t, csv_rows)(csv_job *job) {
    job->head.rows_done = job->listed_done = job->head.bytes_done = 0;
    if (!fits(job)) return ARGUMENTS;
    if (job->head.text_len < 1) return CSV_DONE;
    return job->head.item == 4 ? read_lines_f32(job) : read_lines_f64(job);
}
