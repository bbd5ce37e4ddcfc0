/* siphash.h: SipHash-2-4 with 128 bits of result (Aumasson, Bernstein: "SipHash: a fast short-input
 * PRF"), for tables that are keyed by what strangers send.
 *
 * Words are little-endian. Without the key nobody can make two inputs with one hash, or say where in
 * a table an input lands. */
#ifndef BASE_SIPHASH_H
#define BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash {
    uint64_t word[2];
};

/* The hash of len bytes under key (16 random bytes). */
struct siphash siphash(const unsigned char key[16], const void *data, size_t len);

#endif
