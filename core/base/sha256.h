/* sha256.h: SHA-256 (FIPS 180-4), by which model files are named. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_HEX 65 /* digits and a NUL */

struct sha256 {
    uint32_t state[8];
    uint64_t len; /* bytes so far */
    uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t len);
/* Ends the message; hex: 64 lower-case digits. */
void sha256_finish(struct sha256 *s, char hex[SHA256_HEX]);

/* All of one message. */
void sha256(const void *data, size_t len, char hex[SHA256_HEX]);

#endif
