#include "core/model/hash.h"

#include <string.h>

#define FNV_PRIME 0x100000001b3u

uint64_t logits_hash(uint64_t hash, const float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        if (bits == 0x80000000u)
            bits = 0;
        for (unsigned b = 0; b < 32; b += 8)
            hash = (hash ^ (bits >> b & 0xff)) * FNV_PRIME;
    }
    return hash;
}
