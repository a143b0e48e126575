/* attn.cu: the entry of attention over pages (op_attn): decode runs and prompt runs go to their own
 * kernels; and the staging of segments that both need. */
#include "ops/cuda/attn.cuh"

int attn_form_of(const struct page_geom *g)
{
    if (g->type_k != g->type_v) return -1;
    return g->type_k == SAC_KV_Q8 ? FORM_Q8 : g->type_k == SAC_KV_BF16 ? FORM_BF16 : FORM_F16;
}

size_t attn_segment_bytes(const struct op_attn *op, const struct attn_run *run)
{
    const size_t angles = (size_t)op->rope.n_rot / 2 * sizeof(float);
    return run->n_segment * (sizeof(struct segment_view) + 2 * (angles + STAGE_ALIGN)) +
           STAGE_ALIGN;
}

const struct segment_view *attn_stage_segments(struct cuda_device *d, const struct op_attn *op,
                                               const struct attn_run *run)
{
    if (run->n_segment == 0) return NULL;
    const size_t angles = (size_t)op->rope.n_rot / 2 * sizeof(float);
    void *host;
    void *at = stage_alloc(d, run->n_segment * sizeof(struct segment_view), &host);
    if (!at) return NULL;
    struct segment_view *s = (struct segment_view *)host;
    for (uint32_t i = 0; i < run->n_segment; i++) {
        s[i] = run->segment[i];
        if (!s[i].cos) continue;
        s[i].cos = (const float *)stage_put(d, run->segment[i].cos, angles);
        s[i].sin = (const float *)stage_put(d, run->segment[i].sin, angles);
    }
    return (const struct segment_view *)at;
}

sac_status cuda_attn(struct cuda_device *d, const struct op_attn *op)
{
    const sac_status status = attn_decode(d, op);
    return status == SAC_OK ? attn_prompt(d, op) : status;
}

size_t cuda_attn_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                         uint32_t n_tok_max)
{
    const size_t decode = attn_decode_scratch(geom, n_head, n_row, n_tok_max);
    const size_t prompt = attn_prompt_scratch(geom, n_head, n_row);
    return decode > prompt ? decode : prompt;
}
