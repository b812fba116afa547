/* decimal.h: decimal text to the nearest double.
   Covers: digits eight at a time, up to 19 of them with an exponent (one exact division, else the Eisel-Lemire product).
   Does not cover: what that cannot settle: more digits, subnormals, words such as inf. Those are said to be open, and
   the caller reads them another way. Nothing outside of the given text is read. */
#ifndef PS_DECIMAL_H
#define PS_DECIMAL_H

#include "decimal_powers.h"
#include "kernels.h"

#define PS_ONES 0x0101010101010101u
#define PS_OPEN 0xFFFFFFFFFFFFFFFFu /* bits of no number that is returned here: it is not settled */

static const uint64_t PS_TENS[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

/* Powers of ten that a double holds exactly. */
static const double PS_EXACT_TENS[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                         1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

PS_INLINE double ps_as_double(uint64_t bits) { double it; memcpy(&it, &bits, sizeof it); return it; }
PS_INLINE uint64_t ps_as_bits(double it) { uint64_t bits; memcpy(&bits, &it, sizeof bits); return bits; }

/* A stretch of text: what is read lies from `at` to `end`, and nothing before `first` is touched. */
typedef struct { const uint8_t *first, *at, *end; } ps_text;

/* Eight bytes as a number whose low byte comes first. */
PS_INLINE uint64_t ps_word(const uint8_t *from) {
    uint64_t word = load_u64(from);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* How many of eight bytes are digits before the first that is none, and their value, without a branch: how many there
   are is guessed wrong for each number. */
PS_INLINE int64_t ps_leading_digits(uint64_t word, uint64_t *value) {
    uint64_t other = ((word + 0x46 * PS_ONES) | (word - 0x30 * PS_ONES)) & 0x80 * PS_ONES;
    int64_t count = other ? __builtin_ctzll(other) >> 3 : 8;
    int64_t half = 4 * (8 - count); /* two shifts: one by 64, for no digit at all, would be undefined */
    word = (word ^ 0x30 * PS_ONES) << half << half;
    word = word * 10 + (word >> 8);
    uint64_t left = (word & 0x000000FF000000FFu) * 0x000F424000000064u;
    uint64_t right = (word >> 16 & 0x000000FF000000FFu) * 0x0000271000000001u;
    *value = (left + right) >> 32;
    return count;
}

/* Add a run of digits to `value`; behind it `text->at` is where the run ends. Past 19 digits the value wraps: the
   caller counts. */
PS_INLINE uint64_t ps_digits(ps_text *text, uint64_t value) {
    for (;;) {
        int64_t left = text->end - text->at;
        uint64_t word, found;
        if (left >= 8) {
            word = ps_word(text->at);
        } else if (left > 0 && text->end - text->first >= 8) {
            word = ps_word(text->end - 8) >> (8 * (8 - left)); /* zeros behind the end, which are no digits */
        } else {
            break;
        }
        int64_t count = ps_leading_digits(word, &found);
        value = value * PS_TENS[count] + found;
        text->at += count;
        if (count < 8) return value;
    }
    for (; text->at < text->end && (uint8_t)(*text->at - '0') <= 9; text->at++)
        value = value * 10 + (uint8_t)(*text->at - '0');
    return value;
}

/* Bits of the double nearest to mantissa * 10^power, or PS_OPEN where that needs more precision. */
PS_INLINE uint64_t ps_nearest(uint64_t mantissa, int64_t power) {
    if (!mantissa) return 0;
    if (power < PS_LOWEST_POWER || power > PS_HIGHEST_POWER) return PS_OPEN;
    /* Both exact, so one division rounds once (Clinger); a tenth faster than the product below. */
    if (mantissa <= 9007199254740992u && power >= -22 && power <= 0)
        return ps_as_bits((double)(int64_t)mantissa / PS_EXACT_TENS[-power]);
    const uint64_t *five = PS_FIVES[power - PS_LOWEST_POWER];
    int zeros = __builtin_clzll(mantissa);
    uint64_t word = mantissa << zeros;
    unsigned __int128 product = (unsigned __int128)word * five[0];
    uint64_t high = (uint64_t)(product >> 64), low = (uint64_t)product;
    if ((high & 0x1FF) == 0x1FF) {
        uint64_t more = (uint64_t)((unsigned __int128)word * five[1] >> 64);
        low += more;
        if (more > low) high++;
        if (low == PS_OPEN && (power < -27 || power > 55)) return PS_OPEN;
    }
    uint64_t upper = high >> 63, shift = upper + 9, result = high >> shift;
    int64_t exponent = (217706 * power >> 16) + 63 + (int64_t)upper - zeros + 1023;
    if (exponent <= 0 || exponent >= 2046) return PS_OPEN;
    /* Exactly between two doubles: to the even one. */
    if (low <= 1 && power >= -4 && power <= 23 && (result & 3) == 1 && result << shift == high) result &= ~(uint64_t)1;
    result = (result + (result & 1)) >> 1;
    if (result >= (uint64_t)1 << 53) {
        result = (uint64_t)1 << 52;
        exponent++;
    }
    return (result & (((uint64_t)1 << 52) - 1)) | (uint64_t)exponent << 52;
}

/* Zeros before the first digit that counts. */
static int64_t ps_leading_zeros(const uint8_t *at, const uint8_t *end) {
    int64_t zeros = 0;
    for (; at < end && (*at == '0' || *at == '.'); at++) zeros += *at == '0';
    return zeros;
}

/* The number that `text` begins with: its bits, or PS_OPEN; behind it `text->at` is where it ends. */
PS_INLINE uint64_t ps_decimal(ps_text *text) {
    uint64_t minus = text->at < text->end && *text->at == '-', value = 0;
    const uint8_t *start = text->at += minus;
    while (text->at < text->end && text->at - start < 3 && (uint8_t)(*text->at - '0') <= 9)
        value = 10 * value + (uint8_t)(*text->at++ - '0'); /* before the point there are mostly few */
    if (text->at - start == 3) value = ps_digits(text, value);
    int64_t count = text->at - start, power = 0;
    if (text->at < text->end && *text->at == '.') {
        const uint8_t *after = ++text->at;
        value = ps_digits(text, value);
        power = after - text->at;
        count -= power;
    }
    if (PS_UNLIKELY(count > 19)) count -= ps_leading_zeros(start, text->at);
    if (count == 0 || count > 19) return PS_OPEN;
    if (text->at < text->end && (*text->at | 32) == 'e') {
        text->at++;
        int below = text->at < text->end && *text->at == '-';
        if (below || (text->at < text->end && *text->at == '+')) text->at++;
        ps_text digits = {text->first, text->at, text->end - text->at > 5 ? text->at + 5 : text->end};
        int64_t exponent = (int64_t)ps_digits(&digits, 0);
        if (digits.at == text->at) return PS_OPEN;
        text->at = digits.at;
        power += below ? -exponent : exponent;
    }
    uint64_t bits = ps_nearest(value, power);
    return bits == PS_OPEN ? bits : bits | minus << 63;
}

/* Whether rounding this double again, to float32, cannot differ from rounding the text once. */
PS_INLINE int ps_fits_float(uint64_t bits) {
    uint64_t exponent = bits >> 52 & 0x7FF;
    int middle = (bits & 0x1FFFFFFF) == 0x10000000;
    return (exponent - 898 <= 1149 - 898 && !middle) || bits << 1 == 0;
}

/* An integer of at most 18 digits that fills the text; whether it is one. */
PS_INLINE int ps_integer(ps_text text, int64_t *value) {
    int minus = text.at < text.end && *text.at == '-';
    const uint8_t *start = text.at += minus;
    int64_t found = (int64_t)ps_digits(&text, 0), count = text.at - start;
    *value = minus ? -found : found;
    return text.at == text.end && count > 0 && count <= 18;
}

#endif
