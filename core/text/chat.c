#include "core/text/chat.h"

#include <string.h>

#include "core/text/tokenizer_priv.h"

/* A template is recognised by its canonical form: expressions and raw text as one sum of parts,
 * string literals between OPEN and CLOSE with their escapes resolved and neighbours joined, x['y']
 * as x.y, no spaces outside of literals, whitespace control and the trimming that chat templates
 * are rendered with (trim_blocks, lstrip_blocks) applied. */
#define OPEN "\x01"
#define CLOSE "\x02"

struct canon {
    struct buffer out;
    bool sum; /* the last thing was a part of a sum: the next part needs a '+' */
};

static void literal(struct canon *c, const char *text, size_t len)
{
    if (len == 0)
        return;
    if (c->out.len != 0 && c->sum && c->out.ptr[c->out.len - 1] == CLOSE[0]) {
        c->out.len--;
    } else {
        if (c->sum)
            buffer_add_byte(&c->out, '+');
        buffer_add_text(&c->out, OPEN);
    }
    buffer_add(&c->out, text, len);
    buffer_add_text(&c->out, CLOSE);
    c->sum = true;
}

/* Reads the string literal that begins with a quote at text[*at]. */
static void read_literal(const char *text, size_t len, size_t *at, struct buffer *value)
{
    char quote = text[(*at)++];
    while (*at < len && text[*at] != quote) {
        char byte = text[(*at)++];
        if (byte == '\\' && *at < len) {
            byte = text[(*at)++];
            byte = byte == 'n' ? '\n' : byte == 't' ? '\t' : byte == 'r' ? '\r' : byte;
        }
        buffer_add_byte(value, byte);
    }
    ++*at;
}

/* The inside of {{ }} (statement false) or {% %}. */
static void code(struct canon *c, const char *text, size_t len, bool statement)
{
    struct buffer value = {0};
    bool subscript = false; /* behind x[ with a literal in it */
    if (statement) {
        buffer_add_text(&c->out, "{%");
        c->sum = false;
    }
    for (size_t at = 0; at < len;) {
        char byte = text[at];
        if (byte == '\'' || byte == '"') {
            buffer_clear(&value);
            read_literal(text, len, &at, &value);
            if (c->out.len != 0 && c->out.ptr[c->out.len - 1] == '[') {
                c->out.ptr[c->out.len - 1] = '.';
                buffer_add_slice(&c->out, buffer_slice(&value));
                subscript = true;
                continue;
            }
            if (statement)
                c->sum = false;
            literal(c, value.len != 0 ? value.ptr : "", value.len);
            continue;
        }
        at++;
        if (byte == ']' && subscript) {
            subscript = false;
        } else if (!statement && (byte == '+' || byte == '~')) {
            continue; /* parts are joined as they come */
        } else if (byte != ' ' && byte != '\n' && byte != '\t' && byte != '\r') {
            bool name = at < 2 || strchr(" \n\t\r+~", text[at - 2]) != NULL ||
                        text[at - 2] == '\'' || text[at - 2] == '"';
            if (!statement && name && c->sum)
                buffer_add_byte(&c->out, '+');
            buffer_add_byte(&c->out, byte);
            c->sum = !statement;
        }
    }
    if (statement) {
        buffer_add_text(&c->out, "%}");
        c->sum = false;
    }
    buffer_release(&value);
}

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* Brings a template into canonical form. */
static void canonical(struct slice t, struct canon *c)
{
    bool strip = false, trim_newline = false; /* of the raw text that follows */
    for (size_t at = 0; at < t.len;) {
        size_t end = at;
        while (end < t.len &&
               !(t.ptr[end] == '{' && end + 1 < t.len && strchr("{%#", t.ptr[end + 1]) != NULL))
            end++;
        size_t from = at, to = end;
        bool tag = end < t.len;
        bool minus = tag && end + 2 < t.len && t.ptr[end + 2] == '-';
        while (strip && from < to && is_space(t.ptr[from]))
            from++;
        if (trim_newline && from == at && from < to && t.ptr[from] == '\n')
            from++;
        while (minus && to > from && is_space(t.ptr[to - 1]))
            to--;
        if (tag && t.ptr[end + 1] != '{') {
            size_t line = to;
            while (line > from && (t.ptr[line - 1] == ' ' || t.ptr[line - 1] == '\t'))
                line--;
            if (line == 0 || t.ptr[line - 1] == '\n')
                to = line;
        }
        literal(c, t.ptr + from, to - from);
        if (!tag)
            return;
        char kind = t.ptr[end + 1], close = kind == '{' ? '}' : kind;
        size_t start = end + 2 + minus, stop = start;
        for (char quote = 0; stop + 1 < t.len; stop++) {
            char byte = t.ptr[stop];
            if (kind == '#' || quote == 0) {
                if (byte == close && t.ptr[stop + 1] == '}')
                    break;
                quote = byte == '\'' || byte == '"' ? byte : 0;
            } else if (byte == '\\') {
                stop++;
            } else if (byte == quote) {
                quote = 0;
            }
        }
        strip = stop > start && t.ptr[stop - 1] == '-';
        trim_newline = kind != '{';
        if (kind != '#' && stop > start)
            code(c, t.ptr + start, stop - start - strip, kind == '%');
        at = stop + 2;
    }
}

static bool take(struct slice *s, const char *text)
{
    if (!slice_starts(*s, slice_of(text)))
        return false;
    *s = slice_make(s->ptr + strlen(text), s->len - strlen(text));
    return true;
}

/* The template's own system message, for conversations that begin without one. */
static bool take_system(struct slice *s, struct chat_format *f)
{
    static const char end_mark[] = "<|im_end|>\n" CLOSE "{%endif%}";
    if (!take(s, OPEN "<|im_start|>system\n"))
        return false;
    for (size_t i = 0; i < s->len && s->ptr[i] != OPEN[0]; i++)
        if (slice_starts(slice_make(s->ptr + i, s->len - i), slice_of(end_mark))) {
            buffer_add(&f->system, s->ptr, i);
            f->has_system = true;
            *s = slice_make(s->ptr + i + strlen(end_mark), s->len - i - strlen(end_mark));
            return true;
        }
    return false;
}

/* Whether a canonical template prints each message as ChatML does, and nothing else. */
static bool is_chatml(struct slice s, struct chat_format *f)
{
    take(&s, "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}");
    f->bos = take(&s, "bos_token");
    if (take(&s, "{%ifmessages[0].role!=" OPEN "system" CLOSE "%}") && !take_system(&s, f))
        return false;
    if (!take(&s, "{%formessageinmessages%}"))
        return false;
    if (take(&s, "{%ifloop.firstandmessages[0].role!=" OPEN "system" CLOSE "%}") &&
        (f->has_system || !take_system(&s, f)))
        return false;
    return take(&s,
                OPEN "<|im_start|>" CLOSE "+message.role+" OPEN "\n" CLOSE "+message.content+" OPEN
                     "<|im_end|>\n" CLOSE "{%endfor%}{%ifadd_generation_prompt%}" OPEN
                     "<|im_start|>assistant\n" CLOSE "{%endif%}") &&
           s.len == 0;
}

void chat_format_load(struct chat_format *f, const struct gguf *g, const struct vocab *v)
{
    struct error err = {0};
    struct canon c = {0};
    struct slice text = gguf_str(g, "tokenizer.chat_template", slice_of(""), &err);
    f->start = vocab_find(v, slice_of("<|im_start|>"));
    f->end = vocab_find(v, slice_of("<|im_end|>"));
    if (text.len == 0) {
        f->refusal = "the model has no chat template; use /v1/completions";
        return;
    }
    text.len -= text.ptr[text.len - 1] == '\n'; /* as Jinja does */
    canonical(text, &c);
    if (!is_chatml(buffer_slice(&c.out), f))
        f->refusal =
            "the model's chat template is not ChatML, the only one supported; use /v1/completions";
    else if (f->start == TOKEN_NONE || f->end == TOKEN_NONE)
        f->refusal = "the model's chat template is ChatML, but its vocabulary lacks <|im_start|> "
                     "or <|im_end|>";
    buffer_release(&c.out);
}

void chat_format_release(struct chat_format *f)
{
    buffer_release(&f->system);
}

enum status chat_supported(const struct tokenizer *tok, struct error *err)
{
    const char *refusal = tok->chat.refusal;
    return refusal == NULL ? STATUS_OK : error_set(err, STATUS_UNSUPPORTED, "%s", refusal);
}

/* <|im_start|>role\ncontent<|im_end|>\n; role and content are one text, as merges may cross their
 * border. */
static enum status add_message(const struct tokenizer *tok, struct slice role, struct slice content,
                               struct buffer *text, struct token_list *out, struct error *err)
{
    buffer_clear(text);
    buffer_add_slice(text, role);
    buffer_add_byte(text, '\n');
    buffer_add_slice(text, content);
    token_list_add(out, tok->chat.start);
    enum status status = tokenizer_encode(tok, buffer_slice(text), 0, out, err);
    token_list_add(out, tok->chat.end);
    return status == STATUS_OK ? tokenizer_encode(tok, slice_of("\n"), 0, out, err) : status;
}

enum status chat_prompt(const struct tokenizer *tok, const struct chat_message *messages, size_t n,
                        bool answer, struct token_list *out, struct error *err)
{
    const struct chat_format *f = &tok->chat;
    struct buffer text = {0};
    size_t before = out->count;
    enum status status = chat_supported(tok, err);
    if (status != STATUS_OK)
        return status;
    if (n == 0)
        return error_param(err, STATUS_INVALID, "messages", "messages must not be empty");
    uint32_t bos = tokenizer_bos(tok);
    if (before == 0 && bos != TOKEN_NONE && bos != f->start && (f->bos || tokenizer_add_bos(tok)))
        token_list_add(out, bos);
    if (f->has_system && !slice_is(messages[0].role, "system"))
        status = add_message(tok, slice_of("system"), buffer_slice(&f->system), &text, out, err);
    for (size_t i = 0; i < n && status == STATUS_OK; i++)
        status = add_message(tok, messages[i].role, messages[i].content, &text, out, err);
    if (status == STATUS_OK && answer) {
        token_list_add(out, f->start);
        status = tokenizer_encode(tok, slice_of("assistant\n"), 0, out, err);
    }
    if (status != STATUS_OK)
        out->count = before;
    buffer_release(&text);
    return status;
}
