/* half.h: f16 and bf16 to and from f32, by integer arithmetic, so that MXCSR (FTZ, DAZ) doesn't
 * matter: a denormal f16 is a normal f32. Same values as VCVTPH2PS and VCVTPS2PH (nearest even). */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t f32_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31)
        return bits_to_f32(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) {
        /* fraction · 2^-24: exact, and normal unless zero */
        float magnitude = (float)fraction * 0x1p-24f;
        return bits_to_f32(sign | f32_to_bits(magnitude));
    }
    return bits_to_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t f32_to_f16(float f)
{
    uint32_t bits = f32_to_bits(f);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: a denormal, in units of 2^-24 */
        uint32_t shift = 126 - (magnitude >> 23);
        if (shift > 24)
            return (uint16_t)sign;
        uint32_t fraction = (magnitude & 0x7fffff) | 0x800000;
        uint32_t rounded = fraction >> shift, rest = fraction & ((1u << shift) - 1);
        uint32_t half = 1u << (shift - 1);
        rounded += rest > half || (rest == half && (rounded & 1));
        return (uint16_t)(sign | rounded);
    }
    uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

static inline float bf16_to_f32(uint16_t h)
{
    return bits_to_f32((uint32_t)h << 16);
}

/* A little-endian u16 at any alignment. */
static inline uint16_t load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint32_t load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

#endif
