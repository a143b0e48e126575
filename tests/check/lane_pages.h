/* lane_pages.h: sealed pages of random keys, here and on the device, for checks of slots that
 * choose.
 */
#ifndef SAC_TESTS_LANE_PAGES_H
#define SAC_TESTS_LANE_PAGES_H

#include "cuda_lib.h"

#include "base/half.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

enum {
    N_PAGE = 67,
    N_VISIT = 1100, /* rounds of all kinds, and more than are put in order at once */
    N_TOK = N_PAGE * PAGE_TOK,
    DIM = 64,
    GROUP = 3
};

static struct {
    struct page_geom geom;
    uint8_t *frames;
    void *there;
    uint32_t page[N_VISIT]; /* the frames in the order of a sequence */
    void *page_there;
    float q[GROUP][DIM];
    void *q_there;
} p;

/* Sealed pages of random keys, in the place of those before; `bad`: one of them has a NaN. */
static inline void make_pages(uint32_t n_page, sac_kv_type type, bool bad, uint64_t *seed)
{
    p.geom = (struct page_geom){
        .n_layer = 1, .n_kv_head = 1, .head_dim = DIM, .type_k = type, .type_v = type};
    page_geom_init(&p.geom);
    p.frames = realloc(p.frames, n_page * p.geom.bytes);
    uint16_t *tail = malloc(p.geom.tail_bytes);
    assert_true(p.frames && tail);
    for (uint32_t i = 0; i < n_page; i++) {
        for (uint32_t k = 0; k < 2 * PAGE_TOK * DIM; k++) {
            const float x = 3 * random_unit(seed) - 1.5f + (float)(k % DIM) / 20;
            tail[k] = type == SAC_KV_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
        }
        if (bad && i == 5) tail[3 * DIM + 7] = type == SAC_KV_BF16 ? 0x7fc0u : 0x7e00u;
        const uint8_t *from = (const uint8_t *)tail;
        uint8_t *to = p.frames + i * p.geom.bytes;
        memset(to, 0, p.geom.bytes);
        ref.seal(NULL,
                 &(struct op_seal){.geom = &p.geom, .n_page = 1, .tail = &from, .sealed = &to});
        p.page[i] = (i * 29 + 11) % n_page;
    }
    for (uint32_t i = 0; i < GROUP * DIM; i++) p.q[i / DIM][i % DIM] = 2 * random_unit(seed) - 1;
    p.there = put(p.frames, n_page * p.geom.bytes);
    p.page_there = put(p.page, sizeof p.page);
    p.q_there = put(p.q, sizeof p.q);
    free(tail);
}

static inline void free_pages(void)
{
    free(p.frames);
    p.frames = NULL;
}

#endif
