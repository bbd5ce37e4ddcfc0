#include "core/model/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/kernels/kernels.h"
#include "core/model/math64.h"
#include "core/model/sample_loops.h"

/* The logit of a token that must not be drawn; the kernels want finite numbers. */
#define NEVER (-FLT_MAX)
/* Adjusted logits stay within this, whatever bias and penalties do. */
#define LOGIT_MAX 1e30f
#define BLOCK 64u

struct candidate {
    float logit;
    uint32_t token;
};

struct sampler {
    const struct kernels *kernels;
    const struct sample_loops *loops;
    uint32_t n_vocab;
    float *adjusted;              /* n_vocab */
    struct candidate *candidates; /* n_vocab */
};

struct sample_params sample_params_default(void)
{
    return (struct sample_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

struct sampler *sampler_create(const struct kernels *kernels, uint32_t n_vocab)
{
    struct sampler *s = xcalloc(1, sizeof *s);
    s->kernels = kernels;
    s->loops = &sample_loops_base;
    if (strcmp(kernels->tier, "avx2") == 0 || strcmp(kernels->tier, "avxvnni") == 0)
        s->loops = &sample_loops_avx2;
    else if (strcmp(kernels->tier, "scalar") != 0)
        s->loops = &sample_loops_avx512;
    s->n_vocab = n_vocab;
    s->adjusted = xaligned(n_vocab * sizeof *s->adjusted);
    s->candidates = xreallocarray(NULL, n_vocab, sizeof *s->candidates);
    return s;
}

void sampler_free(struct sampler *s)
{
    if (s == NULL)
        return;
    free(s->adjusted);
    free(s->candidates);
    free(s);
}

/* ---- candidates: a heap whose root is the worst or the best of them ---- */

static bool better(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* Restores the heap below i; the root is the best one (best_first) or the worst. */
static void sift_down(struct candidate *heap, size_t n, size_t i, bool best_first)
{
    struct candidate moved = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && better(heap[child + 1], heap[child]) == best_first)
            child++;
        if (better(heap[child], moved) != best_first)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

static void heapify(struct candidate *heap, size_t n, bool best_first)
{
    for (size_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i, best_first);
}

/* The k best of n logits, best first, into s->candidates; those that are NEVER are left out.
 * Returns how many. A block of logits that cannot hold one better than the worst kept is passed
 * over by its maximum. */
static size_t select_best(struct sampler *s, const float *logits, size_t k)
{
    struct candidate *heap = s->candidates;
    size_t n = 0;
    for (uint32_t begin = 0; begin < s->n_vocab; begin += BLOCK) {
        uint32_t end = begin + BLOCK < s->n_vocab ? begin + BLOCK : s->n_vocab;
        if (n == k && s->kernels->max(logits + begin, end - begin) <= heap[0].logit)
            continue;
        for (uint32_t i = begin; i < end; i++) {
            struct candidate c = {logits[i], i};
            if (c.logit == NEVER)
                continue;
            if (n < k) {
                heap[n++] = c;
                if (n == k)
                    heapify(heap, n, false);
            } else if (better(c, heap[0])) {
                heap[0] = c;
                sift_down(heap, n, 0, false);
            }
        }
    }
    if (n < k)
        heapify(heap, n, false);
    for (size_t left = n; left > 1;) {
        struct candidate worst = heap[0];
        heap[0] = heap[--left];
        heap[left] = worst;
        sift_down(heap, left, 0, false);
    }
    return n;
}

/* ---- adjusting: bias, penalties, mask ---- */

static float clamp_logit(float x)
{
    return x > LOGIT_MAX ? LOGIT_MAX : x < -LOGIT_MAX ? -LOGIT_MAX : x;
}

bool sample_needs_state(const struct sample_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static void penalise(const struct sample_params *p, const struct sample_state *state, float *logits,
                     uint32_t n_vocab)
{
    for (uint32_t i = 0; i < state->cap; i++) {
        struct sample_count c = state->counts[i];
        if (c.token >= n_vocab)
            continue;
        float x = logits[c.token];
        if (c.window > 0)
            x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (c.answer > 0)
            x = x - p->presence_penalty - p->frequency_penalty * (float)c.answer;
        logits[c.token] = clamp_logit(x);
    }
}

static void apply_mask(const uint64_t *allowed, float *logits, uint32_t n_vocab)
{
    for (uint32_t word = 0; word < (n_vocab + 63) / 64; word++)
        for (uint64_t denied = ~allowed[word]; denied != 0; denied &= denied - 1) {
            uint32_t token = word * 64 + (uint32_t)__builtin_ctzll(denied);
            if (token < n_vocab)
                logits[token] = NEVER;
        }
}

/* The row with bias, penalties and mask applied: the row itself where there are none. */
static const float *adjust(struct sampler *s, const struct sample_params *p,
                           const struct sample_state *state, const uint64_t *allowed,
                           const float *logits)
{
    bool penalties = sample_needs_state(p) && state != NULL && state->used > 0;
    if (p->n_bias == 0 && !penalties && allowed == NULL && p->n_banned == 0)
        return logits;
    memcpy(s->adjusted, logits, s->n_vocab * sizeof *logits);
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token < s->n_vocab)
            s->adjusted[p->bias[i].token] =
                clamp_logit(s->adjusted[p->bias[i].token] + p->bias[i].bias);
    if (penalties)
        penalise(p, state, s->adjusted, s->n_vocab);
    if (allowed != NULL)
        apply_mask(allowed, s->adjusted, s->n_vocab);
    for (size_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] < s->n_vocab)
            s->adjusted[p->banned[i]] = NEVER;
    return s->adjusted;
}

/* ---- filters ---- */

/* All tokens with exp(z − max) ≥ least (and a few more), in order of id, into s->candidates. */
static size_t gather(struct sampler *s, const float *logits, double temperature, double max,
                     double least)
{
    size_t n = 0;
    /* A bound in logits that surely lets all of them pass. */
    float bound = -LOGIT_MAX;
    if (least > 0) {
        double exact = (max + math64_ln(least)) * temperature;
        double slack = 1e-4 * (fabs(exact) + fabs(max * temperature)) + 1e-4 * temperature;
        if (exact - slack > -(double)LOGIT_MAX)
            bound = (float)(exact - slack);
    }
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] >= bound)
            s->candidates[n++] = (struct candidate){logits[i], i};
    return n;
}

/* Keeps, of n candidates whose probabilities sum to `sum`, the best whose mass reaches top_p, the
 * one that crosses included. They end up best first. `sorted` tells that they are so already. */
static size_t keep_top_p(struct sampler *s, size_t n, double top_p, double sum, double temperature,
                         double max, bool sorted)
{
    struct candidate *c = s->candidates;
    double mass = 0;
    if (sorted) {
        for (size_t i = 0; i < n; i++) {
            mass += math64_exp((double)c[i].logit / temperature - max);
            if (mass >= top_p * sum)
                return i + 1;
        }
        return n;
    }
    /* A heap that shrinks from the front: its root is always the best that is left; what was taken
     * is collected at the end of the array, then turned to the front. */
    heapify(c, n, true);
    size_t left = n;
    while (left > 0) {
        struct candidate best = c[0];
        mass += math64_exp((double)best.logit / temperature - max);
        c[0] = c[--left];
        sift_down(c, left, 0, true);
        c[left] = best;
        if (mass >= top_p * sum)
            break;
    }
    size_t kept = n - left;
    memmove(c, c + left, kept * sizeof *c);
    for (size_t i = 0; i < kept / 2; i++) {
        struct candidate swap = c[i];
        c[i] = c[kept - 1 - i];
        c[kept - 1 - i] = swap;
    }
    return kept;
}

/* Applies top_k, top_p and min_p; returns how many candidates are left, in s->candidates. */
static size_t filter(struct sampler *s, const struct sample_params *p, const float *logits,
                     double temperature, double max)
{
    size_t n;
    bool sorted = p->top_k > 0 && p->top_k < s->n_vocab;
    if (sorted) {
        n = select_best(s, logits, p->top_k);
        if (p->top_p < 1) {
            double sum = 0;
            for (size_t i = 0; i < n; i++)
                sum += math64_exp((double)s->candidates[i].logit / temperature - max);
            n = keep_top_p(s, n, (double)p->top_p, sum, temperature, max, true);
        }
    } else if (p->top_p < 1) {
        double sum = s->loops->exp_sum(logits, s->n_vocab, 1 / temperature, max);
        /* What is less likely than this all together is less than 1 − top_p. */
        double least = (1 - (double)p->top_p) * sum / s->n_vocab * 0.999;
        n = gather(s, logits, temperature, max, least);
        n = keep_top_p(s, n, (double)p->top_p, sum, temperature, max, false);
    } else {
        n = gather(s, logits, temperature, max, (double)p->min_p);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (math64_exp((double)s->candidates[i].logit / temperature - max) >= (double)p->min_p &&
            s->candidates[i].logit != NEVER)
            s->candidates[kept++] = s->candidates[i];
    return kept;
}

/* ---- drawing ---- */

static double gumbel(uint32_t word)
{
    return -math64_ln(-math64_ln(((double)word + 0.5) * 0x1p-32));
}

struct draw {
    double best;
    uint32_t token;
};

static void consider(struct draw *draw, uint32_t token, double z, uint32_t word)
{
    double value = z + gumbel(word);
    if (value > draw->best || (value == draw->best && token < draw->token)) {
        draw->best = value;
        draw->token = token;
    }
}

/* Whether z + g(word) can reach `best`. It needs 1 − u ≤ exp(z − best) with u = (word + 0.5)·2⁻³²,
 * because g ≥ t ⇔ u ≥ exp(−e⁻ᵗ) ≥ 1 − e⁻ᵗ. The bound is widened to a power of two, so that a
 * rough float will do: it never misses one. */
static bool may_win(float z, uint32_t word, float best)
{
    float bits = (best - z) * 1.442695f - 0.03f;
    bits = bits > 0 ? bits : 0;
    bits = bits < 31 ? bits : 31;
    return ~word <= 0xffffffffu >> (uint32_t)bits;
}

/* The draw over the whole row. Words are made for all tokens; the two logarithms only for those
 * that can still win, which are a handful once the likeliest token has set the mark. A block whose
 * largest word would not do for its largest logit is passed over. */
static uint32_t draw_from_row(struct sampler *s, const struct sample_params *p, const float *logits,
                              uint32_t likeliest, uint64_t position)
{
    double temperature = (double)p->temperature;
    uint32_t words[BLOCK];
    s->loops->philox(p->seed, position, likeliest, p->choice, words, 1);
    struct draw draw = {(double)logits[likeliest] / temperature + gumbel(words[0]), likeliest};
    for (uint32_t begin = 0; begin < s->n_vocab; begin += BLOCK) {
        const float *block = logits + begin;
        uint32_t n = s->n_vocab - begin < BLOCK ? s->n_vocab - begin : BLOCK;
        uint32_t largest = s->loops->philox(p->seed, position, begin, p->choice, words, n);
        /* may_win works in float: the mark is lowered by what rounding can do to it. */
        float mark = (float)(draw.best - 1e-6 * fabs(draw.best));
        if (!may_win(s->kernels->max(block, n) / p->temperature, largest, mark))
            continue;
        for (uint32_t i = 0; i < n; i++)
            if (may_win(block[i] / p->temperature, words[i], mark) && block[i] != NEVER)
                consider(&draw, begin + i, (double)block[i] / temperature, words[i]);
    }
    return draw.token;
}

uint32_t sampler_draw(struct sampler *s, const struct sample_params *p,
                      const struct sample_state *state, const uint64_t *allowed,
                      const float *logits, uint64_t position)
{
    const float *row = adjust(s, p, state, allowed, logits);
    uint32_t likeliest = s->kernels->argmax(row, s->n_vocab);
    check(row[likeliest] != NEVER);
    if (p->temperature <= 0)
        return likeliest;
    if (!(p->top_k > 0 && p->top_k < s->n_vocab) && p->top_p >= 1 && p->min_p <= 0)
        return draw_from_row(s, p, row, likeliest, position);

    double temperature = (double)p->temperature, max = (double)row[likeliest] / temperature;
    size_t n = filter(s, p, row, temperature, max);
    struct draw draw = {-DBL_MAX, UINT32_MAX};
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        struct candidate c = s->candidates[i];
        s->loops->philox(p->seed, position, c.token, p->choice, &word, 1);
        consider(&draw, c.token, (double)c.logit / temperature, word);
    }
    return n > 0 ? draw.token : likeliest;
}

#define GUESS_LEAST 1e-3f

uint32_t sampler_guess(struct sampler *sampler, const struct sample_params *params,
                       const float *logits, uint32_t n_logits, const uint32_t *tokens,
                       uint64_t position, float *chance)
{
    struct sampler narrow = *sampler, *s = &narrow;
    check(n_logits <= sampler->n_vocab);
    s->n_vocab = n_logits;
    struct sample_params p = *params;
    uint32_t likeliest = s->kernels->argmax(logits, s->n_vocab), guess = likeliest;
    double temperature = p.temperature > 0 ? (double)p.temperature : 1;
    double max = (double)logits[likeliest] / temperature;
    if (p.temperature > 0) {
        p.min_p = p.min_p > GUESS_LEAST ? p.min_p : GUESS_LEAST;
        size_t n = filter(s, &p, logits, temperature, max);
        struct draw draw = {-DBL_MAX, UINT32_MAX};
        for (size_t i = 0; i < n; i++) {
            struct candidate c = s->candidates[i];
            uint32_t word, token = tokens != NULL ? tokens[c.token] : c.token;
            s->loops->philox(p.seed, position, token, p.choice, &word, 1);
            consider(&draw, c.token, (double)c.logit / temperature, word);
        }
        guess = n > 0 ? draw.token : likeliest;
    }
    double sum = s->loops->exp_sum(logits, s->n_vocab, 1 / temperature, max);
    *chance = (float)(math64_exp((double)logits[guess] / temperature - max) / sum);
    return guess;
}

/* ---- log-probabilities ---- */

double sampler_log_sum(struct sampler *s, const float *logits)
{
    double max = (double)s->kernels->max(logits, s->n_vocab);
    return max + math64_ln(s->loops->exp_sum(logits, s->n_vocab, 1, max));
}

uint32_t sampler_top(struct sampler *s, const float *logits, double log_sum, uint32_t n,
                     struct sample_logprob *top)
{
    check(n <= SAMPLE_TOP_MAX);
    if (n == 0)
        return 0;
    size_t found = select_best(s, logits, n);
    for (size_t i = 0; i < found; i++)
        top[i] = (struct sample_logprob){s->candidates[i].token,
                                         (float)((double)s->candidates[i].logit - log_sum)};
    return (uint32_t)found;
}
