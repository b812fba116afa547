/* fuzz.h: what the fuzz targets share. A target includes the kernel's own file, so that it needs no library.
   Every buffer is of exactly the size that the kernel is told, from malloc, where AddressSanitizer watches its ends. */
#ifndef PS_FUZZ_H
#define PS_FUZZ_H

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void *room(int64_t nbytes) {
    void *made = malloc(nbytes ? (size_t)nbytes : 1);
    if (!made) abort();
    memset(made, 0, (size_t)nbytes);
    return made;
}

/* What must hold, whatever the input. */
static inline void must(int holds) {
    if (!holds) abort();
}

#endif
