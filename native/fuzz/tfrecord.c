/* tfrecord.c: stretches of any bytes to the walk over frames. */
#include "../tfrecord.c"

#include "fuzz.h"

enum { MOST = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t len = (int64_t)size, progress[2];
    int64_t *offsets = room(8 * MOST), *lengths = room(8 * MOST), *codes = room(8 * MOST);
    for (int check = 0; check < 2; check++)
        for (int known = 0; known < 2; known++) {
            int64_t left = known ? len : (int64_t)1 << 62;
            int32_t why = ps_tfrecord_walk_fuzz(data, len, left, check, known ? 1000 : INT64_MAX, offsets, lengths, MOST,
                                                progress);
            must(why >= OK && why <= TRUNCATED && progress[0] >= 0 && progress[0] <= MOST && progress[1] >= 0);
            must(ps_tfrecord_check_fuzz(data, len, offsets, lengths, progress[0], 1, codes) <= progress[0]);
            seen_number(why);
            seen(progress, sizeof progress);
            const int64_t *all[] = {offsets, lengths, codes};
            for (int k = 0; k < 3; k++) seen(all[k], 8 * progress[0]);
        }
    free(offsets);
    free(lengths);
    free(codes);
    return 0;
}
