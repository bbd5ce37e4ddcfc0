#include "core/worker/terms.h"

#include "core/base/log.h"
#include "core/sched/sched.h"
#include "core/worker/stream.h"
#include "core/worker/worker.h"

/* The number of a pair, or otherwise. */
static uint64_t number(const struct message_request *m, const char *name, uint64_t most,
                       uint64_t otherwise)
{
    struct slice text = message_find(m->pairs, m->n_pairs, name);
    uint64_t value = 0;
    if (text.len == 0)
        return otherwise;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9' || i >= 10 || value > most) {
            log_warn("%s: \"%.*s\" is no number from 0 to %llu", name,
                     (int)(text.len < 40 ? text.len : 40), text.ptr, (unsigned long long)most);
            return otherwise;
        }
        value = value * 10 + (uint64_t)(text.ptr[i] - '0');
    }
    if (value <= most)
        return value;
    log_warn("%s: %llu is more than %llu", name, (unsigned long long)value,
             (unsigned long long)most);
    return otherwise;
}

/* Whether the pair says `second`; unsaid or wrong it means `first`. */
static bool is_second(const struct message_request *m, const char *name, const char *first,
                      const char *second)
{
    struct slice text = message_find(m->pairs, m->n_pairs, name);
    if (slice_equal(text, slice_of(second)))
        return true;
    if (text.len > 0 && !slice_equal(text, slice_of(first)))
        log_warn("%s: \"%.*s\" is neither %s nor %s", name, (int)(text.len < 40 ? text.len : 40),
                 text.ptr, first, second);
    return false;
}

void terms_read(struct stream *s, const struct message_request *m)
{
    const struct options *o = s->worker->options;
    buffer_add_slice(&s->tenant, message_find(m->pairs, m->n_pairs, "x-tokenring-tenant"));
    s->priority =
        (unsigned)number(m, "x-tokenring-priority", SCHED_PRIORITY_MAX, SCHED_PRIORITY_DEFAULT);
    s->max_tokens = (uint32_t)number(m, "x-tokenring-max-tokens", UINT32_MAX - 1, 0);
    s->keepalive_ns =
        number(m, "x-tokenring-keepalive-interval", UINT32_MAX, o->keepalive_interval) * 1000000;
    s->queue_timeout_ns =
        number(m, "x-tokenring-queue-timeout", UINT32_MAX, o->queue_timeout * 1000) * 1000000;
    uint64_t limit =
        number(m, "x-tokenring-request-timeout", UINT32_MAX, o->request_timeout * 1000) * 1000000;
    s->stop_by_ns = limit > 0 ? s->arrival_ns + limit : 0;
    s->keepalive_data = is_second(m, "x-tokenring-keepalive", "comment", "data");
    s->keeps_prefill = is_second(m, "x-tokenring-on-disconnect", "stop", "prefill");
}

/* Texts share pages within one tenant and one cache_salt. */
static struct siphash salt_of(const struct stream *s)
{
    const struct api_request *r = &s->request;
    if (s->tenant.len == 0 && r->cache_salt_len == 0)
        return (struct siphash){0};
    struct buffer text = {0};
    uint64_t len = s->tenant.len;
    buffer_add(&text, &len, sizeof(len));
    buffer_add_slice(&text, buffer_slice(&s->tenant));
    buffer_add(&text, r->cache_salt, r->cache_salt_len);
    struct siphash salt = sched_key(s->worker->engine.sched, text.ptr, text.len);
    buffer_release(&text);
    return salt;
}

void terms_apply(const struct stream *s, struct generation *g)
{
    g->salt = salt_of(s);
    if (s->tenant.len > 0)
        g->tenant = sched_key(s->worker->engine.sched, s->tenant.ptr, s->tenant.len).word[0];
    g->priority = s->priority;
    if (s->max_tokens > 0 && s->max_tokens < s->request.max_tokens) {
        g->grows = g->max_tokens == SCHED_REST;
        g->max_tokens = s->max_tokens;
    }
    if (s->queue_timeout_ns > 0)
        g->deadline_ns = s->arrival_ns + s->queue_timeout_ns;
}
