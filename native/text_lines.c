/* text_lines.c: how often a byte stands in a text.
   Covers: counting. Does not cover: what lines are (sources/csv/split.py). */
#include "kernels.h"

typedef uint8_t lane_counts __attribute__((vector_size(32)));

enum { LANES = sizeof(lane_counts), MOST_STEPS = 255 }; /* a lane counts so far */

PS_KERNEL(int64_t, text_count)(const uint8_t *text, int64_t text_len, int32_t byte) {
    int64_t found = 0, at = 0;
    while (text_len - at >= LANES) {
        lane_counts counts = {0}, some;
        int64_t steps = ps_least((text_len - at) / LANES, MOST_STEPS);
        for (int64_t k = 0; k < steps; k++, at += LANES) {
            memcpy(&some, text + at, sizeof some);
            counts -= (lane_counts)(some == (uint8_t)byte); /* equal lanes are -1 */
        }
        for (int k = 0; k < LANES; k++) found += counts[k];
    }
    for (; at < text_len; at++) found += text[at] == (uint8_t)byte;
    return found;
}
