/* bench.h: what the files of `saccade bench` share. */
#ifndef SAC_APP_BENCH_H
#define SAC_APP_BENCH_H

#include "app/sheet.h"

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

/* Measures the limits again and tells on stderr if they are no longer what they were: something
 * else ran meanwhile, and the shares of the limits mean little. */
void bench_check_idle(const char *command, const sac_machine *before);

/* "read 31.0 GB/s, avx512 f32 470 GFLOP/s, ...": what the machine has. */
void bench_describe_machine(char *out, size_t bytes, const sac_machine *m);

/* ---- bench_test.c ---- */

/* What one row measures: `n_prompt` tokens computed in chunks, then `n_gen` steps of one token,
 * behind `depth` tokens that are there already. */
struct bench_test {
    uint32_t n_prompt, n_gen, depth;
    uint32_t n_seq;   /* sequences that decode together; a test without n_gen has one */
    uint32_t n_top;   /* logits that a generated token asks for: the largest; 0: all */
    uint32_t method;  /* index into the engine's decode methods */
    uint32_t prefill; /* the same for its prefill methods; the depth is computed by the first */
};

/* Of all prompt rows, or of all decode rows, of one repetition. */
struct bench_phase {
    double seconds, linear_us, attn_us, other_us;
    double weight_bytes, kv_bytes; /* read; kv: side data of methods included */
    double n_tok_seen, n_tok_read; /* by decode rows */
    double dense_bytes;            /* that dense attention would have read for decode rows */
    double n_cell, n_cell_read;    /* of attention, by prompt rows */
    double plan_us;
};

#define BENCH_REPS_MAX 100u

struct bench_result {
    uint32_t n_rep;
    struct bench_phase prompt[BENCH_REPS_MAX], decode[BENCH_REPS_MAX];
    uint64_t kv_bytes_used; /* at the end, by all sequences */
    sac_tier_stats tier_before, tier_after;
};

/* A sequence that holds the depth of tests. */
struct bench_base {
    sac_seq seq;     /* SAC_SEQ_NONE until a test needs it */
    uint32_t method; /* that it decodes with */
};

/* One engine, and what its tests decode behind. */
struct bench_rig {
    sac_engine *engine;      /* owned */
    sac_sampler *sampler;    /* owned, greedy */
    const sac_model *model;  /* borrowed */
    struct bench_base *base; /* [n_base] owned */
    uint32_t n_base;         /* 1: all sequences of a test share it; else one for each */
    bool fills_noise;        /* the depth is not computed */
};

/* `fills_noise` is the caller's to set behind it; also a rig that could not be opened is closed. */
sac_status bench_rig_open(struct bench_rig *rig, const sac_model *model, uint32_t n_base,
                          const sac_engine_params *params, sac_error *err);
void bench_rig_close(struct bench_rig *rig);
/* Runs a test n_rep times behind a short one that is not counted. SAC_ERR_CANCELLED after Ctrl-C.
 */
sac_status bench_rig_run(struct bench_rig *rig, const struct bench_test *test, uint32_t n_rep,
                         struct bench_result *out, sac_error *err);

/* ---- bench_row.c ---- */

/* All that a row tells beside the measured times. */
struct bench_row {
    const char *model; /* as the user named it */
    sac_model_info info;
    sac_engine_params params;
    const char *isa, *method, *prefill; /* of decode rows, of prompt rows */
    const char *fill;                   /* of the depth: " noise", or "": it was computed */
    bool depth_own;                     /* each sequence has a depth of its own */
    const sac_machine *machine;
    double load_s;
    uint64_t peak_rss; /* bytes; 0: not known */
    struct bench_test test;
    const struct bench_result *result;
};

void bench_row_print(struct sheet *sheet, const struct bench_row *row);

#endif
