#include "core/worker/front.h"

#include "core/api/api.h"
#include "core/base/log.h"
#include "core/stats/writer.h"
#include "core/worker/glue.h"
#include "core/worker/stream.h"
#include "core/worker/worker.h"

/* In a thread of the pool. */
static void run(uv_work_t *work)
{
    struct stream *s = work->data;
    s->status = api_parse(s->endpoint, buffer_slice(&s->body), &s->worker->engine.context,
                          &s->request, &s->error);
}

/* On the loop again. */
static void done(uv_work_t *work, int cancelled)
{
    struct stream *s = work->data;
    (void)cancelled; /* only a lost stream is cancelled */
    s->worker->polled = true;
    s->in_front = false;
    stats_add(s->worker->stats, STATS_CELL_LOOP, STAT_requests_parsing, (uint64_t)-1);
    stream_drop_body(s);
    if (s->cs == NULL)
        stream_settle(s);
    else if (s->ended)
        return; /* the worker stops: its answer is out already */
    else if (s->status != STATUS_OK)
        stream_fail(s, &s->error);
    else
        glue_submit(s);
}

void front_start(struct stream *s)
{
    s->phase = STREAM_FRONT;
    s->in_front = true;
    s->work.data = s;
    stats_add(s->worker->stats, STATS_CELL_LOOP, STAT_requests_parsing, 1);
    uv_queue_work(&s->worker->loop, &s->work, run, done); /* fails only without a work function */
}
