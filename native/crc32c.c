/* crc32c.c: checksums of one or of many stretches of bytes, for Python. The sum itself stands in crc32c.h. */
#include "crc32c.h"

PS_KERNEL(uint32_t, crc32c)(const uint8_t *data, int64_t data_len) { return crc32c_of(data, data_len); }

PS_KERNEL(uint32_t, crc32c_masked)(const uint8_t *data, int64_t data_len) { return masked_crc32c_of(data, data_len); }

/* The sums of neighbouring stretches: number i ends at ends[i], where the next one begins. Returns how many were summed
   up: fewer than ends_len if one ends before it begins, or beyond the data. */
PS_KERNEL(int64_t, crc32c_stretches)(const uint8_t *data, int64_t data_len, const int64_t *ends, int64_t ends_len,
                                     uint32_t *sums) {
    int64_t begin = 0;
    for (int64_t i = 0; i < ends_len; i++) {
        if (ends[i] < begin || ends[i] > data_len) return i;
        sums[i] = crc32c_of(data + begin, ends[i] - begin);
        begin = ends[i];
    }
    return ends_len;
}
