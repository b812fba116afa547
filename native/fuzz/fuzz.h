/* fuzz.h: what the fuzz targets share. A target includes the kernel's own file, so that it needs no library.
   Every buffer is of exactly the size that the kernel is told, from malloc, where AddressSanitizer watches its ends.
   With PS_REPLAY a target is a program that prints a sum of all results for each file named on its input (replay.py). */
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

#if defined(PS_REPLAY)
#include <stdio.h>

static uint64_t replay_sum; /* FNV-1a */

static inline void seen(const void *from, int64_t nbytes) {
    for (int64_t k = 0; k < nbytes; k++) replay_sum = (replay_sum ^ ((const uint8_t *)from)[k]) * 0x100000001B3u;
}

static inline void seen_number(int64_t number) { seen(&number, sizeof number); }

int main(void) {
    static uint8_t data[1 << 20];
    static char name[4096];
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        FILE *file = fopen(name, "rb");
        if (!file) return 1;
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        uint8_t *exact = room((int64_t)size);
        memcpy(exact, data, size);
        replay_sum = 0xCBF29CE484222325u;
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        printf("%016llx %s\n", (unsigned long long)replay_sum, name);
    }
    return 0;
}
#else
static inline void seen(const void *from, int64_t nbytes) { (void)from, (void)nbytes; }
static inline void seen_number(int64_t number) { (void)number; }
#endif

#endif
