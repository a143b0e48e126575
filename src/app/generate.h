/* generate.h: one request run to its end, with its text streamed, for `run` and `chat`. */
#ifndef SAC_APP_GENERATE_H
#define SAC_APP_GENERATE_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

struct cJSON;

struct generation {
    /* In */
    sac_engine *engine;
    const sac_model *model;
    sac_request request; /* all but on_event and user */
    bool stream;         /* write text to stdout as it comes */
    bool want_probs;     /* fill `probs` */
    /* Out; generation_deinit frees */
    struct strbuf text;
    int32_t *tok; /* [n_tok] all tokens that were chosen, an end token included */
    size_t n_tok, tok_room;
    struct cJSON *probs; /* list, one entry a token */
    sac_finish finish;
    char stop[128]; /* the stop string that matched, cut to fit; "" if none */
    sac_timings timings;
    double ttft_ms;   /* submit to first token; 0 if there was none */
    bool output_lost; /* stdout is gone; output_finish tells why */
    bool memory_lost;
    uint64_t submit_us;
};

/* SAC_OK also for answers that were cut short: by Ctrl-C (SAC_FINISH_CANCELLED) or by a lost
 * output. Shows a bar while a long prompt is computed. */
sac_status generation_run(struct generation *g, sac_error *err);
void generation_deinit(struct generation *g);

/* "stop", "length", "cancelled" or "error". */
const char *generation_finish_name(sac_finish finish);

#endif
