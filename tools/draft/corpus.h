/* corpus.h: the texts that the target wrote, on disk, with all that training wants to know of them.
 *
 *     file:    header (128 bytes) | text | text | …
 *     header:  "tokenring corpus 1\n" | at 20: u32 width | at 24: the target's SHA-256, in hex
 *     text:    u32 'TEXT' | u32 n | u32 tokens[n] | u8 kinds[n], padded to 4 | bf16 states[n][width]
 *
 * states[i] is the target's final state behind tokens[0 … i]: what its head turns into the
 * distribution of tokens[i + 1]. The last one may be missing (zero), as nothing follows. Little
 * endian; every text is written by one write, and one that was cut short by a crash is cut off when
 * the file is opened again. A reader maps the file: it may be larger than memory. */
#ifndef TOOLS_DRAFT_CORPUS_H
#define TOOLS_DRAFT_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"

enum token_origin {
    ORIGIN_FORCED, /* from our lists, or the chat format */
    ORIGIN_USER,   /* drawn, in a user's turn */
    ORIGIN_DRAWN,  /* drawn, in an answer */
    ORIGIN_GREEDY, /* the likeliest, in an answer */
    ORIGINS
};

struct corpus_text {
    uint32_t n;
    const uint32_t *tokens;
    const uint8_t *origins;
    const uint16_t *states;
};

struct corpus {
    char *path;
    int fd;
    uint32_t width;
    uint64_t size;     /* bytes of the file */
    uint64_t n_tokens; /* of all texts */
    size_t n_texts;
    uint64_t *places; /* of the texts, from the file's start */
    size_t places_cap;
    const uint8_t *map; /* corpus_map */
    uint64_t map_size;
};

/* Opens for adding. resume: keeps the file that is there, which must be of this target; else a new
 * one is made in its place. */
enum status corpus_open(struct corpus *c, const char *path, uint32_t width, const char *sha256,
                        bool resume, struct error *err);
void corpus_close(struct corpus *c);
/* Adds a text of n ≥ 1 tokens; states has n rows. */
enum status corpus_add(struct corpus *c, uint32_t n, const uint32_t *tokens, const uint8_t *origins,
                       const uint16_t *states, struct error *err);
/* Makes all texts readable; add no more afterwards. */
enum status corpus_map(struct corpus *c, struct error *err);
struct corpus_text corpus_text(const struct corpus *c, size_t i);
/* Bytes that n tokens take, about. */
uint64_t corpus_bytes(uint64_t n, uint32_t width);

#endif
