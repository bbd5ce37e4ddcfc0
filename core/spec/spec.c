#define _GNU_SOURCE
#include "core/spec/spec.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"

struct spec *spec_create(void)
{
    return xcalloc(1, sizeof(struct spec));
}

void spec_free(struct spec *s)
{
    for (uint32_t i = 0; s != NULL && i < s->n_drafters; i++)
        s->drafters[i]->free(s->drafters[i]);
    free(s);
}

void spec_add(struct spec *s, struct drafter *d)
{
    check(s->n_drafters < sizeof(s->drafters) / sizeof(*s->drafters));
    s->drafters[s->n_drafters++] = d;
}

struct draft_text *spec_join(struct spec *s, struct siphash salt,
                             const struct sample_params *sampling)
{
    struct draft_text *t = xcalloc(1, sizeof(*t));
    (void)s;
    t->salt = salt;
    t->sampling = sampling;
    return t;
}

void spec_leave(struct spec *s, struct draft_text *t)
{
    for (uint32_t i = 0; t != NULL && i < s->n_drafters; i++)
        if (s->drafters[i]->finish != NULL)
            s->drafters[i]->finish(s->drafters[i], t);
    free(t);
}

/* Gives up lookups that promise less than the model. */
static void prefer_model(struct spec *s, struct draft_text **texts, uint32_t n)
{
    struct controller *c = &s->controller;
    c->n_asking = 0;
    for (uint32_t i = 0; i < n; i++)
        c->n_asking += texts[i]->draft.n == 0 && texts[i]->most > 0;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        uint32_t found = t->draft.n;
        if (found == 0)
            continue;
        double gain = controller_gain(c, t, n);
        t->draft.n = 0;
        if (controller_wants_model(c, t, n, 1, gain))
            c->n_asking++;
        else
            t->draft.n = found;
    }
}

void spec_propose(struct spec *s, struct draft_text **texts, uint32_t n, uint32_t budget)
{
    uint64_t start = clock_ns();
    uint64_t passes = s->controller.passes;
    for (uint32_t i = 0; i < n; i++) {
        texts[i]->draft.n = 0;
        if (s->controller.always > 0 && texts[i]->most > s->controller.always)
            texts[i]->most = s->controller.always;
    }
    if (budget > 0 && n > 0) {
        for (uint32_t i = 0; i < s->n_drafters; i++) {
            if (s->drafters[i]->is_model && s->controller.always == 0)
                prefer_model(s, texts, n);
            s->drafters[i]->propose(s->drafters[i], texts, n, &s->controller);
        }
        if (s->controller.always == 0)
            controller_plan(&s->controller, texts, n, budget);
    }
    for (uint32_t i = 0; i < n; i++) {
        texts[i]->draft.n = texts[i]->draft.n < budget ? texts[i]->draft.n : budget;
        budget -= texts[i]->draft.n;
    }
    s->account.passes += s->controller.passes - passes;
    s->draft_ns = (double)(clock_ns() - start);
}

void spec_learn(struct spec *s, struct draft_text *t, uint32_t right)
{
    acceptance_learn(&s->controller.all, &t->mine, t->draft.kinds, t->draft.n, right);
    for (uint32_t i = 0; i < t->draft.n && i <= right; i++) {
        s->tried[i]++;
        s->right[i] += i < right;
    }
    s->account.drafted += t->draft.n;
    s->account.right += right;
    t->drafted += t->draft.n;
    t->accepted += right;
    t->draft.n = 0;
}

void spec_settle(struct spec *s, uint32_t n, uint32_t n_drafted, uint32_t emitted, double ns,
                 bool alone)
{
    uint32_t size = n_drafted <= DRAFT_MAX ? n_drafted : DRAFT_MAX + 1;
    s->account.steps[size]++;
    s->account.step_ns[size] += ns;
    s->account.draft_ns += s->draft_ns;
    controller_settle(&s->controller, n, n_drafted, emitted, ns, s->draft_ns, alone);
    s->draft_ns = 0;
}
