/* bench_case.h: what the benchmark of operations measures: each operation in the shapes of a few
 * models, as a flat list. Pure tables; bench.c measures. */
#ifndef SAC_OPS_BENCH_CASE_H
#define SAC_OPS_BENCH_CASE_H

#include "ops/ops.h"

#define BENCH_WIDE_ROWS 512u /* rows of a prompt chunk: the engine's default batch */

enum bench_op { BENCH_LINEAR, BENCH_ATTN, BENCH_RMSNORM, BENCH_ROPE, BENCH_KV_WRITE, BENCH_SEAL };

/* The matrices of a layer, and the output projection. DOWN_2: files use two types for `down`, which
 * differ between layers. */
enum bench_matrix { BENCH_QKV, BENCH_O, BENCH_GATE_UP, BENCH_DOWN, BENCH_DOWN_2, BENCH_OUTPUT };

struct bench_shape {
    const char *name;
    uint32_t n_embd, n_ff, n_head, n_kv_head, head_dim, n_vocab;
    enum quant_type type[6]; /* by enum bench_matrix; DOWN_2 equal to DOWN: there is none */
    enum linear_epilogue glu;
    bool only_linear; /* other operations are measured with another shape */
};

struct bench_case {
    const struct bench_shape *shape;
    enum bench_op op;
    enum bench_matrix matrix; /* LINEAR */
    enum row_kind rows;       /* LINEAR, ATTN */
    uint32_t n_row;
    uint32_t n_tok; /* ATTN: tokens of context, the rows included */
    sac_kv_type kv; /* ATTN, SEAL */
};

/* Matrices that one call of op_linear multiplies with. */
struct bench_linear {
    uint32_t n_in, n_part, n_out[LINEAR_PARTS_MAX];
    enum quant_type type;
    enum linear_epilogue epilogue;
    bool norm, kept_x; /* as in op_linear */
};

/* Finds the i-th case; false after the last. Cases that share data (a matrix, a KV type) are
 * neighbours. */
bool bench_case_at(size_t i, struct bench_case *out);
struct bench_linear bench_case_linear(const struct bench_case *c);

/* Descriptions for output: "linear", "wide" or "", "gate_up Q4_K 4096 x 28672, 8 rows". */
const char *bench_case_op(const struct bench_case *c);
const char *bench_case_mode(const struct bench_case *c);
void bench_case_describe(const struct bench_case *c, char *out, size_t bytes);

#endif
