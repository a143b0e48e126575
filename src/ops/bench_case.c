/* bench_case.c: see the header. The shapes are those of files that people run; where a file mixes
 * the types of a matrix over its layers, `down` is listed with both and q, k, v count as one type.
 *
 * The list is the product of shapes and variants without what a shape lacks. */
#include "ops/bench_case.h"

#include <assert.h>
#include <stdio.h>

/* The rate does not depend on the number of outputs of so large a matrix, but its memory does. */
#define OUTPUT_ROWS_MAX 32768u

static const struct bench_shape shapes[] = {
    {"smollm2-135m",
     576,
     1536,
     9,
     3,
     64,
     49152,
     {QUANT_Q4_1, QUANT_Q4_1, QUANT_Q4_1, QUANT_Q4_1, QUANT_Q4_1, QUANT_Q8_0},
     LINEAR_GLU_SILU,
     false},
    {"qwen2.5-coder-0.5b",
     896,
     4864,
     14,
     2,
     64,
     151936,
     {QUANT_Q5_0, QUANT_Q5_0, QUANT_Q5_0, QUANT_Q4_K, QUANT_Q6_K, QUANT_Q8_0},
     LINEAR_GLU_SILU,
     false},
    {"qwen2.5-coder-1.5b",
     1536,
     8960,
     12,
     2,
     128,
     151936,
     {QUANT_Q4_K, QUANT_Q4_K, QUANT_Q4_K, QUANT_Q4_K, QUANT_Q6_K, QUANT_Q6_K},
     LINEAR_GLU_SILU,
     false},
    {"gemma-3-270m",
     640,
     2048,
     4,
     1,
     256,
     262144,
     {QUANT_Q5_0, QUANT_Q4_K, QUANT_Q5_0, QUANT_Q4_K, QUANT_Q6_K, QUANT_Q8_0},
     LINEAR_GLU_GELU,
     false},
    {"llama-3.1-8b",
     4096,
     14336,
     32,
     8,
     128,
     128256,
     {QUANT_Q4_K, QUANT_Q4_K, QUANT_Q4_K, QUANT_Q4_K, QUANT_Q4_K, QUANT_Q4_K},
     LINEAR_GLU_SILU,
     false},
    {"llama-3.1-8b-q8_0",
     4096,
     14336,
     32,
     8,
     128,
     128256,
     {QUANT_Q8_0, QUANT_Q8_0, QUANT_Q8_0, QUANT_Q8_0, QUANT_Q8_0, QUANT_Q8_0},
     LINEAR_GLU_SILU,
     true},
};

#define NARROW(m, n)                                                                               \
    {                                                                                              \
        .op = BENCH_LINEAR, .matrix = m, .rows = ROW_DECODE, .n_row = n                            \
    }
#define WIDE(m)                                                                                    \
    {                                                                                              \
        .op = BENCH_LINEAR, .matrix = m, .rows = ROW_PROMPT, .n_row = BENCH_WIDE_ROWS              \
    }
#define MATRIX(m) NARROW(m, 1), NARROW(m, 4), NARROW(m, 8), WIDE(m)
#define ATTN_WIDE(t, n)                                                                            \
    {                                                                                              \
        .op = BENCH_ATTN, .rows = ROW_PROMPT, .n_row = BENCH_WIDE_ROWS, .n_tok = n, .kv = t        \
    }
#define ATTN_NARROW(t, n)                                                                          \
    {                                                                                              \
        .op = BENCH_ATTN, .rows = ROW_DECODE, .n_row = 1, .n_tok = n, .kv = t                      \
    }
#define ATTN(t)                                                                                    \
    ATTN_WIDE(t, 2048), ATTN_WIDE(t, 8192), ATTN_WIDE(t, 32768), ATTN_NARROW(t, 8192),             \
        ATTN_NARROW(t, 32768)
#define SMALL(o, t)                                                                                \
    {                                                                                              \
        .op = o, .n_row = BENCH_WIDE_ROWS, .kv = t                                                 \
    }

/* `shape` is not set. There is no wide output case: logits are computed for few rows at a time. */
static const struct bench_case variants[] = {
    MATRIX(BENCH_QKV),
    MATRIX(BENCH_O),
    MATRIX(BENCH_GATE_UP),
    MATRIX(BENCH_DOWN),
    MATRIX(BENCH_DOWN_2),
    NARROW(BENCH_OUTPUT, 1),
    NARROW(BENCH_OUTPUT, 4),
    NARROW(BENCH_OUTPUT, 8),
    ATTN(SAC_KV_F16),
    ATTN(SAC_KV_Q8),
    SMALL(BENCH_RMSNORM, SAC_KV_F16),
    SMALL(BENCH_ROPE, SAC_KV_F16),
    SMALL(BENCH_KV_WRITE, SAC_KV_F16),
    SMALL(BENCH_SEAL, SAC_KV_F16),
    SMALL(BENCH_SEAL, SAC_KV_Q8),
};

static bool shape_has(const struct bench_shape *s, const struct bench_case *variant)
{
    if (variant->op != BENCH_LINEAR) return !s->only_linear;
    return variant->matrix != BENCH_DOWN_2 || s->type[BENCH_DOWN_2] != s->type[BENCH_DOWN];
}

bool bench_case_at(size_t i, struct bench_case *out)
{
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            if (!shape_has(&shapes[s], &variants[v]) || i-- > 0) continue;
            *out = variants[v];
            out->shape = &shapes[s];
            return true;
        }
    return false;
}

struct bench_linear bench_case_linear(const struct bench_case *c)
{
    const struct bench_shape *s = c->shape;
    const uint32_t n_q = s->n_head * s->head_dim, n_kv = s->n_kv_head * s->head_dim;
    struct bench_linear l = {.n_in = s->n_embd, .n_part = 1, .type = s->type[c->matrix]};
    assert(c->op == BENCH_LINEAR);
    switch (c->matrix) {
    case BENCH_QKV:
        l.norm = true;
        l.n_part = 3;
        l.n_out[0] = n_q;
        l.n_out[1] = l.n_out[2] = n_kv;
        break;
    case BENCH_O:
        l.n_in = n_q;
        l.n_out[0] = s->n_embd;
        l.epilogue = LINEAR_ADD;
        break;
    case BENCH_GATE_UP:
        l.norm = true;
        l.n_part = 2;
        l.n_out[0] = l.n_out[1] = s->n_ff;
        l.epilogue = s->glu;
        break;
    case BENCH_DOWN:
    case BENCH_DOWN_2:
        l.n_in = s->n_ff;
        l.n_out[0] = s->n_embd;
        l.epilogue = LINEAR_ADD;
        l.kept_x = true;
        break;
    case BENCH_OUTPUT:
        l.norm = true;
        l.n_out[0] = s->n_vocab < OUTPUT_ROWS_MAX ? s->n_vocab : OUTPUT_ROWS_MAX;
        break;
    }
    return l;
}

const char *bench_case_op(const struct bench_case *c)
{
    static const char *const names[] = {"linear", "attn", "rmsnorm", "rope", "kv_write", "seal"};
    return names[c->op];
}

const char *bench_case_mode(const struct bench_case *c)
{
    if (c->op != BENCH_LINEAR && c->op != BENCH_ATTN) return "";
    return c->rows == ROW_PROMPT ? "wide" : "narrow";
}

void bench_case_describe(const struct bench_case *c, char *out, size_t bytes)
{
    static const char *const roles[] = {"qkv", "o", "gate_up", "down", "down", "output"};
    const struct bench_shape *s = c->shape;
    if (c->op == BENCH_LINEAR) {
        const struct bench_linear l = bench_case_linear(c);
        snprintf(out, bytes, "%s %s %u x %u, %u row%s", roles[c->matrix], quant_name(l.type),
                 l.n_in, l.n_out[0] + l.n_out[1] + l.n_out[2], c->n_row, c->n_row > 1 ? "s" : "");
    } else if (c->op == BENCH_ATTN) {
        snprintf(out, bytes, "%s %u+%u heads of %u, %u tokens, %u row%s", sac_kv_type_name(c->kv),
                 s->n_head, s->n_kv_head, s->head_dim, c->n_tok, c->n_row, c->n_row > 1 ? "s" : "");
    } else if (c->op == BENCH_RMSNORM) {
        snprintf(out, bytes, "%u, %u rows", s->n_embd, c->n_row);
    } else if (c->op == BENCH_ROPE) {
        snprintf(out, bytes, "%u heads of %u, %u rows", s->n_head, s->head_dim, c->n_row);
    } else {
        snprintf(out, bytes, "%s%s%u heads of %u, %u rows",
                 c->op == BENCH_SEAL ? sac_kv_type_name(c->kv) : "", c->op == BENCH_SEAL ? " " : "",
                 s->n_kv_head, s->head_dim, c->n_row);
    }
}
