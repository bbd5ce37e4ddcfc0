#include "tools/draft/generate.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/block_table.h"
#include "core/base/buffer.h"
#include "core/base/xalloc.h"
#include "core/kernels/half.h"
#include "core/model/sample.h"
#include "core/model/session.h"
#include "core/text/chat.h"
#include "tools/draft/prompts.h"
#include "tools/draft/random.h"

#define STEP_TOKENS 192u
#define TEXT_MOST 1024u    /* tokens of a text */
#define USER_MOST 120u     /* tokens that the target may write as the user */
#define ANSWER_LEAST 100u  /* limits of answers: from here … */
#define ANSWER_RANGE 260u  /* … by so much */
#define EARLIER 64u        /* answers kept, to be edited */
#define EARLIER_BYTES 900u /* of each */
#define LOOP_TOKENS 48u
#define LOOP_PERIOD 16u

bool generate_loops(const uint32_t *tokens, uint32_t n)
{
    for (uint32_t period = 1; period <= LOOP_PERIOD && n >= LOOP_TOKENS; period++) {
        uint32_t i = n - LOOP_TOKENS + period;
        while (i < n && tokens[i] == tokens[i - period])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* One text that grows. */
struct slot {
    struct block_table table;
    struct token_list tokens;
    uint8_t *origins;  /* TEXT_MOST */
    uint16_t *states;  /* TEXT_MOST rows */
    uint32_t fed;      /* tokens that the model has seen */
    uint32_t begin;    /* of the turn that is being written */
    uint32_t limit;    /* tokens of that turn */
    bool user, second; /* whose turn; whether it's the second one */
    struct sample_params params;
};

struct generator {
    const struct target *target;
    const struct generate_options *options;
    struct corpus *corpus;
    struct session session;
    struct sampler *sampler;
    struct random random;
    struct slot *slots;
    bool chat;
    uint32_t most; /* tokens of a text here */
    struct buffer earlier[EARLIER];
    uint32_t n_earlier;
    struct step_token *step_tokens;
    struct step_sequence *sequences;
    float *logits, *hidden;
};

/* ---- the course of a text ---- */

static void add(const struct generator *g, struct slot *s, const uint32_t *ids, size_t n,
                enum token_origin origin)
{
    for (size_t i = 0; i < n && s->tokens.count < g->most; i++) {
        s->origins[s->tokens.count] = (uint8_t)origin;
        token_list_add(&s->tokens, ids[i]);
    }
}

/* Ids of a chat whose turns have the given words. */
static enum status chat_ids(const struct generator *g, const char *system, const char *const *turns,
                            size_t n, bool answer, struct token_list *out, struct error *err)
{
    struct chat_message messages[4];
    size_t count = 0;
    out->count = 0;
    if (system != NULL)
        messages[count++] = (struct chat_message){slice_of("system"), slice_of(system)};
    for (size_t i = 0; i < n; i++)
        messages[count++] =
            (struct chat_message){slice_of(i % 2 == 0 ? "user" : "assistant"), slice_of(turns[i])};
    return chat_prompt(g->target->tokenizer, messages, count, answer, out, err);
}

/* The place of the last token that ends a turn; the count if there is none. */
static size_t last_end(const struct generator *g, const struct token_list *ids)
{
    for (size_t i = ids->count; i-- > 0;)
        if (tokenizer_is_eog(g->target->tokenizer, ids->ids[i]))
            return i;
    return ids->count;
}

static void begin_user(struct generator *g, struct slot *s)
{
    s->user = true;
    s->begin = (uint32_t)s->tokens.count;
    s->limit = USER_MOST;
    s->params = sample_params_default();
    s->params.seed = random_next(&g->random);
}

static void begin_answer(struct generator *g, struct slot *s)
{
    uint32_t die = random_below(&g->random, 100);
    s->user = false;
    s->begin = (uint32_t)s->tokens.count;
    s->limit = ANSWER_LEAST + random_below(&g->random, ANSWER_RANGE);
    s->params = sample_params_default();
    s->params.seed = random_next(&g->random);
    s->params.temperature = die < 35 ? 0 : die < 70 ? 0.7f : 1;
    s->params.top_p = 0.95f;
}

static enum status begin_text(struct generator *g, struct slot *s, struct error *err)
{
    struct buffer words = {0};
    struct token_list ids = {0};
    const struct buffer *earlier =
        g->n_earlier == 0 ? NULL
                          : &g->earlier[random_below(
                                &g->random, g->n_earlier < EARLIER ? g->n_earlier : EARLIER)];
    s->tokens.count = 0;
    s->fed = 0;
    s->second = false;
    enum prompt_kind kind =
        prompt_make(&g->random, earlier == NULL ? slice_of("") : buffer_slice(earlier), &words);
    enum status status;
    if (!g->chat) {
        status =
            tokenizer_encode(g->target->tokenizer, buffer_slice(&words), ENCODE_ADD_BOS, &ids, err);
        if (status == STATUS_OK && ids.count == 0) /* a bare text of a model without BOS */
            status = tokenizer_encode(g->target->tokenizer, slice_of("The"), 0, &ids, err);
        add(g, s, ids.ids, ids.count, ORIGIN_FORCED);
        begin_answer(g, s);
    } else {
        const char *turns[] = {kind == PROMPT_BARE ? "" : words.ptr};
        const char *system = prompt_system(&g->random);
        status = chat_ids(g, system, turns, 1, kind == PROMPT_WHOLE, &ids, err);
        size_t n = kind == PROMPT_WHOLE ? ids.count : last_end(g, &ids);
        add(g, s, ids.ids, n, ORIGIN_FORCED);
        if (kind == PROMPT_WHOLE)
            begin_answer(g, s);
        else
            begin_user(g, s);
    }
    buffer_release(&words);
    token_list_release(&ids);
    return status;
}

/* Behind the user's drawn words (and their end token, if they drew it): the answer's opening. */
static enum status open_answer(struct generator *g, struct slot *s, bool ended, struct error *err)
{
    struct token_list whole = {0}, turn = {0};
    const char *turns[] = {""};
    enum status status = chat_ids(g, "", turns, 1, true, &whole, err);
    if (status == STATUS_OK)
        status = chat_ids(g, "", turns, 1, false, &turn, err);
    if (status == STATUS_OK) {
        size_t from = last_end(g, &turn) + (ended ? 1 : 0);
        add(g, s, whole.ids + from, whole.count - from, ORIGIN_FORCED);
        begin_answer(g, s);
    }
    token_list_release(&whole);
    token_list_release(&turn);
    return status;
}

/* A second turn behind an answer (whose end token stands there if it drew one). */
static enum status open_second(struct generator *g, struct slot *s, bool ended, struct error *err)
{
    struct buffer words = {0};
    struct token_list first = {0}, both = {0};
    bool bare = random_below(&g->random, 2) == 0;
    prompt_follow_up(&g->random, &words);
    const char *turns[] = {"", "", bare ? "" : words.ptr};
    enum status status = chat_ids(g, "", turns, 1, true, &first, err);
    if (status == STATUS_OK)
        status = chat_ids(g, "", turns, 3, !bare, &both, err);
    if (status == STATUS_OK) {
        size_t from = first.count + (ended ? 1 : 0);
        size_t end = bare ? last_end(g, &both) : both.count;
        add(g, s, both.ids + from, end - from, ORIGIN_FORCED);
        s->second = true;
        if (bare)
            begin_user(g, s);
        else
            begin_answer(g, s);
    }
    buffer_release(&words);
    token_list_release(&first);
    token_list_release(&both);
    return status;
}

static void remember(struct generator *g, const struct slot *s)
{
    struct buffer *b = &g->earlier[g->n_earlier++ % EARLIER];
    buffer_clear(b);
    tokenizer_decode(g->target->tokenizer, s->tokens.ids + s->begin, s->tokens.count - s->begin, 0,
                     b);
    b->len = b->len < EARLIER_BYTES ? b->len : EARLIER_BYTES;
    while (b->len > 0 && (unsigned char)b->ptr[b->len - 1] >= 0x80) /* maybe half a character */
        b->len--;
}

static enum status end_text(struct generator *g, struct slot *s, struct error *err)
{
    uint32_t n = (uint32_t)s->tokens.count, pages = s->table.n_pages;
    if (s->fed < n) /* the last token, behind which nothing is asked */
        memset(s->states + (size_t)s->fed * g->target->info.width, 0,
               (n - s->fed) * (size_t)g->target->info.width * sizeof *s->states);
    enum status status = corpus_add(g->corpus, n, s->tokens.ids, s->origins, s->states, err);
    block_table_release(&s->table);
    pages_unreserve(g->session.pool, pages);
    block_table_init(&s->table, g->session.pool);
    return status == STATUS_OK ? begin_text(g, s, err) : status;
}

/* The model has seen all of the text: draws its next token from the logits, or ends the turn. */
static enum status advance(struct generator *g, struct slot *s, const float *logits,
                           struct error *err)
{
    const struct tokenizer *tok = g->target->tokenizer;
    uint32_t n = (uint32_t)s->tokens.count;
    uint32_t token = sampler_draw(g->sampler, &s->params, NULL, NULL, logits, n);
    add(g, s, &token, 1,
        s->user                      ? ORIGIN_USER
        : s->params.temperature == 0 ? ORIGIN_GREEDY
                                     : ORIGIN_DRAWN);
    bool ended = tokenizer_is_eog(tok, token);
    if (++n >= g->most)
        return end_text(g, s, err);
    if (!ended && n - s->begin < s->limit &&
        !generate_loops(s->tokens.ids + s->begin, n - s->begin))
        return STATUS_OK;
    if (s->user)
        return open_answer(g, s, ended, err);
    remember(g, s);
    if (g->chat && !s->second && n + USER_MOST + ANSWER_LEAST < g->most &&
        random_below(&g->random, 5) == 0)
        return open_second(g, s, ended, err);
    return end_text(g, s, err);
}

/* ---- steps ---- */

static enum status run_step(struct generator *g, struct error *err)
{
    uint32_t n = 0, n_sequences = 0, width = g->target->info.width;
    uint32_t stride = model_logits_stride(g->session.model);
    struct slot *used[STEP_TOKENS];
    uint32_t counts[STEP_TOKENS];
    for (uint32_t i = 0; i < g->options->slots && n < STEP_TOKENS; i++) {
        struct slot *s = &g->slots[i];
        uint32_t more = (uint32_t)s->tokens.count - s->fed;
        more = more < STEP_TOKENS - n ? more : STEP_TOKENS - n;
        if (!session_append(&g->session, &s->table, more))
            return error_set(err, STATUS_NO_MEMORY, "no memory for %u texts at once",
                             g->options->slots);
        for (uint32_t k = 0; k < more; k++)
            g->step_tokens[n++] =
                (struct step_token){s->tokens.ids[s->fed + k], s->fed + k, n_sequences, true};
        g->sequences[n_sequences] = session_sequence(&s->table);
        used[n_sequences] = s;
        counts[n_sequences++] = more;
    }
    struct step step = {g->step_tokens, n, g->sequences, n_sequences, g->session.pool};
    model_step_hidden(g->session.model, &step, g->logits, g->hidden);
    uint32_t row = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n_sequences && status == STATUS_OK; row += counts[i++]) {
        struct slot *s = used[i];
        if (g->sequences[i].failed)
            return error_set(err, STATUS_NON_FINITE, "%s", status_text(STATUS_NON_FINITE));
        uint16_t *to = s->states + (size_t)s->fed * width;
        const float *from = g->hidden + (size_t)row * width;
        for (size_t k = 0; k < (size_t)counts[i] * width; k++) {
            uint32_t bits = f32_to_bits(from[k]); /* finite: rounded to nearest bf16 */
            to[k] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
        s->fed += counts[i];
        if (s->fed == s->tokens.count)
            status = advance(g, s, g->logits + (size_t)(row + counts[i] - 1) * stride, err);
    }
    return status;
}

static uint64_t growing(const struct generator *g)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->options->slots; i++)
        n += g->slots[i].fed;
    return n;
}

static enum status open_generator(struct generator *g, struct error *err)
{
    const struct model_info *info = &g->target->info;
    struct session_options options = {.path = gguf_path(g->target->gguf),
                                      .tier = g->target->tier,
                                      .threads = g->options->threads,
                                      .positions = (uint64_t)g->options->slots * (TEXT_MOST + 64),
                                      .max_tokens = STEP_TOKENS,
                                      .kv_type = KV_F16};
    g->most = info->context < TEXT_MOST ? info->context : TEXT_MOST;
    g->chat = chat_supported(g->target->tokenizer, &(struct error){0}) == STATUS_OK;
    enum status status = session_open(&g->session, &options, err);
    if (status != STATUS_OK)
        return status;
    g->sampler = sampler_create(&g->session.kernels, info->vocab);
    g->slots = xcalloc(g->options->slots, sizeof *g->slots);
    g->step_tokens = xcalloc(STEP_TOKENS, sizeof *g->step_tokens);
    g->sequences = xcalloc(STEP_TOKENS, sizeof *g->sequences);
    g->logits =
        xaligned((size_t)STEP_TOKENS * model_logits_stride(g->session.model) * sizeof(float));
    g->hidden = xaligned((size_t)STEP_TOKENS * info->width * sizeof(float));
    for (uint32_t i = 0; i < g->options->slots && status == STATUS_OK; i++) {
        struct slot *s = &g->slots[i];
        block_table_init(&s->table, g->session.pool);
        s->origins = xcalloc(TEXT_MOST, 1);
        s->states = xcalloc((size_t)TEXT_MOST * info->width, sizeof *s->states);
        status = begin_text(g, s, err);
    }
    return status;
}

static void close_generator(struct generator *g)
{
    for (uint32_t i = 0; g->slots != NULL && i < g->options->slots; i++) {
        struct slot *s = &g->slots[i];
        if (s->table.pool != NULL)
            block_table_release(&s->table);
        token_list_release(&s->tokens);
        free(s->origins);
        free(s->states);
    }
    for (uint32_t i = 0; i < EARLIER; i++)
        buffer_release(&g->earlier[i]);
    free(g->slots);
    free(g->step_tokens);
    free(g->sequences);
    free(g->logits);
    free(g->hidden);
    if (g->sampler != NULL)
        sampler_free(g->sampler);
    session_close(&g->session);
}

uint64_t generate_bytes(const struct target *t, uint32_t slots)
{
    const struct model_info *i = &t->info;
    uint64_t position = 2 * (uint64_t)i->layers * i->kv_heads * i->head_size * 2; /* f16 */
    uint64_t step = 4 * (uint64_t)STEP_TOKENS * (i->vocab + 4 * (uint64_t)i->width + 2 * i->ffn);
    return i->weight_bytes + step + slots * (uint64_t)TEXT_MOST * (position + 2 * i->width);
}

enum status generate(const struct target *t, const struct generate_options *options,
                     struct corpus *corpus, struct error *err)
{
    struct generator g = {.target = t, .options = options, .corpus = corpus};
    /* A resumed run goes on with other choices than it began with. */
    g.random.state = options->seed + corpus->n_tokens;
    enum status status = open_generator(&g, err);
    while (status == STATUS_OK && corpus->n_tokens < options->tokens &&
           options->go_on(options->data, corpus->n_tokens, growing(&g)))
        status = run_step(&g, err);
    close_generator(&g);
    return status;
}
