/* detokenizer.h: a stream of tokens to a stream of text, which is valid UTF-8 at every point.
 *
 *     token ─▶ bytes ─▶ [ unfinished character ] ─▶ text ─▶ [ may begin a stop string ] ─▶ out
 *
 * - A character whose bytes come from several tokens leaves when it is complete. Invalid bytes
 * become U+FFFD, one for each maximal subpart of a sequence (the rule of WHATWG and of Python's
 * errors="replace").
 * - Stop strings are found across token borders; text is held back only as far as its end is the
 * beginning of one. The match that is complete first wins (of several that end together the
 * longest); the text before it is the answer, the match and everything behind is dropped.
 * - Control and unknown tokens give no text unless DECODE_SPECIAL is set. End-of-generation tokens
 * are the caller's business: do not feed them.
 *
 * One per stream, used by one thread at a time; borrows the tokenizer. What comes out does not
 * depend on anything but the tokens fed. */
#ifndef TEXT_DETOKENIZER_H
#define TEXT_DETOKENIZER_H

#include "core/base/buffer.h"
#include "core/text/tokenizer.h"

#define DETOKENIZER_MAX_STOPS 4

struct detokenizer_stop {
    char *text;
    uint32_t *border; /* border[i]: longest proper prefix of text that ends text[0..i] */
    uint32_t len, matched;
};

struct detokenizer {
    const struct tokenizer *tok;
    unsigned flags;
    bool stopped; /* a stop string was hit: further tokens are ignored */
    bool started; /* a token with text was fed */
    unsigned n_stops, n_partial;
    char partial[4]; /* bytes of an unfinished character */
    struct detokenizer_stop stops[DETOKENIZER_MAX_STOPS];
    struct buffer held;  /* text not given out: could begin a stop string */
    uint64_t text_len;   /* bytes of text made so far, held ones included */
    uint64_t tokens;     /* tokens fed, up to and with the one that completed a stop string */
    uint64_t tokens_out; /* of these, the leading ones whose text has begun to go out */
    /* For each token after tokens_out: bytes of text that must be out for it to have begun. */
    uint64_t *due;
    size_t first_due, n_due, cap_due;
};

/* stops: up to DETOKENIZER_MAX_STOPS strings of valid UTF-8 (copied; empty ones are ignored).
 * flags: DECODE_*. */
void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, const struct slice *stops,
                      size_t n_stops, unsigned flags);
void detokenizer_release(struct detokenizer *d);

/* Feeds one token (id < n_vocab) and appends the text that is now certain to out. Returns true when
 * a stop string is complete: the stream's text has ended. d->tokens then counts the tokens up to
 * that point (for usage), d->tokens_out those to which the text given out belongs (for
 * log-probabilities). Once stopped, feeding does nothing. */
bool detokenizer_feed(struct detokenizer *d, uint32_t token, struct buffer *out);
/* End of the stream without a stop string: an unfinished character becomes U+FFFD, held text goes
 * out. Returns true if that U+FFFD completed a stop string. */
bool detokenizer_finish(struct detokenizer *d, struct buffer *out);

#endif
