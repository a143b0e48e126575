/* call.h: one HTTP request, from its head to the last byte of its response. For HTTP threads only;
 * at most one at a time works on a call. */
#ifndef SAC_SERVE_CALL_H
#define SAC_SERVE_CALL_H

#include "serve/context.h"

#include <microhttpd.h>

struct call;

/* What http.c counts over all calls. */
struct call_totals {
    _Atomic uint64_t body_bytes;   /* of requests' bodies in memory */
    _Atomic uint64_t answer_bytes; /* of long answers that are being sent */
    _Atomic uint32_t n_call;       /* requests that have begun and not ended */
};

struct call_head {
    struct context *context; /* borrowed, as is all here */
    struct call_totals *totals;
    struct MHD_Connection *connection;
    const char *method, *path;
};

/* NULL: out of memory, which is answered. May already have answered: a refusal does not wait for a
 * long body. */
struct call *call_begin(const struct call_head *head, enum MHD_Result *out_result);
/* A part of the body. */
enum MHD_Result call_body(struct call *call, const char *data, size_t n);
/* The body is complete, or an answer that was waited for has come. */
enum MHD_Result call_go_on(struct call *call);
/* Seconds in which the client must read the whole answer that was queued; 0: no limit. */
uint32_t call_read_s(const struct call *call);
/* The connection is done with it, `sent` whole or not. */
void call_end(struct call *call, bool sent);

#endif
