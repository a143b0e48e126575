/* metrics.h: the server's metrics in Prometheus' text format.
 *
 * Each metric is called `saccade_...`. Metrics that vLLM or llama.cpp also have are in addition
 * listed under their names `vllm:...` and `llamacpp:...`, for which gateways and dashboards look.
 * Any thread may call any function. */
#ifndef SAC_SERVE_METRICS_H
#define SAC_SERVE_METRICS_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

struct context;
struct loop_layer;
struct engine_loop_view;
struct metrics;
struct reading;

sac_status metrics_create(struct metrics **out, sac_error *err);
void metrics_destroy(struct metrics *m);

void metrics_started(struct metrics *m, uint64_t queue_us);
/* `us`: time since the previous token, or since the request for the `first`. */
void metrics_token(struct metrics *m, uint64_t us, bool first);
/* `e`: the answer's last event. */
void metrics_ended(struct metrics *m, const sac_event *e, uint64_t us);
/* `r`: the comparison with dense attention; NULL: nothing could be compared. */
void metrics_audited(struct metrics *m, const struct reading *r);
/* Counts a response with this HTTP status. */
void metrics_status(struct metrics *m, unsigned status);

/* Hits and fetches of pages by layer. */
void metrics_print_layers(const struct loop_layer *layer, uint32_t n, const char *model_name,
                          struct strbuf *out);
void metrics_print(struct metrics *m, const struct context *c, const struct engine_loop_view *view,
                   struct strbuf *out);

#endif
