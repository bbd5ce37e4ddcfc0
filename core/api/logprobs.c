#include "core/api/logprobs.h"

#include "core/api/api.h"
#include "core/api/json_write.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

static size_t record_size(const struct api_reply *r)
{
    return sizeof(struct logprob_record) + (size_t)r->top_logprobs * sizeof(struct api_top);
}

/* A byte inside a character, not its first. */
static bool continues(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

void logprobs_keep(const struct api_reply *r, struct api_choice *c, const struct api_token *token)
{
    if (r->top_logprobs < 0)
        return;
    uint32_t most = (uint32_t)r->top_logprobs;
    struct slice piece = tokenizer_piece(r->ctx->tokenizer, token->token);
    bool inside = piece.len > 0 && continues(piece.ptr[0]) && c->characters > 0;
    struct logprob_record record = {
        .token = token->token,
        .logprob = token->logprob,
        .character = c->characters - inside,
        .n_top = token->n_top < most ? (uint32_t)token->n_top : most,
    };
    static const struct api_top unused[API_TOP_CHAT];
    buffer_add(&c->waiting, &record, sizeof(record));
    if (record.n_top > 0)
        buffer_add(&c->waiting, token->top, record.n_top * sizeof(struct api_top));
    buffer_add(&c->waiting, unused, (most - record.n_top) * sizeof(struct api_top));
    c->n_waiting++;
    for (size_t i = 0; i < piece.len; i++)
        c->characters += !continues(piece.ptr[i]);
}

/* The record at index i and its alternatives. */
static struct logprob_record get(const struct api_reply *r, const struct api_choice *c, uint32_t i,
                                 struct api_top *top)
{
    struct logprob_record record;
    const char *at = c->waiting.ptr + i * record_size(r);
    memcpy(&record, at, sizeof(record));
    if (record.n_top > 0)
        memcpy(top, at + sizeof(record), record.n_top * sizeof(*top));
    return record;
}

/* A token's text as a JSON string; one that is no UTF-8 by itself is named by its bytes,
 * "bytes:\xe2\x82", as OpenAI does. */
static void add_token_text(const struct api_reply *r, uint32_t token, struct buffer *out)
{
    struct slice piece = tokenizer_piece(r->ctx->tokenizer, token);
    const unsigned char *p = (const unsigned char *)piece.ptr;
    if (utf8_valid(piece.ptr, piece.len) == piece.len) {
        json_add_string(out, piece);
        return;
    }
    buffer_add_text(out, "\"bytes:");
    for (size_t i = 0; i < piece.len; i++)
        buffer_printf(out, "\\\\x%02x", p[i]);
    buffer_add_byte(out, '"');
}

static void add_token_bytes(const struct api_reply *r, uint32_t token, struct buffer *out)
{
    struct slice piece = tokenizer_piece(r->ctx->tokenizer, token);
    buffer_add_byte(out, '[');
    for (size_t i = 0; i < piece.len; i++) {
        if (i > 0)
            buffer_add_byte(out, ',');
        json_add_u64(out, (unsigned char)piece.ptr[i]);
    }
    buffer_add_byte(out, ']');
}

/* {"token":..,"logprob":..,"bytes":[..] without the closing bracket. */
static void open_entry(const struct api_reply *r, uint32_t token, float logprob, struct buffer *out)
{
    buffer_add_text(out, "{\"token\":");
    add_token_text(r, token, out);
    buffer_add_text(out, ",\"logprob\":");
    json_add_float(out, logprob);
    buffer_add_text(out, ",\"bytes\":");
    add_token_bytes(r, token, out);
}

static void write_chat(const struct api_reply *r, const struct api_choice *c, struct buffer *out)
{
    struct api_top top[API_TOP_CHAT];
    buffer_add_text(out, "{\"content\":[");
    for (uint32_t i = 0; i < c->n_waiting; i++) {
        struct logprob_record record = get(r, c, i, top);
        if (i > 0)
            buffer_add_byte(out, ',');
        open_entry(r, record.token, record.logprob, out);
        buffer_add_text(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < record.n_top; k++) {
            if (k > 0)
                buffer_add_byte(out, ',');
            open_entry(r, top[k].token, top[k].logprob, out);
            buffer_add_byte(out, '}');
        }
        buffer_add_text(out, "]}");
    }
    buffer_add_text(out, "],\"refusal\":null}");
}

/* Adds a member to the dictionary that began at `start`, unless its name is there already: tokens
 * of equal text would be equal keys, and the first is the most probable. */
static void add_member(const struct api_reply *r, uint32_t token, float logprob,
                       struct buffer *names, struct buffer *out)
{
    struct buffer name = {0};
    add_token_text(r, token, &name);
    buffer_add_byte(&name, ':');
    bool known = names->len > 0 && memmem(names->ptr, names->len, name.ptr, name.len) != NULL;
    if (!known) {
        if (names->len > 0)
            buffer_add_byte(out, ',');
        buffer_add_slice(out, buffer_slice(&name));
        json_add_float(out, logprob);
        buffer_add_byte(names, '\n');
        buffer_add_slice(names, buffer_slice(&name));
    }
    buffer_release(&name);
}

/* The alternatives and, where it is none of them, the chosen token: one more than asked for. */
static void write_dictionary(const struct api_reply *r, const struct logprob_record *record,
                             const struct api_top *top, struct buffer *out)
{
    struct buffer names = {0};
    bool chosen = false;
    buffer_add_byte(out, '{');
    for (uint32_t k = 0; k < record->n_top; k++) {
        add_member(r, top[k].token, top[k].logprob, &names, out);
        chosen = chosen || top[k].token == record->token;
    }
    if (!chosen)
        add_member(r, record->token, record->logprob, &names, out);
    buffer_add_byte(out, '}');
    buffer_release(&names);
}

static void write_completions(const struct api_reply *r, const struct api_choice *c,
                              struct buffer *out)
{
    static const char *const columns[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                          "],\"top_logprobs\":[", "],\"text_offset\":["};
    struct api_top top[API_TOP_CHAT];
    for (int column = 0; column < 4; column++) {
        buffer_add_text(out, columns[column]);
        for (uint32_t i = 0; i < c->n_waiting; i++) {
            struct logprob_record record = get(r, c, i, top);
            if (i > 0)
                buffer_add_byte(out, ',');
            if (column == 0)
                add_token_text(r, record.token, out);
            else if (column == 1)
                json_add_float(out, record.logprob);
            else if (column == 2)
                write_dictionary(r, &record, top, out);
            else
                json_add_u64(out, record.character);
        }
    }
    buffer_add_text(out, "]}");
}

void logprobs_write(const struct api_reply *r, struct api_choice *c, struct buffer *out)
{
    if (r->top_logprobs < 0) {
        buffer_add_text(out, "null");
        return;
    }
    if (r->endpoint == API_CHAT)
        write_chat(r, c, out);
    else
        write_completions(r, c, out);
    buffer_clear(&c->waiting);
    c->n_waiting = 0;
}
