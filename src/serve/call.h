/* call.h: one HTTP request, from its head to the last byte of its response. For HTTP threads only;
 * at most one at a time works on a call. */
#ifndef SAC_SERVE_CALL_H
#define SAC_SERVE_CALL_H

#include "serve/context.h"

#include <microhttpd.h>

struct call;

/* Totals over all calls, kept by http.c. */
struct call_totals {
    _Atomic uint64_t body_bytes;   /* request bodies in memory */
    _Atomic uint64_t answer_bytes; /* long answers being sent */
    _Atomic uint32_t n_call;       /* requests that have begun and not ended */
};

struct call_head {
    struct context *context; /* borrowed, like all members */
    struct call_totals *totals;
    struct MHD_Connection *connection;
    const char *method, *path;
};

/* NULL: out of memory, which has been answered. A request with a long body may be refused here,
 * before the body is read. */
struct call *call_begin(const struct call_head *head, enum MHD_Result *out_result);
/* Receives a part of the body. */
enum MHD_Result call_body(struct call *call, const char *data, size_t n);
/* Called when the body is complete, and when the connection is resumed. */
enum MHD_Result call_go_on(struct call *call);
/* Seconds that the client has to read the queued answer; 0: no limit. */
uint32_t call_read_s(const struct call *call);
/* Ends the call; `sent`: the whole answer was sent. */
void call_end(struct call *call, bool sent);

#endif
