/* crc32c.h: CRC-32C (Castagnoli), and the masked form that TFRecord files carry.
   Covers: the processor's instruction in three streams at once where it has one, eight tables otherwise.
   Does not cover: what the bytes mean (tfrecord.c).

   An instruction takes 8 bytes and three cycles, but one can begin in each cycle: so three neighbouring stretches are
   summed up at once, and joined. A sum that n bytes follow is multiplied by x^8n, modulo the polynomial; numbers are
   mirrored, with x^0 in the highest bit. */
#ifndef PS_CRC32C_H
#define PS_CRC32C_H

#include "kernels.h"

#if defined(__SSE4_2__) && defined(__PCLMUL__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u

#if defined(__SSE4_2__) && defined(__PCLMUL__)

#define CRC_8(crc, word) _mm_crc32_u64(crc, word)
#define CRC_1(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
enum { CRC_LONG = 1024, CRC_SHORT = 128 };
/* x^(8n - 33): the product of two mirrored numbers lacks one x, and the instruction that reduces it adds 32. */
#define CRC_AFTER_LONG 0x170076FAu
#define CRC_AFTER_TWO_LONG 0xA51B6135u
#define CRC_AFTER_SHORT 0x0D3B6092u
#define CRC_AFTER_TWO_SHORT 0xB9E02B86u

PS_INLINE uint64_t crc_followed(uint64_t crc, uint32_t by) {
    __m128i both = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi32_si128((int32_t)by), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(both));
}

#elif defined(__ARM_FEATURE_CRC32)

#define CRC_8(crc, word) __crc32cd((uint32_t)(crc), word)
#define CRC_1(crc, byte) __crc32cb((uint32_t)(crc), byte)
enum { CRC_LONG = 4096 };
/* x^8n; the product is made bit by bit, so that stretches are long. */
#define CRC_AFTER_LONG 0x35D73A62u
#define CRC_AFTER_TWO_LONG 0x28461564u

PS_INLINE uint64_t crc_followed(uint64_t crc, uint32_t by) {
    uint32_t left = (uint32_t)crc, product = 0;
    for (int bit = 0; bit < 32; bit++) {
        product ^= by & (0u - (left >> 31));
        left <<= 1;
        by = by >> 1 ^ (CRC32C_POLYNOMIAL & (0u - (by & 1)));
    }
    return product;
}

#endif

#if defined(CRC_8)

/* Three stretches of `each` bytes (a multiple of 64) lie behind one another. Memory is read in order by asking for the
   next three; the processor alone would see three streams that end again and again. */
PS_INLINE uint64_t crc_three(uint64_t crc, const uint8_t *from, int64_t each, uint32_t one, uint32_t two) {
    uint64_t second = 0, third = 0;
    for (int64_t line = 0; line < each; line += 64) {
        if (each == CRC_LONG)
            for (int k = 0; k < 3; k++) __builtin_prefetch((const void *)((uintptr_t)from + 3 * (each + line) + 64 * k));
        for (int64_t at = line; at < line + 64; at += 8) {
            crc = CRC_8(crc, load_u64(from + at));
            second = CRC_8(second, load_u64(from + each + at));
            third = CRC_8(third, load_u64(from + 2 * each + at));
        }
    }
    return crc_followed(crc, two) ^ crc_followed(second, one) ^ third;
}

#else

/* Table k, row b: what byte b does to a sum that k more bytes follow. Filled when the library is loaded. */
static uint32_t crc_tables[8][256];

__attribute__((constructor)) static void crc_fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (CRC32C_POLYNOMIAL & (0u - (crc & 1)));
        crc_tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc_tables[k - 1][byte];
            crc_tables[k][byte] = before >> 8 ^ crc_tables[0][before & 255];
        }
}

PS_INLINE uint64_t CRC_8(uint64_t crc, uint64_t word) {
    uint64_t w = word ^ crc;
    return crc_tables[7][w & 255] ^ crc_tables[6][w >> 8 & 255] ^ crc_tables[5][w >> 16 & 255] ^
           crc_tables[4][w >> 24 & 255] ^ crc_tables[3][w >> 32 & 255] ^ crc_tables[2][w >> 40 & 255] ^
           crc_tables[1][w >> 48 & 255] ^ crc_tables[0][w >> 56];
}

PS_INLINE uint64_t CRC_1(uint64_t crc, uint8_t byte) { return crc_tables[0][(crc ^ byte) & 255] ^ crc >> 8; }

#endif

PS_INLINE uint32_t crc32c_of(const uint8_t *data, int64_t length) {
    uint64_t crc = 0xFFFFFFFFu;
    int64_t at = 0;
#if defined(CRC_AFTER_LONG)
    for (; length - at >= 3 * CRC_LONG; at += 3 * CRC_LONG)
        crc = crc_three(crc, data + at, CRC_LONG, CRC_AFTER_LONG, CRC_AFTER_TWO_LONG);
#endif
#if defined(CRC_AFTER_SHORT)
    for (; length - at >= 3 * CRC_SHORT; at += 3 * CRC_SHORT)
        crc = crc_three(crc, data + at, CRC_SHORT, CRC_AFTER_SHORT, CRC_AFTER_TWO_SHORT);
#endif
    for (; length - at >= 8; at += 8) crc = CRC_8(crc, load_u64(data + at));
    for (; at < length; at++) crc = CRC_1(crc, data[at]);
    return (uint32_t)crc ^ 0xFFFFFFFFu;
}

/* Rotated and offset, so that a checksum of checksums stays sound. */
PS_INLINE uint32_t masked_crc32c_of(const uint8_t *data, int64_t length) {
    uint32_t crc = crc32c_of(data, length);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

#endif
