#include "core/worker/answer.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "core/sched/sched.h"

/* A token that was made and whose text has not begun to leave the detokenizer. */
struct waiting_token {
    struct api_token token;
    struct api_top top[SAMPLE_TOP_MAX];
};

void answer_init(struct answer *a, uint32_t choice, const struct tokenizer *tokenizer,
                 const struct api_request *request)
{
    *a = (struct answer){.choice = choice};
    detokenizer_init(&a->detokenizer, tokenizer, request->stop, request->n_stop, 0);
}

void answer_release(struct answer *a)
{
    free(a->waiting);
    buffer_release(&a->text);
    detokenizer_release(&a->detokenizer);
}

/* Gives the first n waiting tokens to the reply; the text that is out goes with the last of them. */
static void release_tokens(struct answer *a, size_t n, struct api_reply *reply, struct buffer *out)
{
    if (n > a->n_waiting)
        n = a->n_waiting;
    for (size_t i = 0; i < n; i++) {
        bool last = i + 1 == n;
        a->waiting[i].token.top = a->waiting[i].top;
        api_reply_token(reply, a->choice, &a->waiting[i].token,
                        last ? buffer_slice(&a->text) : (struct slice){0}, out);
        if (last)
            buffer_clear(&a->text);
    }
    a->n_released += n;
    a->n_waiting -= n;
    memmove(a->waiting, a->waiting + n, a->n_waiting * sizeof(*a->waiting));
}

static void add_waiting(struct answer *a, const struct sched_token *from)
{
    if (a->n_waiting == a->cap_waiting) {
        a->cap_waiting = a->cap_waiting * 2 + 4;
        a->waiting = xreallocarray(a->waiting, a->cap_waiting, sizeof(*a->waiting));
    }
    struct waiting_token *to = &a->waiting[a->n_waiting++];
    to->token =
        (struct api_token){.token = from->token, .logprob = from->logprob, .n_top = from->n_top};
    for (uint32_t i = 0; i < from->n_top; i++)
        to->top[i] = (struct api_top){from->top[i].token, from->top[i].logprob};
}

bool answer_token(struct answer *a, const struct sched_token *token, uint64_t now_ns,
                  struct api_reply *reply, struct buffer *out)
{
    if (a->first_ns == 0)
        a->first_ns = now_ns;
    a->last_ns = now_ns;
    a->logits_hash = token->logits_hash;
    a->drafted = token->drafted;
    a->accepted = token->accepted;
    add_waiting(a, token);
    bool stopped = detokenizer_feed(&a->detokenizer, token->token, &a->text);
    a->tokens = (uint32_t)a->detokenizer.tokens;
    release_tokens(a, (size_t)(a->detokenizer.tokens_out - a->n_released), reply, out);
    return stopped;
}

bool answer_close(struct answer *a, struct api_reply *reply, struct buffer *out)
{
    bool stopped = detokenizer_finish(&a->detokenizer, &a->text);
    size_t n = stopped ? (size_t)(a->detokenizer.tokens_out - a->n_released) : a->n_waiting;
    release_tokens(a, n, reply, out);
    return stopped;
}
