/* capacity.h: what the files of `saccade bench capacity` share: the requests, the clock, one trial
 * of a method at a rate, the search for the largest rate, and the report.
 *
 * With a modelled clock, everything depends on the options and the seed alone. Functions that take
 * an error return SAC_ERR_CANCELLED if they were asked to stop. */
#ifndef SAC_APP_CAPACITY_H
#define SAC_APP_CAPACITY_H

#include "app/table_printer.h"

#include "base/strbuf.h"
#include "eval/subjects.h"
#include "eval/traffic.h"

#include "saccade_machine.h"
#include "saccade_tier.h"

/* ---- capacity_load.c: the prompts ---- */

#define CAPACITY_LENGTHS_MAX 32u

/* Prompt lengths in tokens: a list, or a range with uniformly distributed logarithms. */
struct capacity_lengths {
    uint32_t item[CAPACITY_LENGTHS_MAX];
    size_t n;
    bool is_range; /* from item[0] to item[1] */
};

/* Parses "1024:8192" or "512,2048". */
sac_status capacity_lengths_parse(struct capacity_lengths *out, const char *text, sac_error *err);

/* A prompt that hides a number and asks for it. */
struct capacity_prompt {
    int32_t *tok; /* owned, [n_tok] */
    size_t n_tok;
    char *expected; /* owned: the number */
};

struct capacity_load {
    struct capacity_prompt *prompt; /* owned, [n_prompt] */
    size_t n_prompt;
    size_t n_context;  /* contexts with pages of their own: context i uses prompt i % n_prompt,
                          request i uses context i % n_context */
    bool is_cold;      /* prompts are computed on arrival */
    uint32_t n_output; /* tokens per answer */
    uint32_t n_most;   /* tokens of the longest prompt */
    uint64_t n_tok;    /* total of the prompts */
    uint64_t n_all;    /* total of the contexts */
    uint64_t seed;
    double burstiness;
};

struct capacity_load_params {
    const struct capacity_lengths *lengths;
    uint32_t n_prompt, n_context, n_output;
    bool is_cold;
    uint64_t seed;
    double burstiness;
};

sac_status capacity_load_make(struct capacity_load *out, const sac_model *model,
                              const struct capacity_load_params *p, sac_error *err);
void capacity_load_deinit(struct capacity_load *load);

#define CAPACITY_SALT_BYTES 32

/* The request for a context; other fields have defaults. Unless the load is cold, the prompt's
 * whole pages are found in the cache, and its other rows are decode rows. `salt` names the
 * context's pages and must live until the request is submitted. */
sac_request capacity_load_request(const struct capacity_load *load, size_t context_i,
                                  char salt[CAPACITY_SALT_BYTES]);
/* Copies the pages of computed prompts for the contexts beyond them. */
sac_status capacity_load_copy(const struct capacity_load *load, sac_engine *engine, sac_error *err);

/* ---- capacity_clock.c: the clock ---- */

/* The machine's clock, or a model of one that charges time for what an engine counts: bytes of
 * weights and KV cache read, operations of rows, bytes fetched from disk. Nothing overlaps in the
 * model. */
struct capacity_clock {
    bool is_model;
    double read_gb_s, gflop_s, fetch_gb_s; /* speeds of the modelled machine */
    double flop_per_row;
    const sac_engine *engine; /* the engine whose counters are charged, or NULL */
    double idle_us;           /* time in which nothing was computed */
};

/* Attaches an engine and restarts the clock; NULL: detaches it. */
void capacity_clock_use(struct capacity_clock *c, sac_engine *engine);
/* Microseconds; a sac_clock_fn. */
uint64_t capacity_clock_now(void *clock);
/* Waits until then (the model jumps there), or until the wait is interrupted. */
void capacity_clock_wait(struct capacity_clock *c, uint64_t until_us);

/* ---- capacity_trial.c: one method under one load ---- */

typedef bool (*capacity_stop_fn)(void *user);

/* A method that answers the load's prompts on an engine. */
struct capacity_site {
    sac_engine *engine;
    struct capacity_clock *clock;
    const struct capacity_load *load;
    uint32_t prefill_i, decode_i;
    capacity_stop_fn stop;
    void *user;
};

/* The answers of a method without concurrent requests. */
struct capacity_alone {
    int32_t *tok;   /* owned, [n_prompt, n_output] */
    double gap_ms;  /* median time between tokens */
    double n_right; /* prompts whose number was found */
    size_t n_prompt;
};

/* Runs the prompts [first, end) one after the other. */
sac_status capacity_alone_run(struct capacity_alone *out, const struct capacity_site *site,
                              size_t first, size_t end, sac_error *err);
void capacity_alone_deinit(struct capacity_alone *a);

/* Parameters of a trial. */
struct capacity_want {
    double rate;       /* arrivals per second */
    size_t n_request;  /* at least 2 */
    double limit_ms;   /* limit of the 99th percentile of the time between tokens */
    double target_ms;  /* target of the scheduler */
    double wait_ms;    /* limit of the median time until computing begins */
    uint64_t until_us; /* when to give up, by the machine's clock; 0: never */
};

struct capacity_trial {
    struct capacity_want want;
    bool is_kept; /* both limits were kept, and every request was answered */
    bool is_cut;  /* ended when a limit could no longer be kept; the times cover that part */
    bool is_open; /* given up before the limits were kept or broken */
    size_t n_done, n_failed;
    size_t n_differ; /* answers that differ from those without concurrency: must be 0 */
    double p50_ms, p99_ms, most_ms; /* time between tokens */
    double wait_ms, ttft_ms;        /* medians */
    double seconds, tok_s;
    uint32_t n_running_most;
    uint64_t kv_most_tok;  /* maximum tokens of concurrently computed requests */
    uint64_t n_prompt_tok; /* prompt rows computed */
    uint64_t n_preempted, n_hold, n_fetch, n_hit, bytes_fetched;
    struct traffic traffic;
    char error[160]; /* the first request's failure */
};

sac_status capacity_trial_run(struct capacity_trial *out, const struct capacity_site *site,
                              const struct capacity_want *want, const struct capacity_alone *alone,
                              sac_error *err);

/* ---- capacity_search.c: the largest rate ---- */

/* CAPACITY_OPEN: out of time; it ends the search. */
enum capacity_verdict { CAPACITY_KEPT, CAPACITY_BROKEN, CAPACITY_OPEN };

struct capacity_search {
    double start;    /* first rate to try */
    double factor;   /* relative accuracy of the result, above 1 */
    uint32_t n_most; /* maximum number of trials */
    sac_status (*judge)(void *user, double rate, enum capacity_verdict *out, sac_error *err);
    void *user;
};

/* Result of a search. Limits kept at a rate are assumed to be kept at smaller ones. */
struct capacity_found {
    double keeps; /* largest rate known to keep its limits; 0: none */
    double fails; /* smallest rate known not to; INFINITY: none */
    bool is_late; /* out of time: the interval may be wider than intended */
};

sac_status capacity_search_run(struct capacity_found *out, const struct capacity_search *s,
                               sac_error *err);

/* ---- capacity_report.c: output ---- */

enum { CAPACITY_STRICT, CAPACITY_RELAXED, CAPACITY_LIMITS };

/* Settings that all methods share. */
struct capacity_setting {
    const char *model, *lengths;
    sac_engine_params params;
    const struct capacity_load *load;
    const struct capacity_clock *clock;
    double idle_ms, limit_ms[CAPACITY_LIMITS];
    double kv_bytes; /* KV cache per token */
    double factor;   /* accuracy of the search */
};

/* The result of a method. */
struct capacity_result {
    const char *method;
    const struct capacity_alone *alone;
    struct capacity_found found[CAPACITY_LIMITS];
    struct capacity_trial best[CAPACITY_LIMITS]; /* the largest rate that kept its limit, else the
                                                    smallest that did not */
    uint32_t n_trial;
};

/* Marks used in a table, for capacity_legend_print. */
struct capacity_marks {
    bool least, below, between, none, late;
};

void capacity_row_print(struct table_printer *printer, const struct capacity_setting *s,
                        const struct capacity_result *r, struct capacity_marks *marks);
/* Explains the marks, one per line. */
void capacity_legend_print(const struct capacity_marks *marks);

/* A CSV table of all trials, with a header. */
void capacity_trials_begin(struct strbuf *csv);
void capacity_trials_add(struct strbuf *csv, const char *method, bool strict,
                         const struct capacity_setting *s, const struct capacity_trial *t);
/* Plots the time between tokens against the rate, a line per method, from that table. */
sac_status capacity_plot(struct strbuf *out, const struct strbuf *csv, sac_error *err);

#endif
