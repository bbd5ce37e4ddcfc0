/* front.h: requests through the front pool: JSON, validation, template, tokenizing; nothing that the loop waits for.
 *
 * While a stream is in_front, its body, request, status and error belong to the pool's thread; the loop touches them
 * again when front's end runs on the loop. */
#ifndef WORKER_FRONT_H
#define WORKER_FRONT_H

struct stream;

/* Queues the stream's complete body. */
void front_start(struct stream *s);

#endif
