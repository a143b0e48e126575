/* generate.h: one request run to its end, with its text streamed, for `run` and `chat`. */
#ifndef SAC_APP_GENERATE_H
#define SAC_APP_GENERATE_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

struct cJSON;

struct generation {
    /* Input */
    sac_engine *engine;
    const sac_model *model;
    sac_request request; /* complete except on_event and user */
    bool stream;         /* write text to stdout as it is generated */
    bool want_probs;     /* fill in `probs` */
    /* Output; freed by generation_deinit */
    struct strbuf text;
    int32_t *tok; /* [n_tok], including an end token */
    size_t n_tok, tok_room;
    struct cJSON *probs; /* a list with one entry per token */
    sac_finish finish;
    char stop[128]; /* the stop string that matched, truncated; or "" */
    sac_timings timings;
    double ttft_ms;   /* time to the first token; 0: there was none */
    bool output_lost; /* stdout is closed; output_finish reports why */
    bool memory_lost;
    uint64_t submit_us;
};

/* Returns SAC_OK also if Ctrl-C (SAC_FINISH_CANCELLED) or a closed output ended the answer. Shows a
 * progress bar while a long prompt is computed. */
sac_status generation_run(struct generation *g, sac_error *err);
void generation_deinit(struct generation *g);

/* "stop", "length", "cancelled" or "error". */
const char *generation_finish_name(sac_finish finish);

#endif
