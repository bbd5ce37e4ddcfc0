/* math64.h: ln, exp, sine and cosine in double, made of +, −, ·, / and integer steps only.
 *
 * Own, so that the sampler's choices and the RoPE tables do not change with the C library or with
 * what it picks for a CPU. Errors are a few units in the last place. */
#ifndef MODEL_MATH64_H
#define MODEL_MATH64_H

#include <stdint.h>
#include <string.h>

static inline double math64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t math64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define MATH64_MAGIC 0x1.8p52
#define MATH64_LOG2E 0x1.71547652b82fep0
#define MATH64_LN2_HIGH 0x1.62e42feep-1
#define MATH64_LN2_LOW 0x1.a39ef35793c76p-33
#define MATH64_EXP_LEAST (-700.0)
#define MATH64_EXP_TERMS 14u

/* 1/13!, 1/12!, … 1/0! */
static const double math64_exp_terms[MATH64_EXP_TERMS] = {1.0 / 6227020800.0,
                                                          1.0 / 479001600.0,
                                                          1.0 / 39916800.0,
                                                          1.0 / 3628800.0,
                                                          1.0 / 362880.0,
                                                          1.0 / 40320.0,
                                                          1.0 / 5040.0,
                                                          1.0 / 720.0,
                                                          1.0 / 120.0,
                                                          1.0 / 24.0,
                                                          1.0 / 6.0,
                                                          0.5,
                                                          1.0,
                                                          1.0};

/* eˣ for x ≤ 700; below −700 the value at −700. */
static inline double math64_exp(double x)
{
    /* x = k·ln 2 + r; adding 1.5·2⁵² leaves round(x / ln 2) in the low bits. */
    x = x > MATH64_EXP_LEAST ? x : MATH64_EXP_LEAST;
    double shifted = x * MATH64_LOG2E + MATH64_MAGIC, k = shifted - MATH64_MAGIC;
    double r = (x - k * MATH64_LN2_HIGH) - k * MATH64_LN2_LOW;
    double p = math64_exp_terms[0];
    for (unsigned i = 1; i < MATH64_EXP_TERMS; i++)
        p = p * r + math64_exp_terms[i];
    /* 2ᵏ by the exponent field: the low bits of `shifted` are k, its high ones fall out. */
    return p * math64_from_bits((math64_bits(shifted) + 1023) << 52);
}

/* ln x for finite normal x > 0. */
static inline double math64_ln(double x)
{
    /* x = 2ᵏ · m, m in [√½, √2); ln m = 2·atanh(s), s = (m − 1) / (m + 1), as a series in s². */
    uint64_t bits = math64_bits(x);
    int64_t k = (int64_t)(bits >> 52) - 1023;
    double m = math64_from_bits((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0;
    for (int odd = 23; odd >= 3; odd -= 2)
        sum = (sum + 1.0 / odd) * z;
    return (double)k * MATH64_LN2_HIGH + (2.0 * s + (2.0 * s * sum + (double)k * MATH64_LN2_LOW));
}

/* Sine and cosine of 0 ≤ x < 2³⁰. */
static inline void math64_sincos(double x, double *sine, double *cosine)
{
    /* x = k·π/2 + r with π/2 in three parts of 33 bits, so that each product is exact for
     * k < 2²⁰; above, the error grows to 1e-9, far below a float's. */
    const double part1 = 0x1.921fb544p0, part2 = 0x1.0b4611a6p-34, part3 = 0x1.3198a2e037073p-69;
    double k = (double)(int64_t)(x * 0x1.45f306dc9c883p-1 + 0.5);
    double r = ((x - k * part1) - k * part2) - k * part3;
    double z = r * r, s = 0, c = 0;
    for (int n = 17; n >= 3; n -= 2)
        s = (1.0 + s) * (-z / (double)(n * (n - 1)));
    s = r + r * s;
    for (int n = 18; n >= 2; n -= 2)
        c = (1.0 + c) * (-z / (double)(n * (n - 1)));
    c = 1.0 + c;
    switch ((int64_t)k & 3) {
    case 0:
        *sine = s, *cosine = c;
        break;
    case 1:
        *sine = c, *cosine = -s;
        break;
    case 2:
        *sine = -s, *cosine = -c;
        break;
    default:
        *sine = -c, *cosine = s;
        break;
    }
}

#endif
