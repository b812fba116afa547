/* normalise.c: pictures and tables to float32: (number * scale - mean) / std, a mean and std for each channel.
   Covers: channels last to channels last, and to channels first; integers and floats, float32 also in place.
   Does not cover: decoding (jpeg.c), other arithmetic.

   Each operation is rounded to float32 in this order, so that NumPy's float32 arithmetic gives the same bits. */
#include "kernels.h"

enum { FROM_U8, FROM_I8, FROM_U16, FROM_I16, FROM_I32, FROM_I64, FROM_F32, FROM_F64 };
enum { MOST_CHANNELS = 16, TOGETHER = 16, CHUNK = 256 };

/* How pixels become numbers: the same for all pictures of a call. */
typedef struct { const float *mean, *std; float scale; int64_t pixels, channels; } change;

/* Channels last: the constants of TOGETHER pixels are laid out as the numbers are, so that a plain loop is a vector
   loop; a row of many channels, as in tables, is one by itself. Channels first: numbers of one channel are collected
   first. */
#define NORMALISE(type, name)                                                                                      \
    static void name##_rows(const type *in, change how, float *out) {                                              \
        for (int64_t n = 0; n < how.pixels; n++, in += how.channels, out += how.channels)                           \
            for (int64_t c = 0; c < how.channels; c++) out[c] = ((float)in[c] * how.scale - how.mean[c]) / how.std[c]; \
    }                                                                                                               \
    static void name##_last(const type *in, change how, float *out) {                                              \
        float mean[MOST_CHANNELS * TOGETHER], std[MOST_CHANNELS * TOGETHER];                                        \
        int64_t all = how.pixels * how.channels, period = how.channels * TOGETHER, at = 0;                          \
        for (int64_t j = 0; j < period; j++) {                                                                      \
            mean[j] = how.mean[j % how.channels];                                                                   \
            std[j] = how.std[j % how.channels];                                                                     \
        }                                                                                                           \
        for (; at + period <= all; at += period)                                                                    \
            for (int64_t j = 0; j < period; j++)                                                                    \
                out[at + j] = ((float)in[at + j] * how.scale - mean[j]) / std[j];                                   \
        for (int64_t j = 0; at + j < all; j++) out[at + j] = ((float)in[at + j] * how.scale - mean[j]) / std[j];    \
    }                                                                                                               \
    PS_INLINE void name##_chunks(const type *in, change how, int64_t channels, float *out) {                        \
        type some[CHUNK];                                                                                           \
        for (int64_t first = 0; first < how.pixels; first += CHUNK) {                                               \
            int64_t count = ps_least(CHUNK, how.pixels - first);                                                    \
            for (int64_t c = 0; c < channels; c++) {                                                                \
                const type *from = in + first * channels + c;                                                       \
                float *to = out + c * how.pixels + first, mean = how.mean[c], std = how.std[c];                     \
                for (int64_t j = 0; j < count; j++) some[j] = from[j * channels];                                   \
                for (int64_t j = 0; j < count; j++) to[j] = ((float)some[j] * how.scale - mean) / std;              \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    static void name##_first(const type *in, change how, float *out) {                                              \
        if (how.channels == 3) name##_chunks(in, how, 3, out); /* a known step is a shuffle, not a gather */        \
        else name##_chunks(in, how, how.channels, out);                                                             \
    }                                                                                                               \
    static void name##_pictures(const void *in, int64_t pictures, change how, int channels_first, float *out) {     \
        int64_t each = how.pixels * how.channels;                                                                   \
        for (int64_t n = 0; n < pictures; n++) {                                                                    \
            if (channels_first) name##_first((const type *)in + n * each, how, out + n * each);                     \
            else if (how.channels > MOST_CHANNELS) name##_rows((const type *)in + n * each, how, out + n * each);    \
            else name##_last((const type *)in + n * each, how, out + n * each);                                     \
        }                                                                                                           \
    }
NORMALISE(uint8_t, u8)
NORMALISE(int8_t, i8)
NORMALISE(uint16_t, u16)
NORMALISE(int16_t, i16)
NORMALISE(int32_t, i32)
NORMALISE(int64_t, i64)
NORMALISE(float, f32)
NORMALISE(double, f64)

/* `pictures` pictures of `pixels` pixels of `channels` numbers, channels last, to as many float32 numbers. `kind` is
   the type of the numbers. Arrays are aligned as their types; with channels last, float32 may be changed in place.
   Returns 1, or 0 if the call is not possible. */
PS_KERNEL(int32_t, normalise)(const void *in, int32_t kind, int64_t pictures, int64_t pixels, int64_t channels,
                              const float *mean, const float *std, float scale, int32_t channels_first, float *out) {
    change how = {mean, std, scale, pixels, channels};
    if (channels < 1 || (channels_first && channels > MOST_CHANNELS)) return 0;
    switch (kind) {
        case FROM_U8: u8_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_I8: i8_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_U16: u16_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_I16: i16_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_I32: i32_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_I64: i64_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_F32: f32_pictures(in, pictures, how, channels_first, out); return 1;
        case FROM_F64: f64_pictures(in, pictures, how, channels_first, out); return 1;
        default: return 0;
    }
}
