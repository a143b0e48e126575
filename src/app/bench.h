/* bench.h: what the files of `saccade bench` share. */
#ifndef SAC_APP_BENCH_H
#define SAC_APP_BENCH_H

#include "app/table_printer.h"

#include "saccade.h"
#include "saccade_machine.h"
#include "saccade_tier.h"

/* ---- bench_capacity.c ---- */

/* `saccade bench capacity`; argv[0] is its name. Returns the exit code. */
int bench_capacity(int argc, char **argv);

/* ---- bench_mask.c ---- */

/* `saccade bench mask`; argv[0] is its name. Returns the exit code. */
int bench_mask(int argc, char **argv);

/* ---- bench_ops.c ---- */

/* `saccade bench ops`; argv[0] is its name. Returns the exit code. */
int bench_ops(int argc, char **argv);

/* ---- bench_plot.c ---- */

/* `saccade bench plot`; argv[0] is its name. Returns the exit code. */
int bench_plot(int argc, char **argv);

/* ---- bench_prefix.c ---- */

/* `saccade bench prefix`; argv[0] is its name. Returns the exit code. */
int bench_prefix(int argc, char **argv);

/* ---- bench_serve.c ---- */

/* `saccade bench serve`; argv[0] is its name. Returns the exit code. */
int bench_serve(int argc, char **argv);

/* ---- bench_machine.c ---- */

/* Measures the machine's limits again and warns on stderr if they have changed: other programs were
 * running, so shares of the limits are unreliable. */
void bench_check_idle(const char *command, const sac_machine *before);

/* "read 31.0 GB/s, avx512 f32 470 GFLOP/s, ...": the machine's limits. */
void bench_describe_machine(char *out, size_t bytes, const sac_machine *m);

/* ---- bench_test.c ---- */

/* What one row measures: `n_prompt` tokens computed in chunks, then `n_gen` steps of one token,
 * after a context of `depth` tokens. */
struct bench_test {
    uint32_t n_prompt, n_gen, depth;
    uint32_t n_seq;   /* sequences that decode together; 1 if n_gen is 0 */
    uint32_t n_top;   /* number of largest logits per generated token; 0: all */
    uint32_t method;  /* index into the engine's decode methods */
    uint32_t prefill; /* index into its prefill methods; the depth is computed with the first */
};

/* All prompt rows, or all decode rows, of one repetition. */
struct bench_phase {
    double seconds, linear_us, attn_us, other_us;
    double weight_bytes, kv_bytes; /* bytes read; kv includes side data of methods */
    double n_tok_seen, n_tok_read; /* for decode rows */
    double dense_bytes;            /* that dense attention would have read for decode rows */
    double n_cell, n_cell_read;    /* of attention, for prompt rows */
    double plan_us;
};

#define BENCH_REPS_MAX 100u

struct bench_result {
    uint32_t n_rep;
    struct bench_phase prompt[BENCH_REPS_MAX], decode[BENCH_REPS_MAX];
    uint64_t kv_bytes_used; /* at the end, over all sequences */
    sac_tier_stats tier_before, tier_after;
};

/* A sequence that holds the depth of tests. */
struct bench_base {
    sac_seq seq;     /* SAC_SEQ_NONE until a test needs it */
    uint32_t method; /* its decode method */
};

/* An engine and the sequences from which its tests are forked. */
struct bench_rig {
    sac_engine *engine;      /* owned */
    sac_sampler *sampler;    /* owned, greedy */
    const sac_model *model;  /* borrowed */
    struct bench_base *base; /* owned, [n_base] */
    uint32_t n_base;         /* 1: all sequences of a test share it; otherwise one per sequence */
    bool fills_noise;        /* the depth is filled with noise instead of computed */
};

/* The caller sets `fills_noise` afterwards. Close the rig even if this fails. */
sac_status bench_rig_open(struct bench_rig *rig, const sac_model *model, uint32_t n_base,
                          const sac_engine_params *params, sac_error *err);
void bench_rig_close(struct bench_rig *rig);
/* Runs a test n_rep times, after a short warm-up. SAC_ERR_CANCELLED after Ctrl-C. */
sac_status bench_rig_run(struct bench_rig *rig, const struct bench_test *test, uint32_t n_rep,
                         struct bench_result *out, sac_error *err);

/* ---- bench_row.c ---- */

/* The values of a row besides the measured times. */
struct bench_row {
    const char *model; /* as the user named it */
    sac_model_info info;
    sac_engine_params params;
    const char *isa, *method, *prefill; /* of decode rows; of prompt rows */
    const char *fill; /* how the depth was filled: " noise", or "" if it was computed */
    bool depth_own;   /* each sequence computes its own depth */
    const sac_machine *machine;
    double load_s;
    uint64_t peak_rss; /* bytes; 0: unknown */
    struct bench_test test;
    const struct bench_result *result;
};

void bench_row_print(struct table_printer *printer, const struct bench_row *row);

#endif
