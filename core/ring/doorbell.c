/* doorbell.c: what goes past the frames of a channel: a word in each region (whether the side sleeps, whether the server
 * takes more), and the byte that wakes a sleeper up. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sys/socket.h>

#include "core/ring/channel_priv.h"

/* ---- the gate ------------------------------------------------------------------------------------------- */

#define TURNED_AWAY_MAX (1u << 20) /* between two looks, which are not a second apart */

void channel_set_gate(struct channel *c, const struct channel_gate *gate)
{
    uint64_t retry = gate->retry_after < GATE_RETRY_MAX ? gate->retry_after : GATE_RETRY_MAX;
    uint64_t word = retry == 0 ? 0 : GATE_FULL | retry << 8 | (uint64_t)gate->waiting << 32;
    if (c->role != CHANNEL_SERVER || !(c->features & FEATURE_GATE) || c->own == NULL ||
        c->gate == word)
        return;
    c->gate = word;
    atomic_store_explicit(&c->own->gate, word, memory_order_relaxed);
}

struct channel_gate channel_look_at_gate(const struct channel *c)
{
    struct channel_gate gate = {0};
    if (c->role != CHANNEL_CLIENT || !(c->features & FEATURE_GATE) || c->broken || c->eof ||
        c->peer == NULL)
        return gate;
    uint64_t word = atomic_load_explicit(&c->peer->gate, memory_order_relaxed);
    if ((word & 0xff) != GATE_FULL) /* open, or closed for a reason that this build does not know */
        return gate;
    gate.retry_after = (uint32_t)(word >> 8 & 0xffff);
    gate.waiting = (uint32_t)(word >> 32);
    if (gate.retry_after == 0)
        gate.retry_after = 1;
    if (gate.retry_after > GATE_RETRY_MAX)
        gate.retry_after = GATE_RETRY_MAX;
    return gate;
}

void channel_turned_away(struct channel *c)
{
    if (c->role == CHANNEL_CLIENT && c->own != NULL)
        atomic_store_explicit(&c->own->gate, ++c->gate, memory_order_relaxed);
}

uint64_t channel_take_turned_away(struct channel *c)
{
    if (c->role != CHANNEL_SERVER || !(c->features & FEATURE_GATE) || c->peer == NULL)
        return 0;
    uint64_t count = atomic_load_explicit(&c->peer->gate, memory_order_relaxed);
    uint64_t more = count - c->seen;
    c->seen = count;
    return more <= TURNED_AWAY_MAX ? more : 0;
}

/* ---- doorbell ------------------------------------------------------------------------------------------- */

bool channel_publish(struct channel *c)
{
    if (c->broken || c->eof)
        return false;
    channel_send_waiting(c);
    bool wrote = ring_writer_publish(&c->writer);
    bool read = ring_reader_publish(&c->reader);
    if (!wrote && !read)
        return false;
    /* Store-load: our index is visible before we read the wake word; the peer does the mirror image in
     * channel_sleep. So either we see it asleep, or it sees our index. */
    atomic_thread_fence(memory_order_seq_cst);
    uint64_t wake = atomic_load_explicit(&c->peer->wake, memory_order_relaxed);
    bool cares = (wrote && (wake & WAKE_DATA)) || (read && (wake & WAKE_ROOM));
    if (!cares || wake == c->rung)
        return false;
    c->rung = wake;
    if (send(c->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
        return false; /* EAGAIN: bytes wait there already; anything else shows up as the socket's end */
    c->counters.doorbells_sent++;
    return true;
}

/* Turns "the peer consumed something since we ran out of room" into a flag that is taken once. */
static bool look_for_room(struct channel *c)
{
    if (!c->wants_room || !ring_writer_moved(&c->writer))
        return false;
    c->wants_room = false;
    c->room_came = true;
    return true;
}

bool channel_take_room(struct channel *c)
{
    look_for_room(c);
    bool came = c->room_came;
    c->room_came = false;
    return came;
}

bool channel_has_work(struct channel *c)
{
    if (c->broken || c->own == NULL)
        return false;
    return ring_reader_ready(&c->reader) || (c->wants_room && ring_writer_moved(&c->writer));
}

bool channel_sleep(struct channel *c)
{
    if (c->broken || c->eof)
        return false;
    uint64_t bits = WAKE_DATA | (c->wants_room ? WAKE_ROOM : 0);
    c->sleeps++;
    atomic_store_explicit(&c->own->wake, c->sleeps << 2 | bits, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* see channel_publish */
    bool came = look_for_room(c) || ring_reader_ready(&c->reader);
    if (came)
        channel_awake(c);
    return came;
}

void channel_awake(struct channel *c)
{
    if (c->own != NULL)
        atomic_store_explicit(&c->own->wake, 0, memory_order_relaxed);
}

/* An honest peer has at most one byte here; the bound keeps a dishonest one from holding our loop. */
enum channel_life channel_drain(struct channel *c)
{
    char bytes[256];
    for (int i = 0; i < 64 && !c->eof; i++) {
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n > 0) {
            c->counters.doorbells_received += (uint64_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        c->eof = true;
    }
    return c->eof ? CHANNEL_EOF : CHANNEL_ALIVE;
}
