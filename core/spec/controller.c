#include "core/spec/controller.h"

/* With more texts than that a row costs more of a step than a guess of a small model brings. */
#define MODEL_TEXTS 8u
#define MODEL_FIRST 0.1  /* a pass of the draft model in steps, before it is measured */
#define MODEL_ROW 0.08   /* a further token of a pass in passes, before it is measured */
#define MODEL_WINDOW 64u /* tokens that it catches up with at most */
#define MODEL_ROWS_FIRST 4u
#define DISTURBED 2.0
#define LEAST_CHANCE 0.2 /* of a guess behind which another one is thought of */
#define CAUGHT_SERVES 8  /* guesses that a token is of use for which the model has caught up with */
#define FADE (1 - 1.0 / 64) /* of what steps brought, a step */
#define SURE_FULL 512.0f

/* How sure a draft model is, before it is known: this stands for two guesses. */
static const float first_sure[DRAFT_TENTHS] = {0.35f, 0.35f, 0.35f, 0.3f,  0.2f,
                                               0.15f, 0.1f,  0.05f, 0.05f, 0.1f};

static bool is_drawn(const struct draft_text *t)
{
    return t->sampling != NULL && t->sampling->temperature > 0;
}

static enum draft_kind kind_of(bool drawn, uint32_t tenth)
{
    return (enum draft_kind)((drawn ? DRAFT_DRAWN : DRAFT_MODEL) + tenth);
}

static double chance_of(const struct controller *c, const struct draft_text *t, uint32_t place)
{
    return acceptance_of(&c->all, &t->mine, t->draft.kinds[place], place);
}

/* ns that a further token is worth in a step of n texts. */
static double worth(const struct controller *c, uint32_t n)
{
    double plain = cost_of(&c->step, n) / n;
    return c->made > 0 && c->spent < c->made ? plain * c->spent / c->made : plain;
}

/* ns of `rows` drafted tokens in a step of n texts. */
static double rows_cost(const struct controller *c, uint32_t n, uint32_t rows)
{
    return c->beside > 0 ? rows * c->beside : cost_of(&c->step, n + rows) - cost_of(&c->step, n);
}

static double row_cost(const struct controller *c, uint32_t n, uint32_t rows)
{
    return rows_cost(c, n, rows + 1) - rows_cost(c, n, rows);
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
    double chance[COST_ROWS], sum = 0, plain = cost_of(&c->step, n), each = worth(c, n);
    double best_gain = CONTROLLER_MARGIN * plain;
    uint32_t take[COST_ROWS] = {0}, best = 0;
    for (uint32_t i = 0; i < n; i++)
        chance[i] = texts[i]->draft.n > 0 ? chance_of(c, texts[i], 0) : 0;
    *any = false;
    for (uint32_t k = 1; k <= budget; k++) {
        uint32_t i = best_next(chance, texts, take, n);
        if (i == n)
            break;
        *any = true;
        sum += chance[i];
        double gain = sum * each - rows_cost(c, n, k);
        if (gain > best_gain) {
            best_gain = gain;
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
    if (c->step.level == 0 || budget == 0 || c->since_plain >= CONTROLLER_REFRESH) {
        for (uint32_t i = 0; i < n; i++)
            texts[i]->draft.n = 0;
        return;
    }
    keep = best_count(c, texts, n, budget, &any);
    if (c->probes && !any)
        c->since_probe = 0;
    while (keep > 0 && rows_cost(c, n, keep) > c->account)
        keep--;
    if (keep == 0 && any && may_probe(c, row_cost(c, n, 0))) {
        keep = 1;
        c->since_probe = 0;
    }
    cut(c, texts, n, keep);
    c->probes = false;
}

double controller_gain(const struct controller *c, const struct draft_text *t, uint32_t n)
{
    double chance = 1, gain = 0, best = 0, each = worth(c, n);
    for (uint32_t k = 0; k < t->draft.n; k++) {
        chance *= chance_of(c, t, k);
        gain += chance * each - row_cost(c, n, k);
        best = gain > best ? gain : best;
    }
    return best;
}

/* What is known of the guess at one place before it is made. */
struct outlook {
    double row; /* ns to verify it */
    double sum;
    double share[DRAFT_TENTHS], right[DRAFT_TENTHS];
};

static void look_out(const struct controller *c, const struct draft_text *t, uint32_t n,
                     uint32_t place, struct outlook *o)
{
    bool drawn = is_drawn(t);
    o->row = row_cost(c, n, place);
    o->sum = 0;
    for (uint32_t i = 0; i < DRAFT_TENTHS; i++) {
        o->share[i] = (double)(c->sure[drawn][place > 0][i] + first_sure[i]);
        o->sum += o->share[i];
        o->right[i] = acceptance_of(&c->all, &t->mine, kind_of(drawn, i), place);
    }
}

/* ns that a pass is expected to bring for a guess, and for a second one if `next` is not NULL, where
 * all before it is right with probability `chance` and a token is worth `each`. */
static double gain_of_asking(const struct outlook *o, const struct outlook *next, double chance,
                             double each, double pass)
{
    double gain = 0;
    for (uint32_t i = 0; i < DRAFT_TENTHS; i++) {
        double right = chance * o->right[i], more = right * each - o->row;
        if (next != NULL && right > LEAST_CHANCE) {
            double second = gain_of_asking(next, NULL, right, each, pass);
            more += second > 0 ? second : 0;
        }
        gain += more > 0 ? o->share[i] * more : 0;
    }
    return gain / o->sum - pass;
}

/* Tokens of t that the model has to go through for its next guess. */
static uint32_t unfed(const struct draft_text *t)
{
    uint32_t n = t->n_tokens > t->fed ? t->n_tokens - t->fed : 1;
    n -= t->fed_guesses < n - 1 ? t->fed_guesses : n - 1;
    return n < MODEL_WINDOW ? n : MODEL_WINDOW;
}

/* ns of a pass over so many tokens of each of those that may ask, for one of them. */
static double pass_cost(const struct controller *c, uint32_t rows)
{
    uint32_t n = c->n_asking > 0 ? c->n_asking : 1;
    double one = c->model.level != 0 ? cost_of(&c->model, n) : MODEL_FIRST * cost_of(&c->step, 1);
    double all = n * rows <= c->model.top ? cost_of(&c->model, n * rows)
                                          : one * (1 + MODEL_ROW * n * (rows - 1));
    return all / n;
}

bool controller_wants_model(struct controller *c, const struct draft_text *t, uint32_t n,
                            double chance, double instead)
{
    uint32_t place = t->draft.n;
    if (c->always > 0)
        return place < c->always;
    if (c->step.level == 0 || n > MODEL_TEXTS || c->since_plain >= CONTROLLER_REFRESH)
        return false;
    double once = pass_cost(c, 1), first = place == 0 ? pass_cost(c, unfed(t)) : once;
    struct outlook here, next;
    look_out(c, t, n, place, &here);
    look_out(c, t, n, place + 1, &next);
    double gain = gain_of_asking(&here, &next, chance, worth(c, n), once) -
                  (first - once) / CAUGHT_SERVES - instead;
    if (gain > CONTROLLER_MARGIN * cost_of(&c->step, n) / n)
        return c->account > first + row_cost(c, n, 0) || place > 0;
    if (place > 0 || instead > 0 || c->probes || !may_probe(c, row_cost(c, n, 0) + first))
        return false;
    return c->probes = true;
}

double controller_guessed(struct controller *c, struct draft_text *t, uint32_t token, float p)
{
    bool drawn = is_drawn(t);
    uint32_t place = t->draft.n;
    enum draft_kind kind = draft_kind_model(p, drawn);
    float *sure = c->sure[drawn][place > 0], sum = 0;
    sure[kind - kind_of(drawn, 0)] += 1;
    for (uint32_t i = 0; i < DRAFT_TENTHS; i++)
        sum += sure[i];
    for (uint32_t i = 0; sum > SURE_FULL && i < DRAFT_TENTHS; i++)
        sure[i] *= 0.5f;
    draft_add(&t->draft, token, kind);
    return acceptance_of(&c->all, &t->mine, kind, place);
}

void controller_passed(struct controller *c, uint32_t rows, double ns)
{
    double most = c->model.level != 0 ? DISTURBED * cost_of(&c->model, rows) : cost_of(&c->step, 1);
    c->passes++;
    c->excess_ns += ns > most ? ns - most : 0;
    /* A first pass over many rows says little about one. */
    if (rows <= (c->model.level != 0 ? COST_ROWS : MODEL_ROWS_FIRST))
        cost_learn(&c->model, rows, ns);
}

void controller_settle(struct controller *c, uint32_t n, uint32_t n_drafted, uint32_t emitted,
                       double ns, double draft_ns, bool alone)
{
    bool none = n_drafted == 0 && c->passes == c->passes_before,
         plain_step = none && c->undisturbed;
    if (alone && (n_drafted > 0 || plain_step || c->step.level == 0))
        cost_learn(&c->step, n + n_drafted, ns);
    c->undisturbed = none;
    c->passes_before = c->passes;
    double plain = cost_of(&c->step, n), took = plain + rows_cost(c, n, n_drafted);
    /* The first steps with decodes may be beside prompts: there is nothing to reckon in yet. */
    if (plain <= 0)
        return;
    if (!c->begun)
        c->account = CONTROLLER_START * plain;
    c->begun = true;
    draft_ns = draft_ns > c->excess_ns ? draft_ns - c->excess_ns : 0;
    c->excess_ns = 0;
    c->account += CONTROLLER_EARN * plain - draft_ns;
    if (n_drafted > 0)
        c->account += plain * emitted / n - took;
    if (c->account > CONTROLLER_SAVED * plain)
        c->account = CONTROLLER_SAVED * plain;
    /* In steps without drafts, so that steps of all sizes count alike. */
    c->spent = c->spent * FADE + (took + draft_ns) / plain;
    c->made = c->made * FADE + (double)emitted / n;
    c->since_probe++;
    c->since_plain = plain_step ? 0 : c->since_plain + 1;
}
