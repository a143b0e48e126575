/* capacity.h: what the files of `saccade bench capacity` share: the requests, the clock, one trial
 * of a method at a rate, the search for the largest rate, and the report.
 *
 * With a modelled clock, everything depends on the options and the seed alone. Functions that take
 * an error return SAC_ERR_CANCELLED if they were asked to stop. */
#ifndef SAC_APP_CAPACITY_H
#define SAC_APP_CAPACITY_H

#include "app/sheet.h"

#include "base/strbuf.h"
#include "eval/subjects.h"
#include "eval/traffic.h"

#include "saccade_machine.h"
#include "saccade_tier.h"

/* ---- capacity_load.c: what is asked ---- */

#define CAPACITY_LENGTHS_MAX 32u

/* Lengths of prompts in tokens: one of a list, or between two with evenly spread logarithms. */
struct capacity_lengths {
    uint32_t item[CAPACITY_LENGTHS_MAX];
    size_t n;
    bool is_range; /* item[0] to item[1] */
};

/* "1024:8192" or "512,2048"; a message says what is wrong with others. */
sac_status capacity_lengths_parse(struct capacity_lengths *out, const char *text, sac_error *err);

/* A prompt that hides a number and asks for it. */
struct capacity_prompt {
    int32_t *tok; /* [n_tok] owned */
    size_t n_tok;
    char *expected; /* the number; owned */
};

struct capacity_load {
    struct capacity_prompt *prompt; /* [n_prompt] owned */
    size_t n_prompt;
    size_t n_context;  /* pages of their own: context i is prompt i % n_prompt, request i asks with
                          context i % n_context */
    bool is_cold;      /* prompts are computed when they arrive */
    uint32_t n_output; /* tokens of each answer */
    uint32_t n_most;   /* tokens of the longest prompt */
    uint64_t n_tok;    /* of all prompts */
    uint64_t n_all;    /* of all contexts */
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

/* What a request asks with, everything else being the default. Rows of a prompt that fill no page
 * are decode rows, unless it is cold: its other rows are found. `salt` names the context's pages
 * and must live as long as the request is not submitted. */
sac_request capacity_load_request(const struct capacity_load *load, size_t context_i,
                                  char salt[CAPACITY_SALT_BYTES]);
/* Contexts beyond the prompts get pages, copies of those that the prompts have, which were computed
 * before. */
sac_status capacity_load_copy(const struct capacity_load *load, sac_engine *engine, sac_error *err);

/* ---- capacity_clock.c: what time it is ---- */

/* The machine's clock, or one that charges for what an engine has counted: bytes of weights and of
 * keys and values read, operations of rows, bytes fetched from the disk. Nothing of it overlaps. */
struct capacity_clock {
    bool is_model;
    double read_gb_s, gflop_s, fetch_gb_s; /* what the modelled machine can do */
    double flop_per_row;
    const sac_engine *engine; /* whose counters are charged for, or NULL */
    double idle_us;           /* in which nothing was computed */
};

/* The engine's time is this clock's, which begins anew; NULL: there is no engine any more. */
void capacity_clock_use(struct capacity_clock *c, sac_engine *engine);
/* Microseconds; a sac_clock_fn. */
uint64_t capacity_clock_now(void *clock);
/* Waits, or jumps, until then, or until the wait is disturbed. */
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

/* Answers of a method that had the engine for itself. */
struct capacity_alone {
    int32_t *tok;   /* [n_prompt, n_output] owned */
    double gap_ms;  /* median time between tokens */
    double n_right; /* prompts whose number was found */
    size_t n_prompt;
};

/* Asks the prompts [first, end) one after the other. */
sac_status capacity_alone_run(struct capacity_alone *out, const struct capacity_site *site,
                              size_t first, size_t end, sac_error *err);
void capacity_alone_deinit(struct capacity_alone *a);

/* What is wanted of a trial. */
struct capacity_want {
    double rate;       /* requests that arrive in a second */
    size_t n_request;  /* at least 2 */
    double limit_ms;   /* of the 99th percentile of the time between tokens */
    double target_ms;  /* the scheduler's of it */
    double wait_ms;    /* of the median time before computing begins */
    uint64_t until_us; /* when to give up, by the machine's clock; 0: never */
};

struct capacity_trial {
    struct capacity_want want;
    bool is_kept; /* both limits were, and every request was answered */
    bool is_cut; /* it ended as soon as a limit could no more be kept: the times are of that part */
    bool is_open; /* it was given up before its limits were kept or broken */
    size_t n_done, n_failed;
    size_t n_differ; /* answers that are not those of the method alone: there is none */
    double p50_ms, p99_ms, most_ms; /* time between tokens */
    double wait_ms, ttft_ms;        /* medians */
    double seconds, tok_s;
    uint32_t n_running_most;
    uint64_t kv_most_tok;  /* tokens of requests that were computed at once, at most */
    uint64_t n_prompt_tok; /* rows of prompts that were computed */
    uint64_t n_preempted, n_hold, n_fetch, n_hit, bytes_fetched;
    struct traffic traffic;
    char error[160]; /* of the first request that failed */
};

sac_status capacity_trial_run(struct capacity_trial *out, const struct capacity_site *site,
                              const struct capacity_want *want, const struct capacity_alone *alone,
                              sac_error *err);

/* ---- capacity_search.c: the largest rate ---- */

/* CAPACITY_OPEN: there was no time to see; it ends the search. */
enum capacity_verdict { CAPACITY_KEPT, CAPACITY_BROKEN, CAPACITY_OPEN };

struct capacity_search {
    double start;    /* the first rate tried */
    double factor;   /* the answer may be too small by that, above 1 */
    uint32_t n_most; /* trials */
    sac_status (*judge)(void *user, double rate, enum capacity_verdict *out, sac_error *err);
    void *user;
};

/* What a search has found. Limits that are kept at a rate are taken to be kept at smaller ones. */
struct capacity_found {
    double keeps; /* the largest rate known to keep its limits, 0: none */
    double fails; /* the smallest known not to, INFINITY: none */
    bool is_late; /* it ended for want of time, and they may be further apart than they should */
};

sac_status capacity_search_run(struct capacity_found *out, const struct capacity_search *s,
                               sac_error *err);

/* ---- capacity_report.c: what is told ---- */

enum { CAPACITY_STRICT, CAPACITY_RELAXED, CAPACITY_LIMITS };

/* What is the same for all methods. */
struct capacity_setting {
    const char *model, *lengths;
    sac_engine_params params;
    const struct capacity_load *load;
    const struct capacity_clock *clock;
    double idle_ms, limit_ms[CAPACITY_LIMITS];
    double kv_bytes; /* of a token's keys and values */
    double factor;   /* of the search */
};

/* What came of a method. */
struct capacity_result {
    const char *method;
    const struct capacity_alone *alone;
    struct capacity_found found[CAPACITY_LIMITS];
    struct capacity_trial best[CAPACITY_LIMITS]; /* the largest rate that kept its limit, else the
                                                    smallest that did not */
    uint32_t n_trial;
};

/* Marks that a table has used, for capacity_legend_print. */
struct capacity_marks {
    bool least, below, between, none, late;
};

void capacity_row_print(struct sheet *sheet, const struct capacity_setting *s,
                        const struct capacity_result *r, struct capacity_marks *marks);
/* What the marks mean, a line for each. */
void capacity_legend_print(const struct capacity_marks *marks);

/* A table of all trials as comma-separated values, names first. */
void capacity_trials_begin(struct strbuf *csv);
void capacity_trials_add(struct strbuf *csv, const char *method, bool strict,
                         const struct capacity_setting *s, const struct capacity_trial *t);
/* The time between tokens against the rate, a line for each method, from that table. */
sac_status capacity_plot(struct strbuf *out, const struct strbuf *csv, sac_error *err);

#endif
