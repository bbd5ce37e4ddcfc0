#include "tools/bench_spec_report.h"

#include <stdio.h>

void add_outcome(struct outcome *sum, const struct outcome *o)
{
    sum->tally.tokens += o->tally.tokens;
    sum->tally.ns += o->tally.ns;
    for (uint32_t i = 0; i < DRAFT_MAX; i++) {
        sum->tried[i] += o->tried[i];
        sum->right[i] += o->right[i];
    }
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++) {
        sum->account.steps[i] += o->account.steps[i];
        sum->account.step_ns[i] += o->account.step_ns[i];
    }
    sum->account.draft_ns += o->account.draft_ns;
    sum->account.passes += o->account.passes;
    sum->account.drafted += o->account.drafted;
    sum->account.right += o->account.right;
}

static double rate(const struct outcome *o)
{
    return o->tally.ns > 0 ? (double)o->tally.tokens * 1e9 / (double)o->tally.ns : 0;
}

static double ratio(const struct class *c)
{
    return c->of[OFF].tally.ns > 0 ? rate(&c->of[ON]) / rate(&c->of[OFF]) : 0;
}

/* Share of the drafted tokens that the target got to (all before them right) that were right. */
static double acceptance(const struct outcome *o)
{
    uint64_t tried = 0, right = 0;
    for (uint32_t k = 0; k < DRAFT_MAX; k++) {
        tried += o->tried[k];
        right += o->right[k];
    }
    return tried > 0 ? (double)right / (double)tried : 0;
}

static double step_ns(const struct spec_account *a)
{
    double sum = 0;
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++)
        sum += a->step_ns[i];
    return sum;
}

static uint64_t n_steps(const struct spec_account *a)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++)
        sum += a->steps[i];
    return sum;
}

/* Costs in steps without drafts, as measured over all prompts. */
struct costs {
    double step;               /* ns */
    double row[DRAFT_MAX + 1]; /* steps with so many drafted tokens */
    double pass;
};

static struct costs costs_of(const struct spec_report *r, const struct class *all)
{
    const struct spec_account *off = &all->of[OFF].account, *on = &all->of[ON].account,
                              *always = &all->of[ALWAYS].account;
    struct costs c = {.step = step_ns(off) / (double)n_steps(off), .row[0] = 1};
    double known = cost_of(&r->controller->step, r->streams);
    for (uint32_t i = 1; i <= DRAFT_MAX; i++) {
        uint64_t n = on->steps[i] + always->steps[i];
        c.row[i] = n >= 8 ? (on->step_ns[i] + always->step_ns[i]) / (double)n / c.step
                          : cost_of(&r->controller->step, r->streams + i) / known;
    }
    if (on->passes > 0)
        c.pass = on->draft_ns / (double)on->passes / c.step;
    return c;
}

static double best_bound(const struct costs *c, double a)
{
    double best = 1, power = a;
    for (uint32_t g = 1; g <= DRAFT_MAX; g++) {
        power *= a;
        double made = a < 1 ? (1 - power) / (1 - a) : g + 1,
               bound = made / (c->row[g] + g * c->pass);
        best = bound > best ? bound : best;
    }
    return best;
}

static void print_places(const struct outcome *o)
{
    for (uint32_t k = 0; k < 8 && o->tried[k] > 0; k++)
        printf(" %4.2f(%lu)", (double)o->right[k] / (double)o->tried[k],
               (unsigned long)o->tried[k]);
}

static void print_class(const struct spec_report *r, const struct class *c,
                        const struct costs *costs)
{
    const struct outcome *on = &c->of[ON], *always = &c->of[ALWAYS];
    printf("%-12s %7.1f %7.1f %6.3f", c->name, rate(&c->of[OFF]), rate(on), ratio(c));
    if (r->always > 0)
        printf("   %6.3f %6.2f", acceptance(always), best_bound(costs, acceptance(always)));
    printf("   %6.3f %6.2f  ", acceptance(on), best_bound(costs, acceptance(on)));
    print_places(on);
    puts("");
}

/* Where the time of the runs with drafts went, in parts of that of those without. */
static void print_account(const struct class *all, const struct costs *c)
{
    const struct outcome *on = &all->of[ON];
    const struct spec_account *a = &on->account;
    double whole = step_ns(&all->of[OFF].account), base = (double)n_steps(a) * c->step,
           rows = step_ns(a) - base,
           wrong = a->drafted > 0 ? rows * (double)(a->drafted - a->right) / (double)a->drafted : 0,
           outside_off = (double)all->of[OFF].tally.ns - whole,
           outside_on = (double)on->tally.ns - step_ns(a) - a->draft_ns;
    printf(
        "time with drafts, in that of all steps without: steps of one row each %.3f, further rows "
        "%.3f (of wrong guesses %.3f), drafting %.3f",
        base / whole, rows / whole, wrong / whole, a->draft_ns / whole);
    printf("; between steps %.3f, without drafts %.3f\n", outside_on / whole, outside_off / whole);
    printf("steps by drafted tokens:");
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++)
        if (a->steps[i] > 0)
            printf(" %s%u: %llu", i > DRAFT_MAX ? "over " : "", i > DRAFT_MAX ? DRAFT_MAX : i,
                   (unsigned long long)a->steps[i]);
    printf("; %llu passes of the draft model\n", (unsigned long long)a->passes);
}

void spec_report_print(const struct spec_report *r)
{
    struct class all = {.name = "all"};
    double ratios = 0;
    unsigned n = 0;
    for (unsigned i = 0; i < r->n_classes; i++)
        for (unsigned mode = 0; mode < MODES; mode++)
            add_outcome(&all.of[mode], &r->classes[i].of[mode]);
    struct costs costs = costs_of(r, &all);
    printf("class          off/s    on/s  ratio%s   chosen a bound   by place (tries)\n",
           r->always > 0 ? "   always a bound" : "");
    for (unsigned i = 0; i < r->n_classes; i++) {
        print_class(r, &r->classes[i], &costs);
        ratios += ratio(&r->classes[i]);
        n += ratio(&r->classes[i]) > 0;
    }
    print_class(r, &all, &costs);
    printf("mean of the classes' ratios %.3f; answers unequal: %u\n", n > 0 ? ratios / n : 0,
           r->n_unequal);
    if (r->always > 0) {
        printf("%u drafted always: %.3f times as fast; by place", r->always,
               rate(&all.of[ALWAYS]) / rate(&all.of[OFF]));
        print_places(&all.of[ALWAYS]);
        puts("");
    }
    printf("a step of %u: %.3f ms; with 1, 2, 3, 4, 8 drafted tokens:", r->streams,
           costs.step / 1e6);
    for (uint32_t rows = 1; rows <= 8; rows += rows < 4 ? 1 : 4)
        printf(" %.3f", costs.row[rows]);
    printf("; a guess of the draft model: %.3f\n", costs.pass);
    if (r->streams == 1)
        print_account(&all, &costs);
}
