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
    const char *endpoint; /* "tcp://" and so on; publisher.c says when it is connected to */
    const char *replay;   /* endpoint of the replay socket, or NULL: there is none */
    const char *topic;
    uint32_t n_kept; /* messages for the replay socket */
};

struct publisher;

sac_status publisher_create(struct publisher **out, const struct publisher_options *options,
                            sac_error *err);
/* What was given to publisher_send still goes out, for at most a second. */
void publisher_destroy(struct publisher *p);
/* Where it listens, with the port that the system chose if that was left open; NULL: nowhere. */
const char *publisher_endpoint(const struct publisher *p);
const char *publisher_replay(const struct publisher *p);

/* Takes over `payload` (mem.h) in any case. False: no memory, and the message has no number. Any
 * thread may call it, and does not wait. */
bool publisher_send(struct publisher *p, char *payload, size_t n);

#endif
