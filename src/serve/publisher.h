/* publisher.h: sends numbered messages to whoever subscribes, over ZeroMQ, and keeps the last ones
 * for those who missed some. The library (libzmq) is loaded when a publisher is created.
 *
 * A message is [topic, its number as 8 bytes in big-endian order, payload], on a PUB socket. Who
 * missed some sends [empty, number of the first, 8 bytes] to the replay socket (a ROUTER) and gets
 * [empty, number, payload] for each that is kept from there on, and at the end the number -1 with
 * an empty payload. A thread of its own does all that; nobody waits for a subscriber. */
#ifndef SAC_SERVE_PUBLISHER_H
#define SAC_SERVE_PUBLISHER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct publisher_options {
    const char *endpoint; /* a ZeroMQ endpoint; publisher.c says when it is bound or connected */
    const char *replay;   /* endpoint of the replay socket, or NULL: none */
    const char *topic;
    uint32_t n_kept; /* number of messages that can be replayed */
};

struct publisher;

sac_status publisher_create(struct publisher **out, const struct publisher_options *options,
                            sac_error *err);
/* Queued messages are still sent, for at most a second. */
void publisher_destroy(struct publisher *p);
/* The bound endpoint, with the port that the system chose; NULL: not bound. */
const char *publisher_endpoint(const struct publisher *p);
const char *publisher_replay(const struct publisher *p);

/* Takes ownership of `payload` (mem.h) in any case. False: out of memory, and no message number was
 * used. Any thread may call it; it does not block. */
bool publisher_send(struct publisher *p, char *payload, size_t n);

#endif
