#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/model/sample.h"

#define FREE UINT32_MAX

static struct sample_count *find(struct sample_state *state, uint32_t token)
{
    uint32_t i = token * 2654435761u & (state->cap - 1);
    while (state->counts[i].token != FREE && state->counts[i].token != token)
        i = (i + 1) & (state->cap - 1);
    return &state->counts[i];
}

static void grow(struct sample_state *state)
{
    struct sample_count *old = state->counts;
    uint32_t old_cap = state->cap;
    state->cap = old_cap == 0 ? 64 : old_cap * 2;
    state->counts = xreallocarray(NULL, state->cap, sizeof *state->counts);
    for (uint32_t i = 0; i < state->cap; i++)
        state->counts[i] = (struct sample_count){.token = FREE};
    for (uint32_t i = 0; i < old_cap; i++)
        if (old[i].token != FREE)
            *find(state, old[i].token) = old[i];
    free(old);
}

void sample_state_add(struct sample_state *state, const struct sample_params *params,
                      uint32_t token, bool answer)
{
    if (2 * (state->used + 1) > state->cap)
        grow(state);
    if (state->n_tokens == state->tokens_cap) {
        state->tokens_cap = state->tokens_cap == 0 ? 256 : state->tokens_cap * 2;
        state->tokens = xreallocarray(state->tokens, state->tokens_cap, sizeof *state->tokens);
    }
    struct sample_count *count = find(state, token);
    if (count->token == FREE) {
        *count = (struct sample_count){.token = token};
        state->used++;
    }
    count->window++;
    count->answer += answer;
    state->tokens[state->n_tokens++] = token;
    if (params->last_n > 0 && state->n_tokens > params->last_n)
        find(state, state->tokens[state->n_tokens - 1 - params->last_n])->window--;
}

void sample_state_release(struct sample_state *state)
{
    free(state->counts);
    free(state->tokens);
    *state = (struct sample_state){0};
}
