/* jpeg_tables.h: look-up tables that give coefficients for one look at the bits.
   Covers: making them from a file's Huffman tables, codes that are longer than a look.
   Does not cover: reading bits (jpeg_entropy.h). */
#ifndef PS_JPEG_TABLES_H
#define PS_JPEG_TABLES_H

#include "jpeg_frame.h"

enum {
    JPEG_LOOK = 11, /* bits: tables must stay in the first-level cache beside everything else */
    JPEG_LOOKS = 1 << JPEG_LOOK,
    JPEG_LOOKS_A_REFILL = 56 / JPEG_LOOK,
    JPEG_END = 63,    /* the step that ends a block: past its last place from wherever it is taken */
    JPEG_ZEROS = 0xF0 /* the symbol for sixteen zeros */
};

/* A 32-bit entry a look; where the codes of each length end and their symbols begin; the symbols.

   An entry for AC coefficients has, from its low end: bits taken (4), steps in the block to the first and from there to
   the second coefficient (6 each), their values (8 each). Where only one fits into the look, the second is the first
   again, by a step of 0. One for DC has bits taken (4) and the value (16, at bit 16). Where no bits are taken, code and
   value are longer than the look; then there are the symbol (at bit 8) and the length of its code (at bit 16) instead,
   length 0 where that too is longer than a look. */
typedef struct { int32_t looks[JPEG_LOOKS], limits[17], offsets[17], symbols[JPEG_SYMBOLS]; } jpeg_table;

/* The entry for a look that begins with this code of this length, the `rest` of the look behind it. */
static int32_t jpeg_entry(int32_t length, int32_t symbol, int32_t rest, int is_dc) {
    int32_t size = is_dc ? symbol : symbol & 15, spare = JPEG_LOOK - length;
    if (size > spare || (size > 7 && !is_dc)) return symbol << 8 | length << 16;
    int32_t extra = rest >> (spare - size);
    int32_t value = size && extra < 1 << (size - 1) ? extra - (1 << size) + 1 : extra;
    if (is_dc) return (length + size) | (int32_t)((uint32_t)value << 16);
    int32_t step = size || symbol == JPEG_ZEROS ? (symbol >> 4) + 1 : JPEG_END;
    return (length + size) | step << 4 | (value & 255) << 16 | (int32_t)((uint32_t)value << 24);
}

/* Let each look take a second coefficient where that stands in its bits too. */
static void jpeg_pair(int32_t *looks, const int32_t *singles) {
    for (int32_t look = 0; look < JPEG_LOOKS; look++) {
        int32_t entry = singles[look], taken = entry & 15;
        if (taken && (entry >> 4 & 63) != JPEG_END) {
            int32_t after = singles[(look << taken) & (JPEG_LOOKS - 1)], more = after & 15;
            if (more && taken + more <= JPEG_LOOK)
                entry = (entry & 0xFF03F0) | (taken + more) | (after >> 4 & 63) << 10 |
                        (int32_t)((uint32_t)after & 0xFF000000u);
        }
        looks[look] = entry;
    }
}

/* Make the table of a file's codes. `singles` is scratch. libjpeg refuses codes that consist of ones only, so they are
   damaged here too. */
static int jpeg_make_table(jpeg_table *table, int32_t singles[JPEG_LOOKS], const jpeg_codes *codes, int is_dc) {
    int32_t *looks = is_dc ? table->looks : singles;
    memset(looks, 0, JPEG_LOOKS * sizeof *looks);
    int32_t code = 0, place = 0;
    for (int32_t length = 1; length <= 16; length++) {
        int32_t count = codes->counts[length - 1];
        if (count && code + count >= 1 << length) return JPEG_DAMAGED;
        table->offsets[length] = place - code;
        for (int32_t n = 0; n < count; n++, code++, place++) {
            int32_t symbol = codes->symbols[place];
            /* No value of eight-bit pixels is that large; the refill counts on it. */
            if (is_dc ? symbol > 11 : (symbol & 15) > 10) return JPEG_OTHER;
            table->symbols[place] = symbol;
            int32_t rests = length <= JPEG_LOOK ? 1 << (JPEG_LOOK - length) : 0;
            for (int32_t rest = 0; rest < rests; rest++)
                looks[(code << (JPEG_LOOK - length)) + rest] = jpeg_entry(length, symbol, rest, is_dc);
        }
        table->limits[length] = code << (16 - length);
        code <<= 1;
    }
    if (!is_dc) jpeg_pair(table->looks, singles);
    return JPEG_OK;
}

/* The code that stands on top, by its length: symbol and length in one number, 0 where there is no such code. */
static int32_t jpeg_code(const jpeg_table *table, uint64_t buffer) {
    int32_t top = (int32_t)(buffer >> 48);
    for (int32_t length = 1; length <= 16; length++)
        if (top < table->limits[length])
            return table->symbols[(top >> (16 - length)) + table->offsets[length]] << 8 | length << 16;
    return 0;
}

#endif
