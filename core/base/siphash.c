#include "core/base/siphash.h"

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void rounds(uint64_t v[4], int n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static uint64_t load(const unsigned char *p, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static void absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

struct siphash siphash(const unsigned char key[16], const void *data, size_t len)
{
    const unsigned char *p = data;
    uint64_t k0 = load(key, 8), k1 = load(key + 8, 8);
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
                     k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    size_t left = len;
    for (; left >= 8; p += 8, left -= 8)
        absorb(v, load(p, 8));
    absorb(v, (uint64_t)len << 56 | load(p, left));
    v[2] ^= 0xee;
    rounds(v, 4);
    struct siphash h;
    h.word[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    rounds(v, 4);
    h.word[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    return h;
}
