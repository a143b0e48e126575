/* load.h: what the files of `saccade bench serve` share: a plan of requests, the outcome of each,
 * and the report. Times are in seconds. A plan depends only on its parameters and its seed, so two
 * servers get the same requests at the same times. */
#ifndef SAC_APP_LOAD_H
#define SAC_APP_LOAD_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- load_plan.c ---- */

struct load_params {
    uint64_t seed;
    uint32_t n_chat, n_turn;    /* requests: their product */
    double rate, burstiness;    /* chats that begin in a second (0: all at once); gamma's shape */
    uint32_t n_input, n_output; /* tokens of a turn */
    double range_ratio;         /* lengths are drawn from 1 - it to 1 + it of these */
    uint32_t n_prefix_tok, n_prefix; /* of shared beginnings: tokens of each, how many there are */
    const char *text;                /* [n_text] borrowed; NULL: common words, one token each */
    size_t n_text;
    double bytes_per_tok; /* of `text` */
};

struct load_request {
    uint32_t chat_i, turn_i;
    double arrival_s; /* of a first turn; later ones follow the answer before */
    char *text;       /* what the user says; owned */
    uint32_t n_output;
};

struct load_plan {
    struct load_request *request; /* [n], turns of a chat in a row; owned */
    size_t n;
};

sac_status load_plan_make(struct load_plan *out, const struct load_params *p, sac_error *err);
void load_plan_deinit(struct load_plan *plan);
/* When `n` chats begin: gaps whose mean is one over the rate (0: all at once) and whose shape is
 * the burstiness, scaled so that the last one begins at n / rate. */
void load_plan_arrivals(double *out_s, size_t n, double rate, double burstiness, uint64_t seed);
/* A prompt of about `n_tok` tokens that belongs to no plan; owned by the caller, NULL without
 * memory. */
char *load_plan_other(const struct load_params *p, uint32_t n_tok);

/* ---- load_client.c ---- */

enum load_backend { LOAD_COMPLETIONS, LOAD_CHAT };

/* Whom to ask, and how. */
struct load_target {
    const char *base_url, *model, *api_key; /* api_key: NULL: none */
    enum load_backend backend;
    const char *extra_body; /* a JSON object whose members go into each request, or NULL */
    double temperature;
    bool ignore_eos;
    uint32_t n_running_max; /* 0: no limit */
    double think_s;         /* between an answer and the chat's next turn */
    uint32_t timeout_s;
};

/* What came of one request. */
struct load_sample {
    bool is_done;   /* an answer came to its end */
    char *error;    /* why not; NULL: it is done, or was never sent; owned */
    double start_s; /* since the first arrival could have been */
    double ttft_s;  /* to the first piece of text */
    double e2el_s;  /* to the last piece */
    double *itl_s;  /* [n_itl] between pieces; owned */
    size_t n_itl, itl_capacity;
    uint32_t n_input, n_cached, n_output; /* tokens, as the server counts them */
};

struct load_run {
    struct load_sample *sample; /* [n], in the plan's order; owned */
    size_t n;
    double duration_s;
    uint32_t n_running_most;
};

/* The name of the server's first model; the caller owns it. */
sac_status load_client_model(char **out, const struct load_target *target, sac_error *err);
/* Sends a plan. Requests that fail are samples with an error; SAC_ERR_CANCELLED after Ctrl-C. */
sac_status load_client_run(struct load_run *out, const struct load_target *target,
                           const struct load_plan *plan, sac_error *err);
void load_run_deinit(struct load_run *run);

/* ---- load_stream.c ---- */

/* One stream of events as it comes in, in pieces of any length. */
struct load_stream {
    struct strbuf rest; /* of a line */
    struct strbuf text; /* of the answer so far */
    struct strbuf error;
    bool has_piece, has_usage, is_done, is_broken;
    double last_s; /* when the last piece came, since the request's start */
};

/* `now_s`: since the request's start. False: no memory. */
bool load_stream_take(struct load_stream *s, struct load_sample *sample, const char *data, size_t n,
                      double now_s);
/* Behind the last byte: the sample is done, or its error says why it is not. */
void load_stream_end(struct load_stream *s, struct load_sample *sample);
void load_stream_deinit(struct load_stream *s);

/* ---- load_report.c ---- */

struct load_stat {
    double mean, median, std, p99; /* milliseconds; 0 without a value */
};

/* Limits in milliseconds that a good request meets; 0: none. */
struct load_goodput {
    double ttft_ms, tpot_ms, e2el_ms;
};

struct load_result {
    size_t n_done, n_failed, n_good;
    uint64_t n_input, n_output, n_cached; /* tokens */
    struct load_stat ttft, tpot, itl, e2el;
};

/* Of what a benchmark of vLLM calls by these names; `values` is sorted. */
struct load_stat load_stat_make(double *values, size_t n);
sac_status load_result_make(struct load_result *out, const struct load_run *run,
                            const struct load_goodput *goodput, sac_error *err);

/* All that a report tells. */
struct load_report {
    const struct load_params *params;
    const struct load_target *target;
    const struct load_goodput *goodput;
    const struct load_run *run;
    const struct load_result *result;
    bool detailed; /* JSON: lists with a number for each request */
};

void load_report_text(const struct load_report *r, struct strbuf *out);
sac_status load_report_json(const struct load_report *r, struct strbuf *out, sac_error *err);

#endif
