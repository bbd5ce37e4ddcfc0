/* message.h: the payloads of REQUEST and HEAD frames: encode, and decode that checks everything.
 *
 *     REQUEST   u16 method length | u16 pairs | u32 target length | method | target | pairs
 *     HEAD      u16 status        | u16 pairs | pairs
 *     pair      u16 name length   | u32 value length | name | value
 *
 * Little-endian, packed, nothing after the last pair. Names are lower case. The same rules hold in both
 * directions, so a sender cannot encode what the receiver would refuse, and no text from here can break a header
 * line: no control bytes but TAB in values, none in targets, token characters in names and methods.
 *
 * Decoded slices point into the payload, which must be a private copy (channel_next makes one), never shared
 * memory. Compiled into nginx too. */
#ifndef RING_MESSAGE_H
#define RING_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"
#include "core/base/status.h"

#define MESSAGE_PAIRS_MAX 64u
#define MESSAGE_METHOD_MAX 32u
#define MESSAGE_NAME_MAX 256u

struct message_pair {
    struct slice name, value;
};

struct message_request {
    struct slice method; /* "POST" */
    struct slice target; /* path and query, begins with '/' */
    uint32_t n_pairs;
    struct message_pair pairs[MESSAGE_PAIRS_MAX]; /* the allow-listed request headers */
};

struct message_head {
    uint32_t status; /* 200..599 */
    uint32_t n_pairs;
    struct message_pair pairs[MESSAGE_PAIRS_MAX]; /* response headers */
};

/* Bytes of the encoded payload (may exceed FRAME_PAYLOAD_MAX: then it cannot be sent). */
size_t message_request_size(const struct message_request *m);
size_t message_head_size(const struct message_head *m);

/* Checks and writes the payload into out[cap]; *len gets its size. STATUS_TOO_LARGE: does not fit cap or a
 * limit above; STATUS_INVALID: a byte or a number that must not be there. err may be NULL. */
enum status message_request_encode(const struct message_request *m, void *out, size_t cap,
                                   size_t *len, struct error *err);
enum status message_head_encode(const struct message_head *m, void *out, size_t cap, size_t *len,
                                struct error *err);

/* Reads a payload. STATUS_PEER with the fault named if anything is wrong. */
enum status message_request_decode(const void *payload, size_t len, struct message_request *out,
                                   struct error *err);
enum status message_head_decode(const void *payload, size_t len, struct message_head *out,
                                struct error *err);

/* Appends a pair; false if the table is full. The slices are borrowed. */
static inline int message_add_pair(struct message_pair *pairs, uint32_t *n, struct slice name,
                                   struct slice value)
{
    if (*n >= MESSAGE_PAIRS_MAX)
        return 0;
    pairs[*n].name = name;
    pairs[*n].value = value;
    ++*n;
    return 1;
}

/* The value of a name (lower case), or { NULL, 0 }. */
struct slice message_find(const struct message_pair *pairs, uint32_t n, const char *name);

#endif
