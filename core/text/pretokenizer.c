#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/text/pretokenizer.h"

#include <pcre2.h>
#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/text/utf8.h"

#define MAX_RULES 3
/* Far above what any text needs in these expressions, which do not nest repeats. */
#define MATCH_LIMIT 20000000

/* White space as Unicode's property says (PCRE2's \s would count U+180E in); S inside brackets, NS
 * its complement. */
#define S "\\t-\\r\\x{85}\\p{Z}"
#define NS "[^" S "]"
#define CONTRACTIONS "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+|[" S "]+(?!" NS ")"
#define LLAMA3(digits)                                                                             \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|[" S  \
                 "]*[\\r\\n]+|"                                                                    \
                 "[" S "]+(?!" NS ")|[" S "]+"

static const struct family {
    const char *names; /* values of tokenizer.ggml.pre, each with a space behind */
    const char *rules[MAX_RULES];
    bool nfc, whole_words;
} families[] = {
    {"gpt-2 ", {GPT2}, false, false},
    {"smollm starcoder ", {"\\p{N}", GPT2}, false, false},
    {"llama-bpe llama3 llama-v3 ", {LLAMA3("\\p{N}{1,3}")}, false, true},
    {"qwen2 ", {LLAMA3("\\p{N}")}, true, false},
    {"deepseek-v3 ",
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|"
      "[" S "]*[\\r\\n]+|[" S "]+(?!" NS ")|[" S "]+"},
     false,
     false},
    {"falcon ", {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
};

struct pretokenizer {
    const struct family *family;
    unsigned n_rules;
    pcre2_code *rules[MAX_RULES];
    pcre2_match_context *limits;
};

/* One call of pretokenizer_split. */
struct split {
    const struct pretokenizer *p;
    pcre2_match_data *matches[MAX_RULES];
    void (*word)(void *context, struct slice word);
    void *context;
    struct error *err;
};

/* The first family with this name; the names are few. */
static const struct family *find_family(struct slice name)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        for (const char *at = families[i].names, *end; (end = strchr(at, ' ')) != NULL;
             at = end + 1)
            if (slice_equal(slice_make(at, (size_t)(end - at)), name))
                return &families[i];
    return NULL;
}

enum status pretokenizer_create(struct slice name, struct pretokenizer **out, struct error *err)
{
    const struct family *family = find_family(name);
    *out = NULL;
    if (family == NULL)
        return error_set(err, STATUS_UNSUPPORTED, "the pre-tokenizer '%.*s' is not supported",
                         (int)(name.len < 40 ? name.len : 40), name.ptr);
    struct pretokenizer *p = xcalloc(1, sizeof(*p));
    p->family = family;
    p->limits = pcre2_match_context_create(NULL);
    check(p->limits != NULL);
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    for (; p->n_rules < MAX_RULES && family->rules[p->n_rules] != NULL; p->n_rules++) {
        int code;
        size_t at;
        pcre2_code *rule =
            pcre2_compile((PCRE2_SPTR)family->rules[p->n_rules], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
        check(rule != NULL);
        pcre2_jit_compile(rule, PCRE2_JIT_COMPLETE); /* where it cannot, the interpreter is used */
        p->rules[p->n_rules] = rule;
    }
    *out = p;
    return STATUS_OK;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (p == NULL)
        return;
    for (unsigned i = 0; i < p->n_rules; i++)
        pcre2_code_free(p->rules[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

bool pretokenizer_nfc(const struct pretokenizer *p)
{
    return p->family->nfc;
}

bool pretokenizer_whole_words(const struct pretokenizer *p)
{
    return p->family->whole_words;
}

/* Splits a piece of valid UTF-8 by rule `level` and those behind it. */
static enum status split(struct split *s, unsigned level, const char *text, size_t len)
{
    if (level == s->p->n_rules) {
        if (len != 0)
            s->word(s->context, slice_make(text, len));
        return STATUS_OK;
    }
    size_t done = 0;
    while (done < len) {
        int found = pcre2_match(s->p->rules[level], (PCRE2_SPTR)text, len, done, PCRE2_NO_UTF_CHECK,
                                s->matches[level], s->p->limits);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0) {
            PCRE2_UCHAR message[128];
            pcre2_get_error_message(found, message, sizeof(message));
            return error_set(s->err, STATUS_INTERNAL, "the pre-tokenizer gave up on the text: %s",
                             (char *)message);
        }
        size_t *match = pcre2_get_ovector_pointer(s->matches[level]), start = match[0],
               end = match[1];
        check(start >= done && end > start);
        enum status status = split(s, level + 1, text + done, start - done);
        if (status == STATUS_OK)
            status = split(s, level + 1, text + start, end - start);
        if (status != STATUS_OK)
            return status;
        done = end;
    }
    return split(s, level + 1, text + done, len - done);
}

/* Bytes at the beginning of p[0..n) that belong to no character. */
static size_t invalid_run(const char *p, size_t n)
{
    size_t at = 0, len;
    while (at < n && utf8_step(p + at, n - at, &len) != UTF8_CHARACTER)
        at += len;
    return at;
}

enum status pretokenizer_split(const struct pretokenizer *p, struct slice text,
                               void (*word)(void *context, struct slice word), void *context,
                               struct error *err)
{
    struct split s = {.p = p, .word = word, .context = context, .err = err};
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < p->n_rules; i++) {
        s.matches[i] = pcre2_match_data_create(1, NULL);
        check(s.matches[i] != NULL);
    }
    for (size_t at = 0; at < text.len && status == STATUS_OK;) {
        size_t valid = utf8_valid(text.ptr + at, text.len - at);
        status = split(&s, 0, text.ptr + at, valid);
        at += valid;
        size_t invalid = invalid_run(text.ptr + at, text.len - at);
        if (invalid != 0 && status == STATUS_OK)
            word(context, slice_make(text.ptr + at, invalid));
        at += invalid;
    }
    for (unsigned i = 0; i < p->n_rules; i++)
        pcre2_match_data_free(s.matches[i]);
    return status;
}
