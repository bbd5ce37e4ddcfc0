#include "core/spec/controller.h"

/* With more texts than that a row costs more of a step than a guess of a small model brings. */
#define MODEL_TEXTS 8u
#define MODEL_FIRST 0.1 /* a pass of the draft model in steps, before it is measured */

static double chance_of(const struct controller *c, const struct draft_text *t, uint32_t place)
{
    return acceptance_of(&c->all, &t->mine, t->draft.kinds[place], place);
}

/* The text with the best chance of its next token beyond take[], or n. */
static uint32_t best_next(const double *chance, struct draft_text **texts, const uint32_t *take,
                          uint32_t n)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (take[i] < texts[i]->draft.n && (best == n || chance[i] > chance[best]))
            best = i;
    return best;
}

static bool may_probe(const struct controller *c, double loss)
{
    return c->since_probe >= CONTROLLER_PROBE && c->account >= loss;
}

/* Drafts are cut to `keep` tokens in all, taken in the order of their chances. */
static void cut(const struct controller *c, struct draft_text **texts, uint32_t n, uint32_t keep)
{
    double chance[COST_ROWS];
    uint32_t take[COST_ROWS] = {0};
    for (uint32_t i = 0; i < n; i++)
        chance[i] = texts[i]->draft.n > 0 ? chance_of(c, texts[i], 0) : 0;
    for (uint32_t k = 0; k < keep; k++) {
        uint32_t i = best_next(chance, texts, take, n);
        if (++take[i] < texts[i]->draft.n)
            chance[i] *= chance_of(c, texts[i], take[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        texts[i]->draft.n = take[i];
}

/* How many tokens are best; *any: whether there were any. */
static uint32_t best_count(const struct controller *c, struct draft_text **texts, uint32_t n,
                           uint32_t budget, bool *any)
{
    double chance[COST_ROWS], sum = n;
    uint32_t take[COST_ROWS] = {0}, best = 0;
    double best_rate = CONTROLLER_MARGIN * n / cost_of(&c->step, n);
    for (uint32_t i = 0; i < n; i++)
        chance[i] = texts[i]->draft.n > 0 ? chance_of(c, texts[i], 0) : 0;
    *any = false;
    for (uint32_t k = 1; k <= budget; k++) {
        uint32_t i = best_next(chance, texts, take, n);
        if (i == n)
            break;
        *any = true;
        sum += chance[i];
        double rate = sum / cost_of(&c->step, n + k);
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
        if (++take[i] < texts[i]->draft.n)
            chance[i] *= chance_of(c, texts[i], take[i]);
    }
    return best;
}

void controller_plan(struct controller *c, struct draft_text **texts, uint32_t n, uint32_t budget)
{
    bool any = false;
    uint32_t keep = 0;
    budget = n < COST_ROWS && budget < COST_ROWS - n ? budget : n < COST_ROWS ? COST_ROWS - n : 0;
    if (c->step.level == 0 || budget == 0 || c->drafted_in_a_row >= CONTROLLER_REFRESH) {
        for (uint32_t i = 0; i < n; i++)
            texts[i]->draft.n = 0;
        return;
    }
    keep = best_count(c, texts, n, budget, &any);
    if (c->probes && !any)
        c->since_probe = 0;
    if (c->account < 0)
        keep = 0;
    if (keep == 0 && any && may_probe(c, cost_of(&c->step, n + 1) - cost_of(&c->step, n))) {
        keep = 1;
        c->since_probe = 0;
    }
    cut(c, texts, n, keep);
    c->probes = false;
}

bool controller_wants_model(struct controller *c, const struct draft_text *t, uint32_t n,
                            uint32_t place, double chance)
{
    double alone = cost_of(&c->step, n), pass = cost_of(&c->model, n) / n;
    if (c->always)
        return true;
    if (c->model.level == 0)
        pass = MODEL_FIRST * cost_of(&c->step, 1);
    double row = (cost_of(&c->step, n + 1) - alone) + pass;
    if (c->step.level == 0 || n > MODEL_TEXTS || c->drafted_in_a_row >= CONTROLLER_REFRESH)
        return false;
    if (place > 0) /* a further token must bring more than its time would without it */
        return chance * acceptance_of_model(&c->all, &t->mine, place) * alone >
               row * n * CONTROLLER_MARGIN;
    /* The first one: some number of tokens must be worth it. */
    double gain = 0, p = chance, spent = 0;
    for (uint32_t k = 0; k < 4; k++) {
        p *= acceptance_of_model(&c->all, &t->mine, k);
        gain += p * alone / n;
        spent += row;
        if (gain > spent * CONTROLLER_MARGIN)
            return c->account >= 0;
    }
    if (c->probes || !may_probe(c, row))
        return false;
    return c->probes = true;
}

void controller_settle(struct controller *c, uint32_t n, uint32_t n_drafted, uint32_t emitted,
                       double ns, double draft_ns, bool alone)
{
    if (alone)
        cost_learn(&c->step, n + n_drafted, ns);
    double plain = cost_of(&c->step, n);
    if (!c->begun)
        c->account = CONTROLLER_START * plain;
    c->begun = true;
    c->account += CONTROLLER_EARN * plain - draft_ns;
    if (n_drafted > 0)
        c->account += plain * emitted / n - cost_of(&c->step, n + n_drafted);
    if (c->account > CONTROLLER_SAVED * plain)
        c->account = CONTROLLER_SAVED * plain;
    c->since_probe++;
    c->drafted_in_a_row = n_drafted > 0 ? c->drafted_in_a_row + 1 : 0;
}
