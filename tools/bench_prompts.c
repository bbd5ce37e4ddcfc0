#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tools/bench_prompts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buffer.h"
#include "core/base/check.h"

static const char *const words[] = {
    "time",   "river",  "house",  "garden",  "music",  "window", "letter", "mountain",
    "people", "story",  "water",  "morning", "street", "paper",  "field",  "animal",
    "winter", "number", "island", "market",  "forest", "doctor", "engine", "picture",
    "summer", "yellow", "simple", "round",   "quiet",  "heavy",  "bright", "early"};

static uint64_t next_random(uint64_t *state)
{
    /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void add_words(struct buffer *b, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        if (b->len > 0)
            buffer_add_byte(b, ' ');
        buffer_add_text(b, words[next_random(&seed) % (sizeof(words) / sizeof(words[0]))]);
    }
}

/* One line of the file: a JSON string, list or object, else plain text. NULL: it cannot be a prompt. */
static json_t *line_prompt(const char *line, size_t n)
{
    json_t *value = json_loadb(line, n, JSON_DECODE_ANY, NULL);
    if (json_is_string(value) || (json_is_array(value) && json_array_size(value) > 0))
        return value;
    if (json_is_object(value) &&
        (json_object_get(value, "prompt") || json_object_get(value, "messages")))
        return value;
    bool object = json_is_object(value);
    json_decref(value);
    return object ? NULL : json_stringn(line, n);
}

static enum status load_lines(struct prompts *p, struct error *err)
{
    FILE *file = fopen(p->file, "re");
    if (file == NULL)
        return error_set(err, STATUS_IO, "cannot open %s: %s", p->file, strerror(errno));
    enum status status = STATUS_OK;
    char *line = NULL;
    size_t cap = 0;
    unsigned at = 0;
    p->lines = json_array();
    for (ssize_t n; status == STATUS_OK && (n = getline(&line, &cap, file)) >= 0;) {
        at++;
        while (n > 0 && strchr("\r\n", line[n - 1]) != NULL)
            n--;
        if (n == 0)
            continue;
        json_t *prompt = line_prompt(line, (size_t)n);
        if (prompt == NULL)
            status = error_set(err, STATUS_INVALID,
                               "%s:%u: neither text in UTF-8 nor an object with prompt or messages",
                               p->file, at);
        else
            json_array_append_new(p->lines, prompt);
    }
    if (status == STATUS_OK && ferror(file))
        status = error_set(err, STATUS_IO, "cannot read %s: %s", p->file, strerror(errno));
    if (status == STATUS_OK && json_array_size(p->lines) == 0)
        status = error_set(err, STATUS_INVALID, "%s has no prompt", p->file);
    free(line);
    fclose(file);
    return status;
}

enum status prompts_load(struct prompts *p, struct error *err)
{
    struct buffer prefix = {0};
    json_error_t why;
    buffer_add_text(&prefix, "");
    add_words(&prefix, p->shared, p->seed);
    p->prefix = prefix.ptr;
    if (p->extra != NULL && !json_is_object(p->over = json_loads(p->extra, 0, &why)))
        return error_set(err, STATUS_INVALID, "--extra is no JSON object: %.200s", why.text);
    return p->file != NULL ? load_lines(p, err) : STATUS_OK;
}

void prompts_release(struct prompts *p)
{
    json_decref(p->lines);
    json_decref(p->over);
    free(p->prefix);
}

/* Text with the shared prefix in front of it. */
static json_t *prefixed(const struct prompts *p, const char *text)
{
    struct buffer b = {0};
    buffer_add_text(&b, p->prefix);
    if (b.len > 0)
        buffer_add_byte(&b, ' ');
    buffer_add_text(&b, text);
    json_t *value = json_stringn(b.ptr != NULL ? b.ptr : "", b.len);
    buffer_release(&b);
    return value;
}

/* What is asked: new reference. Lists and objects of the file stand as they are. */
static json_t *prompt_of(const struct prompts *p, uint64_t i)
{
    if (p->lines != NULL) {
        json_t *line = json_array_get(p->lines, i % json_array_size(p->lines));
        return json_is_string(line) ? prefixed(p, json_string_value(line)) : json_incref(line);
    }
    struct buffer b = {0};
    buffer_add_text(&b, "");
    add_words(&b, p->words, p->seed * 100003 + i + 1);
    json_t *value = prefixed(p, b.len > 0 ? b.ptr : "");
    buffer_release(&b);
    return value;
}

static void put_over(json_t *body, json_t *over)
{
    const char *key;
    json_t *value;
    json_object_foreach(over, key, value)
    {
        if (json_is_null(value))
            json_object_del(body, key);
        else
            json_object_set(body, key, value);
    }
}

char *prompts_body(const struct prompts *p, uint64_t i)
{
    json_t *prompt = prompt_of(p, i);
    json_t *body = json_pack("{s:b, s:I, s:i, s:b, s:{s:b}}", "stream", 1, "max_tokens",
                             (json_int_t)p->max_tokens, "temperature", 0, "ignore_eos", 1,
                             "stream_options", "include_usage", 1);
    check(body != NULL && prompt != NULL);
    if (p->model != NULL)
        json_object_set_new(body, "model", json_string(p->model));
    if (json_is_object(prompt))
        put_over(body, prompt);
    else if (p->chat)
        json_object_set_new(body, "messages",
                            json_pack("[{s:s, s:O}]", "role", "user", "content", prompt));
    else
        json_object_set(body, "prompt", prompt);
    put_over(body, p->over);
    char *text = json_dumps(body, JSON_COMPACT);
    check(text != NULL);
    json_decref(body);
    json_decref(prompt);
    return text;
}
