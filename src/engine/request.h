/* request.h: the requests of one engine. The public calls are sac_submit, sac_cancel and
 * sac_run. */
#ifndef SAC_ENGINE_REQUEST_H
#define SAC_ENGINE_REQUEST_H

#include "base/status.h"

struct request_list;

/* `engine` is borrowed and outlives the list; its model must be set. */
sac_status request_list_create(struct request_list **out, sac_engine *engine, sac_error *err);
/* Drops all requests without events. NULL is accepted. */
void request_list_destroy(struct request_list *list);

/* Sets the counters of requests in `out`. */
void request_list_count(const struct request_list *list, sac_engine_stats *out);

#endif
