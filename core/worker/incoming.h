/* incoming.h: frames that come up: requests, bodies, cancels, credits.
 *
 * What can be decided from the first frame is answered at once: health and model lists, unknown paths, a worker that
 * loads or drains, bodies whose announced length is over the limit. Others collect their body first. */
#ifndef WORKER_INCOMING_H
#define WORKER_INCOMING_H

#include "core/ring/channel.h"

struct link;

/* Handles one frame of a link's channel. */
void incoming_frame(struct link *link, const struct channel_frame *frame);

#endif
