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
    uint32_t n_chat, n_turn;         /* the number of requests is their product */
    double rate, burstiness;         /* chats per second (0: all at once); shape of the gaps */
    uint32_t n_input, n_output;      /* tokens per turn */
    double range_ratio;              /* lengths are drawn from 1 - ratio to 1 + ratio of these */
    uint32_t n_prefix_tok, n_prefix; /* of shared prefixes: tokens of each, and their number */
    const char *text;                /* borrowed, [n_text]; NULL: common words of one token each */
    size_t n_text;
    double bytes_per_tok; /* estimate for `text` */
};

struct load_request {
    uint32_t chat_i, turn_i;
    double arrival_s; /* of a first turn; later turns follow the previous answer */
    char *text;       /* owned: the user's message */
    uint32_t n_output;
};

struct load_plan {
    struct load_request *request; /* owned, [n]; the turns of a chat are consecutive */
    size_t n;
};

sac_status load_plan_make(struct load_plan *out, const struct load_params *p, sac_error *err);
void load_plan_deinit(struct load_plan *plan);
/* Draws the start times of `n` chats from a gamma process with this rate (0: all at once) and
 * burstiness, scaled so that the last one is at n / rate. */
void load_plan_arrivals(double *out_s, size_t n, double rate, double burstiness, uint64_t seed);
/* A prompt of about `n_tok` tokens outside the plan; owned by the caller, NULL: out of memory. */
char *load_plan_other(const struct load_params *p, uint32_t n_tok);

/* ---- load_client.c ---- */

enum load_backend { LOAD_COMPLETIONS, LOAD_CHAT };

/* The server, and how to send requests. */
struct load_target {
    const char *base_url, *model, *api_key; /* api_key NULL: none */
    enum load_backend backend;
    const char *extra_body; /* JSON object merged into each request, or NULL */
    double temperature;
    bool ignore_eos;
    uint32_t n_running_max; /* concurrent requests; 0: no limit */
    double think_s;         /* between an answer and the next turn */
    uint32_t timeout_s;
};

/* The result of a request. */
struct load_sample {
    bool is_done;   /* the answer is complete */
    char *error;    /* owned; NULL: complete, or never sent */
    double start_s; /* since the start of the run */
    double ttft_s;  /* time to the first text */
    double e2el_s;  /* time to the last text */
    double *itl_s;  /* owned, [n_itl]: times between pieces */
    size_t n_itl, itl_capacity;
    uint32_t n_input, n_cached, n_output; /* tokens as reported by the server */
};

struct load_run {
    struct load_sample *sample; /* owned, [n], in the order of the plan */
    size_t n;
    double duration_s;
    uint32_t n_running_most;
};

/* The server's first model; the caller owns the name. */
sac_status load_client_model(char **out, const struct load_target *target, sac_error *err);
/* Runs a plan. Failed requests are samples with an error; SAC_ERR_CANCELLED after Ctrl-C. */
sac_status load_client_run(struct load_run *out, const struct load_target *target,
                           const struct load_plan *plan, sac_error *err);
void load_run_deinit(struct load_run *run);

/* ---- load_stream.c ---- */

/* Parser of an event stream that arrives in pieces. */
struct load_stream {
    struct strbuf rest; /* incomplete line */
    struct strbuf text; /* text of the answer so far */
    struct strbuf error;
    bool has_piece, has_usage, is_done, is_broken;
    double last_s; /* arrival of the last piece since the request's start */
};

/* `now_s`: since the request's start. False: out of memory. */
bool load_stream_take(struct load_stream *s, struct load_sample *sample, const char *data, size_t n,
                      double now_s);
/* Call after the last byte: completes the sample or sets its error. */
void load_stream_end(struct load_stream *s, struct load_sample *sample);
void load_stream_deinit(struct load_stream *s);

/* ---- load_report.c ---- */

struct load_stat {
    double mean, median, std, p99; /* milliseconds; 0 if there are no values */
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

/* Statistics under the names of vLLM's benchmark; `values` is sorted. */
struct load_stat load_stat_make(double *values, size_t n);
sac_status load_result_make(struct load_result *out, const struct load_run *run,
                            const struct load_goodput *goodput, sac_error *err);

/* All contents of a report. */
struct load_report {
    const struct load_params *params;
    const struct load_target *target;
    const struct load_goodput *goodput;
    const struct load_run *run;
    const struct load_result *result;
    bool detailed; /* JSON: include values per request */
};

void load_report_text(const struct load_report *r, struct strbuf *out);
sac_status load_report_json(const struct load_report *r, struct strbuf *out, sac_error *err);

#endif
