/* jpeg.c: files of any bytes to the JPEG decoder, in both of its forms. */
#include "../jpeg.c"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t len = (int64_t)size, work_len = ps_jpeg_work_nbytes_fuzz();
    uint8_t *work = room(work_len);
    for (int quick = 0; quick < 2; quick++) {
        int64_t needed = ps_jpeg_survey_fuzz(data, len, work, work_len);
        seen_number(needed);
        const jpeg_frame *frame = &((const work_memory *)(const void *)work)->head.frame;
        if (needed > 0 && needed <= 4000000) {
            int64_t out_len = 3 * frame->height * frame->width;
            uint8_t *planes = room(needed), *out = room(out_len);
            int32_t code = ps_jpeg_decode_fuzz(data, len, work, planes, needed, out, out_len, quick, quick);
            must(code >= JPEG_OK && code <= JPEG_DAMAGED);
            seen_number(code);
            if (code == JPEG_OK) seen(out, out_len);
            free(planes);
            free(out);
        }
    }
    free(work);
    return 0;
}
