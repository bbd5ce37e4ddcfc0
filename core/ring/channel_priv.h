/* channel_priv.h: shared by channel.c (streams and frames), doorbell.c and handshake.c. */
#ifndef RING_CHANNEL_PRIV_H
#define RING_CHANNEL_PRIV_H

#include "core/ring/channel.h"

/* channel_stream.bits */
#define STREAM_OPEN 0x0001u       /* the owner may use it */
#define STREAM_REQUESTED 0x0002u  /* client: REQUEST went out */
#define STREAM_HEAD 0x0004u       /* HEAD went out (server) or came in (client) */
#define STREAM_LOCAL_FIN 0x0008u  /* our direction is finished */
#define STREAM_REMOTE_FIN 0x0010u /* the peer's direction is finished, by FIN or RESET */
#define STREAM_USED 0x0020u       /* server: the slot has had a stream, id is its last */
#define STREAM_WAIT_END 0x0040u   /* a CANCEL or RESET waits for room */
#define STREAM_WAIT_CREDIT 0x0080u
#define STREAM_QUEUED 0x0100u /* in the waiting list */

/* Sets up rings, credits and the table once the geometry (in c->in, c->out) is agreed and both regions are
 * mapped. STATUS_NO_MEMORY, or STATUS_OK. */
enum status channel_begin(struct channel *c, const struct hello *agreed, struct error *err);
/* Lets waiting control frames go, oldest first, while there is room. */
void channel_send_waiting(struct channel *c);

#endif
