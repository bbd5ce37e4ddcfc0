#include "core/text/vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/buffer.h"
#include "core/base/check.h"
#include "core/base/huge.h"
#include "core/base/xalloc.h"
#include "core/text/byte_map.h"
#include "core/text/text_table.h"

#define MAX_TOKENS (1u << 24)
#define SPACE_MARK "\xe2\x96\x81" /* ▁, SentencePiece's space */

struct vocab {
    enum vocab_model model;
    uint32_t n, n_symbols, longest;
    uint32_t bos, eos, unknown;
    bool add_bos, space_prefix;
    struct vocab_token *tokens;
    struct vocab_token *extra; /* symbols n, n + 1, … that are no tokens; text and bytes only */
    char *texts;               /* all texts of tokens and extra symbols, then their bytes */
    struct text_table by_text; /* every token; of several with one text the last */
    struct text_table
        others; /* symbols that by_text lacks: no tokens, or hidden by one that is no symbol */
    uint32_t bytes[256];
    struct vocab_merge
        *merges; /* hash table by (left, right); result = left, which no merge has: free */
    uint64_t merge_mask;
    size_t tokens_mapped, merges_mapped;
};

/* What loading needs besides the result. */
struct loader {
    const struct gguf *g;
    struct vocab *v;
    struct error *err;
    size_t used;      /* of v->texts */
    size_t n_extra;   /* allocated */
    uint32_t *hidden; /* tokens whose text a later one has too, ascending */
    size_t n_hidden;
};

/* Look-ups in tables that are larger than the caches are prefetched so many ahead. */
#define AHEAD 16u

static struct slice keep(struct loader *l, const char *ptr, size_t len)
{
    char *copy = l->v->texts + l->used;
    memcpy(copy, ptr, len);
    l->used += len;
    return slice_make(copy, len);
}

static bool byte_token(struct slice text, uint8_t *byte)
{
    static const char digits[] = "0123456789ABCDEF";
    if (text.len != 6 || memcmp(text.ptr, "<0x", 3) != 0 || text.ptr[5] != '>')
        return false;
    const char *high = memchr(digits, text.ptr[3], 16), *low = memchr(digits, text.ptr[4], 16);
    if (high == NULL || low == NULL)
        return false;
    *byte = (uint8_t)((high - digits) << 4 | (low - digits));
    return true;
}

/* The bytes that a text stands for in the output. */
static struct slice decode(struct loader *l, struct slice text, unsigned kind)
{
    char *out = l->v->texts + l->used;
    size_t n = 0;
    uint8_t byte;
    if (kind == TOKEN_UNUSED)
        return slice_make(out, 0);
    if (kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN || kind == TOKEN_USER_DEFINED)
        return keep(l, text.ptr, text.len);
    if (l->v->model == VOCAB_BPE) {
        n = byte_map_decode(text, out);
    } else if (kind == TOKEN_BYTE && byte_token(text, &byte)) {
        out[n++] = (char)byte;
    } else {
        for (size_t i = 0; i < text.len;) {
            bool mark = text.len - i >= 3 && memcmp(text.ptr + i, SPACE_MARK, 3) == 0;
            out[n++] = mark ? ' ' : text.ptr[i];
            i += mark ? 3 : 1;
        }
    }
    l->used += n;
    return slice_make(out, n);
}

static enum status bad(struct loader *l, const char *key, const char *why)
{
    return error_set(l->err, STATUS_CORRUPT, "%s: key '%s' %s", gguf_path(l->g), key, why);
}

/* The array that must go with the tokens, one element each; absent: count 0. */
static enum status matching_array(struct loader *l, const char *key, bool integers,
                                  struct gguf_array *a)
{
    struct error err = {0};
    if (!gguf_array(l->g, key, a, &err))
        return err.status == STATUS_OK ? STATUS_OK : error_set(l->err, err.status, "%s", err.text);
    bool fits = integers ? a->type == GGUF_I32 || a->type == GGUF_U32 || a->type == GGUF_I8 ||
                               a->type == GGUF_U8
                         : a->type == GGUF_F32;
    if (!fits)
        return bad(l, key, integers ? "must be an array of integers" : "must be an array of f32");
    if (a->count != l->v->n)
        return bad(l, key, "has not as many elements as there are tokens");
    return STATUS_OK;
}

/* Counts the bytes that all texts need, so that one block holds them. */
static size_t text_bytes(const struct gguf_array *a)
{
    size_t total = 0, at = 0;
    for (uint64_t i = 0; i < a->count; i++)
        total += gguf_array_string(a, &at).len;
    return total;
}

/* Makes tokens [begin, end) known by their texts. */
static void add_tokens(struct loader *l, const struct text_key *keys, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        if (keys[i - begin].len == 0)
            continue;
        uint32_t before = text_table_set(&l->v->by_text, &keys[i - begin], i);
        if (before == TEXT_TABLE_NONE)
            continue;
        if ((l->n_hidden & (l->n_hidden - 1)) == 0)
            l->hidden = xreallocarray(l->hidden, l->n_hidden * 2 + 1, sizeof(*l->hidden));
        l->hidden[l->n_hidden++] = before;
    }
}

static enum status load_tokens(struct loader *l, const struct gguf_array *texts)
{
    struct vocab *v = l->v;
    struct gguf_array kinds, scores;
    size_t at = 0;
    enum status status = matching_array(l, "tokenizer.ggml.token_type", true, &kinds);
    if (status == STATUS_OK)
        status = matching_array(l, "tokenizer.ggml.scores", false, &scores);
    if (status != STATUS_OK)
        return status;
    if (v->model == VOCAB_SPM && scores.count == 0)
        return bad(l, "tokenizer.ggml.scores", "is missing");
    v->tokens = huge_table(v->n * sizeof(*v->tokens), &v->tokens_mapped);
    text_table_init(&v->by_text, v->n);
    struct text_key keys[AHEAD];
    for (uint32_t i = 0; i < v->n; i++) {
        struct vocab_token *t = &v->tokens[i];
        struct slice text = gguf_array_string(texts, &at);
        uint64_t kind = kinds.count != 0 ? gguf_array_u64(&kinds, i) : TOKEN_NORMAL;
        uint8_t byte;
        if (kind == 0)
            kind = TOKEN_NORMAL;
        if (kind > TOKEN_BYTE)
            return bad(l, "tokenizer.ggml.token_type",
                       "has an element that is no token type (1 to 6)");
        if (v->model == VOCAB_SPM && kind == TOKEN_BYTE && !byte_token(text, &byte))
            return bad(l, "tokenizer.ggml.tokens", "has a byte token that is not written <0xXX>");
        t->kind = (uint8_t)kind;
        t->score = scores.count != 0 ? gguf_array_f32(&scores, i) : 0;
        if (!isfinite(t->score))
            return bad(l, "tokenizer.ggml.scores", "has an element that is no finite number");
        t->text = keep(l, text.ptr, text.len);
        t->bytes = decode(l, t->text, t->kind);
        keys[i % AHEAD] = text_key(t->text);
        text_table_prefetch(&v->by_text, &keys[i % AHEAD]);
        if ((i + 1) % AHEAD == 0 || i + 1 == v->n)
            add_tokens(l, keys, i / AHEAD * AHEAD, i + 1);
    }
    return STATUS_OK;
}

/* Whether plain text may become the token. */
static bool is_symbol(const struct vocab *v, uint32_t id)
{
    unsigned kind = v->tokens[id].kind;
    return kind == TOKEN_NORMAL || kind == TOKEN_USER_DEFINED ||
           (kind == TOKEN_BYTE && v->model == VOCAB_BPE);
}

static void measure_symbol(struct vocab *v, struct slice text)
{
    if (text.len > v->longest)
        v->longest = (uint32_t)text.len;
}

static uint32_t find_symbol(const struct vocab *v, const struct text_key *key)
{
    uint32_t id = text_table_get(&v->by_text, key);
    return id != TEXT_TABLE_NONE && is_symbol(v, id) ? id : text_table_get(&v->others, key);
}

/* The symbol of a text, made if there is none. */
static uint32_t intern(struct loader *l, struct slice text, const struct text_key *key)
{
    struct vocab *v = l->v;
    uint32_t symbol = find_symbol(v, key);
    if (symbol != TEXT_TABLE_NONE)
        return symbol;
    if (v->n_symbols - v->n == l->n_extra) {
        l->n_extra = l->n_extra * 2 + 16;
        v->extra = xreallocarray(v->extra, l->n_extra, sizeof(*v->extra));
    }
    struct vocab_token *extra = &v->extra[v->n_symbols - v->n];
    *extra = (struct vocab_token){.kind = TOKEN_NORMAL};
    extra->text = keep(l, text.ptr, text.len);
    extra->bytes = decode(l, extra->text, TOKEN_NORMAL);
    struct text_key kept = text_key(extra->text);
    text_table_set(&v->others, &kept, v->n_symbols);
    measure_symbol(v, extra->text);
    return v->n_symbols++;
}

static uint64_t merge_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static struct vocab_merge *merge_slot(const struct vocab *v, uint32_t left, uint32_t right)
{
    for (uint64_t i = merge_hash(left, right) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        struct vocab_merge *m = &v->merges[i];
        if (m->result == m->left || (m->left == left && m->right == right))
            return m;
    }
}

/* A merge as it is read: two texts, then their symbols. */
struct pair {
    struct slice left, right;
    struct text_key keys[2];
    uint32_t symbols[2];
};

/* Reads "left right", split at the first space behind the first byte, as a merge may begin with one. */
static bool read_pair(struct slice text, struct pair *p)
{
    const char *space = text.len > 1 ? memchr(text.ptr + 1, ' ', text.len - 1) : NULL;
    size_t left_len = space != NULL ? (size_t)(space - text.ptr) : 0;
    if (space == NULL || left_len + 1 == text.len)
        return false;
    p->left = slice_make(text.ptr, left_len);
    p->right = slice_make(space + 1, text.len - left_len - 1);
    p->keys[0] = text_key(p->left);
    p->keys[1] = text_key(p->right);
    return true;
}

/* The symbol that a merge makes. Tokens mostly stand in the order of the merges that make them, so the one behind the
 * last result is tried first. */
static uint32_t intern_whole(struct loader *l, const struct pair *p, uint32_t last,
                             struct buffer *whole)
{
    const struct vocab *v = l->v;
    if (last + 1 < v->n && l->n_hidden == 0 && is_symbol(v, last + 1)) {
        struct slice text = v->tokens[last + 1].text;
        if (text.len == p->left.len + p->right.len && slice_starts(text, p->left) &&
            memcmp(text.ptr + p->left.len, p->right.ptr, p->right.len) == 0)
            return last + 1;
    }
    buffer_clear(whole);
    buffer_add_slice(whole, p->left);
    buffer_add_slice(whole, p->right);
    struct text_key key = text_key(buffer_slice(whole));
    return intern(l, buffer_slice(whole), &key);
}

/* n merges, the first of rank `rank`; *last: the result of the one before. */
static void add_merges(struct loader *l, struct pair *pairs, uint32_t n, uint32_t rank,
                       uint32_t *last, struct buffer *whole)
{
    struct vocab *v = l->v;
    for (uint32_t k = 0; k < n; k++) {
        struct pair *p = &pairs[k];
        p->symbols[0] = intern(l, p->left, &p->keys[0]);
        p->symbols[1] = intern(l, p->right, &p->keys[1]);
        __builtin_prefetch(&v->merges[merge_hash(p->symbols[0], p->symbols[1]) & v->merge_mask], 1);
    }
    for (uint32_t k = 0; k < n; k++) {
        struct pair *p = &pairs[k];
        struct vocab_merge *m = merge_slot(v, p->symbols[0], p->symbols[1]);
        if (m->result != m->left)
            continue;
        *last = intern_whole(l, p, *last, whole);
        *m = (struct vocab_merge){p->symbols[0], p->symbols[1], *last, rank + k};
    }
}

static enum status load_merges(struct loader *l, const struct gguf_array *merges)
{
    struct vocab *v = l->v;
    struct buffer whole = {0};
    struct pair pairs[AHEAD];
    uint64_t cap = 16;
    uint32_t last = 0;
    size_t at = 0;
    while (cap < merges->count * 2)
        cap *= 2;
    v->merges = huge_table(cap * sizeof(*v->merges), &v->merges_mapped);
    v->merge_mask = cap - 1;
    for (uint32_t i = 0; i < merges->count; i += AHEAD) {
        uint32_t n = merges->count - i < AHEAD ? (uint32_t)merges->count - i : AHEAD;
        for (uint32_t k = 0; k < n; k++) {
            if (!read_pair(gguf_array_string(merges, &at), &pairs[k])) {
                buffer_release(&whole);
                return bad(l, "tokenizer.ggml.merges",
                           "has an element that is not two texts with a space between");
            }
            text_table_prefetch(&v->by_text, &pairs[k].keys[0]);
            text_table_prefetch(&v->by_text, &pairs[k].keys[1]);
        }
        add_merges(l, pairs, n, i, &last, &whole);
    }
    buffer_release(&whole);
    return STATUS_OK;
}

/* The tables by which text becomes symbols. */
static enum status load_symbols(struct loader *l, const struct gguf_array *merges)
{
    struct vocab *v = l->v;
    enum status status = STATUS_OK;
    text_table_init(&v->others, l->n_hidden);
    v->n_symbols = v->n;
    for (uint32_t i = 0; i < v->n; i++)
        if (is_symbol(v, i))
            measure_symbol(v, v->tokens[i].text);
    for (size_t i = 0; i < l->n_hidden; i++) {
        struct text_key key = text_key(v->tokens[l->hidden[i]].text);
        if (is_symbol(v, l->hidden[i]))
            text_table_set(&v->others, &key, l->hidden[i]);
    }
    if (v->model == VOCAB_BPE)
        status = load_merges(l, merges);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        if (v->model == VOCAB_BPE) {
            v->bytes[byte] = vocab_symbol(v, slice_make(text, byte_map_put((uint8_t)byte, text)));
        } else {
            snprintf(text, sizeof(text), "<0x%02X>", byte);
            uint32_t id = vocab_find(v, slice_of(text));
            v->bytes[byte] = id != TOKEN_NONE && v->tokens[id].kind == TOKEN_BYTE ? id : TOKEN_NONE;
        }
    }
    return status;
}

static enum status load_id(struct loader *l, const char *key, uint32_t fallback, uint32_t *id)
{
    struct error err = {0};
    if (fallback != TOKEN_NONE && fallback >= l->v->n)
        fallback = TOKEN_NONE;
    *id = gguf_u32(l->g, key, fallback, &err);
    if (err.status != STATUS_OK)
        return error_set(l->err, err.status, "%s", err.text);
    if (*id >= l->v->n && gguf_has(l->g, key))
        return error_set(l->err, STATUS_CORRUPT, "%s: key '%s' is %u, but there are only %u tokens",
                         gguf_path(l->g), key, *id, l->v->n);
    return STATUS_OK;
}

/* Whether merges form this text, so that it is a word like any other ("</s>" in vocabularies that learned HTML). */
static bool formed_by_merges(const struct gguf_array *merges, struct slice text)
{
    size_t at = 0;
    for (uint64_t i = 0; i < merges->count; i++) {
        struct slice m = gguf_array_string(merges, &at);
        const char *space = m.len == text.len + 1 ? memchr(m.ptr + 1, ' ', m.len - 1) : NULL;
        size_t left = space != NULL ? (size_t)(space - m.ptr) : 0;
        if (space != NULL && memcmp(m.ptr, text.ptr, left) == 0 &&
            memcmp(space + 1, text.ptr + left, text.len - left) == 0)
            return true;
    }
    return false;
}

/* The token that is a marker known by its text, or TOKEN_NONE. Where a file gives it another kind it is made a control
 * token, as otherwise a user could write it; but not if it is a word that merging makes of plain text. */
static uint32_t known_text(struct loader *l, const struct gguf_array *merges, struct slice text)
{
    uint32_t id = vocab_find(l->v, text);
    if (id == TOKEN_NONE)
        return id;
    struct vocab_token *t = &l->v->tokens[id];
    if (t->kind == TOKEN_NORMAL && (l->v->model == VOCAB_SPM || formed_by_merges(merges, text)))
        return TOKEN_NONE;
    t->kind = TOKEN_CONTROL;
    return id;
}

/* The tokens that end a generation: named by keys, or known by their text (the list is
 * llama.cpp's). */
static enum status load_ends(struct loader *l, const struct gguf_array *merges)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    };
    /* A space behind each; the one with escapes is DeepSeek's, with full-width bars. */
    static const char texts[] =
        "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
        "<|endoftext|> </s> "
        "<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> "
        "<|tool_response> "
        "<\xef\xbd\x9c\x65nd\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c> <|fim_pad|> <fim-pad> "
        "<fim_pad> <PAD> "
        "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|> ";
    struct vocab *v = l->v;
    uint32_t id;
    known_text(l, merges, slice_of("<|im_start|>"));
    for (const char *at = texts, *end; (end = strchr(at, ' ')) != NULL; at = end + 1)
        if ((id = known_text(l, merges, slice_make(at, (size_t)(end - at)))) != TOKEN_NONE)
            v->tokens[id].eog = true;
    /* Where these exist, another token is only a part of the format and not its end. */
    if ((id = vocab_find(v, slice_of("<|end|>"))) != TOKEN_NONE &&
        vocab_find(v, slice_of("<|return|>")) != TOKEN_NONE &&
        vocab_find(v, slice_of("<|call|>")) != TOKEN_NONE)
        v->tokens[id].eog = false;
    if ((id = vocab_find(v, slice_of("</s>"))) != TOKEN_NONE &&
        vocab_find(v, slice_of("<|tool_response>")) != TOKEN_NONE)
        v->tokens[id].eog = false;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        enum status status = load_id(l, keys[i], TOKEN_NONE, &id);
        if (status != STATUS_OK)
            return status;
        if (id != TOKEN_NONE)
            v->tokens[id].eog = true;
    }
    if (v->eos != TOKEN_NONE)
        v->tokens[v->eos].eog = true;
    return STATUS_OK;
}

static enum status load_ids(struct loader *l, const struct gguf_array *merges)
{
    struct vocab *v = l->v;
    bool spm = v->model == VOCAB_SPM;
    uint32_t padding;
    struct error err = {0};
    enum status status = load_id(l, "tokenizer.ggml.bos_token_id", spm ? 1 : TOKEN_NONE, &v->bos);
    if (status == STATUS_OK)
        status = load_id(l, "tokenizer.ggml.eos_token_id", spm ? 2 : TOKEN_NONE, &v->eos);
    if (status == STATUS_OK)
        status = load_id(l, "tokenizer.ggml.unknown_token_id", spm ? 0 : TOKEN_NONE, &v->unknown);
    if (status == STATUS_OK)
        status = load_id(l, "tokenizer.ggml.padding_token_id", TOKEN_NONE, &padding);
    if (status != STATUS_OK)
        return status;
    v->add_bos = gguf_bool(l->g, "tokenizer.ggml.add_bos_token", spm, &err);
    v->space_prefix = gguf_bool(l->g, "tokenizer.ggml.add_space_prefix", spm, &err);
    if (err.status != STATUS_OK)
        return error_set(l->err, err.status, "%s", err.text);
    if (v->add_bos && v->bos == TOKEN_NONE && gguf_has(l->g, "tokenizer.ggml.add_bos_token"))
        return bad(l, "tokenizer.ggml.add_bos_token", "is true, but there is no bos_token_id");
    v->add_bos = v->add_bos && v->bos != TOKEN_NONE;
    return load_ends(l, merges);
}

static enum status load(struct loader *l)
{
    struct vocab *v = l->v;
    struct error err = {0};
    struct gguf_array texts, merges;
    struct slice model = gguf_str(l->g, "tokenizer.ggml.model", slice_of(""), &err);
    gguf_array(l->g, "tokenizer.ggml.tokens", &texts, &err);
    gguf_array(l->g, "tokenizer.ggml.merges", &merges, &err);
    if (err.status != STATUS_OK)
        return error_set(l->err, err.status, "%s", err.text);
    if (model.len == 0)
        return bad(l, "tokenizer.ggml.model", "is missing");
    if (!slice_is(model, "gpt2") && !slice_is(model, "llama"))
        return error_set(l->err, STATUS_UNSUPPORTED,
                         "%s: the tokenizer model '%.*s' is not supported; gpt2 and llama are",
                         gguf_path(l->g), (int)(model.len < 40 ? model.len : 40), model.ptr);
    v->model = slice_is(model, "gpt2") ? VOCAB_BPE : VOCAB_SPM;
    if (texts.type != GGUF_STRING || texts.count == 0 || texts.count > MAX_TOKENS)
        return bad(l, "tokenizer.ggml.tokens", "must be an array of 1 to 16777216 strings");
    if (v->model == VOCAB_BPE &&
        (merges.type != GGUF_STRING || merges.count == 0 || merges.count > MAX_TOKENS))
        return bad(l, "tokenizer.ggml.merges", "must be an array of 1 to 16777216 strings");
    if (v->model == VOCAB_SPM)
        merges.count = 0;
    v->n = (uint32_t)texts.count;
    /* Texts and bytes of tokens and of what merges name (left, right, both together). */
    v->texts = xmalloc(text_bytes(&texts) * 2 + (merges.count != 0 ? text_bytes(&merges) * 4 : 0));
    enum status status = load_tokens(l, &texts);
    if (status == STATUS_OK)
        status = load_ids(l, &merges);
    return status == STATUS_OK ? load_symbols(l, &merges) : status;
}

enum status vocab_load(const struct gguf *g, struct vocab **v, struct error *err)
{
    struct loader l = {.g = g, .v = xcalloc(1, sizeof(**v)), .err = err};
    enum status status = load(&l);
    free(l.hidden);
    if (status != STATUS_OK) {
        vocab_free(l.v);
        l.v = NULL;
    }
    *v = l.v;
    return status;
}

void vocab_free(struct vocab *v)
{
    if (v == NULL)
        return;
    text_table_release(&v->by_text);
    text_table_release(&v->others);
    huge_table_free(v->tokens, v->tokens_mapped);
    free(v->extra);
    free(v->texts);
    huge_table_free(v->merges, v->merges_mapped);
    free(v);
}

enum vocab_model vocab_model(const struct vocab *v)
{
    return v->model;
}

uint32_t vocab_size(const struct vocab *v)
{
    return v->n;
}

const struct vocab_token *vocab_token(const struct vocab *v, uint32_t id)
{
    check(id < v->n);
    return &v->tokens[id];
}

uint32_t vocab_find(const struct vocab *v, struct slice text)
{
    struct text_key key = text_key(text);
    return text_table_get(&v->by_text, &key);
}

uint32_t vocab_symbol(const struct vocab *v, struct slice text)
{
    struct text_key key = text_key(text);
    return find_symbol(v, &key);
}

uint32_t vocab_byte(const struct vocab *v, uint8_t byte)
{
    return v->bytes[byte];
}

const struct vocab_merge *vocab_merge(const struct vocab *v, uint32_t left, uint32_t right)
{
    const struct vocab_merge *m = merge_slot(v, left, right);
    return m->result == m->left ? NULL : m;
}

struct slice vocab_symbol_bytes(const struct vocab *v, uint32_t symbol)
{
    check(symbol < v->n_symbols);
    return symbol < v->n ? v->tokens[symbol].bytes : v->extra[symbol - v->n].bytes;
}

uint32_t vocab_longest(const struct vocab *v)
{
    return v->longest;
}

uint32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}

uint32_t vocab_eos(const struct vocab *v)
{
    return v->eos;
}

uint32_t vocab_unknown(const struct vocab *v)
{
    return v->unknown;
}

bool vocab_add_bos(const struct vocab *v)
{
    return v->add_bos;
}

bool vocab_space_prefix(const struct vocab *v)
{
    return v->space_prefix;
}
