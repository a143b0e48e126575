/* saccade_machine.h: the limits of this machine, and how close each operation comes to them.
 *
 * For programs that measure. Programs that answer questions need only saccade.h, whose contract
 * applies here too. Only the functions that replay a load, store noise or copy pages need a model
 * or an engine. */
#ifndef SACCADE_MACHINE_H
#define SACCADE_MACHINE_H

#include "saccade.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The machine ---- */

/* Limits of this machine as measured now, all threads together, in 1e9 per second; a multiply-add
 * is two operations. 0 for an instruction set that the CPU or the operating system lacks. */
typedef struct sac_machine {
    uint32_t n_threads;
    double read_gb_s; /* memory bandwidth, from a buffer larger than the caches */
    double avx2_f32_gflop_s, avx2_int8_gop_s;
    double avx512_f32_gflop_s, avx512_int8_gop_s, avx512_bf16_gflop_s;
    double amx_bf16_gflop_s, amx_int8_gop_s;
    double neon_f32_gflop_s, neon_int8_gop_s;
} sac_machine;

/* Device i for which engines can be created: 0 is the CPU with its instruction set ("cpu avx512"),
 * i is GPU i - 1 ("cuda:0 NVIDIA H100 80GB HBM3"). SAC_ERR_NOT_FOUND after the last; for the first
 * GPU any error says why there is none. Nothing is opened. */
SAC_API SAC_NODISCARD sac_status sac_device_name(char out[160], uint32_t i, sac_error *err);

/* Takes about half a second and needs an idle machine; n_threads 0: one per CPU of the affinity
 * mask. */
SAC_API SAC_NODISCARD sac_status sac_measure_machine(sac_machine *out, uint32_t n_threads,
                                                     sac_error *err);

/* The peak, in 1e9 operations per second, of the fastest arithmetic that the kernels of a set (the
 * `isa` of the engine or bench) may use: for linear layers or for the rest, for prompt rows (wide)
 * or decode rows. `*out_name` gets its name, for example "amx bf16". */
SAC_API double sac_machine_peak(const sac_machine *machine, const char *isa, bool linear, bool wide,
                                const char **out_name);

/* ---- Single operations: how close each kernel comes to the machine's limits ---- */

/* One operation in one shape, from a fixed list: the layers of a few models, on random weights and
 * pages that are in memory but not in caches. Set by sac_op_at, except the last group. */
typedef struct sac_op {
    const char *op;    /* "linear", "attn", "rmsnorm", "rope", "kv_write" or "seal" */
    const char *mode;  /* "wide" (prompt rows), "narrow" (decode rows), "" where both are one */
    const char *shape; /* the model whose shape it is */
    char what[80];     /* matrix or context, and rows */
    double flop;       /* of one call; a multiply-add is two */
    double bytes; /* bytes that must be read: weights, K and V, or the data of a small operation */
    /* Set by sac_op_measure: seconds per call, median and best, and the least that the machine's
     * limits allow, with the name of the binding limit: "read", "amx bf16", ... */
    double seconds, seconds_best, seconds_limit;
    const char *limit;
} sac_op;

/* The i-th operation of the list; false after the last. */
SAC_API bool sac_op_at(size_t i, sac_op *out);

typedef struct sac_op_bench sac_op_bench;
/* Kernels as an engine would select them, on machine->n_threads threads; allocates 512 MiB. */
SAC_API SAC_NODISCARD sac_status sac_op_bench_create(sac_op_bench **out, const sac_machine *machine,
                                                     sac_error *err);
SAC_API void sac_op_bench_free(sac_op_bench *bench);
SAC_API const char *sac_op_bench_isa(const sac_op_bench *bench);
/* Measures the i-th operation for `seconds` or a little longer. */
SAC_API SAC_NODISCARD sac_status sac_op_measure(sac_op_bench *bench, size_t i, double seconds,
                                                sac_op *out, sac_error *err);

/* ---- Replaying a load ---- */

/* Microseconds, starting at 1 or more and never decreasing; called in steps and by sac_submit and
 * sac_run, and may ask for counters. */
typedef uint64_t (*sac_clock_fn)(void *user);

/* Replaces the clock of scheduling and of request timings, for example by that of another machine;
 * NULL: the machine's own. Before the first request. */
SAC_API void sac_engine_use_clock(sac_engine *engine, sac_clock_fn now, void *user);
/* Sets sac_engine_params.tbt_target_ms from the next step on. */
SAC_API SAC_NODISCARD sac_status sac_engine_set_tbt_target(sac_engine *engine, float ms,
                                                           sac_error *err);

/* ---- Contexts without computing them ---- */

/* Appends tokens whose keys and values are noise: a long context in the time that it takes to store
 * it. Output after it is meaningless; what a step reads, fetches and takes is that of a text with
 * flat attention. Everything is done on return, and with tiers in the file. On the CPU only, and
 * not with prefix_cache, record or learn. */
SAC_API SAC_NODISCARD sac_status sac_seq_append_noise(sac_engine *engine, sac_seq seq,
                                                      const int32_t *tok, size_t n, uint64_t seed,
                                                      sac_error *err);
/* Copies pages of a text that the prefix index holds without a salt to new pages, which requests
 * with this salt find: many texts, of which only one was computed. `*out_n` gets the number of
 * tokens copied; less than `n` if the index has no more or the pool has no room. */
SAC_API SAC_NODISCARD sac_status sac_cache_copy(sac_engine *engine, const int32_t *tok, size_t n,
                                                const char *salt, size_t *out_n, sac_error *err);

#ifdef __cplusplus
}
#endif
#endif
