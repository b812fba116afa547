/* library.c: what the library is, and which levels of instructions this processor has.
   Covers: the interface's version, the levels by name. Compiled once, not once for each level.
   Does not cover: any kernel. */
#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define PS_HWCAP_CRC32 (1UL << 7)
#endif

#if defined(__x86_64__)
#include <cpuid.h>

/* Registers that the operating system saves: bits 1 and 2 are SSE's and AVX's, 5 to 7 AVX-512's. */
static uint32_t saved_registers(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Bits of CPUID: all that x86-64-v3 and -v4 name (build.py), and PCLMUL. Asked for here, not by __builtin_cpu_supports,
   whose data not every compiler can link into a library. */
enum {
    LEAF_1 = bit_SSE3 | bit_PCLMUL | bit_SSSE3 | bit_FMA | bit_SSE4_1 | bit_SSE4_2 | bit_MOVBE | bit_POPCNT |
             bit_OSXSAVE | bit_AVX | bit_F16C,
    LEAF_7 = bit_BMI | bit_AVX2 | bit_BMI2
};
#define LEAF_7_512 ((uint32_t)bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | (uint32_t)bit_AVX512VL)

static int has_all(uint32_t found, uint32_t wanted) { return (found & wanted) == wanted; }

/* 0 for the baseline, 1 for AVX2, 2 for AVX-512. */
static int x86_level(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, LEAF_1) || !has_all(saved_registers(), 6)) return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !has_all(c, bit_LZCNT)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, LEAF_7)) return 0;
    return has_all(b, LEAF_7_512) && has_all(saved_registers(), 0xE6) ? 2 : 1;
}
#endif

PS_EXPORT int32_t ps_abi(void) { return PS_ABI; }

/* What compiled this, for reports: kernels of one source may differ in speed, never in what they give. */
PS_EXPORT const char *ps_compiler(void) {
#if defined(__clang__)
    return __VERSION__; /* begins with its name */
#else
    return "GCC " __VERSION__;
#endif
}

/* The levels that this processor has, worst first, separated by spaces; names as in build.py. */
PS_EXPORT const char *ps_levels(void) {
#if defined(__x86_64__)
    static const char *const names[] = {"baseline", "baseline avx2", "baseline avx2 avx512"};
    return names[x86_level()];
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & PS_HWCAP_CRC32 ? "baseline crc" : "baseline";
#elif defined(__aarch64__)
    return "baseline crc";
#else
    return "baseline";
#endif
}
