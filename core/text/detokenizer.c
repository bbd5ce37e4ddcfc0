#include "core/text/detokenizer.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/text/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, const struct slice *stops,
                      size_t n_stops, unsigned flags)
{
    check(n_stops <= DETOKENIZER_MAX_STOPS);
    *d = (struct detokenizer){.tok = tok, .flags = flags};
    for (size_t i = 0; i < n_stops; i++) {
        struct detokenizer_stop *s = &d->stops[d->n_stops];
        if (stops[i].len == 0)
            continue;
        s->len = (uint32_t)stops[i].len;
        s->text = xmemdup(stops[i].ptr, stops[i].len);
        s->border = xcalloc(s->len, sizeof(*s->border));
        for (uint32_t at = 1, k = 0; at < s->len; at++) {
            while (k > 0 && s->text[at] != s->text[k])
                k = s->border[k - 1];
            k += s->text[at] == s->text[k];
            s->border[at] = k;
        }
        d->n_stops++;
    }
}

void detokenizer_release(struct detokenizer *d)
{
    for (unsigned i = 0; i < d->n_stops; i++) {
        free(d->stops[i].text);
        free(d->stops[i].border);
    }
    buffer_release(&d->held);
    free(d->due);
    *d = (struct detokenizer){0};
}

/* Takes one more byte of text into every stop string's automaton (Knuth, Morris, Pratt); returns
 * the length of the longest stop string that is now complete, or 0. */
static uint32_t match(struct detokenizer *d, char byte)
{
    uint32_t complete = 0;
    for (unsigned i = 0; i < d->n_stops; i++) {
        struct detokenizer_stop *s = &d->stops[i];
        while (s->matched > 0 && s->text[s->matched] != byte)
            s->matched = s->border[s->matched - 1];
        s->matched += s->text[s->matched] == byte;
        if (s->matched == s->len && s->len > complete)
            complete = s->len;
    }
    return complete;
}

/* Takes text, which is whole characters. */
static void add_text(struct detokenizer *d, const char *text, size_t len)
{
    for (size_t i = 0; i < len && !d->stopped; i++) {
        buffer_add_byte(&d->held, text[i]);
        d->text_len++;
        uint32_t stop = match(d, text[i]);
        if (stop != 0) {
            d->stopped = true;
            d->held.len -= stop;
            d->text_len -= stop;
        }
    }
}

/* Takes a byte; completes or gives up characters. */
static void add_byte(struct detokenizer *d, char byte)
{
    d->partial[d->n_partial++] = byte;
    while (d->n_partial != 0) {
        size_t len;
        enum utf8 kind = utf8_step(d->partial, d->n_partial, &len);
        if (kind == UTF8_PARTIAL)
            return;
        if (kind == UTF8_CHARACTER)
            add_text(d, d->partial, len);
        else
            add_text(d, REPLACEMENT, 3);
        d->n_partial -= (unsigned)len;
        memmove(d->partial, d->partial + len, d->n_partial);
    }
}

/* Gives out all but what may begin a stop string, and counts the tokens that this text belongs to.
 */
static void give_out(struct detokenizer *d, bool all, struct buffer *out)
{
    size_t keep = 0;
    for (unsigned i = 0; i < d->n_stops && !all; i++)
        if (d->stops[i].matched > keep)
            keep = d->stops[i].matched;
    buffer_add(out, d->held.ptr, d->held.len - keep);
    buffer_consume(&d->held, d->held.len - keep);
    while (d->n_due != 0 && d->due[d->first_due] <= d->text_len - keep) {
        d->first_due++;
        d->n_due--;
        d->tokens_out++;
    }
}

static void add_due(struct detokenizer *d, uint64_t due)
{
    if (d->first_due + d->n_due == d->cap_due) {
        if (d->first_due > d->n_due) {
            memmove(d->due, d->due + d->first_due, d->n_due * sizeof(*d->due));
            d->first_due = 0;
        } else {
            d->cap_due = d->cap_due * 2 + 16;
            d->due = xreallocarray(d->due, d->cap_due, sizeof(*d->due));
        }
    }
    d->due[d->first_due + d->n_due++] = due;
}

bool detokenizer_feed(struct detokenizer *d, uint32_t token, struct buffer *out)
{
    if (d->stopped)
        return true;
    struct slice bytes = tokenizer_piece(d->tok, token);
    bool hidden = tokenizer_is_hidden(d->tok, token);
    if (hidden && !(d->flags & DECODE_SPECIAL))
        bytes.len = 0;
    if (!hidden && bytes.len != 0 && !d->started) {
        d->started = true;
        bool strip = (d->flags & DECODE_START) && vocab_space_prefix(tokenizer_vocab(d->tok));
        if (strip && bytes.ptr[0] == ' ')
            bytes = slice_make(bytes.ptr + 1, bytes.len - 1);
    }
    d->tokens++;
    add_due(d, d->text_len + (bytes.len != 0));
    for (size_t i = 0; i < bytes.len && !d->stopped; i++)
        add_byte(d, bytes.ptr[i]);
    give_out(d, d->stopped, out);
    return d->stopped;
}

bool detokenizer_finish(struct detokenizer *d, struct buffer *out)
{
    if (d->stopped)
        return true;
    if (d->n_partial != 0)
        add_text(d, REPLACEMENT, 3);
    d->n_partial = 0;
    give_out(d, true, out);
    return d->stopped;
}
