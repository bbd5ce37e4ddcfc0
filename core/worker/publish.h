/* publish.h: what the loop tells the stats file once per interval: gauges, channel counters, the sign of life.
 *
 * Events are counted where they happen (stats_add); here is what must be looked up: sizes of lists, the channels' own
 * counters, the arena's figures, the process's memory and CPU time. */
#ifndef WORKER_PUBLISH_H
#define WORKER_PUBLISH_H

#include <stdint.h>

#include "core/ring/channel.h"

struct stream;
struct worker;

/* The channels' counters of links that are gone. */
struct publish {
    struct channel_counters gone;
    uint64_t turned_away,
        told_ns; /* refusals by nginx that the log has not heard of; when it last did */
};

/* Texts and numbers that are fixed from the start. */
void publish_start(struct worker *w);
/* The state, when it changes. */
void publish_state(struct worker *w);
/* What is known once the model is loaded. */
void publish_model(struct worker *w);
/* A link ends: keeps its counters. */
void publish_channel_closed(struct worker *w, const struct channel *c);
/* Counts what nginx refused at this link's gate. */
void publish_turned_away(struct worker *w, struct channel *c);
/* A stream's answer has ended with this HTTP status (499: the client left). */
void publish_request_ended(struct worker *w, const struct stream *s, unsigned status);
/* Everything that is looked up. */
void publish_tick(struct worker *w);

#endif
