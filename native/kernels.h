/* kernels.h: how a kernel is named and how it reads memory.
   Covers: names with the instruction set in them, loads and stores at any address, the version of the interface.
   Does not cover: any kernel.

   Every file is compiled once for each level of instructions (see build.py), with PS_LEVEL as its name. A kernel is
   written once, as `PS_KERNEL(int64_t, name)(arguments)`, and becomes ps_name_baseline, ps_name_avx2 and so on; the
   loader (penstock/native/library.py) chooses one level for all. All levels give the same bits: floating-point numbers
   are never contracted (-ffp-contract=off), and integers wrap (-fwrapv). */
#ifndef PS_KERNELS_H
#define PS_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Raised whenever a kernel's arguments or meaning change. penstock/native/library.py names the same number. */
#define PS_ABI 2

#if defined(_WIN32)
#define PS_EXPORT __declspec(dllexport)
#else
#define PS_EXPORT __attribute__((visibility("default")))
#endif

#define PS_JOIN_(name, level) ps_##name##_##level
#define PS_JOIN(name, level) PS_JOIN_(name, level)

/* The head of an exported kernel. The declaration before it keeps compilers from asking for a header. */
#define PS_KERNEL(result, name) PS_EXPORT result PS_JOIN(name, PS_LEVEL)

#define PS_LIKELY(test) __builtin_expect(!!(test), 1)
#define PS_UNLIKELY(test) __builtin_expect(!!(test), 0)
#define PS_INLINE static inline __attribute__((always_inline))

/* Numbers at addresses of any alignment: the caller has checked that the bytes are there. */
#define PS_ACCESS(type, name)                                                                     \
    PS_INLINE type load_##name(const void *from) { type it; memcpy(&it, from, sizeof it); return it; } \
    PS_INLINE void store_##name(void *to, type it) { memcpy(to, &it, sizeof it); }
PS_ACCESS(uint16_t, u16)
PS_ACCESS(uint32_t, u32)
PS_ACCESS(uint64_t, u64)
PS_ACCESS(int32_t, i32)
PS_ACCESS(int64_t, i64)
PS_ACCESS(float, f32)
PS_ACCESS(double, f64)
#undef PS_ACCESS

PS_INLINE int64_t ps_least(int64_t a, int64_t b) { return a < b ? a : b; }
PS_INLINE int64_t ps_most(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
