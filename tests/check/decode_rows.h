/* decode_rows.h: one sequence whose pages lie on the device, and decode rows at positions of it,
 * for checks of the CUDA library's attention. */
#ifndef SAC_TESTS_DECODE_ROWS_H
#define SAC_TESTS_DECODE_ROWS_H

#include "check_attn.h"
#include "cuda_lib.h"

/* Keys and values are of one type. For sequence_deinit. */
static inline void sequence_open(struct sequence *s, sac_kv_type type, uint32_t n_kv_head,
                                 uint32_t head_dim, uint32_t n_tok, uint64_t seed)
{
    struct workers *one;
    sac_error err;
    must(workers_create(&one, 1, &err), &err);
    sequence_init(s,
                  (struct page_geom){.n_layer = 1,
                                     .n_kv_head = n_kv_head,
                                     .head_dim = head_dim,
                                     .type_k = type,
                                     .type_v = type},
                  n_tok);
    sequence_fill(s, seed);
    sequence_store(s, one, &ref);
    workers_destroy(one);
}

/* `run`: [n_row], a row of the batch each. Their own pages are those of the copy of s->tail that is
 * returned; it and the tables lie there until give_all. */
static inline uint8_t *put_decode_rows(struct attn_run *run, const struct sequence *s,
                                       const uint32_t *pos, uint32_t n_row)
{
    const size_t lane = s->geom.n_kv_head * s->geom.tail_bytes;
    uint8_t *tail = put(s->tail, s->n_page * lane);
    const uint32_t *frame = put(s->table, s->geom.n_kv_head * s->n_page * sizeof *s->table);
    for (uint32_t i = 0; i < n_row; i++) {
        run[i] = sequence_run(s, i, pos[i], 1, ROW_DECODE);
        run[i].own0 = tail + pos[i] / PAGE_TOK * lane;
        run[i].own = run[i].own0 + lane;
        run[i].frame = frame;
    }
    return tail;
}

#endif
