#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "tools/draft/make.h"

#define LENGTH 1024u /* tokens of a prompt and its answer that are looked at */
#define CLASSES 16u

struct class
{
    char name[32];
    struct acceptance alone, both;
};

static void merge(struct acceptance *into, const struct acceptance *a)
{
    into->tokens += a->tokens;
    into->right += a->right;
    for (uint32_t k = 0; k < ACCEPTANCE_LENGTHS; k++) {
        into->rounds[k] += a->rounds[k];
        into->accepted[k] += a->accepted[k];
    }
}

/* Appends an array's ids; false if it is none. */
static bool add_ids(const json_t *array, uint32_t vocab, struct token_list *out)
{
    size_t i;
    json_t *id;
    if (!json_is_array(array))
        return false;
    json_array_foreach(array, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return false;
        token_list_add(out, (uint32_t)json_integer_value(id));
    }
    return true;
}

static bool measure_line(struct student *s, const char *line, struct class *classes, uint32_t *n)
{
    struct token_list ids = {0};
    struct acceptance alone = {0}, both = {0};
    uint32_t vocab = s->target->info.vocab, c = 0;
    json_t *json = json_loads(line, 0, NULL);
    const char *name = json_string_value(json_object_get(json, "class"));
    bool fine = json != NULL && add_ids(json_object_get(json, "prompt_tokens"), vocab, &ids);
    size_t from = ids.count;
    fine = fine && from > 0 && add_ids(json_object_get(json, "target_tokens"), vocab, &ids);
    size_t count = ids.count < s->length ? ids.count : s->length;
    if (fine && from < count) {
        student_measure(s, ids.ids, (uint32_t)from, (uint32_t)count, &alone, &both);
        name = name == NULL ? "" : name;
        while (c < *n && strncmp(classes[c].name, name, sizeof classes[c].name - 1) != 0)
            c++;
        if (c == *n && *n < CLASSES)
            snprintf(classes[(*n)++].name, sizeof classes[c].name, "%s", name);
        c = c < CLASSES ? c : CLASSES - 1;
        merge(&classes[c].alone, &alone);
        merge(&classes[c].both, &both);
    }
    json_decref(json);
    token_list_release(&ids);
    return fine;
}

static void print_class(const struct class *c)
{
    printf("%-10s %7llu   ", c->name, (unsigned long long)c->alone.tokens);
    const struct acceptance *both[] = {&c->alone, &c->both};
    for (int i = 0; i < 2; i++)
        printf("%6.3f  %4.2f %4.2f %4.2f%s", acceptance_share(both[i]), acceptance_mean(both[i], 0),
               acceptance_mean(both[i], 1), acceptance_mean(both[i], 2), i == 0 ? "   " : "\n");
}

int draft_measure(const struct draft_options *o)
{
    struct error err = {0};
    struct target target;
    struct student student;
    struct class classes[CLASSES] = {0}, all = {.name = "all"};
    uint32_t n = 0;
    char *line = NULL;
    size_t cap = 0;
    int code = 0;
    openblas_set_num_threads((int)o->threads);
    if (target_open(&target, o->model, o->tier, &err) != STATUS_OK)
        return draft_fail(err.text);
    uint32_t length = target.info.context < LENGTH ? target.info.context : LENGTH;
    if (student_read(&student, &target, o->output, length, &err) != STATUS_OK) {
        target_close(&target);
        return draft_fail(err.text);
    }
    FILE *f = fopen(o->measure, "r");
    if (f == NULL)
        code = draft_fail("the file of prompts cannot be opened");
    for (uint32_t number = 1; f != NULL && code == 0 && getline(&line, &cap, f) > 0; number++)
        if (!measure_line(&student, line, classes, &n)) {
            fprintf(
                stderr,
                "tokenring draft: %s, line %u: no object with arrays prompt_tokens and target_tokens "
                "of this model's ids\n",
                o->measure, number);
            code = 1;
        }
    if (f != NULL)
        fclose(f);
    if (code == 0) {
        puts("class       tokens    alone   accepted, k=1/2/4   lookup first, then the draft");
        for (uint32_t i = 0; i < n; i++) {
            merge(&all.alone, &classes[i].alone);
            merge(&all.both, &classes[i].both);
            print_class(&classes[i]);
        }
        print_class(&all);
    }
    free(line);
    student_release(&student);
    target_close(&target);
    return code;
}
