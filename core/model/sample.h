/* sample.h: from a row of logits to a token.
 *
 *     logits → bias → penalties → mask → temperature → top_k → top_p → min_p → + noise → argmax
 *
 * All ties go to the lower id. Temperature 0 is the plain argmax of what the mask leaves.
 * Otherwise the token is the argmax over what the filters leave of z + g in double, where z is the
 * tempered logit (the log-probability but for a constant that argmax does not see) and
 *
 *     g = −ln(−ln((x + 0.5) · 2⁻³²)),  x = first word of Philox4x32-10 (key = seed,
 *                                          counter = position low, position high, token, choice)
 *
 * which draws from the softmax (Gumbel). Nothing else draws randomness, so a token depends on the
 * row, the parameters, the seed and the position alone. Exact ln and exp: logmath.h.
 *
 * Penalties: repetition (of every token in the last last_n of prompt and answer: positive logits
 * are divided by it, others multiplied), then presence (once) and frequency (a time) of the tokens
 * of the answer are subtracted.
 * top_k, top_p, min_p each look at the softmax of what the filters before them left; top_p keeps
 * the token that crosses; min_p keeps what has at least min_p times the largest probability. */
#ifndef MODEL_SAMPLE_H
#define MODEL_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kernels;
struct sampler;

struct logit_bias {
    uint32_t token;
    float bias;
};

struct sample_params {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 1: off; > 0 */
    uint32_t last_n;          /* tokens that the repetition penalty looks back; 0: all */
    float presence_penalty;   /* 0: off */
    float frequency_penalty;  /* 0: off */
    uint64_t seed;
    uint32_t choice; /* index of this answer among the n of a request */
    /* Borrowed. Ids not in the vocabulary are left out. */
    const struct logit_bias *bias;
    size_t n_bias;
    /* Ids that are never drawn (the end-of-generation ids under ignore_eos). Borrowed. */
    const uint32_t *banned;
    size_t n_banned;
};

/* Parameters that filter nothing: temperature 1, everything off, seed 0. */
struct sample_params sample_params_default(void);

/* The tokens of one sequence so far, as the penalties see them. { 0 } is empty. */
struct sample_state {
    struct sample_count {
        uint32_t token;  /* UINT32_MAX: free slot */
        uint32_t answer; /* times in the answer */
        uint32_t window; /* times in the last last_n of all */
    } * counts;          /* open addressing, cap slots */
    uint32_t cap, used;
    uint32_t *tokens; /* all, in order */
    uint32_t n_tokens, tokens_cap;
};

/* Whether the parameters need a state at all; without penalties none has to be kept. */
bool sample_needs_state(const struct sample_params *params);
/* Appends a token of the prompt (answer = false) or of the answer. */
void sample_state_add(struct sample_state *state, const struct sample_params *params,
                      uint32_t token, bool answer);
void sample_state_release(struct sample_state *state);

/* Scratch for rows of n_vocab logits; for one thread at a time. kernels: borrowed. */
struct sampler *sampler_create(const struct kernels *kernels, uint32_t n_vocab);
void sampler_free(struct sampler *sampler);

/* Draws the token for `position` (absolute index in the sequence of the token to be drawn) from a
 * row of finite logits, which is not changed. state: may be NULL if sample_needs_state says no.
 * allowed: bitmap as in text/mask.h (bit id % 64 of word id / 64, at least one bit set and not
 * banned), NULL: all. */
uint32_t sampler_draw(struct sampler *sampler, const struct sample_params *params,
                      const struct sample_state *state, const uint64_t *allowed,
                      const float *logits, uint64_t position);

/* A guess of what sampler_draw would draw for `position`, from the row of n_logits of a draft model, no more
 * than the sampler was made for: the noise is that of the same tokens, so draft and target agree often (arXiv 2408.07978).
 * tokens: the token of each logit, NULL: in order. Bias and penalties are left out, and tokens a thousandth as likely as
 * the likeliest. Returns the index into the row; *chance: its probability in the draft's eyes. */
uint32_t sampler_guess(struct sampler *sampler, const struct sample_params *params,
                       const float *logits, uint32_t n_logits, const uint32_t *tokens,
                       uint64_t position, float *chance);

/* Log-probabilities: log-softmax of the raw logits, before bias, penalties and filters. */
#define SAMPLE_TOP_MAX 20u

struct sample_logprob {
    uint32_t token;
    float logprob;
};

/* ln Σ exp(logits), from which a token's log-probability is logits[token] − that. */
double sampler_log_sum(struct sampler *sampler, const float *logits);
/* The n ≤ SAMPLE_TOP_MAX (and ≤ vocabulary) most likely tokens, best first, ties by lower id;
 * returns how many. log_sum: of sampler_log_sum. */
uint32_t sampler_top(struct sampler *sampler, const float *logits, double log_sum, uint32_t n,
                     struct sample_logprob *top);

#endif
